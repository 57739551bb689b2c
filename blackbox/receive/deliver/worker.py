"""A worker: one thread of a slice that runs callbacks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple

import zmq

from blackbox.errors import SubscriberError
from blackbox.life import Life
from blackbox.native.compile.jit import warm_up
from blackbox.receive.callbacks.callback_turns import warm_up_python_callbacks
from blackbox.receive.callbacks.match_table import WorkerTable
from blackbox.receive.deliver.live_delivery import CallbackHost, LiveDelivery
from blackbox.receive.deliver.worker_loop import SLOT_AT, collect
from blackbox.receive.deliver.worker_state import NEVER, WorkerReason
from blackbox.transport.context import pin_thread
from blackbox.transport.libzmq import close_messages, init_messages

# Once per burst; a look-up in an enum takes six times as long.
_DELIVER: Final = int(WorkerReason.DELIVER)
_FEW: Final = int(WorkerReason.FEW)
_TRACED: Final = int(WorkerReason.TRACED)


class WorkerLife(Life):
    """Stages in the life of a worker."""

    NEW = "new", "running", "ended"
    """It compiles and connects. RUNNING after that; ENDED if it fails."""
    RUNNING = "running", "ended"
    """It is connected. ENDED after the last block, at TERMINATE, or by an error."""
    ENDED = "ended"
    """It has closed its socket. The last stage."""


class WorkerQueue(NamedTuple):
    """The queue from the slice thread to its workers."""

    context: zmq.Context[zmq.Socket[bytes]]
    endpoint: str
    blocks: int
    """Blocks that may wait for one worker."""
    cpus: tuple[int, ...]
    """CPUs for the workers; empty: any."""


class Worker:
    """Runs callbacks in its own thread; the DEALER socket is created, used and closed there.

    Life: see `WorkerLife`. Ends at the slice thread's end mark, or at TERMINATE.

    Attributes: `number`; `life`; `thread`; `table_version`, the version of the table in use.
    """

    def __init__(
        self,
        number: int,
        host: CallbackHost,
        queue: WorkerQueue,
        table: WorkerTable,
        table_of_version: Callable[[int], WorkerTable],
    ) -> None:
        self.number = number
        self._host, self._queue = host, queue
        self.life = WorkerLife.NEW
        self.table_version = table.version
        self._table_of_version = table_of_version
        self._live = LiveDelivery(host, number, table)
        self._state = self._live.delivery.state
        self._counters = host.counters.workers[number]
        self._turn, self._holds_timers = threading.Lock(), False
        name = f"blackbox-worker-{host.slice_id}.{number}"
        self.thread = threading.Thread(target=self._run, args=(table,), name=name, daemon=True)

    def _enter(self, life: WorkerLife) -> None:
        """Enter `life`. Raises RuntimeError if it cannot follow the current stage."""
        self.life = self.life.enter(life, f"slice {self._host.slice_id} worker {self.number}")

    def _run(self, table: WorkerTable) -> None:
        socket: zmq.Socket[bytes] | None = None
        try:
            socket = self._queue.context.socket(zmq.DEALER)
            pin_thread(self._queue.cpus)
            socket.routing_id = bytes([self.number + 1])
            socket.rcvhwm = self._queue.blocks
            socket.linger = 0
            socket.connect(self._queue.endpoint)
            self._work(socket, table)
        except Exception as error:  # noqa: BLE001 - any error that ends this thread must be raised by run()
            failure = SubscriberError(f"slice {self._host.slice_id}: worker {self.number} failed: {error}")
            failure.__cause__ = error
            self._host.report(failure)
        finally:
            if socket is not None:
                socket.close()
            self._enter(WorkerLife.ENDED)
            # They refer to the slice thread: breaking the cycle frees its memory with the subscriber.
            del self._host, self._live, self._table_of_version

    def _work(self, socket: zmq.Socket[bytes], table: WorkerTable) -> None:
        memory = self._live.delivery.memory
        slot = memory.scratch.ctypes.data + SLOT_AT
        init_messages(slot, 2)
        try:
            warm_up(collect, 0)
            warm_up(close_messages, 0, 0)  # for bursts that callbacks keep
            warm_up_python_callbacks()
            self._enter(WorkerLife.RUNNING)
            socket.send(b"")  # from here on the slice thread can reach this worker
            self._loop(socket.underlying, table)
        finally:
            close_messages(slot, 2)
            memory.close()

    def _loop(self, dealer: int, table: WorkerTable) -> None:
        live, timers = self._live, self._live.timers
        delivery = live.delivery
        deliver = {_DELIVER: delivery.deliver, _FEW: delivery.deliver_few, _TRACED: live.deliver_traced}
        address = self._use(table, dealer)
        live.begin_timers()
        while not delivery.quit:
            reason = collect(address)
            if delivery.state.raised:
                delivery.compiled_raised()
            if reason in deliver:
                deliver[reason]()
                if not delivery.is_over() and timers.next_ns != NEVER and timers.is_due(time.time_ns()):
                    self._tick()
            elif reason == WorkerReason.TICK:
                self._tick()
            elif reason == WorkerReason.SWITCH:
                address = self._use(self._table_of_version(delivery.state.next_version), dealer)
            elif reason == WorkerReason.EPOCH:
                live.enter_epoch()
            elif reason == WorkerReason.GAP:
                live.take_notice()
                self._counters.blocks += 1
            elif reason == WorkerReason.GROW:
                delivery.memory.grow()
            elif reason == WorkerReason.FAILED:
                raise SubscriberError(zmq.strerror(delivery.state.errno))
            else:
                return

    def _use(self, table: WorkerTable, dealer: int) -> int:
        """Switch to a table. Return the address for the compiled loop."""
        self.table_version = table.version
        self._live.set_table(table, dealer)
        return self._live.delivery.memory.kept.address

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
            self._live.call_timers()

    def is_idle(self) -> bool:
        """Return True if it has delivered everything sent to it."""
        took_all = self._counters.blocks >= self._counters.sent
        is_busy = self._state.blocks > 0 or self._counters.busy_since_ns > 0
        return (took_all and not is_busy) or self.life is WorkerLife.ENDED
