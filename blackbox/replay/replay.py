"""Replay recordings: in order, paced or at full speed, to a publisher or to callbacks in this process."""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from datetime import timedelta
from itertools import groupby
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol, TypedDict

import msgspec
import numpy

from blackbox.archive.read.filter import Time, check_options, check_range
from blackbox.archive.read.read_ahead import DEPTH, read_ahead
from blackbox.archive.read.read_by_time import ByTime
from blackbox.archive.read.reader import UNCHECKED
from blackbox.archive.recording import Recording
from blackbox.archive.recordings import (
    Recordings,
    by_time,
    check_one_schema,
    check_schemas,
    distinct,
    key_rule_of_days,
    runs_of,
)
from blackbox.errors import ConfigError
from blackbox.feed.routing.prefixes import Prefixes
from blackbox.feed.symbol_choice import TopicChoice, starts_by_slice
from blackbox.receive.callbacks.timers import Timers
from blackbox.receive.deliver.worker_state import NEVER
from blackbox.replay.controls import Action, Controls, Grant
from blackbox.replay.play.to_wire import PublisherPlayer
from blackbox.replay.schedule import NO_LIMIT
from blackbox.replay.slice_numbering import ReplayedFeeds
from blackbox.replay.tables.block_table import BEGINNING, END, BlockTable, Selection, block_tables, warm_up_tables
from blackbox.replay.tables.market_order import MarketOrder, OutOfOrder
from blackbox.timestamps import datetime_of, is_time_of_day

if TYPE_CHECKING:
    from blackbox.publish.publisher import Publisher

log = logging.getLogger("blackbox")

_MOST_TOPICS: Final = 1 << 24
_TO_THE_END: Final = NEVER - 1
_CACHE_BYTES: Final = 4 << 20
"""Size of the groups in which blocks are checked, then played, while they are in the cache."""


class Player(Protocol):
    """Receiver of a replay's blocks."""

    @property
    def in_sequence(self) -> bool:
        """True if the order of messages of different slices matters."""

    @property
    def reads_ahead(self) -> bool:
        """True if another thread may read ahead: not if Python runs for every message."""

    @property
    def checks_blocks(self) -> bool:
        """True if `play` checks and measures unchecked blocks itself."""

    def play(self, table: BlockTable, start: int, stop: int) -> None:
        """Play those of blocks `[start, stop)` that are valid and have messages to play."""

    def begin(
        self, skipped: frozenset[tuple[int, int]], before: Iterable[BlockTable] | None = None, start_ns: int = BEGINNING
    ) -> None:
        """Prepare to play.

        `skipped`: slice and epoch of each epoch with messages that are not played. `before`: all messages before
        `start_ns`, from which the callbacks' order books are built.
        """

    def jump(self, *, is_back: bool) -> None:
        """Prepare for a block that does not follow the last one. `is_back`: messages may be repeated."""

    def finish(self, stop_ns: int) -> None:
        """Handle the end of all messages before a time; END: the end of the recordings."""


class ReplayStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of a replay. Messages played again, after a seek or in a loop, are counted again."""

    messages: int
    """Messages played."""
    blocks: int
    """Blocks played completely; a block gathered from several counts as one."""
    body_bytes: int
    """Size of these blocks' bodies, decompressed."""
    seconds: float
    """Elapsed time."""
    market_seconds: float
    """Market time played."""
    damaged: int
    """Messages left out because their block was damaged."""
    late: int = 0
    """Messages recorded after later ones of their slice, and played at their `ts_event`."""
    misplaced: int = 0
    """Messages still played after later ones, because the recording's index did not show them in time."""

    @property
    def times_faster(self) -> float:
        """Market time divided by elapsed time."""
        return self.market_seconds / self.seconds if self.seconds else 0.0


