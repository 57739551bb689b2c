"""Send frames to a worker, compiled: blocks, and notices of missing messages."""

from __future__ import annotations

from typing import Final

import numpy

from blackbox.native.memory.intrinsics import bytes_at, copy_bytes, inner, int64s_at
from blackbox.native.system.posix import now_ns
from blackbox.receive.deliver.call_compiled import run_notice
from blackbox.receive.deliver.worker_state import GAP_NOTICE_BYTES, gap_notice_at
from blackbox.receive.order.epochs import epoch_state_at
from blackbox.receive.order.losses import Loss, has_losses, next_loss
from blackbox.receive.order.state import UNKNOWN, order_state_at
from blackbox.receive.slice_memory import COPY_AT, NOTICE_AT, SliceAt, TableAt
from blackbox.receive.slow_subscriber import Action, act_on_lag, corrected, is_over
from blackbox.receive.state import (
    WORKER_COUNTERS_BYTES,
    Reason,
    WorkerCounters,
    slice_counters_at,
    slice_state_at,
    worker_counters_at,
)
from blackbox.transport.libzmq import (
    EAGAIN,
    SNDMORE,
    msg_close,
    msg_copy,
    msg_data,
    msg_init,
    msg_init_size,
    msg_send,
    zmq_errno,
)

GIVEN_UP: Final = -1
_NO_BODY: Final = 0


@inner
def worker_counters(at: SliceAt, worker: int) -> WorkerCounters:
    """Return a worker's counters."""
    return worker_counters_at(at.worker_counters + WORKER_COUNTERS_BYTES * worker)


@inner
def fail(at: SliceAt) -> int:
    """Store libzmq's error; return FAILED."""
    slice_state_at(at.state).errno = zmq_errno()
    return Reason.FAILED


@inner
def hand_over(at: SliceAt, worker: int, ts_out: int, ts_in: int, head_message: int, body_message: int) -> int:
    """Send copies of two messages to a worker, unless it has ended. Return 0, FAILED or GIVEN_UP.

    `body_message` 0: empty. While the worker's queue is full the slow-subscriber policy checks the times.
    """
    if is_over(at):
        return 0
    name = at.scratch + COPY_AT
    msg_init_size(name, 1)
    bytes_at(msg_data(name), 1)[0] = worker + 1
    while msg_send(name, at.router, SNDMORE) < 0:
        error = zmq_errno()
        slice_counters_at(at.counters).waits += 1
        if is_over(at):
            return 0
        if error != EAGAIN:
            slice_state_at(at.state).errno = error
            return Reason.FAILED
        now = now_ns() - slice_state_at(at.state).excused_ns
        age = corrected(at, now - ts_in) if ts_in != 0 else 0
        action = act_on_lag(at, corrected(at, now - ts_out), age)
        if action == Action.DROP:
            return GIVEN_UP
        if action != Action.PROCEED and is_over(at):
            return 0
    msg_init(name)
    msg_copy(name, head_message)
    msg_send(name, at.router, SNDMORE)
    msg_init(name)
    if body_message != _NO_BODY:
        msg_copy(name, body_message)
    msg_send(name, at.router, 0)
    worker_counters(at, worker).sent += 1
    return 0


@inner
def _make_notice(at: SliceAt, table: TableAt, loss: Loss, ts_out: int) -> int:
    """Write a notice of missing messages into a new message; return the message, or 0 if out of memory: see `fail`.

    A loss of no messages is the switch to live.
    """
    key, key_bytes = numpy.int64(0), numpy.int64(0)
    if loss.key != UNKNOWN:
        starts = int64s_at(at.order.keys.starts + 8 * loss.key, 2)
        key, key_bytes = at.order.keys.text + starts[0], starts[1] - starts[0]
    message: int = at.scratch + NOTICE_AT
    if msg_init_size(message, GAP_NOTICE_BYTES + key_bytes) != 0:
        fail(at)
        return 0
    place: int = msg_data(message)
    notice = gap_notice_at(place)
    notice.version = table.version
    notice.epoch = loss.epoch
    notice.sequence = loss.sequence
    notice.count = loss.count
    notice.is_upper_bound = loss.is_upper_bound
    notice.ts_out = ts_out
    notice.key_bytes = key_bytes
    copy_bytes(place + GAP_NOTICE_BYTES, key, key_bytes)
    return message


