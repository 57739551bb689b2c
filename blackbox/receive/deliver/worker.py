"""A worker: one thread of a slice that runs callbacks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import zmq

from blackbox.block.batch.received_block import BatchFeed
from blackbox.errors import CallbackError, SubscriberError
from blackbox.life import Life
from blackbox.native.compile.jit import warm_up
from blackbox.receive.callbacks.call_python import Delivery
from blackbox.receive.callbacks.callback_turns import warm_up_python_callbacks
from blackbox.receive.callbacks.match_table import WorkerTable
from blackbox.receive.callbacks.slice_hooks import SliceHookCaller
from blackbox.receive.callbacks.timers import Timers
from blackbox.receive.deliver import worker_loop as collect
from blackbox.receive.deliver.worker_state import NEVER
from blackbox.receive.state import SliceState, Stopping
from blackbox.transport.context import pin_thread
from blackbox.transport.libzmq import close_messages, init_messages

if TYPE_CHECKING:
    from blackbox.receive.statistics import Counters


class WorkerLife(Life):
    """Stages in the life of a worker."""

    NEW = "new", "running", "ended"
    """It compiles and connects. RUNNING after that; ENDED if it fails."""
    RUNNING = "running", "ended"
    """It is connected. ENDED after the last block, at TERMINATE, or by an error."""
    ENDED = "ended"
    """It has closed its socket. The last stage."""


class Worker:
    """Runs callbacks in its own thread; the DEALER socket is created, used and closed there.

    Life: see `WorkerLife`. Ends at the slice thread's end mark, or at TERMINATE. `on_error` gets exceptions of
    callbacks and returns whether to continue.
    """

    def __init__(
        self,
        number: int,
        slice_id: int,
        endpoint: str,
        context: zmq.Context[zmq.Socket[bytes]],
        slice_state: SliceState,
        counters: Counters,
        table: WorkerTable,
        table_of_version: Callable[[int], WorkerTable],
        feed: BatchFeed,
        queue_blocks: int,
        cpus: tuple[int, ...],
        report: Callable[[SubscriberError], None],
        on_error: Callable[[CallbackError], bool],
        hook_caller: SliceHookCaller,
    ) -> None:
        self.number = number
        self.slice_id = slice_id
        self._endpoint = endpoint
        self._context = context
        self.life = WorkerLife.NEW
        self._slice_state = slice_state
        self._slice_counters = counters.slice
        self._lags, self._ages = counters.lags[number], counters.ages[number]
        self._table = table
        self._table_of_version = table_of_version
        self._queue_blocks = queue_blocks
        self._cpus = cpus
        self._report = report
        self._counters = counters.workers[number]
        self._delivery = Delivery([feed], self._counters, on_error, self._is_terminated)
        self._timers = Timers(table.timers, on_error)
        self._state = self._delivery.state
        self._hook_caller = hook_caller
        self._turn, self._holds_timers = threading.Lock(), False
        self.thread = threading.Thread(target=self._run, name=f"blackbox-worker-{slice_id}.{number}", daemon=True)

    @property
    def table_version(self) -> int:
        """Version of the table in use."""
        return self._table.version

    def _enter(self, life: WorkerLife) -> None:
        """Enter `life`. Raises RuntimeError if it cannot follow the current stage."""
        self.life = self.life.enter(life, f"slice {self.slice_id} worker {self.number}")

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
        except Exception as error:  # noqa: BLE001 - any error that ends this thread must be raised by run()
            failure = SubscriberError(f"slice {self.slice_id}: worker {self.number} failed: {error}")
            failure.__cause__ = error
            self._report(failure)
        finally:
            if socket is not None:
                socket.close()
            self._enter(WorkerLife.ENDED)
            # They refer to the slice thread: breaking the cycle frees its memory with the subscriber.
            del self._report, self._delivery, self._table_of_version, self._timers, self._hook_caller

    def _work(self, socket: zmq.Socket[bytes]) -> None:
        slot = self._delivery.scratch.ctypes.data + collect.SLOT_AT
        init_messages(slot, 2)
        try:
            warm_up(collect.collect, 0)
            warm_up_python_callbacks()
            self._enter(WorkerLife.RUNNING)
            socket.send(b"")  # from here on the slice thread can reach this worker
            self._loop(socket.underlying)
        finally:
            close_messages(slot, 2)
            self._delivery.close()

    def _loop(self, dealer: int) -> None:
        delivery = self._delivery
        self._set_addresses(dealer)
        delivery.begin_timers(self._timers)
        while not delivery.quit:
            reason = collect.collect(delivery.kept.address)
            if delivery.state.raised:
                delivery.compiled_raised()
            if reason in (collect.DELIVER, collect.FEW):
                delivery.deliver() if reason == collect.DELIVER else delivery.deliver_few()
                if not delivery.is_over() and self._timers.next_ns != NEVER and self._timers.is_due(time.time_ns()):
                    self._tick()
            elif reason == collect.TICK:
                self._tick()
            elif reason == collect.SWITCH:
                self._table = self._table_of_version(delivery.state.next_version)
                self._set_addresses(dealer)
            elif reason == collect.EPOCH:
                delivery.enter_epoch(self.number, self.slice_id, self._hook_caller)
            elif reason == collect.GAP:
                delivery.take_notice(self.number, self.slice_id, self._hook_caller)
                self._counters.blocks += 1
            elif reason == collect.GROW:
                delivery.grow()
            elif reason == collect.FAILED:
                raise SubscriberError(zmq.strerror(delivery.state.errno))
            else:
                return

    def hold_timers(self) -> bool:
        """Start no more timers; return True if none is running. For one other thread."""
        self._holds_timers = self._holds_timers or self._turn.acquire(blocking=False)
        return self._holds_timers

    def release_timers(self) -> None:
        """Allow timers again. For the thread that held them."""
        if self._holds_timers:
            self._holds_timers = False
            self._turn.release()

    def _tick(self) -> None:
        with self._turn:
            self._delivery.call_timers(self._timers)

    def is_idle(self) -> bool:
        """Return True if it has delivered everything sent to it."""
        took_all = self._counters.blocks >= self._counters.sent
        is_busy = self._state.blocks > 0 or self._counters.busy_since_ns > 0
        return (took_all and not is_busy) or self.life is WorkerLife.ENDED

    def _set_addresses(self, dealer: int) -> None:
        self._delivery.addresses(self._table, dealer, self._slice_state, self._slice_counters, self._lags, self._ages)

    def _is_terminated(self) -> bool:
        return self._slice_state.stopping == Stopping.TERMINATE