class ReplaySettings(TypedDict, total=False):
    """Keywords of `Replay`, also accepted by `Subscriber.replay`."""

    speed: float | None
    start: Time | None
    stop: Time | None
    prefix: Prefixes
    symbols: Iterable[str | bytes] | None
    slices: Iterable[int] | None
    order: Literal["event", "sent"] | None
    pace_by: Literal["ts_event", "ts_out"] | None
    max_silence: float | timedelta | None
    keep_gaps: bool
    books: bool
    loops: int
    controls: Controls | None


class _Span(NamedTuple):
    """Recordings played as one, and the range of times to play."""

    recordings: tuple[Recording, ...]
    start: int
    stop: int


class Replay:
    """Recordings to replay, by `publish` or `Subscriber.replay`; `controls` pause, seek and pace it.

    It can run several times, each time from the beginning, until its controls are stopped.

    By default messages are in market order (`ts_event`), over all slices and recordings. Messages of equal times are
    ordered by feed, as given, then by slice, and within a slice as published; send times have no influence. A message
    without a time follows the one before it in its slice. Without an earlier time, it is played at the latest when it
    was sent. Used by one thread at a time; the controls by any.
    """

    def __init__(
        self,
        recordings: Recording | Iterable[Recording],
        *,
        speed: float | None = None,
        start: Time | None = None,
        stop: Time | None = None,
        prefix: Prefixes = b"",
        symbols: Iterable[str | bytes] | None = None,
        slices: Iterable[int] | None = None,
        order: Literal["event", "sent"] | None = None,
        pace_by: Literal["ts_event", "ts_out"] | None = None,
        max_silence: float | timedelta | None = None,
        keep_gaps: bool = False,
        books: bool = False,
        loops: int = 1,
        controls: Controls | None = None,
    ) -> None:
        """Settings. Nothing is read before it runs.

        Args:
            recordings: one, or several that are played as one, in time order. Duplicates are played once.
            speed: seconds of market time per second; None: unlimited. Change it by `controls.speed`.
            start: the first time to play, by `pace_by`; see `Recording.time`. A time of day applies to each day.
            stop: the end of the times, exclusive, likewise.
            prefix: only messages whose topics start with it, or with one of several.
            symbols: only messages of exactly these symbols, see `Subscriber.on`.
            slices: only these slices.
            order: "event": by the venue's time. "sent": block by block as sent, slices merged. Default: the venue's
                time, if messages have one and `pace_by` is not "ts_out".
            pace_by: the time that is market time: the venue's or the publisher's. Default: the venue's if messages
                have one.
            max_silence: longest silence of market time, in seconds or a `timedelta`. Longer ones are shortened.
            keep_gaps: when publishing, skip the sequence numbers that are missing in the recording. Subscribers then
                see the recorder's gaps, and one where a time range excludes blocks between others. By default sequences
                are consecutive. Cannot be combined with a prefix or symbols; implies order "sent".
            books: before playing from `start`, or after a seek, build the order books of `Subscriber.book` from the
                beginning of the recordings (of each day, for a time of day). Other callbacks do not get these messages.
                A stop or seek interrupts it; a paused replay pauses after it.
            loops: number of repetitions; 0: until it is stopped.
            controls: your own controls, instead of `speed` and `max_silence`.

        Raises:
            ConfigError: there is no recording, they do not fit together (see `Recordings`), or settings contradict.
            ValueError: a value is out of range.
        """
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
        if slices is not None and len(self.feeds.names) > 1:
            raise ConfigError(f"slices were given for a replay of the feeds {self.feeds.names}, expected one feed")
        self.slices = None if slices is None else tuple(slices)
        self.topics = _topics_of(given, prefix, symbols)
        """Topics to play."""
        if keep_gaps and not self.topics.takes_all:
            raise ConfigError(
                f"keep_gaps was set with prefix {prefix!r} and symbols {symbols!r}, expected neither: messages "
                "that are left out would look like gaps"
            )
        there = min(len(recording.feed.slices) for recording in given)
        if unknown := sorted(set(self.slices or ()).difference(range(there))):
            raise ValueError(f"slices had {unknown[0]}, expected 0 to {there - 1}")
        if (choice := self.topics.symbols) is not None and len(self.feeds.names) == 1:
            holding = {slice_id for recording in given for slice_id in starts_by_slice(recording.feed, choice.starts)}
            self.slices = tuple(sorted(holding.intersection(range(there) if self.slices is None else self.slices)))
        place = self.feeds.names.index  # at equal times, feeds are in the order given, for both values of `order`
        self.recordings = tuple(sorted(given, key=lambda recording: (recording.date, place(recording.feed.name))))
        if loops < 0:
            raise ValueError(f"loops was {loops}, expected 0 or more")
        if controls is not None and (speed is not None or max_silence is not None):
            raise ValueError("controls were given together with a speed or max_silence, expected one of the two")
        self.controls = controls or Controls(speed, max_silence)
        _check_order(order, pace_by, keep_gaps)
        if keep_gaps:
            order = "sent"
        self._pace_by = pace_by or ("ts_event" if order == "event" else self._usual_clock())
        self._order = order or ("event" if self._pace_by == "ts_event" else "sent")
        self._spans = [self._span(each, start, stop) for each in self._played_together(start, stop)]
        self._start, self._stop = self._spans[0].start, self._spans[-1].stop
        self._keep_gaps, self.builds_books = keep_gaps, books
        self._loops = loops
        self._messages = self._blocks = self._body_bytes = self._damaged = 0
        self._market_ns = 0
        self._position_ns = 0
        self._out_of_order = OutOfOrder()
        self._played_to = BEGINNING
        """The highest time played since time last went back."""
        self._seconds = 0.0

    def publish(self, publisher: Publisher) -> ReplayStatistics:
        """Publish as if live: `ts_out` is the time of sending, so subscribers cannot tell the difference.

        Large bodies are sent as recorded if the publisher's feed has the same slices and keys. Other messages are
        published again, in new blocks. The publisher's `when_full` decides whether slow subscribers block it or lose
        messages. Returns when the publisher has accepted everything; then `flush` or `close` it.

        Raises ConfigError if the publisher's feed has another schema, or other slices with `keep_gaps`.
        """
        if self.builds_books:
            raise ConfigError("books was set for a replay that is published, expected one to callbacks")
        feeds = [recording.feed for recording in self.recordings]
        player = PublisherPlayer(publisher, feeds, self._keep_gaps, self.feeds.recorded)
        check_one_schema(self.recordings)
        return self.run(player)

    def run(self, player: Player, timers: Timers | None = None) -> ReplayStatistics:
        """Play to a player. `timers` are called between messages, by market time."""
        self._timers = timers or Timers((), lambda _: True)
        warm_up_tables()
        first_ns, last_ns = self._market_range()
        self._messages = self._blocks = self._body_bytes = self._damaged = 0
        self._market_ns = 0
        self._out_of_order = OutOfOrder()
        controls = self.controls
        controls.begin(first_ns, last_ns)
        began = time.perf_counter()
        try:
            self._play(player, first_ns)
        finally:
            controls.end()
            self._seconds = time.perf_counter() - began
        return self.statistics()

    def _play(self, player: Player, first_ns: int) -> None:
        left = self._loops or -1
        start = self._start
        self._position_ns, self._played_to = first_ns, BEGINNING
        while left:
            before = self._messages
            ended = self._play_from(player, start)
            if ended is None:
                left -= 1
                player.finish(self._stop)
                if self._messages == before and start == self._start:
                    low, high = map(datetime_of, self._recorded_range())
                    log.warning("nothing was played: no message from %s to %s was selected", low, high)
                    return  # another loop would not play anything either
                if left:
                    self.controls.rewind()
                    start = self._jump(player, first_ns, first_ns)
            elif ended.action is Action.SEEK:
                start = self._jump(player, ended.seek_to_ns, first_ns)
            else:
                return

    def _jump(self, player: Player, to_ns: int, first_ns: int) -> int:
        """Continue from a market time. Return the first time to play."""
        is_back = to_ns <= self._played_to
        player.jump(is_back=is_back)
        if is_back:
            self._played_to = BEGINNING
        self._position_ns = to_ns
        return self._start if to_ns <= first_ns else max(self._start, to_ns)

    def statistics(self) -> ReplayStatistics:
        """Return the counters so far; exact after the end."""
        return ReplayStatistics(
            messages=self._messages,
            blocks=self._blocks,
            body_bytes=self._body_bytes,
            seconds=self._seconds,
            market_seconds=self._market_ns / 1e9,
            damaged=self._damaged,
            late=self._out_of_order.late,
            misplaced=self._out_of_order.misplaced,
        )

    def _played_together(self, start: Time | None, stop: Time | None) -> list[tuple[Recording, ...]]:
        """Return the recordings that are played as one: each day separately if times are of each day."""
        if not (is_time_of_day(start) or is_time_of_day(stop)):
            return [self.recordings]
        return [tuple(each) for _, each in groupby(self.recordings, key=lambda recording: recording.date)]

    def _span(self, recordings: tuple[Recording, ...], start: Time | None, stop: Time | None) -> _Span:
        start_ns = BEGINNING if start is None else self._time(recordings, recordings[0], start)
        stop_ns = END if stop is None else self._time(recordings, recordings[-1], stop)
        check_range(start, stop, start_ns, stop_ns)
        return _Span(recordings, start_ns, stop_ns)

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
        return chosen.time(given, self._pace_by)

    def _usual_clock(self) -> Literal["ts_event", "ts_out"]:
        return "ts_event" if any(r.time_range("ts_event")[1] > 0 for r in self.recordings) else "ts_out"

    def _market_range(self) -> tuple[int, int]:
        low, high = self._recorded_range()
        start = max(low, self._start)
        return start, max(start, min(high, self._stop - 1))

    def _recorded_range(self) -> tuple[int, int]:
        ranges = [r.time_range(self._pace_by) for r in self.recordings]
        known = [(low, high) for low, high in ranges if high >= low]
        return min((low for low, _ in known), default=0), max((high for _, high in known), default=0)

    def _play_from(self, player: Player, start: int) -> Grant | None:
        """Play from a time on. Return the grant that interrupts it, or None at the end."""
        self._timers.reset()
        spans = [span._replace(start=max(start, span.start)) for span in self._spans]
        if not self.builds_books:
            left_out = [*spans[:-1], spans[-1]._replace(stop=END)]  # messages after the last span change no book
            player.begin(self._runs_outside(left_out))
            return self._play_spans(player, [span for span in spans if span.start < span.stop])
        for place, span in enumerate(spans):
            if span.start < span.stop:
                before = self._tables_before(player, span)
                earlier = [each._replace(start=END) for each in spans[:place]]
                player.begin(self._runs_outside(earlier), before, span.start)
                if (grant := self._play_spans(player, [span])) is not None:
                    return grant
        return None

    def _tables_before(self, player: Player, span: _Span) -> Generator[BlockTable, None, None]:
        """Yield the messages before a span, measured and in small parts, until a seek or stop."""
        for table in self._tables_of(player, span._replace(start=BEGINNING, stop=span.start), OutOfOrder()):
            start = 0
            while start < len(table.rows):
                if self.controls.is_called_off():
                    return
                stop = _measure_some(table, start)
                yield table._replace(rows=table.rows[start:stop])
                start = stop

    def _runs_outside(self, spans: Iterable[_Span]) -> frozenset[tuple[int, int]]:
        """Return slice and epoch of the epochs with messages outside these spans."""
        found = set()
        for recordings, start, stop in spans:
            for recording in recordings:
                first = self.feeds.first_slice(recording)
                for slice_id, segments in recording._segments_of():
                    for segment in segments:
                        entries = segment.entries[segment.entries["records"] > 0]
                        low, high = (entries[f"{name}_{self._pace_by}"] for name in ("min", "max"))
                        epochs = numpy.unique(entries["epoch"][(low < start) | (high >= stop)])
                        found |= {(slice_id + first, epoch) for epoch in epochs.tolist()}
        return frozenset(found)

    def _play_spans(self, player: Player, spans: list[_Span]) -> Grant | None:
        tables = self._tables(player, spans)
        # Closed at once, even if an error's traceback keeps this frame alive.
        with closing(read_ahead(tables) if player.reads_ahead else tables) as found:
            for table in found:
                grant = self._play_table(player, table)
                if grant is not None:
                    return grant
                del table  # so that the next one can reuse its memory, which is in the cache
        return None

    def _tables(self, player: Player, spans: list[_Span]) -> Generator[BlockTable, None, None]:
        for span in spans:
            yield from self._tables_of(player, span, self._out_of_order)

    def _tables_of(self, player: Player, span: _Span, out_of_order: OutOfOrder) -> Generator[BlockTable, None, None]:
        recordings, start, stop = span
        by = self._pace_by
        selection = Selection(self._key_rule, self.topics, by, start, stop)
        wanted = self.topics.prefix, None if start == BEGINNING else start, None if stop == END else stop, self.slices
        if self._order == "event":
            ordered = by_time(recordings, *wanted)
            is_merged = player.in_sequence and len(ordered.slices) > 1
            if not ordered.is_in_order or is_merged or self._has_twice(ordered):
                most = self._most_topics()
                return MarketOrder(ordered, selection, self.feeds, most, out_of_order).tables()
        runs = runs_of(
            recordings,
            *wanted,
            by,
            bodies="unpacked",
            kept=DEPTH + 1,  # waiting tables and the current one; earlier ones are done
        )
        return block_tables(runs, selection, self.feeds, is_measured=player.reads_ahead and not player.checks_blocks)

    def _most_topics(self) -> int:
        """Return the topics to make room for: twice the feeds' maximum, because a subscriber continues beyond it."""
        topics = 2 * sum(part.feed.max_topics * len(part.feed.slices) for part in self.recordings)
        return min(topics, _MOST_TOPICS)

    def _has_twice(self, ordered: ByTime) -> bool:
        """Return True if a slice is in several recordings."""
        return len(set(ordered.slices)) < len(ordered.slices)

    def _play_table(self, player: Player, table: BlockTable) -> Grant | None:
        """Play a table as far as the controls allow. Return the grant that interrupts it."""
        rows = table.rows
        block = 0
        while block < len(rows):
            if rows["fault"][block] == UNCHECKED:
                table.measure(block, block + 1)
            if rows["count"][block] == 0:
                block = self._pass_over(player, table, block)
                continue
            next_ns = int(rows["next_ns"][block])
            grant = self.controls.wait(next_ns)
            if grant.action is not Action.PLAY:
                return grant
            if next_ns >= self._timers.next_ns:
                self._timers.advance(next_ns, self.controls.is_held_up)
                self.controls.played(0, self._position_ns)
                continue  # a timer may have used the controls
            until_ns = min(grant.until_ns, self._timers.next_ns - 1)
            stop = len(rows)
            is_limited = until_ns != _TO_THE_END or grant.messages != NO_LIMIT
            if is_limited or not player.checks_blocks:
                stop = _measure_some(table, block)
            if is_limited:
                coming = rows[block:stop]
                is_due = (coming["high_ns"] <= until_ns) & (coming["count"].cumsum() <= grant.messages)
                stop = stop if is_due.all() else block + int(is_due.argmin())
            if stop > block:
                self._play_whole(player, table, block, stop)
                block = stop
            else:
                until_ns = until_ns if self._pace_by == "ts_event" else NO_LIMIT
                self._play_blocks(player, table.split(block, until_ns, grant.messages), 0, 1)
        return None

    def _pass_over(self, player: Player, table: BlockTable, block: int) -> int:
        """Return the next block with messages to play, or the first unmeasured one. Report damage on the way."""
        stop = _measure_some(table, block)
        found = numpy.flatnonzero(table.rows["count"][block:stop])
        stop = block + int(found[0]) if len(found) else stop
        self._play_blocks(player, table, block, stop)
        self._report_damages(table, block, stop)
        return stop

    def _play_whole(self, player: Player, table: BlockTable, start: int, stop: int) -> None:
        """Play whole blocks, and report damaged ones."""
        self._play_blocks(player, table, start, stop)
        self._report_damages(table, start, stop)
        played = table.rows[start:stop]
        played = played[played["count"] > 0]
        # A block that is played in parts counts with its last part.
        played = played[played["stop_row"] == table.run.heads["count"][played["place"]]]
        self._blocks += len(played)
        self._body_bytes += int(played["body_bytes"].sum())

    def _play_blocks(self, player: Player, table: BlockTable, start: int, stop: int) -> None:
        player.play(table, start, stop)
        rows = table.rows[start:stop]
        counts = rows["count"]
        if not (messages := int(counts.sum())):
            return
        high_ns = int(rows["high_ns"][counts > 0].max())
        self._messages += messages
        self._played_to = max(self._played_to, high_ns)
        if high_ns > self._position_ns:
            self._market_ns += high_ns - self._position_ns
            self._position_ns = high_ns
        self.controls.played(messages, high_ns)

    def _report_damages(self, table: BlockTable, start: int, stop: int) -> None:
        for damage in table.damages(start, stop):
            self._damaged += damage.messages
            for recording in self.recordings:
                if damage.path.is_relative_to(recording.path):
                    recording._note(damage)
                    break


