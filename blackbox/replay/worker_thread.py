"""A thread of its own for a worker of a replay: it plays its share of one table after the other."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from queue import SimpleQueue

from blackbox.native.limits import start_thread
from blackbox.native.waits import join
from blackbox.replay.block_table import BlockTable
from blackbox.replay.measure_blocks import BlockTableAt
from blackbox.replay.worker import ReplayWorker


def _never() -> bool:
    return False


class WorkerThread:
    """Plays what it is given, in order; always the same worker's share, so that no share waits behind another's."""

    def __init__(self, worker: ReplayWorker, number: int) -> None:
        """Start it. Raises LimitError."""
        self._worker = worker
        self._orders: SimpleQueue[tuple[Future[int], BlockTable, BlockTableAt] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"blackbox-replay-{number}", daemon=True)
        start_thread(self._thread)

    def play(self, table: BlockTable, blocks: BlockTableAt) -> Future[int]:
        """Play these blocks of a table; return what tells their end, or the error that came in their place."""
        end: Future[int] = Future()
        self._orders.put((end, table, blocks))
        return end

    def close(self) -> None:
        """End, once all is played."""
        self._orders.put(None)
        join(self._thread)

    def _run(self) -> None:
        while (order := self._orders.get()) is not None:
            end, table, blocks = order
            try:
                end.set_result(self._worker.play(table, blocks, 0, _never))
            except BaseException as error:  # noqa: BLE001 - it is raised where the end is awaited
                end.set_exception(error)
            del order, end, table, blocks  # they keep memory, and the next order may be long in coming
