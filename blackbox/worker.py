"""A worker: one thread of one slice that runs the callbacks which live on it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy
import zmq
from numpy.typing import NDArray

from blackbox import collect
from blackbox.bursts import Bursts
from blackbox.contexts import pin_thread
from blackbox.errors import CallbackError, SubscriberError
from blackbox.slice_memory import STOPPING, TERMINATE
from blackbox.tables import WorkerTable
from blackbox.warmup import warm_up
from blackbox.zmqlib import close_messages, init_messages

if TYPE_CHECKING:
    from blackbox.schema import Schema
    from blackbox.statistics import SliceCounters


class Worker:
    """Runs callbacks in a thread of its own; the DEALER socket is created, used and closed there.

    Ends when the slice thread says that nothing follows, or at TERMINATE. What a callback raised goes to `on_error`,
    which says whether to go on.
    """

    def __init__(
        self,
        number: int,
        slice_id: int,
        endpoint: str,
        context: zmq.Context[zmq.Socket[bytes]],
        words: NDArray[numpy.int64],
        counters: SliceCounters,
        table: WorkerTable,
        table_of_version: Callable[[int], WorkerTable],
        schema: Schema,
        queue_blocks: int,
        cpus: tuple[int, ...],
        report: Callable[[SubscriberError], None],
        on_error: Callable[[CallbackError], bool],
    ) -> None:
        self.number = number
        self.slice_id = slice_id
        self._endpoint = endpoint
        self._context = context
        self._words = words
        self._counters = counters.workers[number]
        self._slice_counts = counters.counts
        self._lags = counters.lags[number]
        self._table = table
        self._table_of_version = table_of_version
        self._queue_blocks = queue_blocks
        self._cpus = cpus
        self._report = report
        self._bursts = Bursts(schema, self._counters, on_error, self._is_terminated)
        self.thread = threading.Thread(target=self._run, name=f"blackbox-worker-{slice_id}.{number}", daemon=True)

    @property
    def table_version(self) -> int:
        """The version of the table that this worker uses now."""
        return self._table.version

    def _run(self) -> None:
        socket: zmq.Socket[bytes] | None = None
        try:
            socket = self._context.socket(zmq.DEALER)
            pin_thread(self._cpus)
            socket.routing_id = bytes([self.number + 1])
            socket.rcvhwm = self._queue_blocks
            socket.linger = 0
            socket.connect(self._endpoint)
            self._work(socket)
        except Exception as error:  # noqa: BLE001 - whatever ends this thread must reach run()
            failure = SubscriberError(f"slice {self.slice_id}: worker {self.number} failed: {error}")
            failure.__cause__ = error
            self._report(failure)
        finally:
            if socket is not None:
                socket.close()
            # These lead back to the slice thread: without the circle its memory and pipes go with the subscriber.
            del self._report, self._bursts, self._table_of_version

    def _work(self, socket: zmq.Socket[bytes]) -> None:
        slot = self._bursts.scratch.ctypes.data + collect.SLOT_AT
        init_messages(slot, 2)
        try:
            warm_up(collect.collect, self._addresses(socket.underlying), self._table.at)
            socket.send(b"")  # from here on the slice thread can reach this worker
            self._loop(socket.underlying)
        finally:
            close_messages(slot, 2)
            self._bursts.close()

    def _loop(self, dealer: int) -> None:
        at = self._addresses(dealer)
        bursts = self._bursts
        while not bursts.quit:
            reason = collect.collect(at, self._table.at)
            if bursts.state[collect.RAISED]:
                bursts.compiled_raised()
            if reason == collect.DELIVER:
                bursts.deliver()
            elif reason == collect.SWITCH:
                self._table = self._table_of_version(int(bursts.state[collect.NEXT_VERSION]))
                at = self._addresses(dealer)
            elif reason == collect.GROW:
                bursts.grow()
                at = self._addresses(dealer)
            elif reason == collect.FAILED:
                raise SubscriberError(zmq.strerror(int(bursts.state[collect.ERRNO])))
            else:
                return

    def _addresses(self, dealer: int) -> collect.WorkerAt:
        return self._bursts.addresses(self._table, dealer, self._words, self._lags, self._slice_counts)

    def _is_terminated(self) -> bool:
        return bool(self._words[STOPPING] == TERMINATE)