def _topics_of(recordings: Sequence[Recording], prefix: Prefixes, symbols: Iterable[str | bytes] | None) -> TopicChoice:
    """Return the topics to play. Raises ConfigError for symbols if the feeds' symbol rules differ."""
    rules = list(dict.fromkeys(recording.feed.symbol_rule for recording in recordings))
    if symbols is not None and len(rules) > 1:
        raise ConfigError(
            f"symbols were given for feeds of the symbol rules {rules[0]} and {rules[1]}, expected one rule: choose "
            "topics by prefix"
        )
    return TopicChoice.of(recordings[-1].feed, prefix, symbols)


def check_settings(recordings: object, settings: Iterable[str]) -> None:
    """Raise TypeError for settings given with a `Replay`, which has its own."""
    if isinstance(recordings, Replay):
        for name in settings:
            raise TypeError(f"{name} was given with a Replay, pass it when the Replay is created")
    check_options(settings, ReplaySettings.__optional_keys__)


def _measure_some(table: BlockTable, start: int) -> int:
    """Measure about _CACHE_BYTES of unmeasured blocks from `start` on. Return their end."""
    rows = table.rows
    stop = min(len(rows), start + 1 + int(rows["body_bytes"][start:].cumsum().searchsorted(_CACHE_BYTES)))
    if (rows["fault"][start:stop] == UNCHECKED).any():
        table.measure(start, stop)
    return stop


def _check_order(order: str | None, pace_by: str | None, keep_gaps: bool) -> None:
    if pace_by not in (None, "ts_event", "ts_out"):
        raise ValueError(f"pace_by was {pace_by!r}, expected 'ts_event' or 'ts_out'")
    if order not in (None, "event", "sent"):
        raise ValueError(f"order was {order!r}, expected 'event' or 'sent'")
    if order == "event" and pace_by == "ts_out":
        raise ValueError("pace_by was 'ts_out' with order 'event', expected 'ts_event': that time only goes forward")
    if order == "event" and keep_gaps:
        raise ConfigError("keep_gaps was set with order 'event', expected 'sent': gaps stand between neighbours")
