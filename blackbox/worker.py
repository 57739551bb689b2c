"""A worker: one thread of one slice that runs the callbacks which live on it."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy
import zmq
from numpy.typing import NDArray

from blackbox import collect
from blackbox.batch import Batch, Opened
from blackbox.callbacks import Callback, CompiledCallback
from blackbox.contexts import pin_thread
from blackbox.counters import Count, WorkerCount
from blackbox.errors import CallbackError, SubscriberError
from blackbox.foreign import foreign_array
from blackbox.layout import MAX_BODY_BYTES
from blackbox.slice_memory import STOPPING, TERMINATE
from blackbox.tables import WorkerTable
from blackbox.warmup import warm_up
from blackbox.zmqlib import close_messages, init_messages

if TYPE_CHECKING:
    from blackbox.schema import Schema
    from blackbox.statistics import SliceCounters

log = logging.getLogger("blackbox")

_FIRST_ROWS = 1 << 16
_MIN_DELIVERIES = 256
_LEAST_ROW_BYTES = 12
"""Bytes that a message takes in a body, at least."""

_identity: NDArray[numpy.int32] = numpy.empty(0, numpy.int32)
_identity_lock = threading.Lock()


def _identity_rows() -> NDArray[numpy.int32]:
    """0, 1, 2 … as row numbers for callbacks that get all of a block. Shared; read only."""
    global _identity  # noqa: PLW0603 - made once, when the first worker starts
    with _identity_lock:
        if not len(_identity):
            _identity = numpy.arange(MAX_BODY_BYTES // _LEAST_ROW_BYTES, dtype=numpy.int32)
            _identity.flags.writeable = False
    return _identity


class _Burst:
    """Blocks taken off the queue together; every view on one of them keeps it.

    While `blocks` is 0 it is the worker's to fill again. Kept by a callback, it frees them with the last view.
    """

    __slots__ = ("_memory", "address", "blocks")

    def __init__(self) -> None:
        self._memory = numpy.zeros(collect.BURST_BLOCKS * collect.SLOT_BYTES // 8, numpy.int64)
        self.address = self._memory.ctypes.data
        self.blocks = 0

    def __del__(self) -> None:
        if self.blocks and not sys.is_finalizing():  # an interpreter that ends can no longer call compiled code
            close_messages(self.address, 2 * self.blocks)


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
        self._schema = schema if schema.schema_id else None
        self._queue_blocks = queue_blocks
        self._cpus = cpus
        self._report = report
        self._on_error = on_error
        self._state = numpy.zeros(collect.STATE_WORDS, numpy.int64)
        self._scratch = numpy.zeros(collect.SCRATCH_WORDS, numpy.int64)
        self._call = numpy.zeros(collect.CALL_WORDS, numpy.int64)
        self._rows = numpy.zeros(_FIRST_ROWS, numpy.int32)
        self._slots = numpy.zeros((collect.BURST_BLOCKS, collect.PLACE_WORDS), numpy.int64)
        self._burst = _Burst()
        self._quit = False
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
            del self._report, self._on_error, self._table_of_version

    def _work(self, socket: zmq.Socket[bytes]) -> None:
        slot = self._scratch.ctypes.data + collect.SLOT_AT
        init_messages(slot, 2)
        try:
            warm_up(collect.collect, self._addresses(socket.underlying), self._table.at)
            socket.send(b"")  # from here on the slice thread can reach this worker
            self._loop(socket.underlying)
        finally:
            close_messages(slot, 2)
            close_messages(self._burst.address, 2 * int(self._state[collect.BLOCKS]))

    def _loop(self, dealer: int) -> None:
        at = self._addresses(dealer)
        while not self._quit:
            reason = collect.collect(at, self._table.at)
            if self._state[collect.RAISED]:
                self._compiled_raised()
            if reason == collect.DELIVER:
                self._deliver()
            elif reason == collect.SWITCH:
                self._table = self._table_of_version(int(self._state[collect.NEXT_VERSION]))
                at = self._addresses(dealer)
            elif reason == collect.GROW:
                self._rows = numpy.zeros(2 * int(self._state[collect.ROWS_NEEDED]), numpy.int32)
                at = self._addresses(dealer)
            elif reason == collect.FAILED:
                raise SubscriberError(zmq.strerror(int(self._state[collect.ERRNO])))
            else:
                return

    def _addresses(self, dealer: int) -> collect.WorkerAt:
        callbacks = self._table.at.total
        self._deliveries = numpy.zeros((max(_MIN_DELIVERIES, 2 * callbacks), collect.DELIVERY_WORDS), numpy.int64)
        self._counts = numpy.zeros(len(self._table.callbacks) + 1, numpy.int64)
        self._places = numpy.zeros(len(self._table.callbacks) + 1, numpy.int64)
        self._touched = numpy.zeros(len(self._table.callbacks) + 1, numpy.int32)
        self._callbacks_raised = numpy.zeros(len(self._table.callbacks) + 1, numpy.int32)
        self._raises = numpy.zeros(len(self._table.callbacks) + 1, numpy.int64)
        self._state[collect.BURST] = self._burst.address
        return collect.WorkerAt(
            dealer,
            self._words.ctypes.data,
            self._counters.ctypes.data,
            self._lags.ctypes.data,
            self._state.ctypes.data,
            self._scratch.ctypes.data,
            self._deliveries.ctypes.data,
            len(self._deliveries),
            self._rows.ctypes.data,
            len(self._rows),
            _identity_rows().ctypes.data,
            self._counts.ctypes.data,
            self._places.ctypes.data,
            self._touched.ctypes.data,
            self._callbacks_raised.ctypes.data,
            self._raises.ctypes.data,
            self._call.ctypes.data,
            self._slots.ctypes.data,
            self._slice_counts[Count.SMALLEST_LAG :].ctypes.data,
        )

    def _deliver(self) -> None:
        burst = self._burst
        unshared = sys.getrefcount(burst)  # how many that is depends on the interpreter
        try:
            self._run_callbacks(burst)
        finally:
            if sys.getrefcount(burst) > unshared:
                burst.blocks = int(self._state[collect.BLOCKS])
                self._state[collect.BLOCKS] = 0
                self._burst = _Burst()
                self._state[collect.BURST] = self._burst.address

    def _run_callbacks(self, burst: _Burst) -> None:
        counters = self._counters.data  # a memoryview: single items of an array are slow
        deliveries = self._deliveries[: self._state[collect.DELIVERIES]].tolist()
        slots = self._slots[: self._state[collect.BLOCKS]].tolist()
        last = {callback: place for place, (_, callback, _, _) in enumerate(deliveries)}
        opened: dict[int, Opened] = {}
        for place, (slot, number, rows, count) in enumerate(deliveries):
            if self._is_over():
                return
            callback = self._table.callbacks[number]
            if not callback.active:
                counters[WorkerCount.UNWANTED] += count
                continue
            if slot not in opened:
                envelope, body, body_bytes = slots[slot]
                opened[slot] = Opened(burst, envelope, body, body_bytes, self._schema)
            at = opened[slot]
            batch = Batch(at.block, self._rows_of(burst, rows, count, at.block.count), at, last[number] == place)
            counters[WorkerCount.BUSY_SINCE] = time.time_ns()
            counters[WorkerCount.DELIVERED] += callback.give(batch, self._raised, self._is_over)
            counters[WorkerCount.BATCHES] += 1
            counters[WorkerCount.BUSY_SINCE] = 0

    def _is_over(self) -> bool:
        """Whether the rest of what is at hand is not to be delivered."""
        return self._quit or bool(self._words[STOPPING] == TERMINATE)

    def _rows_of(self, burst: _Burst, address: int, rows: int, count: int) -> NDArray[numpy.int32] | None:
        """A batch's rows: None for all; on the burst's own memory, or copied out of this worker's scratch."""
        if address == collect.ALL_ROWS:
            return None if rows == count else numpy.arange(count - rows, count, dtype=numpy.int32)
        view = foreign_array(burst, address, rows, "<i4")
        start = self._rows.ctypes.data
        return view.copy() if start <= address < start + self._rows.nbytes else view

    def _raised(self, callback: Callback, error: BaseException, messages: int) -> bool:
        self._counters[WorkerCount.ERRORS] += 1
        self._counters[WorkerCount.FAILED] += messages
        failure = CallbackError(
            f"callback {callback.name} for {callback.prefix!r} raised {type(error).__name__}: {error}"
        )
        failure.__cause__ = error
        self._quit = not self._on_error(failure)
        return not self._quit

    def _compiled_raised(self) -> None:
        """Tell of each compiled callback that raised in the burst, in the order in which they did."""
        raised = self._callbacks_raised[: self._state[collect.RAISED]].tolist()
        self._state[collect.RAISED] = 0
        for number in raised:
            times = int(self._raises[number])
            self._raises[number] = 0
            callback = self._table.callbacks[number]
            assert isinstance(callback, CompiledCallback)
            if not self._quit:
                self._quit = not self._on_error(
                    CallbackError(
                        f"compiled callback {callback.name} for {callback.prefix!r} raised an exception"
                        f"{f' {times} times' if times > 1 else ''} "
                        "(compiled code cannot say which; an index out of range is the usual one)"
                    )
                )
