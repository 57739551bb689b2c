"""The workers of a replay: one for all slices in the caller's thread, or threads that share the slices."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue

from blackbox.native.system.limits import start_thread
from blackbox.native.system.waits import is_done_in, join, result_of
from blackbox.receive.state import SliceState, Stopping
from blackbox.replay.play.played_slices import MatchedCallbacks, PlayedSlices
from blackbox.replay.play.replay_worker import ReplayWorker
from blackbox.replay.slice_numbering import ReplayedFeeds
from blackbox.replay.tables.block_table import BlockTable
from blackbox.replay.tables.measure_blocks import BlockTableAt


class _WorkerThread:
    """Plays tables in order, always for the same worker."""

    def __init__(self, worker: ReplayWorker, number: int) -> None:
        """Start the thread. Raises LimitError."""
        self._worker = worker
        self._orders: SimpleQueue[tuple[Future[int], BlockTable, BlockTableAt] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"blackbox-replay-{number}", daemon=True)
        start_thread(self._thread)

    def play(self, table: BlockTable, blocks: BlockTableAt) -> Future[int]:
        """Play these blocks of a table. Return a future with the end or the error."""
        end: Future[int] = Future()
        self._orders.put((end, table, blocks))
        return end

    def close(self) -> None:
        """End after everything is played."""
        self._orders.put(None)
        join(self._thread)

    def _run(self) -> None:
        while (order := self._orders.get()) is not None:
            end, table, blocks = order
            try:
                end.set_result(self._worker.play(table, blocks, 0, lambda: False))
            except BaseException as error:  # noqa: BLE001 - raised by the future
                end.set_exception(error)
            del order, end, table, blocks  # they keep memory, and the next order may be late


class ReplayWorkers:
    """Plays blocks with one worker, or in parallel if the order of slices is not visible.

    If one worker fails, all end before their next block.
    """

    def __init__(self, slices: PlayedSlices, feeds: ReplayedFeeds, on_error: str) -> None:
        """`on_error`: the subscriber's policy for callbacks that raise."""
        self._slice_state = SliceState()
        count, counters = slices.workers, slices.counters
        self.one = ReplayWorker(
            0, 1, counters[0], self._slice_state, feeds.of_slice, on_error, slices=len(slices.topics)
        )
        self._many = [
            ReplayWorker(n, count, counters[n], self._slice_state, feeds.of_slice, on_error, slices=1)
            for n in range(count)
        ]
        self._threads: list[_WorkerThread] = []

    def set_callbacks(self, matched: MatchedCallbacks, *, may_share: bool) -> None:
        """Play to these callbacks. `may_share`: the slices may be played in parallel."""
        self._shares = may_share and len(self._many) > 1
        for worker in (self.one, *(self._many if may_share else ())):
            worker.set_table(matched.table.workers[0], matched.table.topics, matched.words)

    def play(self, table: BlockTable, blocks: BlockTableAt, start: int, is_changed: Callable[[], bool]) -> int:
        """Play blocks of a table from `start` on. Return where it stopped: at the end, or at a change.

        Raises CallbackError if a callback raised and the subscriber stops at errors.
        """
        if self._shares and not table.in_sequence:
            self._play_in_parallel(table, blocks)
            stop = blocks.count
        else:
            stop = self.one.play(table, blocks, start, is_changed)
        for worker in (self.one, *self._many):
            if worker.failure is not None:
                raise worker.failure
        return stop

    def _play_in_parallel(self, table: BlockTable, blocks: BlockTableAt) -> None:
        """Play all of these blocks, one thread per worker. If one fails or this thread is interrupted, all end."""
        for number in range(len(self._threads), len(self._many)):
            self._threads.append(_WorkerThread(self._many[number], number))
        ends = [thread.play(table, blocks) for thread in self._threads]
        try:
            table.release_played()  # meanwhile, because it takes a tenth of the playing time
            for end in ends:
                result_of(end)
        except BaseException:
            self._slice_state.stopping = Stopping.TERMINATE
            raise
        finally:
            for end in ends:
                is_done_in(end)

    def is_over(self) -> bool:
        """Return True if no more blocks are played, because a callback raised."""
        return bool(self._slice_state.stopping)

    def close(self) -> None:
        """End the threads and free the last bursts. Also used after an error."""
        for thread in self._threads:
            thread.close()
        for worker in (self.one, *self._many):
            worker.close()
