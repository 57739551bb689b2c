"""What a query's filters let a reader pass over. Spark checks them again, so too much may be read, never too little."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

import numpy
from numpy.typing import NDArray
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from blackbox.errors import ConfigError
from blackbox.feed import Feed
from blackbox.journal.columns import SYMBOL, TOPIC, TYPE, Conditions
from blackbox.journal.record import bit_of

EARLIEST: Final = -(1 << 63)
LATEST: Final = (1 << 63) - 1
CLOCKS: Final = ("ts_event", "ts_out", "ts_recv")
_PARTS: Final = {"topic": TOPIC, "symbol": SYMBOL, "type": TYPE}
_MOST_ALTERNATIVES: Final = 256
"""More than that of one `IN` are left to Spark: each distinct topic of a block is compared with all."""
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class Alternative(NamedTuple):
    """One thing that a topic may be."""

    part: int
    """TOPIC, SYMBOL or TYPE."""
    exact: bool
    """Whether it is all of that part, or begins it."""
    text: bytes

    def prefixes(self) -> list[tuple[bytes, bool]] | None:
        """What such topics begin with, and whether that is all of them; None: with anything."""
        if self.part == TYPE:
            return None
        if self.part == TOPIC or not self.exact:
            return [(self.text, self.exact and self.part == TOPIC)]
        found = [(self.text + b".", False)]
        return found if b"." in self.text else [*found, (self.text, True)]


class Bounds(NamedTuple):
    """Whole numbers from `first` to `last`, both of them too; if `only` is given, of these alone."""

    first: int = EARLIEST
    last: int = LATEST
    only: frozenset[int] | None = None

    def __contains__(self, value: object) -> bool:
        return self.first <= value <= self.last and (self.only is None or value in self.only)  # type: ignore[operator]

    def narrowed(self, each: Filter, values: list[int], unit: int = 1) -> Bounds:
        """These, as far as `each` holds for what a column shows in units of so many."""
        low, high = unit * min(values), unit * max(values) + unit - 1
        if isinstance(each, GreaterThanOrEqual):
            return self._replace(first=max(self.first, low))
        if isinstance(each, GreaterThan):
            return self._replace(first=max(self.first, high + 1))
        if isinstance(each, LessThanOrEqual):
            return self._replace(last=min(self.last, high))
        if isinstance(each, LessThan):
            return self._replace(last=min(self.last, low - 1))
        only = self.only
        if unit == 1:
            only = frozenset(values) if only is None else only & frozenset(values)
        return Bounds(max(self.first, low), min(self.last, high), only)

    def limits(self) -> tuple[int, int]:
        """The first and the last one, as int64."""
        return min(self.first, LATEST), max(self.last, EARLIEST)


class Pushed(NamedTuple):
    """Which days, slices, times and topics are wanted."""

    date: Bounds = Bounds()
    """Ordinals of session dates."""
    slice: Bounds = Bounds()
    ts_event: Bounds = Bounds()
    """ns since the epoch, as the next two."""
    ts_out: Bounds = Bounds()
    ts_recv: Bounds = Bounds()
    topics: tuple[tuple[Alternative, ...], ...] = ()
    """Of each group one must hold."""

    @classmethod
    def of(cls, filters: Iterable[Filter]) -> Pushed:
        """What can be made use of."""
        pushed = cls()
        for each in filters:
            pushed = pushed._and(each)
        return pushed

    def _and(self, each: Filter) -> Pushed:
        if not isinstance(each, _COMPARISONS) or len(each.attribute) != 1:
            return self
        name = each.attribute[0].lower()
        told = each.value if isinstance(each, In) else (each.value,)
        values = [value for value in told if value is not None]
        if not values:
            return self
        if name in _PARTS:
            return self._and_topic(_PARTS[name], each, values)
        field, unit, number_of = _NUMBERS.get(name, ("", 1, _whole))
        numbers = [number for value in values if (number := number_of(value)) is not None]
        if not field or isinstance(each, StringStartsWith) or len(numbers) < len(values):
            return self
        narrowed: dict[str, Any] = {field: getattr(self, field).narrowed(each, numbers, unit)}
        return self._replace(**narrowed)

    def _and_topic(self, part: int, each: Filter, values: list[Any]) -> Pushed:
        usable = isinstance(each, EqualTo | EqualNullSafe | In | StringStartsWith)
        if not usable or len(values) > _MOST_ALTERNATIVES or not all(isinstance(value, str) for value in values):
            return self
        exact = not isinstance(each, StringStartsWith)
        return self._replace(topics=(*self.topics, tuple(Alternative(part, exact, value.encode()) for value in values)))

    def slices_of(self, feed: Feed) -> list[int]:
        """The slices of a feed that may hold such messages."""
        found = {number for number in range(len(feed.slices)) if number in self.slice}
        for group in self.topics:
            if (prefixes := _prefixes(group)) is not None:
                found &= {number for prefix, whole in prefixes for number in _slices_for(feed, prefix, whole)}
        return sorted(found)

    def entries(self, entries: NDArray[Any], feed: Feed, slice_id: int) -> NDArray[numpy.bool_]:
        """bool[n]: which index entries of a slice may tell of such messages."""
        may = numpy.ones(len(entries), bool)
        for clock in CLOCKS:
            first, last = getattr(self, clock).limits()
            may &= (entries[f"max_{clock}"] >= first) & (entries[f"min_{clock}"] <= last)
        for group in self.topics:
            if (keys := _key_bits(group, feed, slice_id)) is not None:
                may &= entries["keys"] & keys != 0
        return may

    def records(self, heads: NDArray[Any]) -> NDArray[numpy.bool_]:
        """bool[n]: which records may hold such messages, as far as their heads show."""
        may = numpy.ones(len(heads), bool)
        for clock in ("ts_out", "ts_recv"):
            first, last = getattr(self, clock).limits()
            may &= (heads[clock] >= first) & (heads[clock] <= last)
        return may

    def conditions(self) -> Conditions:
        """The topics, for compiled code."""
        flat = [alternative for group in self.topics for alternative in group]
        return Conditions(
            numpy.cumsum([0, *map(len, self.topics)], dtype=numpy.int64),
            numpy.array([each.part for each in flat], numpy.uint8),
            numpy.array([each.exact for each in flat], numpy.uint8),
            numpy.cumsum([0, *(len(each.text) for each in flat)], dtype=numpy.int64),
            numpy.frombuffer(bytearray(b"".join(each.text for each in flat) or b"\0"), numpy.uint8),
        )


_COMPARISONS: Final = (
    EqualTo,
    EqualNullSafe,
    In,
    GreaterThan,
    GreaterThanOrEqual,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)


def _prefixes(group: tuple[Alternative, ...]) -> list[tuple[bytes, bool]] | None:
    found: list[tuple[bytes, bool]] = []
    for alternative in group:
        prefixes = alternative.prefixes()
        if prefixes is None:
            return None
        found += prefixes
    return found


def _slices_for(feed: Feed, prefix: bytes, whole: bool) -> tuple[int, ...]:
    try:
        return (feed.slice_of(prefix),) if whole else feed.slices_for(prefix)
    except ConfigError:  # no topic is so
        return ()


def _key_bits(group: tuple[Alternative, ...], feed: Feed, slice_id: int) -> numpy.uint64 | None:
    """The bits of the keys of such topics in a slice; None: of all keys."""
    prefixes = _prefixes(group)
    if prefixes is None:
        return None
    bits = numpy.uint64(0)
    for prefix, whole in prefixes:
        if slice_id not in _slices_for(feed, prefix, whole):
            continue
        if len(prefix) < feed.key_bytes and not whole:
            return None
        key = prefix[: feed.key_bytes]
        text = numpy.frombuffer(bytearray(key or b"\0"), numpy.uint8)
        bits |= numpy.uint64(bit_of(text.ctypes.data, len(key)))
    return bits


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _day(value: object) -> int | None:
    return value.toordinal() if type(value) is datetime.date else None


def _micros(value: object) -> int | None:
    if not isinstance(value, datetime.datetime) or value.tzinfo is None:
        return None
    since = value - _EPOCH  # exact: a float of seconds would not be
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


_NUMBERS: Final[dict[str, tuple[str, int, Callable[[object], int | None]]]] = {
    "date": ("date", 1, _day),
    "slice": ("slice", 1, _whole),
    **{clock: (clock, 1, _whole) for clock in CLOCKS},
    "event_time": ("ts_event", 1_000, _micros),
    "out_time": ("ts_out", 1_000, _micros),
    "recv_time": ("ts_recv", 1_000, _micros),
}
"""Of a column: the bounds that it narrows, its unit in theirs, and what makes a number of a value."""
