"""Replay to a subscriber's callbacks in this process, without sockets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, Final

import msgspec
import numpy
from numpy.typing import NDArray

from blackbox.archive.read.reader import UNCHECKED
from blackbox.archive.recording import Recording
from blackbox.block.form.validate import Fault
from blackbox.block.gap import Gap
from blackbox.errors import CallbackError, ConfigError, SubscriberError
from blackbox.feed.symbol_choice import ALL_TOPICS, TopicChoice
from blackbox.native.memory.arrays import shared_array
from blackbox.native.system.cgroup import usable_cpus
from blackbox.native.system.waits import is_done_in, result_of
from blackbox.native.tables.name_table import HINT_WORDS, Numbering
from blackbox.native.tables.prefix_trie import longest_prefix
from blackbox.receive.callbacks.callbacks import Callback, CompiledCallback, Kind, callback_error
from blackbox.receive.callbacks.gap_hooks import GapHook, GapHooks
from blackbox.receive.callbacks.match_table import Table
from blackbox.receive.callbacks.timers import Timer, Timers
from blackbox.receive.state import TERMINATE, SliceState
from blackbox.receive.statistics import Counted, Counters, Statistics, statistics_of
from blackbox.replay.play.player import ReplayWorker
from blackbox.replay.play.player_loop import SLICE_WORDS, slice_words
from blackbox.replay.play.player_thread import WorkerThread
from blackbox.replay.slice_numbering import ReplayedFeeds
from blackbox.replay.tables.block_table import BEGINNING, END, BlockTable
from blackbox.replay.tables.measure_blocks import BlockTableAt
from blackbox.replay.tables.recorded_gaps import RecordedGaps, Run

_VERSION: Final = 1
_MEAN_TOPIC_BYTES: Final = 32
_HEAR_OF_GAPS: Final[frozenset[Kind]] = frozenset(("compiled", "book"))


class CallbackPlayer:
    """Plays to the callbacks of a subscriber. Not thread-safe.

    Topics are numbered and states are kept for each slice, as live. Each message reaches all its callbacks, in order of
    registration, before the next one reaches any callback that is not `independent`. If all callbacks are compiled
    and there are no timers, slices are played in parallel, because they share no state. If one fails, all end before
    their next block.
    """

    def __init__(
        self,
        feeds: ReplayedFeeds,
        callbacks: Sequence[Callback],
        on_error: str,
        on_reset: Sequence[Callable[[], object]] = (),
        within: TopicChoice = ALL_TOPICS,
        before: CallbackPlayer | None = None,
        timers: Sequence[Timer] = (),
        gap_hooks: Sequence[GapHook] = (),
        recordings: Sequence[Recording] = (),
        slices: Sequence[int] | None = None,
    ) -> None:
        """For recordings of these feeds. Only topics of `within` are played.

        Gaps of the played `slices` (None: all) of `recordings` are reported to `gap_hooks`, and to callbacks that have
        `on_gap`.

        Topic numbers and counters continue from those of the player `before`.
        """
        known = before.topics if before is not None else []
        before_it = before._places if before is not None else []
        self._places: list[tuple[str, int]] = max(before_it, feeds.places, key=len)
        for was, now in zip(before_it, feeds.places, strict=False):
            if was != now:
                raise ConfigError(
                    f"slice {now[1]} of feed {now[0]!r} was played where slice {was[1]} of {was[0]!r} was before, "
                    "expected the same feeds in the same order: topic numbers and states go on"
                )
        self.topics: list[Numbering] = [
            *known,
            *(Numbering(most, _MEAN_TOPIC_BYTES, shared_array) for most in feeds.max_topics[len(known) :]),
        ]
        self._hints = [shared_array((numbering.at.capacity, HINT_WORDS), numpy.uint64) for numbering in self.topics]
        workers = max(1, min(usable_cpus(), len(feeds.max_topics)))
        counted = before._counters if before is not None else []
        self._counters: list[Counters] = [*counted, *(Counters(1) for _ in range(workers - len(counted)))]
        self._feeds, self._on_error = feeds, on_error
        self._on_reset = on_reset
        self._within = within
        self._fresh: Sequence[Callback] | None = None
        self._plays_apart = False
        """True if slices are played in parallel, because their order is not visible."""
        self._slice_state = SliceState()
        self._one = ReplayWorker(0, 1, self._counters[0], self._slice_state, feeds.of_slice, on_error, len(self.topics))
        self._many = [
            ReplayWorker(n, workers, self._counters[n], self._slice_state, feeds.of_slice, on_error, 1)
            for n in range(workers)
        ]
        self.timers = Timers(timers, self._timer_raised)
        self._has_timers = bool(timers)
        self._threads: list[WorkerThread] = []
        self._gap_hooks = gap_hooks
        listens = gap_hooks or any(callback.kind in _HEAR_OF_GAPS for callback in callbacks)
        self._gaps = RecordedGaps(recordings if listens else (), feeds, within.prefix, slices)
        self._skipped: frozenset[tuple[int, int]] = frozenset()
        """Slice and epoch of each epoch with messages that are not played."""
        self._set_callbacks(callbacks)
        for books in self._books():
            books.played_prefixes = within.prefixes
        self._workers[0].warm_up()

    @property
    def in_sequence(self) -> bool:
        """True if the order of slices is visible. It is not to compiled callbacks, which have one state per slice."""
        return not self._is_compiled

    @property
    def reads_ahead(self) -> bool:
        """True if no callback is called for every message. Otherwise a reading thread would mostly wait for the GIL."""
        return all(callback.kind != "message" for callback in self._callbacks)

    def change(self, callbacks: Sequence[Callback]) -> None:
        """Play to other callbacks from the next burst on. A removed callback gets no more batches. Any thread may call.

        While all are compiled, new ones begin with the next call of `play`.
        """
        if self._plays_apart and any(callback.kind != "compiled" for callback in callbacks):
            raise SubscriberError(
                "a Python callback was added while slices were played in parallel to compiled callbacks, expected a "
                "compiled callback, or one added before the replay"
            )
        for table in self._tables:
            for callback in self._callbacks:
                if callback not in callbacks:
                    table.workers[0].remove(callback)
        self._fresh = tuple(callbacks)

    @property
    def checks_blocks(self) -> bool:
        """True if workers check blocks when they play them. They do not if Python is called between blocks."""
        return self._is_compiled and not self._gap_hooks

    def play(self, table: BlockTable, start: int, stop: int) -> None:
        """Play blocks `[start, stop)` of a table.

        Raises CallbackError if a callback raised and the subscriber stops at errors.
        """
        faults = table.rows["fault"][start:stop]
        is_unchecked, bad = faults == UNCHECKED, start + numpy.flatnonzero(faults > Fault.NONE)
        for first, last in pairwise([start, *bad.tolist(), stop]):
            if first < stop and table.rows["fault"][first] > Fault.NONE:
                self._tell_of_damage(table, first)
            for part in self._gaps.parts(table, first, last):
                if part.start < part.stop:
                    self._play(part.table, part.start, part.stop)
                for each in part.told:
                    if isinstance(each, Run):
                        self._begin_run(each)
                    else:
                        self._tell(each)
        for number in (start + numpy.flatnonzero(is_unchecked & (faults > Fault.NONE))).tolist():
            self._tell_of_damage(table, number)  # compiled callbacks see the count later than others

    def _tell_of_damage(self, table: BlockTable, number: int) -> None:
        """Report the messages of a damaged block, unless they are among the gaps already."""
        if gap := self._gaps.of_damage(table, number):
            self._tell(gap)
        else:
            self._lose(int(table.rows["slice_id"][number]))

    def _begin_run(self, run: Run) -> None:
        """Empty the books of a slice, because a new epoch begins."""
        for callback in self._callbacks:
            if callback.kind == "book":
                callback.reset(run.slice_id)
        self._note_late(run)

    def _note_late(self, run: Run) -> None:
        """Mark books as lacking messages of a slice if messages before the first played one are missing."""
        if run in self._skipped or self._gaps.is_late(run):
            self._lose(run.slice_id)

    def _lose(self, slice_id: int) -> None:
        """Mark books as lacking messages of a slice."""
        for books in self._books():
            books.lose_sync(slice_id)

    def _tell(self, gap: Gap) -> None:
        """Report a gap to callbacks and hooks."""
        for callback in self._callbacks:
            if isinstance(callback, CompiledCallback):
                callback.lost_of(gap.slice_id)[0] += gap.count
        for hook in self._hooks.told(gap.key):
            if self._slice_state.stopping:
                return
            try:
                hook(gap)
            except BaseException as error:  # user code may raise anything, even SystemExit
                failure = callback_error(f"slice {gap.slice_id}: on_gap", error)
                if not self._one.raised(failure):
                    raise failure from error

    def _play(self, table: BlockTable, start: int, stop: int) -> None:
        blocks = table.at(start, stop)
        self._plays_apart = self._is_compiled and len(self.topics) > 1 and not table.in_sequence
        at = 0
        while at < blocks.count:
            if self._fresh is not None:
                callbacks, self._fresh = self._fresh, None
                self._set_callbacks(callbacks)
            if table.in_sequence or len(self._workers) == 1:
                at = self._one.play(table, blocks, at, lambda: self._fresh is not None)
            else:
                self._play_in_parallel(table, blocks)
                at = blocks.count
            for worker in (self._one, *self._many):
                if worker.failure is not None:
                    raise worker.failure

    def _play_in_parallel(self, table: BlockTable, blocks: BlockTableAt) -> None:
        """Play all of these blocks, one thread per worker. If one fails or this thread is interrupted, all end."""
        for number in range(len(self._threads), len(self._many)):
            self._threads.append(WorkerThread(self._many[number], number))
        ends = [thread.play(table, blocks) for thread in self._threads]
        try:
            table.release_played()  # meanwhile, because it takes a tenth of the playing time
            for end in ends:
                result_of(end)
        except BaseException:
            self._slice_state.stopping = TERMINATE
            raise
        finally:
            for end in ends:
                is_done_in(end)

    def begin(
        self, skipped: frozenset[tuple[int, int]], before: Iterable[BlockTable] | None = None, start_ns: int = BEGINNING
    ) -> None:
        """Mark books as lacking messages that are not played (`skipped`) or not recorded before the first one.

        `before`: tables of all messages before `start_ns`. The books are emptied, then get these messages; other
        callbacks do not.
        """
        self._skipped = skipped
        callbacks = [callback for callback in self._callbacks if callback.kind == "book"]
        for callback in callbacks if before is not None else ():
            callback.reset()
            self._gaps.jump(is_back=True)
        for run in self._gaps.current_runs():
            self._note_late(run)
        if before is not None and callbacks:
            self._build(before, callbacks, start_ns)

    def _build(self, tables: Iterable[BlockTable], callbacks: Sequence[Callback], stop_ns: int) -> None:
        player = CallbackPlayer(self._feeds, callbacks, self._on_error, within=self._within)
        player._gaps, player._skipped = self._gaps, self._skipped
        try:
            for table in tables:
                player.play(table, 0, len(table.rows))
            player.finish(stop_ns)
        finally:
            player.close()

    def _books(self) -> list[Any]:
        """Return the `Books` of the callbacks."""
        return [callback.function for callback in self._callbacks if callback.kind == "book"]

    def finish(self, stop_ns: int) -> None:
        """Report the gaps after the last messages before a time."""
        for gap in self._gaps.rest() if stop_ns == END else self._gaps.due_before(stop_ns):
            self._tell(gap)

    def jump(self, *, is_back: bool) -> None:
        """If time goes back, reset the states of compiled callbacks, and call the subscriber's `on_reset` hooks."""
        self._gaps.jump(is_back=is_back)
        if is_back:
            self._reset()

    def _reset(self) -> None:
        for callback in self._callbacks:
            callback.reset()
        for hook in self._on_reset:
            hook()

    def close(self) -> None:
        """End the threads and free the last bursts. Also used after an error."""
        for thread in self._threads:
            thread.close()
        for worker in (self._one, *self._many):
            worker.close()

    def statistics(self) -> Statistics:
        """Return the counters so far."""
        topics = sum(map(len, self.topics))
        counted = [Counted(-1, counters, 0, 0 if n else topics) for n, counters in enumerate(self._counters)]
        return msgspec.structs.replace(statistics_of(counted, has_ended=True), slices=())

    def _timer_raised(self, failure: CallbackError) -> bool:
        if not self._one.raised(failure):
            raise failure
        return True

    def _set_callbacks(self, callbacks: Sequence[Callback]) -> None:
        self._callbacks = tuple(callbacks)
        self._hooks = GapHooks(self._callbacks, self._gap_hooks, 0)
        upstream = frozenset((b"",))
        self._tables = [Table(_VERSION, self._callbacks, upstream, 1, n, self._within) for n in range(len(self.topics))]
        self._sets = [self._match_known(numbering) for numbering in self.topics]
        self._is_compiled = not self._has_timers and all(
            isinstance(callback, CompiledCallback) for callback in self._callbacks
        )
        self._workers = self._many if self._is_compiled else [self._one]
        slices = numpy.array(
            [
                slice_words(
                    self.topics[n].at,
                    self._sets[n].ctypes.data,
                    self._counters[n % len(self._workers)].slice.address,
                    self._hints[n].ctypes.data,
                    self._tables[n].at,
                    self._tables[n].workers[0].at,
                )
                for n in range(len(self.topics))
            ],
            numpy.int64,
        ).reshape(-1, SLICE_WORDS)
        for worker in {self._one, *self._workers}:
            worker.set_table(self._tables[0].workers[0], self._tables[0].topics, slices)

    def _match_known(self, numbering: Numbering) -> NDArray[numpy.int32]:
        """Return the match sets of the topics that are already numbered."""
        sets = shared_array((numbering.at.capacity,), numpy.int32)  # separate pages, most of them never touched
        for number, topic in enumerate(numbering.names()):
            text = numpy.frombuffer(topic, numpy.uint8)
            sets[number] = longest_prefix(self._tables[0].topics, text.ctypes.data, len(topic))
        return sets