@inner
def _tell(at: SliceAt, worker: int, ts_out: int, message: int) -> int:
    """Send a notice to a worker, or to the slice thread's callbacks. Return 0, FAILED or GIVEN_UP."""
    if worker < at.workers:
        result: int = hand_over(at, worker, ts_out, 0, message, _NO_BODY)
        return result
    if not is_over(at):
        run_notice(at.own, at.own_table, at.ask, message)
    return 0


@inner
def leave_untold(at: SliceAt, table: TableAt, worker: int, count: int) -> None:
    """Count dropped messages of a worker, or of the slice thread's callbacks, for `tell_dropped`."""
    if (table.listeners >> worker) & 1:
        worker_counters(at, worker).untold += count


@inner
def tell_dropped(at: SliceAt, table: TableAt, worker: int, epoch: int, ts_out: int) -> int:
    """Report dropped messages to a worker before its next block. Return 0, FAILED or GIVEN_UP."""
    counters = worker_counters(at, worker)
    if counters.untold == 0:
        return 0
    message: int = _make_notice(at, table, Loss(epoch, UNKNOWN, counters.untold, UNKNOWN, 0, UNKNOWN), ts_out)
    if message == 0:
        return Reason.FAILED
    result: int = _tell(at, worker, ts_out, message)
    msg_close(message)
    if result == 0:
        counters.untold = 0
    return result


@inner
def tell_live(at: SliceAt, table: TableAt) -> int:
    """Report the switch to live to workers. Return 0 or FAILED."""
    if table.listeners == 0:
        return 0
    epoch, turn = epoch_state_at(at.order.epochs).epoch, order_state_at(at.order.state).lives
    message = _make_notice(at, table, Loss(epoch, turn, 0, UNKNOWN, 0, UNKNOWN), now_ns())
    if message == 0:
        return Reason.FAILED
    result: int = 0
    for worker in range(at.workers + 1):
        while result == 0 and (table.listeners >> worker) & 1:
            result = _tell(at, worker, now_ns(), message)
            if result != GIVEN_UP:
                break
            result = 0  # unlike blocks, this notice must not be dropped
    msg_close(message)
    return result


@inner
def tell_losses(at: SliceAt, table: TableAt, ts_out: int) -> int:
    """Report all missing messages to workers. Return 0 or FAILED. `ts_out`: of the block that showed the loss."""
    result: int = 0
    while result == 0 and has_losses(at.order):
        loss = next_loss(at.order)
        if is_over(at):
            continue
        state = slice_state_at(at.state)
        is_accepted = loss.epoch < state.accepted_epoch
        is_accepted |= loss.epoch == state.accepted_epoch and loss.stop <= state.accepted_sequence
        if at.stops_at_gaps != 0 and not is_accepted:
            state.gap_epoch = loss.epoch
            state.gap_sequence = loss.sequence
            state.gap_key = loss.key
            state.gap_count = loss.count
            state.gap_stop = loss.stop
            state.gap_is_upper_bound = loss.is_upper_bound
            return Reason.FAILED
        if table.listeners == 0:
            continue
        message = _make_notice(at, table, loss, ts_out)
        if message == 0:
            return Reason.FAILED
        for worker in range(at.workers + 1):
            if result == 0 and (table.listeners >> worker) & 1:
                result = _tell(at, worker, ts_out, message)
                if result == GIVEN_UP:
                    leave_untold(at, table, worker, loss.count)
                    result = 0
        msg_close(message)
    return result
