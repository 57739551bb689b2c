"""A thread for a worker of a replay, which plays its share of table after table."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from queue import SimpleQueue

from blackbox.native.system.limits import start_thread
from blackbox.native.system.waits import join
from blackbox.replay.play.player import ReplayWorker
from blackbox.replay.tables.block_table import BlockTable
from blackbox.replay.tables.measure_blocks import BlockTableAt


def _never() -> bool:
    return False


class WorkerThread:
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
                end.set_result(self._worker.play(table, blocks, 0, _never))
            except BaseException as error:  # noqa: BLE001 - raised by the future
                end.set_exception(error)
            del order, end, table, blocks  # they keep memory, and the next order may be late
