"""What a report shows of a day. Times are ns since the epoch."""

from __future__ import annotations

import msgspec


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
    """The quotes of one interval that have both sides: ask - bid, in hundredths of a percent of the mid."""

    start_ns: int
    low: float
    """A tenth of the quotes are below."""
    mean: float
    high: float
    """A tenth of the quotes are above."""


class Instrument(msgspec.Struct, frozen=True, kw_only=True):
    """Prices of one symbol."""

    symbol: str
    step_ns: int
    """The length of the intervals."""
    decimals: int
    """Of its prices, as they are written."""
    bars: tuple[Bar, ...]
    spreads: tuple[SpreadPoint, ...]


class Mix(msgspec.Struct, frozen=True, kw_only=True):
    """Messages over time, by type."""

    start_ns: int
    step_ns: int
    kinds: tuple[str, ...]
    """The types, the most frequent first; "" is that of topics that tell none."""
    counts: tuple[tuple[int, ...], ...]
    """For each of the types, messages in each interval."""
    outside: int
    """Messages before or after these intervals, or without a time."""

    @property
    def totals(self) -> list[int]:
        """Messages in each interval."""
        return [sum(column) for column in zip(*self.counts, strict=True)]

    @property
    def stop_ns(self) -> int:
        """The end of the last interval."""
        return self.start_ns + self.step_ns * len(self.counts[0] if self.counts else ())


class Lag(msgspec.Struct, frozen=True, kw_only=True):
    """How long something took."""

    name: str
    messages: int
    negative: int
    """Messages that came before they were sent: two clocks differ."""
    percentiles: tuple[tuple[float, int], ...]
    """(p, ns) by rising p, from 0 to 1: how long it took for that part of the messages at most."""


class Missing(msgspec.Struct, frozen=True, kw_only=True):
    """Messages that were published but are not there."""

    slice_id: int
    key: str
    first: int
    """Sequence number."""
    count: int
    ts_out: int
    """When the message behind them was sent."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All that a page shows."""

    feed: str
    date: str
    schema: str
    time_zone: str
    recording: str
    """Where it lies."""
    clock: str
    """What time the charts are of, in words."""
    messages: int
    symbols: int
    slices: int
    mix: Mix
    instruments: tuple[Instrument, ...]
    prices: str
    """What bars and spreads were made from, or why there are none."""
    lags: tuple[Lag, ...]
    first_ts_out: int
    last_ts_out: int
    gaps: tuple[Missing, ...]
    damage: tuple[str, ...]
    version: str
    """Of blackbox."""
