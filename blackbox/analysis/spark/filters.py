"""Filters that Spark pushes down, used to skip days, slices, blocks and rows.

Spark filters again, so a reader may return too much, but never too little.
"""

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

from blackbox.analysis.spark.gather import SYMBOL, TOPIC, TYPE, Conditions
from blackbox.archive.files.index_entry import bit_of
from blackbox.errors import ConfigError
from blackbox.feed.feed import Feed
from blackbox.feed.routing.key_rule import key_size
from blackbox.feed.routing.symbol import SymbolRule
from blackbox.timestamps import ns_of

EARLIEST: Final = -(1 << 63)
LATEST: Final = (1 << 63) - 1
CLOCKS: Final = ("ts_event", "ts_out", "ts_recv")
_PARTS: Final = {"topic": TOPIC, "symbol": SYMBOL, "type": TYPE}
_MOST_ALTERNATIVES: Final = 256
"""Maximum number of values of an `IN`, because each distinct topic of a block is compared with all of them."""


class Alternative(NamedTuple):
    """A text that a topic, or part of it, must equal or begin with."""

    part: int
    """TOPIC, SYMBOL or TYPE."""
    exact: bool
    """True if the part must equal the text, not only begin with it."""
    text: bytes

    def prefixes(self, rule: SymbolRule) -> list[tuple[bytes, bool]] | None:
        """Return how matching topics start, each with True if that is the whole topic; None: unknown."""
        if self.part == TYPE:
            return None
        if self.part == TOPIC or not self.exact:
            return [(self.text, self.exact and self.part == TOPIC)]
        return rule.topics_of(self.text)


class Bounds(NamedTuple):
    """Integers from `first` to `last`, both included, limited to `only` if it is given."""

    first: int = EARLIEST
    last: int = LATEST
    only: frozenset[int] | None = None

    def __contains__(self, value: object) -> bool:
        return self.first <= value <= self.last and (self.only is None or value in self.only)  # type: ignore[operator]

    def narrowed(self, each: Filter, values: list[int], unit: int = 1) -> Bounds:
        """Return these bounds narrowed by a filter. `unit`: our units in one of the column's, such as 1,000 in µs."""
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
        """Return first and last as int64."""
        return min(self.first, LATEST), max(self.last, EARLIEST)


class Pushed(NamedTuple):
    """The wanted days, slices, times and topics."""

    date: Bounds = Bounds()
    """Session dates, as ordinals."""
    slice: Bounds = Bounds()
    ts_event: Bounds = Bounds()
    """ns since 1970, like the next two."""
    ts_out: Bounds = Bounds()
    ts_recv: Bounds = Bounds()
    topics: tuple[tuple[Alternative, ...], ...] = ()
    """Groups of alternatives. At least one of each group must hold."""

    @classmethod
    def of(cls, filters: Iterable[Filter]) -> Pushed:
        """Return the conditions of these filters that a reader can use."""
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
        """Return the slices of a feed that may hold wanted messages."""
        found = {number for number in range(len(feed.slices)) if number in self.slice}
        for group in self.topics:
            if (prefixes := _prefixes(group, feed.symbol_rule)) is not None:
                found &= {number for prefix, whole in prefixes for number in _slices_for(feed, prefix, whole)}
        return sorted(found)

    def entries(self, entries: NDArray[Any], feed: Feed, slice_id: int) -> NDArray[numpy.bool_]:
        """Return bool[n]: True for each index entry of a slice that may cover wanted messages."""
        may = numpy.ones(len(entries), bool)
        for clock in CLOCKS:
            first, last = getattr(self, clock).limits()
            may &= (entries[f"max_{clock}"] >= first) & (entries[f"min_{clock}"] <= last)
        for group in self.topics:
            if (keys := _key_bits(group, feed, slice_id)) is not None:
                may &= entries["keys"] & keys != 0
        return may

    def records(self, heads: NDArray[Any]) -> NDArray[numpy.bool_]:
        """Return bool[n]: True for each record that may hold wanted messages, according to its head."""
        may = numpy.ones(len(heads), bool)
        for clock in ("ts_out", "ts_recv"):
            first, last = getattr(self, clock).limits()
            may &= (heads[clock] >= first) & (heads[clock] <= last)
        return may

    def conditions(self) -> Conditions:
        """Return the conditions on topics for compiled code."""
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


def _prefixes(group: tuple[Alternative, ...], rule: SymbolRule) -> list[tuple[bytes, bool]] | None:
    found: list[tuple[bytes, bool]] = []
    for alternative in group:
        prefixes = alternative.prefixes(rule)
        if prefixes is None:
            return None
        found += prefixes
    return found


def _slices_for(feed: Feed, prefix: bytes, whole: bool) -> tuple[int, ...]:
    try:
        return (feed.slice_of(prefix),) if whole else feed.slices_for(prefix)
    except ConfigError:  # no topic can match
        return ()


def _key_bits(group: tuple[Alternative, ...], feed: Feed, slice_id: int) -> numpy.uint64 | None:
    """Return the key bits of such topics in a slice; None if they may have any key."""
    prefixes = _prefixes(group, feed.symbol_rule)
    if prefixes is None:
        return None
    bits = numpy.uint64(0)
    for prefix, whole in prefixes:
        if slice_id not in _slices_for(feed, prefix, whole):
            continue
        key = feed.subscription_of(prefix, whole=whole)
        if len(key) < key_size(feed.key_rule) and not whole:
            return None
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
    return ns_of(value) // 1_000


_NUMBERS: Final[dict[str, tuple[str, int, Callable[[object], int | None]]]] = {
    "date": ("date", 1, _day),
    "slice": ("slice", 1, _whole),
    **{clock: (clock, 1, _whole) for clock in CLOCKS},
    "event_time": ("ts_event", 1_000, _micros),
    "out_time": ("ts_out", 1_000, _micros),
    "recv_time": ("ts_recv", 1_000, _micros),
}
"""By column: the field of `Pushed`, the `unit` of `narrowed`, and the function that converts a value to a number."""
