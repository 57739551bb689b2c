"""The messages of a replay: recordings, topics, slices, times and order, as its settings choose."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from itertools import groupby
from typing import Final, Literal, NamedTuple

import numpy

from blackbox.archive.read.filter import Time, check_range
from blackbox.archive.read.read_ahead import DEPTH
from blackbox.archive.recording import Recording
from blackbox.archive.recordings import Range, Recordings, by_time, check_schemas, distinct, key_rule_of_days, runs_of
from blackbox.errors import ConfigError
from blackbox.feed.routing.prefixes import Prefixes
from blackbox.feed.symbol_choice import TopicChoice, starts_by_slice
from blackbox.replay.slice_numbering import ReplayedFeeds
from blackbox.replay.tables.block_table import BEGINNING, END, BlockTable, Selection, block_tables
from blackbox.replay.tables.market_order import MarketOrder, OutOfOrder
from blackbox.timestamps import is_time_of_day

_MOST_TOPICS: Final = 1 << 24


class Span(NamedTuple):
    """Recordings played as one, and the range of times to play."""

    recordings: tuple[Recording, ...]
    start: int
    stop: int


class Choice(NamedTuple):
    """Settings of a `Replay` that choose messages and their order."""

    start: Time | None
    stop: Time | None
    prefix: Prefixes
    symbols: Iterable[str | bytes] | None
    slices: Iterable[int] | None
    order: Literal["event", "sent"] | None
    pace_by: Literal["ts_event", "ts_out"] | None
    keep_gaps: bool


class Playlist:
    """The chosen messages of recordings, in playing order.

    Attributes: `recordings` by date, their `feeds`, the `slices` (None: all) and `topics` to play, the time `pace_by`
    that is market time, and `spans`, the ranges to play one after another.
    """

    def __init__(self, recordings: Recording | Iterable[Recording], choice: Choice) -> None:
        """Choose. Raises as `Replay`."""
        given = (recordings,) if isinstance(recordings, Recording) else tuple(recordings)
        for each in given:
            if not isinstance(each, Recording):
                raise TypeError(f"a replay was given {recordings!r}, expected Recording.open(path), or several")
        given = distinct(given)
        if not given:
            raise ConfigError("a replay was given no recording, expected at least one")
        check_schemas(given)
        self._key_rule = key_rule_of_days(given)
        self.feeds = ReplayedFeeds(recordings if isinstance(recordings, Recordings) else given)
        self.topics = _topics_of(given, choice)
        self.slices = self._chosen_slices(given, choice.slices)
        place = self.feeds.names.index  # at equal times, feeds are in the order given, for both values of `order`
        self.recordings = tuple(sorted(given, key=lambda recording: (recording.date, place(recording.feed.name))))
        _check_order(choice)
        order = "sent" if choice.keep_gaps else choice.order
        has_times = (recording.time_range("ts_event")[1] > 0 for recording in given)
        self.pace_by = choice.pace_by or ("ts_event" if order == "event" or any(has_times) else "ts_out")
        self._is_in_market_order = order == "event" or (order is None and self.pace_by == "ts_event")
        start, stop = choice.start, choice.stop
        is_daily = is_time_of_day(start) or is_time_of_day(stop)
        days = groupby(self.recordings, key=lambda recording: recording.date if is_daily else None)
        self.spans = [self._span(tuple(each), start, stop) for _, each in days]
        self.start, self.stop = self.spans[0].start, self.spans[-1].stop

    def _chosen_slices(self, given: tuple[Recording, ...], slices: Iterable[int] | None) -> tuple[int, ...] | None:
        if slices is not None and len(self.feeds.names) > 1:
            raise ConfigError(f"slices were given for a replay of the feeds {self.feeds.names}, expected one feed")
        chosen = None if slices is None else tuple(slices)
        there = min(len(recording.feed.slices) for recording in given)
        if unknown := sorted(set(chosen or ()).difference(range(there))):
            raise ValueError(f"slices had {unknown[0]}, expected 0 to {there - 1}")
        if (symbols := self.topics.symbols) is None or len(self.feeds.names) > 1:
            return chosen
        holding = {slice_id for recording in given for slice_id in starts_by_slice(recording.feed, symbols.starts)}
        return tuple(sorted(holding.intersection(range(there) if chosen is None else chosen)))

    def _span(self, recordings: tuple[Recording, ...], start: Time | None, stop: Time | None) -> Span:
        start_ns = BEGINNING if start is None else self._time(recordings, recordings[0], start)
        stop_ns = END if stop is None else self._time(recordings, recordings[-1], stop)
        check_range(start, stop, start_ns, stop_ns)
        return Span(recordings, start_ns, stop_ns)

    def _time(self, recordings: tuple[Recording, ...], chosen: Recording, given: Time) -> int:
        zones = sorted({recording.feed.time_zone for recording in recordings})
        if len(zones) > 1 and isinstance(given, str):
            raise ConfigError(f"time {given!r} is another in each of the time zones {zones}, expected ns or a datetime")
        starts = sorted({str(recording.feed.day_start) for recording in recordings})
        if len(starts) > 1 and is_time_of_day(given):
            raise ConfigError(
                f"time {given!r} is of another date in each of the sessions that start at {starts}, "
                "expected text with a date, ns or a datetime"
            )
        return chosen.time(given, self.pace_by)

    def recorded_range(self) -> tuple[int, int]:
        """Return the first and last recorded market time."""
        ranges = [recording.time_range(self.pace_by) for recording in self.recordings]
        known = [(low, high) for low, high in ranges if high >= low]
        return min((low for low, _ in known), default=0), max((high for _, high in known), default=0)

    def market_range(self) -> tuple[int, int]:
        """Return the first and last market time to play."""
        low, high = self.recorded_range()
        start = max(low, self.start)
        return start, max(start, min(high, self.stop - 1))

    def epochs_outside(self, spans: Iterable[Span]) -> frozenset[tuple[int, int]]:
        """Return slice and epoch of the epochs with messages outside these spans."""
        found = set()
        for recordings, start, stop in spans:
            for recording in recordings:
                first = self.feeds.first_slice(recording)
                for slice_id, segments in recording.segments.of():
                    for segment in segments:
                        entries = segment.entries[segment.entries["records"] > 0]
                        low, high = (entries[f"{name}_{self.pace_by}"] for name in ("min", "max"))
                        epochs = numpy.unique(entries["epoch"][(low < start) | (high >= stop)])
                        found |= {(slice_id + first, epoch) for epoch in epochs.tolist()}
        return frozenset(found)

    def tables(
        self, span: Span, out_of_order: OutOfOrder, *, in_sequence: bool, is_measured: bool
    ) -> Generator[BlockTable, None, None]:
        """Yield the blocks of a span. `in_sequence`: the order of messages of different slices matters."""
        recordings, start, stop = span
        selection = Selection(self._key_rule, self.topics, self.pace_by, start, stop)
        times = None if start == BEGINNING else start, None if stop == END else stop
        wanted = Range(self.topics.prefix, *times, self.slices)
        if self._is_in_market_order:
            ordered = by_time(recordings, wanted)
            is_merged = in_sequence and len(ordered.slices) > 1
            is_in_several = len(set(ordered.slices)) < len(ordered.slices)  # a slice is in several recordings
            if not ordered.is_in_order or is_merged or is_in_several:
                # Twice the feeds' maximum, because a subscriber continues beyond it.
                topics = 2 * sum(part.feed.max_topics * len(part.feed.slices) for part in self.recordings)
                most = min(topics, _MOST_TOPICS)
                return MarketOrder(ordered, selection, self.feeds, most, out_of_order).tables()
        # Kept: waiting tables and the current one. Earlier ones are done.
        runs = runs_of(recordings, wanted, self.pace_by, bodies="unpacked", kept=DEPTH + 1)
        return block_tables(runs, selection, self.feeds, is_measured=is_measured)


def _topics_of(recordings: tuple[Recording, ...], choice: Choice) -> TopicChoice:
    """Return the topics to play. Raises ConfigError if they cannot be chosen in all feeds, or with `keep_gaps`."""
    prefix, symbols = choice.prefix, choice.symbols
    rules = list(dict.fromkeys(recording.feed.symbol_rule for recording in recordings))
    if symbols is not None and len(rules) > 1:
        raise ConfigError(
            f"symbols were given for feeds of the symbol rules {rules[0]} and {rules[1]}, expected one rule: choose "
            "topics by prefix"
        )
    topics = TopicChoice.of(recordings[-1].feed, prefix, symbols)
    if choice.keep_gaps and not topics.takes_all:
        raise ConfigError(
            f"keep_gaps was set with prefix {prefix!r} and symbols {symbols!r}, expected neither: messages "
            "that are left out would look like gaps"
        )
    return topics


def _check_order(choice: Choice) -> None:
    order, pace_by = choice.order, choice.pace_by
    if pace_by not in (None, "ts_event", "ts_out"):
        raise ValueError(f"pace_by was {pace_by!r}, expected 'ts_event' or 'ts_out'")
    if order not in (None, "event", "sent"):
        raise ValueError(f"order was {order!r}, expected 'event' or 'sent'")
    if order == "event" and pace_by == "ts_out":
        raise ValueError("pace_by was 'ts_out' with order 'event', expected 'ts_event': that time only goes forward")
    if order == "event" and choice.keep_gaps:
        raise ConfigError("keep_gaps was set with order 'event', expected 'sent': gaps stand between neighbours")
