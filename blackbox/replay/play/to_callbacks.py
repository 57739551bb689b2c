"""Replay to a subscriber's callbacks in this process, without sockets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

import numpy

from blackbox.archive.read.reader import UNCHECKED
from blackbox.block.form.validate import Fault
from blackbox.errors import CallbackError, SubscriberError
from blackbox.receive.callbacks.callbacks import Callback, CompiledCallback, Kind, callback_error
from blackbox.receive.callbacks.timers import Timers
from blackbox.receive.supervise.sharers import Registered
from blackbox.replay.play.loss_reports import LossReports
from blackbox.replay.play.played_slices import MatchedCallbacks, PlayedSlices
from blackbox.replay.play.replay_workers import ReplayWorkers
from blackbox.replay.playlist import Playlist
from blackbox.replay.tables.block_table import BEGINNING, BlockTable
from blackbox.replay.tables.recorded_gaps import RecordedGaps

_HEAR_OF_GAPS: Final[frozenset[Kind]] = frozenset(("compiled", "book"))


class CallbackPlayer:
    """Plays to the callbacks of a subscriber. Not thread-safe.

    Topics are numbered and states are kept for each slice, as live. Each message reaches all its callbacks, in order of
    registration, before the next one reaches any callback that is not `independent`. If all callbacks are compiled
    and there are no timers, slices are played in parallel, because they share no state.

    Attributes: `slices` and `timers` of the replay.
    """

    def __init__(
        self,
        playlist: Playlist,
        registered: Registered,
        on_error: str,
        before: PlayedSlices | None = None,
        gaps: RecordedGaps | None = None,
    ) -> None:
        """`before`: slices of the replay before, to continue with. `gaps` of the recordings, if they are known."""
        self._playlist, self._registered, self._on_error = playlist, registered, on_error
        self.slices = PlayedSlices(playlist.feeds, before)
        self._workers = ReplayWorkers(self.slices, playlist.feeds, on_error)
        self.timers = Timers(registered.timers, self._timer_raised)
        self._fresh: Sequence[Callback] | None = None
        self._plays_apart = False
        """True if slices are played in parallel, because their order is not visible."""
        if gaps is None:
            kinds = {callback.kind for callback in registered.callbacks}
            recordings = playlist.recordings if registered.gap_hooks or kinds & _HEAR_OF_GAPS else ()
            gaps = RecordedGaps(recordings, playlist.feeds, playlist.topics.prefix, playlist.slices)
        self._losses = LossReports(gaps, self._workers.one.raised, self._workers.is_over)
        self._set_callbacks(registered.callbacks)
        for books in self._losses.books:
            books.played_prefixes = playlist.topics.prefixes
        self._workers.one.warm_up()

    def _set_callbacks(self, callbacks: Sequence[Callback]) -> None:
        self._callbacks = tuple(callbacks)
        self._losses.set_callbacks(self._callbacks, self._registered.gap_hooks)
        self._is_compiled = not self._registered.timers and all(
            isinstance(callback, CompiledCallback) for callback in self._callbacks
        )
        workers = self.slices.workers if self._is_compiled else 1
        self._matched = MatchedCallbacks(self._callbacks, self.slices, self._playlist.topics, workers)
        self._workers.set_callbacks(self._matched, may_share=self._is_compiled)

    @property
    def in_sequence(self) -> bool:
        """True if the order of slices is visible. It is not to compiled callbacks, which have one state per slice."""
        return not self._is_compiled

    @property
    def reads_ahead(self) -> bool:
        """True if no callback is called for every message. Otherwise a reading thread would mostly wait for the GIL."""
        return all(callback.kind != "message" for callback in self._callbacks)

    @property
    def checks_blocks(self) -> bool:
        """True if workers check blocks when they play them. They do not if Python is called between blocks."""
        return self._is_compiled and not self._losses.hooks

    def change(self, callbacks: Sequence[Callback]) -> None:
        """Play to other callbacks from the next burst on. A removed callback gets no more batches. Any thread may call.

        While all are compiled, new ones begin with the next call of `play`.
        """
        if self._plays_apart and any(callback.kind != "compiled" for callback in callbacks):
            raise SubscriberError(
                "a Python callback was added while slices were played in parallel to compiled callbacks: add it before "
                "the replay, or compile it"
            )
        for callback in self._callbacks:
            if callback not in callbacks:
                self._matched.remove(callback)
        self._fresh = tuple(callbacks)

    def play(self, table: BlockTable, start: int, stop: int) -> None:
        """Play blocks `[start, stop)` of a table.

        Raises CallbackError if a callback raised and the subscriber stops at errors.
        """
        losses, faults = self._losses, table.rows["fault"][start:stop]
        is_unchecked, bad = faults == UNCHECKED, start + numpy.flatnonzero(faults > Fault.NONE)
        for first, last in pairwise(dict.fromkeys((start, *bad.tolist(), stop))):
            if table.rows["fault"][first] > Fault.NONE:
                losses.report_damage(table, first)
            for part in losses.gaps.parts(table, first, last):
                if part.start < part.stop:
                    self._play(part.table, part.start, part.stop)
                for each in part.told:
                    losses.report(each)
        for number in (start + numpy.flatnonzero(is_unchecked & (faults > Fault.NONE))).tolist():
            losses.report_damage(table, number)  # compiled callbacks see the count later than others

    def _play(self, table: BlockTable, start: int, stop: int) -> None:
        blocks = table.at(start, stop)
        self._plays_apart = self._is_compiled and len(self.slices.topics) > 1 and not table.in_sequence
        at = 0
        while at < blocks.count:
            if self._fresh is not None:
                callbacks, self._fresh = self._fresh, None
                self._set_callbacks(callbacks)
            at = self._workers.play(table, blocks, at, lambda: self._fresh is not None)

    def begin(
        self, skipped: frozenset[tuple[int, int]], before: Iterable[BlockTable] | None = None, start_ns: int = BEGINNING
    ) -> None:
        """Mark books as lacking messages that are not played (`skipped`) or not recorded before the first one.

        `before`: tables of all messages before `start_ns`. The books are emptied, then get these messages; other
        callbacks do not.
        """
        self._losses.skipped = skipped
        callbacks = [callback for callback in self._callbacks if callback.kind == "book"]
        for callback in callbacks if before is not None else ():
            callback.reset()
            self._losses.gaps.jump(is_back=True)
        self._losses.begin()
        if before is not None and callbacks:
            self._build(before, callbacks, start_ns)

    def _build(self, tables: Iterable[BlockTable], callbacks: list[Callback], stop_ns: int) -> None:
        books = Registered()
        books.callbacks = callbacks
        player = CallbackPlayer(self._playlist, books, self._on_error, gaps=self._losses.gaps)
        player._losses.skipped = self._losses.skipped
        try:
            for table in tables:
                player.play(table, 0, len(table.rows))
            player.finish(stop_ns)
        finally:
            player.close()

    def finish(self, stop_ns: int) -> None:
        """Report the gaps after the last messages before a time."""
        self._losses.finish(stop_ns)

    def jump(self, *, is_back: bool) -> None:
        """If time goes back, reset the states of compiled callbacks, and call the subscriber's `on_reset` hooks."""
        self._losses.gaps.jump(is_back=is_back)
        for callback in self._callbacks if is_back else ():
            callback.reset()
        for hook in self._registered.hooks.on_reset if is_back else ():
            try:
                hook()
            except BaseException as error:  # a user's function may raise anything, even SystemExit
                failure = callback_error("on_reset", error)
                if not self._workers.one.raised(failure):
                    raise failure from error

    def close(self) -> None:
        """End the threads and free the last bursts. Also used after an error."""
        self._workers.close()

    def _timer_raised(self, failure: CallbackError) -> bool:
        if not self._workers.one.raised(failure):
            raise failure
        return True
