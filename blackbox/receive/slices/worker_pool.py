"""The workers of a slice, and the socket that passes blocks to them."""

from __future__ import annotations

import threading
import time
from typing import Final

import zmq

from blackbox.arguments import name_of
from blackbox.errors import SubscriberError
from blackbox.native.compile.compiling import COMPILE_S
from blackbox.native.system.limits import start_thread
from blackbox.receive.callbacks.callbacks import IN_SLICE
from blackbox.receive.callbacks.hung_callbacks import running_function
from blackbox.receive.deliver.live_delivery import CallbackHost
from blackbox.receive.deliver.worker import Worker, WorkerQueue
from blackbox.receive.slices.options import SliceSettings
from blackbox.receive.slices.slice_errors import SliceErrors
from blackbox.receive.slices.slice_status import SliceStatus
from blackbox.receive.slices.tables import Tables
from blackbox.receive.state import Stopping
from blackbox.transport.inproc import new_endpoint

_ROUTER_WAIT_MS: Final = 20
_WORKER_END_S: Final = 0.05


class WorkerPool:
    """Starts and ends the workers of a slice. Used by the slice thread; any thread may read it."""

    def __init__(self, settings: SliceSettings, status: SliceStatus, tables: Tables, errors: SliceErrors) -> None:
        self._settings, self._status, self._tables, self._errors = settings, status, tables, errors
        self.workers: list[Worker] = []
        self._router: zmq.Socket[bytes] | None = None

    def open(self, context: zmq.Context[zmq.Socket[bytes]], host: CallbackHost) -> None:
        """Open the socket and start the workers, which will connect to it."""
        options = self._settings.options
        endpoint = new_endpoint("slice")
        self._router = router = context.socket(zmq.ROUTER)
        router.router_mandatory = True
        router.sndhwm = 1  # the worker keeps the rest of the queue
        router.sndtimeo = _ROUTER_WAIT_MS
        router.linger = 0
        router.bind(endpoint)
        queue_blocks = options.queue_blocks
        if options.slow.action == "conflate":
            # libzmq reports progress of a worker only after half of the queue. Conflation has its own count, and must
            # not wait while there is room by its count.
            queue_blocks = 2 * queue_blocks + 2
        queue = WorkerQueue(context, endpoint, queue_blocks, self._settings.feed.slices[host.slice_id].cpus)
        for number in range(options.workers):
            table, of_version = self._tables.current.workers[number], self._tables.of_worker(number)
            worker = Worker(number, host, queue, table, of_version)
            start_thread(worker.thread)
            self.workers.append(worker)  # workers in the list can be joined

    def wait_connected(self) -> zmq.Socket[bytes]:
        """Wait until every worker is connected; return the socket. Raise the error of a worker that failed."""
        assert self._router is not None
        deadline = time.monotonic() + COMPILE_S
        for _ in self.workers:
            while not self._router.poll(_ROUTER_WAIT_MS):
                if self._errors.first is not None:
                    raise self._errors.first
                if time.monotonic() > deadline:
                    text = f"slice {self._status.slice_id}: a worker did not start in {COMPILE_S:g} s"
                    raise SubscriberError(f"{text}; `blackbox warmup` compiles in advance")
            self._router.recv_multipart()
        return self._router

    @property
    def threads(self) -> list[threading.Thread]:
        """Threads of the workers."""
        return [worker.thread for worker in self.workers]

    def is_idle(self) -> bool:
        """Return True if the workers have delivered everything sent to them."""
        return all(worker.is_idle() for worker in self.workers)

    def is_past(self, version: int) -> bool:
        """Return True if the workers have delivered everything matched by tables before a version."""
        return all(worker.table_version >= version or worker.is_idle() for worker in self.workers)

    def versions_in_use(self) -> list[int]:
        """Return the table versions of workers with blocks in their queues."""
        counters = self._status.counters.workers[:IN_SLICE]
        return [
            worker.table_version
            for worker, counts in zip(self.workers, counters, strict=True)
            if counts.sent != counts.blocks
        ]

    def running_callbacks(self, slice_thread: threading.Thread | None) -> list[str]:
        """Return a text for each running callback, also in the slice thread: its name and running time."""
        found = []
        for thread, number in ((slice_thread, IN_SLICE), *((worker.thread, worker.number) for worker in self.workers)):
            busy_ns = self._status.counters.busy_ns(number)
            if thread is not None and busy_ns:
                names = [name_of(callback.function) for callback in self._tables.current.workers[number].callbacks]
                running = running_function(thread, names)
                found.append(f"callback {running} has been running for {busy_ns / 1e9:.1f} s")
        return found

    def send_end(self) -> None:
        """Send each worker the mark to end, after its blocks, unless the slice is terminated."""
        assert self._router is not None
        for worker in self.workers:
            while self._status.state.stopping != Stopping.TERMINATE and worker.thread.is_alive():
                try:
                    self._router.send_multipart([bytes([worker.number + 1]), b"", b""])
                    break
                except zmq.Again:
                    continue  # the worker's queue is still full; the subscriber watches slow workers
                except zmq.ZMQError as error:
                    if error.errno == zmq.EHOSTUNREACH:
                        break  # it has ended meanwhile
                    raise

    def wait_ended(self) -> None:
        """Wait for the end of the workers, unless the slice is terminated."""
        while self._status.state.stopping != Stopping.TERMINATE and any(each.is_alive() for each in self.threads):
            for thread in self.threads:
                thread.join(_WORKER_END_S)

    def close(self) -> None:
        """Wait for the end of the workers without a limit, and close the socket."""
        for thread in self.threads:
            thread.join()
        if self._router is not None:
            self._router.close()
