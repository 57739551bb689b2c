"""One run of a replay: a playlist, played to a player as the controls allow."""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from typing import Final, Protocol

import msgspec
import numpy

from blackbox.archive.read.read_ahead import read_ahead
from blackbox.archive.read.reader import UNCHECKED
from blackbox.receive.callbacks.timers import Timers
from blackbox.receive.deliver.worker_state import NEVER
from blackbox.replay.controls import Action, Controls, Grant
from blackbox.replay.playlist import Playlist, Span
from blackbox.replay.schedule import NO_LIMIT
from blackbox.replay.tables.block_table import BEGINNING, END, BlockTable
from blackbox.replay.tables.market_order import OutOfOrder
from blackbox.timestamps import datetime_of

log = logging.getLogger("blackbox")

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

    messages: int = 0
    """Messages played."""
    blocks: int = 0
    """Blocks played completely; a block gathered from several counts as one."""
    body_bytes: int = 0
    """Size of these blocks' bodies, decompressed."""
    seconds: float = 0
    """Elapsed time."""
    market_seconds: float = 0
    """Market time played."""
    damaged: int = 0
    """Messages left out because their block was damaged."""
    late: int = 0
    """Messages recorded after later ones of their slice, and played at their `ts_event`."""
    misplaced: int = 0
    """Messages still played after later ones, because the recording's index did not show them in time."""

    @property
    def times_faster(self) -> float:
        """Market time divided by elapsed time."""
        return self.market_seconds / self.seconds if self.seconds else 0.0


