"""Requests of other threads to a slice thread: commands between two blocks, and checkpoints at an exact position."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

from blackbox.errors import SubscriberError
from blackbox.receive.callbacks.checkpoint import Checkpoint
from blackbox.receive.slices.slice_errors import SliceErrors
from blackbox.receive.slices.slice_status import SliceStatus
from blackbox.receive.slices.worker_pool import WorkerPool
from blackbox.receive.state import Stopping
from blackbox.transport.wakeup import Pipe

log = logging.getLogger("blackbox")


class Commands:
    """A queue of commands, and the pipe that wakes the slice thread."""

    def __init__(self, status: SliceStatus) -> None:
        self.bell = Pipe()
        self._status = status
        self._commands: deque[Callable[[], None]] = deque()
        self._checkpoints: deque[Checkpoint] = deque()

    def put(self, command: Callable[[], None]) -> None:
        """Run a function in the slice thread between two blocks."""
        self._commands.append(command)
        self._status.state.asked = 1
        self.bell.poke()

    def put_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Hold a checkpoint in the slice thread until it is released."""
        self.put(lambda: self._checkpoints.append(checkpoint))

    def run(self) -> None:
        """Run the commands, in the slice thread."""
        self._status.state.asked = 0
        for _ in range(len(self._commands)):  # not commands added meanwhile, so that blocks get their turn
            self._commands.popleft()()

    def hold_checkpoints(self, workers: WorkerPool, errors: SliceErrors) -> None:
        """Hold the waiting checkpoints if the position is exact, in the slice thread."""
        status = self._status
        while self._checkpoints and status.order.is_clean and not status.awaits_start:
            self._hold(self._checkpoints.popleft(), workers, errors)
        status.state.wants_clean = int(bool(self._checkpoints))

    def _hold(self, checkpoint: Checkpoint, workers: WorkerPool, errors: SliceErrors) -> None:
        """Deliver nothing and call no timers until the checkpoint is released or the slice is terminated."""
        status = self._status

        def is_idle() -> bool:
            if status.state.stopping == Stopping.TERMINATE or errors.first is not None:
                raise SubscriberError("the subscriber ended meanwhile")
            return all(worker.is_idle() and worker.hold_timers() for worker in workers.workers)

        try:
            checkpoint.hold(status.slice_id, is_idle, lambda: status.position)
        except SubscriberError:
            log.debug("slice %d: it ended during a checkpoint", status.slice_id)
        finally:
            for worker in workers.workers:
                worker.release_timers()
