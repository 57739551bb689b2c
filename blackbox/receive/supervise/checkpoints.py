"""Checkpoints of a subscriber: all callbacks pause, and each slice reports its position."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from blackbox.block.position import Position
from blackbox.errors import SubscriberError
from blackbox.native.system.waits import acquire
from blackbox.receive.callbacks.checkpoint import Checkpoint
from blackbox.receive.slices.slice_thread import SliceThread
from blackbox.receive.state import Stopping
from blackbox.receive.stream import Stream
from blackbox.receive.supervise.supervisor import SubscriberLife, Supervisor


@contextmanager
def checkpoint(supervisor: Supervisor, timeout: float, by_reader: bool) -> Iterator[dict[int, Position]]:
    """Pause all callbacks, and yield the position of each slice; for ended slices, the last position.

    A stream's reader that is not done yet lowers the position; see `Stream._undone` for `by_reader`.

    Raises TimeoutError if callbacks do not return in time, SubscriberError if the position is unknown, and the error
    that ended the subscriber.
    """
    _check_may_pause(supervisor)
    if not acquire(supervisor.checkpoints, timeout):
        raise TimeoutError(f"another checkpoint had not ended in {timeout} s")
    pause: Checkpoint | None = None
    try:
        with supervisor.lock:
            supervisor.checkpoint_thread = threading.get_ident()  # from here on no slice is released
        slices = supervisor.slices.running
        pause = Checkpoint(slices)
        with supervisor.lock:
            begin_checkpoint(supervisor, supervisor.sharers.streams())
            _put(slices, pause)
        positions = pause.wait(timeout, partial(_note_ended, supervisor, pause, slices, by_reader))
        for stream in supervisor.sharers.streams():
            for slice_id, undone in stream._undone(by_reader).items():
                if slice_id in positions:
                    positions[slice_id] = min(positions[slice_id], undone)
        yield positions
    finally:
        with supervisor.lock:
            supervisor.checkpoint_thread = 0
            for stream in supervisor.sharers.streams():
                stream._queue.cut(begins=False)
        if pause is not None:
            pause.release()
        supervisor.checkpoints.release()


def _put(slices: Mapping[int, SliceThread], pause: Checkpoint) -> None:
    """Put a checkpoint into all slices. Call it with the supervisor's lock held.

    Two checkpoints, put in another order, would each hold a slice that the other needs.
    """
    for thread in slices.values():
        thread.commands.put_checkpoint(pause)


def begin_checkpoint(supervisor: Supervisor, streams: Iterable[Stream]) -> None:
    """Include these streams in the current checkpoint, if any. Call it with the supervisor's lock held."""
    for stream in streams if supervisor.checkpoint_thread else ():
        stream._queue.cut(begins=True)


def wait_until_complete(supervisor: Supervisor, slice_ids: Collection[int], timeout: float) -> bool:
    """Wait until all received messages are delivered and no earlier ones are missing; return False on timeout.

    A slice of some keys waits for a heartbeat. Raises the same errors as `checkpoint`.
    """
    _check_may_pause(supervisor)
    running = supervisor.slices.running
    slices = {n: running[n] for n in slice_ids if n in running and running[n].status.order.state.is_full == 0}
    pause = Checkpoint(slices)
    try:
        with supervisor.lock:
            _put(slices, pause)
        pause.wait(timeout, partial(_note_ended, supervisor, pause, slices, True))
    except TimeoutError:
        return False
    finally:
        pause.release()
    return True


def _check_may_pause(supervisor: Supervisor) -> None:
    if supervisor.slices.uses_processes:
        raise SubscriberError("checkpoint was called with processes=True, where callbacks run in other processes")
    if supervisor.slices.settings.options.slow.action == "conflate":
        raise SubscriberError("checkpoint was called with the policy 'conflate', which delivers out of order")
    if supervisor.is_own_thread():
        raise SubscriberError("checkpoint was called by a callback, expected another thread")
    if supervisor.state is SubscriberLife.NEW:
        raise SubscriberError("checkpoint was called before start")


def _note_ended(
    supervisor: Supervisor, pause: Checkpoint, slices: Mapping[int, SliceThread], is_exact: bool, missing: set[int]
) -> None:
    """Note the positions of ended slices. `is_exact`: none if earlier messages are missing.

    Raises the error that ended the subscriber, SubscriberError if it was terminated.
    """
    supervisor.raise_failure()
    for slice_id in missing:
        if slices[slice_id].is_done:
            status = slices[slice_id].status
            if status.state.stopping == Stopping.TERMINATE:
                raise SubscriberError("the subscriber was terminated: queued messages were not delivered")
            pause.note(slice_id, status.position if status.order.is_clean or not is_exact else None)
