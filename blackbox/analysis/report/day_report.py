"""The figures of a recorded day shown on its page. Times are ns since 1970."""

from __future__ import annotations

from typing import Final

import msgspec

BASIS_POINTS: Final = "basis points of the mid"
PRICE: Final = "price"


class Bar(msgspec.Struct, frozen=True):
    """The trades of one interval."""

    start_ns: int
    open: float
    high: float
    low: float
    close: float
    volume: float
    trades: int


class SpreadPoint(msgspec.Struct, frozen=True):
    """The spreads of one interval: ask - bid of quotes with both sides, in the unit of the instrument's spreads."""

    start_ns: int
    low: float
    """The 10th percentile."""
    mean: float
    high: float
    """The 90th percentile."""


class Instrument(msgspec.Struct, frozen=True, kw_only=True):
    """Prices of one symbol."""

    symbol: str
    step_ns: int
    """Length of the intervals."""
    decimals: int
    """Decimals to show prices with."""
    bars: tuple[Bar, ...]
    spreads: tuple[SpreadPoint, ...]
    spread_unit: str = BASIS_POINTS
    """Unit of the spreads: basis points, or the price if some mid is zero or below."""


class Mix(msgspec.Struct, frozen=True, kw_only=True):
    """Messages over time, by type."""

    start_ns: int
    step_ns: int
    kinds: tuple[str, ...]
    """Message types, the most frequent first; "" for topics without a type."""
    counts: tuple[tuple[int, ...], ...]
    """For each type, the messages of each interval."""
    outside: int
    """Messages outside of these intervals or without a time."""

    @property
    def totals(self) -> list[int]:
        """Return the messages of each interval."""
        return [sum(column) for column in zip(*self.counts, strict=True)]

    @property
    def stop_ns(self) -> int:
        """Return the end of the last interval."""
        return self.start_ns + self.step_ns * len(self.counts[0] if self.counts else ())


class Lag(msgspec.Struct, frozen=True, kw_only=True):
    """The distribution of a lag."""

    name: str
    messages: int
    negative: int
    """Messages with a negative lag, because the two clocks differ."""
    percentiles: tuple[tuple[float, int], ...]
    """(p, ns) by rising p from 0 to 1: the fraction p of the messages had at most this lag."""


class Missing(msgspec.Struct, frozen=True, kw_only=True):
    """A gap: messages that were published but not recorded."""

    slice_id: int
    first: int
    """The first missing sequence number."""
    count: int
    ts_out: int
    """When the next message after the gap was sent."""


class DayReport(msgspec.Struct, frozen=True, kw_only=True):
    """All figures of a page."""

    feed: str
    date: str
    schema: str
    time_zone: str
    recording: str
    """Its directory."""
    clock: str
    """Description of the clock that the charts use."""
    messages: int
    symbols: int
    slices: int
    mix: Mix
    instruments: tuple[Instrument, ...]
    prices: str
    """Description of the source of bars and spreads, or of why they are missing."""
    left_out: tuple[tuple[int, str], ...] = ()
    """Numbers of messages of trades that are in no bar, each with the reason."""
    lags: tuple[Lag, ...]
    first_ts_out: int
    last_ts_out: int
    gaps: tuple[Missing, ...]
    damage: tuple[str, ...]
    version: str
    """Of blackbox."""