class Playback:
    """Plays a playlist once or in loops, and counts what it plays."""

    def __init__(self, playlist: Playlist, player: Player, controls: Controls, timers: Timers) -> None:
        """`timers` are called between messages, by market time."""
        self._playlist, self._player, self._controls, self._timers = playlist, player, controls, timers
        self._messages = self._blocks = self._body_bytes = self._damaged = 0
        self._market_ns = 0
        self._seconds = 0.0
        self._out_of_order = OutOfOrder()
        self._first_ns, self._last_ns = playlist.market_range()
        self._position_ns = self._first_ns
        self._played_to = BEGINNING
        """The highest time played since time last went back."""

    def run(self, loops: int, *, builds_books: bool) -> None:
        """Play `loops` times; 0: until it is stopped. `builds_books`: see `Replay`."""
        self._controls.begin(self._first_ns, self._last_ns)
        began = time.perf_counter()
        try:
            self._play_loops(loops or -1, builds_books)
        finally:
            self._controls.end()
            self._seconds = time.perf_counter() - began
            del self._player, self._timers  # a finished replay keeps neither

    def _play_loops(self, left: int, builds_books: bool) -> None:
        playlist = self._playlist
        start = playlist.start
        while left:
            before = self._messages
            ended = self._play_from(start, builds_books)
            if ended is None and not self._controls.is_called_off():
                self._player.finish(playlist.stop)
            while ended is None and self._controls.is_called_off():
                grant = self._controls.wait(self._position_ns)  # PLAY: the command is being given
                ended = None if grant.action is Action.PLAY else grant
            if ended is None:
                left -= 1
                if self._messages == before and start == playlist.start:
                    low, high = map(datetime_of, playlist.recorded_range())
                    log.warning("nothing was played: no message from %s to %s was selected", low, high)
                    return  # another loop would not play anything either
                if left:
                    self._controls.rewind()
                    start = self._jump(self._first_ns)
            elif ended.action is Action.SEEK:
                start = self._jump(ended.seek_to_ns)
            else:
                return

    def _jump(self, to_ns: int) -> int:
        """Continue from a market time. Return the first time to play."""
        is_back = to_ns <= self._played_to
        self._player.jump(is_back=is_back)
        if is_back:
            self._played_to = BEGINNING
        self._position_ns = to_ns
        return self._playlist.start if to_ns <= self._first_ns else max(self._playlist.start, to_ns)

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

    def _play_from(self, start: int, builds_books: bool) -> Grant | None:
        """Play from a time on. Return the grant that interrupts it, or None at the end."""
        self._timers.reset()
        player, playlist = self._player, self._playlist
        spans = [span._replace(start=max(start, span.start)) for span in playlist.spans]
        if not builds_books:
            left_out = [*spans[:-1], spans[-1]._replace(stop=END)]  # messages after the last span change no book
            player.begin(playlist.epochs_outside(left_out))
            return self._play_spans([span for span in spans if span.start < span.stop])
        for place, span in enumerate(spans):
            if span.start < span.stop:
                earlier = [each._replace(start=END) for each in spans[:place]]
                player.begin(playlist.epochs_outside(earlier), self._tables_before(span), span.start)
                if (grant := self._play_spans([span])) is not None:
                    return grant
        return None

    def _tables_of(self, span: Span, out_of_order: OutOfOrder) -> Generator[BlockTable, None, None]:
        player = self._player
        is_measured = player.reads_ahead and not player.checks_blocks
        return self._playlist.tables(span, out_of_order, in_sequence=player.in_sequence, is_measured=is_measured)

    def _tables_before(self, span: Span) -> Generator[BlockTable, None, None]:
        """Yield the messages before a span, measured and in small parts, until a seek or stop."""
        for table in self._tables_of(span._replace(start=BEGINNING, stop=span.start), OutOfOrder()):
            start = 0
            while start < len(table.rows):
                if self._controls.is_called_off():
                    return
                stop = _measure_some(table, start)
                yield table._replace(rows=table.rows[start:stop])
                start = stop

    def _tables(self, spans: Sequence[Span]) -> Generator[BlockTable, None, None]:
        for span in spans:
            yield from self._tables_of(span, self._out_of_order)

    def _play_spans(self, spans: Sequence[Span]) -> Grant | None:
        tables = self._tables(spans)
        # Closed at once, even if an error's traceback keeps this frame alive.
        with closing(read_ahead(tables) if self._player.reads_ahead else tables) as found:
            for table in found:
                grant = self._play_table(table)
                if grant is not None:
                    return grant
                del table  # so that the next one can reuse its memory, which is in the cache
        return None

    def _play_table(self, table: BlockTable) -> Grant | None:
        """Play a table as far as the controls allow. Return the grant that interrupts it."""
        rows = table.rows
        block = 0
        while block < len(rows):
            if rows["fault"][block] == UNCHECKED:
                table.measure(block, block + 1)
            if rows["count"][block] == 0:
                block = self._pass_over(table, block)
                continue
            next_ns = int(rows["next_ns"][block])
            grant = self._controls.wait(next_ns)
            if grant.action is not Action.PLAY:
                return grant
            if next_ns >= self._timers.next_ns:
                self._timers.advance(next_ns, self._controls.is_held_up)
                self._controls.played(0, self._position_ns)
                continue  # a timer may have used the controls
            until_ns = min(grant.until_ns, self._timers.next_ns - 1)
            stop = len(rows)
            is_limited = until_ns != _TO_THE_END or grant.messages != NO_LIMIT
            if is_limited or not self._player.checks_blocks:
                stop = _measure_some(table, block)
            if is_limited:
                coming = rows[block:stop]
                is_due = (coming["high_ns"] <= until_ns) & (coming["count"].cumsum() <= grant.messages)
                stop = stop if is_due.all() else block + int(is_due.argmin())
            if stop > block:
                self._play_whole(table, block, stop)
                block = stop
            else:
                until_ns = until_ns if self._playlist.pace_by == "ts_event" else NO_LIMIT
                self._play_blocks(table.split(block, until_ns, grant.messages), 0, 1)
        return None

    def _pass_over(self, table: BlockTable, block: int) -> int:
        """Return the next block with messages to play, or the first unmeasured one. Report damage on the way."""
        stop = _measure_some(table, block)
        found = numpy.flatnonzero(table.rows["count"][block:stop])
        stop = block + int(found[0]) if len(found) else stop
        self._play_blocks(table, block, stop)
        self._report_damages(table, block, stop)
        return stop

    def _play_whole(self, table: BlockTable, start: int, stop: int) -> None:
        """Play whole blocks, and report damaged ones."""
        self._play_blocks(table, start, stop)
        self._report_damages(table, start, stop)
        played = table.rows[start:stop]
        played = played[played["count"] > 0]
        # A block that is played in parts counts with its last part.
        played = played[played["stop_row"] == table.run.heads["count"][played["place"]]]
        self._blocks += len(played)
        self._body_bytes += int(played["body_bytes"].sum())

    def _play_blocks(self, table: BlockTable, start: int, stop: int) -> None:
        self._player.play(table, start, stop)
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
        self._controls.played(messages, high_ns)

    def _report_damages(self, table: BlockTable, start: int, stop: int) -> None:
        for damage in table.damages(start, stop):
            self._damaged += damage.messages
            for recording in self._playlist.recordings:
                if damage.path.is_relative_to(recording.path):
                    recording.segments.note(damage)
                    break


def _measure_some(table: BlockTable, start: int) -> int:
    """Measure about _CACHE_BYTES of unmeasured blocks from `start` on. Return their end."""
    rows = table.rows
    stop = min(len(rows), start + 1 + int(rows["body_bytes"][start:].cumsum().searchsorted(_CACHE_BYTES)))
    if (rows["fault"][start:stop] == UNCHECKED).any():
        table.measure(start, stop)
    return stop
