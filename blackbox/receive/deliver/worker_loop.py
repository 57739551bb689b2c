"""The compiled half of a worker: take blocks from the queue, select each callback's rows, call compiled callbacks."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import numpy

from blackbox.block.batch.worker_envelope import envelope_at
from blackbox.block.form.format import FLAG_FIXED, FLAG_NULLS, layout_of, read_header
from blackbox.native.compile.jit import njit
from blackbox.native.memory.intrinsics import (
    call_with_address,
    inner,
    int32s_at,
    int64s_at,
)
from blackbox.native.memory.records import load_shared, store_shared
from blackbox.native.system.posix import coarse_monotonic_ns, now_ns
from blackbox.native.tables.histogram import record
from blackbox.receive.deliver.call_compiled import note_gap, run_compiled
from blackbox.receive.deliver.select_rows import SLOT_BYTES, entry_at, select
from blackbox.receive.deliver.worker_state import (
    ALL_ROWS,
    NEVER,
    PLACE_BYTES,
    WorkerAt,
    WorkerReason,
    WorkerState,
    WorkerTableAt,
    block_place_at,
    gap_notice_at,
    worker_state_at,
    worker_with_table_at,
)
from blackbox.receive.state import IDLE_MS, Stopping, slice_counters_at, slice_state_at, worker_counters_at
from blackbox.receive.trace.rings import begin_trace, end_trace
from blackbox.transport.libzmq import (
    DONTWAIT,
    EAGAIN,
    EVENTS_SCRATCH_WORDS,
    MESSAGE_BYTES,
    close_messages,
    msg_close,
    msg_copy,
    msg_data,
    msg_init,
    msg_move,
    msg_recv,
    msg_size,
    wait_readable,
    zmq_errno,
)


class _Received(IntEnum):
    """Kind of what `_receive` has found."""

    FAILED = -1
    NOTHING = 0
    BLOCK = 1
    NOTICE = 2
    END = 3


MOST_FEW: Final = 16
FEW_WORDS: Final = 3
"""Words per message of a FEW: address of its payload, its size, and `ts_event`."""

BURST_BLOCKS: Final = 32
SCRATCH_WORDS: Final = EVENTS_SCRATCH_WORDS + SLOT_BYTES // 8
SLOT_AT: Final = EVENTS_SCRATCH_WORDS * 8


@inner
def _receive(at: WorkerAt) -> int:
    """Receive envelope and body into scratch, or a notice; return a `_Received`."""
    envelope = at.scratch + SLOT_AT
    if msg_recv(envelope, at.dealer, DONTWAIT) < 0:
        return _Received.NOTHING if zmq_errno() == EAGAIN else _Received.FAILED
    if msg_recv(envelope + MESSAGE_BYTES, at.dealer, DONTWAIT) < 0:
        return _Received.FAILED
    if msg_size(envelope + MESSAGE_BYTES) != 0:
        return _Received.BLOCK
    if msg_size(envelope) == 0:
        return _Received.END
    worker_state_at(at.state).notice = msg_data(envelope)
    return _Received.NOTICE


@inner
def _note_lag(at: WorkerAt, frame: int) -> None:
    """Record corrected lag and age of a block's messages, unless it is from an archive."""
    header = read_header(frame)
    if envelope_at(frame).recorded != 0:
        return
    now = now_ns() - slice_counters_at(at.slice_counters).clock_offset_ns
    messages = header.count - envelope_at(frame).first_row
    record(at.lags, now - header.ts_out, messages)
    if header.ts_in != 0:  # 0: unknown
        record(at.ages, now - header.ts_in, messages)


@inner
def _begin_trace(at: WorkerAt, slot: int) -> None:
    """Note the times of a traced block, the only one of its burst, before its callbacks run."""
    has_begun = begin_trace(at.traces, msg_data(slot), msg_data(slot + MESSAGE_BYTES))
    worker_state_at(at.state).traced = numpy.int64(has_begun)


@inner
def _epoch_of(current: int, frame: int) -> int:
    """Return the epoch of a block; of an image, whose messages may be of many epochs, the current one."""
    if envelope_at(frame).image != 0:
        return current
    return read_header(frame).epoch


@inner
def _take(at: WorkerAt, table: WorkerTableAt, rows_used: int) -> int:
    """Put the pending block into the burst; return the rows in use; -1: it waits for the next burst, or for Python."""
    state = worker_state_at(at.state)
    state.next_version = envelope_at(msg_data(at.scratch + SLOT_AT)).version
    room = at.max_entries - state.entries >= table.total
    state.next_epoch = _epoch_of(state.epoch, msg_data(at.scratch + SLOT_AT))
    fits = state.next_version == table.version and state.next_epoch == state.epoch
    if not fits or state.blocks == BURST_BLOCKS or not room:
        return -1
    is_traced = envelope_at(msg_data(at.scratch + SLOT_AT)).ts_match != 0
    if (is_traced or state.traced != 0) and state.blocks > 0:
        return -1
    slot = state.burst + SLOT_BYTES * state.blocks
    for part in range(0, SLOT_BYTES, MESSAGE_BYTES):
        msg_init(slot + part)
        msg_move(slot + part, at.scratch + SLOT_AT + part)
    before = state.entries
    used = select(at, table, state.blocks, rows_used)
    if used < 0:
        for part in range(0, SLOT_BYTES, MESSAGE_BYTES):
            msg_move(at.scratch + SLOT_AT + part, slot + part)
            msg_close(slot + part)
        state.entries = before
        return -1
    keep_place(at, msg_size(slot + MESSAGE_BYTES), numpy.int64(0))
    _note_lag(at, msg_data(slot))
    if is_traced:
        _begin_trace(at, slot)
    state.blocks += 1
    state.pending = 0
    counters = worker_counters_at(at.counters)
    counters.unwanted += state.left_out
    store_shared(counters, "blocks", counters.blocks + 1)
    return used


@inner
def keep_place(at: WorkerAt, body_bytes: int, origins: int) -> None:
    """Store for Python the location of the next block of the burst."""
    state = worker_state_at(at.state)
    slot = state.burst + SLOT_BYTES * state.blocks
    place = block_place_at(at.places_of_blocks + PLACE_BYTES * state.blocks)
    place.envelope = msg_data(slot)
    place.body = msg_data(slot + MESSAGE_BYTES)
    place.body_bytes = body_bytes
    place.origins = origins
    header = read_header(place.envelope)
    place.payload_bytes = -1
    if header.count == 1 and header.flags & FLAG_NULLS == 0 and origins == 0:
        payloads = layout_of(header).payloads
        place.payload = place.body + payloads
        place.payload_bytes = body_bytes - payloads
        place.ts_event = int64s_at(place.body, 1)[0]


@inner
def _are_single(at: WorkerAt) -> int:
    """Return 1 if each batch of the burst is the only message of a block, and the only batch of it."""
    last = numpy.int64(-1)
    for number in range(worker_state_at(at.state).entries):
        slot = entry_at(at, number).slot
        if slot <= last or block_place_at(at.places_of_blocks + PLACE_BYTES * slot).payload_bytes < 0:
            return 0
        last = slot
    return 1


@inner
def _are_few(at: WorkerAt) -> bool:
    """Return True if the burst is one batch, of all messages of a small block; then store their locations."""
    state = worker_state_at(at.state)
    entry, place = entry_at(at, numpy.int64(0)), block_place_at(at.places_of_blocks)
    if state.blocks != 1 or state.entries != 1 or state.raised != 0 or place.origins != 0:
        return False
    header = read_header(place.envelope)
    count = header.count
    if count > MOST_FEW or entry.rows != ALL_ROWS or entry.count != count or header.flags & FLAG_NULLS != 0:
        return False
    fixed = header.flags & FLAG_FIXED != 0
    layout = layout_of(header)
    times = int64s_at(place.body, count)
    offsets = int32s_at(place.body + layout.payload_offsets, 0 if fixed else count + 1)
    few = int64s_at(at.few, FEW_WORDS * count)
    for row in range(count):
        start = row * header.stride if fixed else numpy.int64(offsets[row])
        few[FEW_WORDS * row] = place.body + layout.payloads + start
        few[FEW_WORDS * row + 1] = header.stride if fixed else offsets[row + 1] - offsets[row]
        few[FEW_WORDS * row + 2] = times[row]
    return True


@inner
def _how_to_deliver(at: WorkerAt) -> int:
    """Return TRACED, DELIVER or FEW for the burst; with FEW its callback counts as busy."""
    state = worker_state_at(at.state)
    if state.traced != 0:
        state.singles = _are_single(at)
        return WorkerReason.TRACED
    if _are_few(at):
        store_shared(worker_counters_at(at.counters), "busy_since_ns", coarse_monotonic_ns())
        return WorkerReason.FEW
    state.singles = _are_single(at)
    return WorkerReason.DELIVER


@inner
def _run_burst(at: WorkerAt, table: WorkerTableAt) -> int:
    """Run the compiled callbacks of a burst; return the number of batches for Python callbacks."""
    state = worker_state_at(at.state)
    entries = state.entries
    left = run_compiled(at, table, numpy.int64(0), numpy.int64(0))
    if state.traced != 0 and left < entries:  # otherwise Python notes when it begins
        end_trace(at.traces)
        state.traced = 0
    return left


@njit(nogil=True, cache=True)
def run_block(at: WorkerAt, table: WorkerTableAt, ask: int, envelope_message: int, body_message: int) -> None:
    """Run the callbacks of the slice thread on one block, already checked and matched.

    `ask`: address of the C function that calls Python for EPOCH, GROW, RAISED, DELIVER, FEW and TRACED.
    """
    state = worker_state_at(at.state)
    epoch = _epoch_of(state.epoch, msg_data(envelope_message))
    if epoch != state.epoch:
        state.next_epoch = epoch
        call_with_address(ask, WorkerReason.EPOCH)
        if load_shared(slice_state_at(at.slice_state), "stopping") == Stopping.TERMINATE:
            return
    counters = worker_counters_at(at.counters)
    counters.sent += 1
    counters.blocks += 1
    slot = state.burst
    msg_init(slot)
    msg_copy(slot, envelope_message)
    msg_init(slot + MESSAGE_BYTES)
    msg_copy(slot + MESSAGE_BYTES, body_message)
    state.entries = state.traced = 0
    used = select(at, table, numpy.int64(0), numpy.int64(0))
    # Twice for a block that lacks room to merge rows, then to leave some out. TERMINATE: there was no memory.
    while used < 0 and load_shared(slice_state_at(at.slice_state), "stopping") != Stopping.TERMINATE:
        state.entries = 0
        call_with_address(ask, WorkerReason.GROW)
        used = select(at, table, numpy.int64(0), numpy.int64(0))
    left = numpy.int64(0)
    if used >= 0:
        counters.unwanted += state.left_out
        _note_lag(at, msg_data(slot))
        if envelope_at(msg_data(slot)).ts_match != 0:
            _begin_trace(at, slot)
        left = _run_burst(at, table)
    if left > 0:
        keep_place(at, msg_size(slot + MESSAGE_BYTES), numpy.int64(0))
        state.blocks = 1  # from here on the burst holds the messages: a callback may keep it
        call_with_address(ask, _how_to_deliver(at))
        close_messages(state.burst, 2 * state.blocks)
        state.blocks = 0
        return
    close_messages(slot, 2)
    if state.raised != 0:
        call_with_address(ask, WorkerReason.RAISED)


@inner
def _fill_burst(at: WorkerAt, table: WorkerTableAt) -> int:
    """Take blocks from the queue up to a burst; return the last `_receive`, or BLOCK if a block is left pending."""
    state = worker_state_at(at.state)
    state.blocks = 0
    state.entries = state.traced = 0
    rows_used = numpy.int64(0)
    while True:
        if state.pending == 0:
            status = _receive(at)
            if status != _Received.BLOCK:
                return status
            state.pending = 1
        rows_used = _take(at, table, rows_used)
        if rows_used < 0:
            return _Received.BLOCK


@inner
def idle_ms(state: WorkerState) -> int:
    """Return how long to wait for blocks, rounded up; 0: a timer is due."""
    if state.tick_ns == NEVER:
        return numpy.int64(IDLE_MS)
    left_ns = state.tick_ns - now_ns()
    if left_ns > state.tick_within_ns:
        return numpy.int64(0)
    return min(numpy.int64(IDLE_MS), max(numpy.int64(0), (left_ns + 999_999) // 1_000_000))


@inner
def _take_notice(at: WorkerAt, table: WorkerTableAt) -> int:
    """Process the gap after the burst: return 0; SWITCH or EPOCH first; or GAP, if Python must continue."""
    state = worker_state_at(at.state)
    state.next_version = gap_notice_at(state.notice).version
    if state.next_version != table.version:
        return WorkerReason.SWITCH
    state.next_epoch = gap_notice_at(state.notice).epoch
    if state.next_epoch > state.epoch:  # callbacks get a loss of an earlier one, which archives have left, in this one
        return WorkerReason.EPOCH
    note_gap(at, table)
    if table.listens != 0:
        return WorkerReason.GAP
    state.notice = 0
    counters = worker_counters_at(at.counters)
    store_shared(counters, "blocks", counters.blocks + 1)
    return 0


@njit(nogil=True, cache=True)
def collect(kept: int) -> int:
    """Work until Python is needed; return the reason. Bursts without Python callbacks stay in compiled code.

    `kept`: address of a `WorkerWithTable`. A burst is what was in the queue at once, up to BURST_BLOCKS: its last batch
    for a callback is that callback's `end_of_batch`.
    """
    at, table = worker_with_table_at(kept)
    state = worker_state_at(at.state)
    slice_state = slice_state_at(at.slice_state)
    while load_shared(slice_state, "stopping") != Stopping.TERMINATE and state.last == 0:
        close_messages(state.burst, 2 * state.blocks)
        if state.notice != 0:
            state.blocks = 0
            reason = _take_notice(at, table)
            if reason != 0:
                return reason
        status = _fill_burst(at, table)
        # An end mark after the burst is kept until the burst is delivered.
        state.last = numpy.int64(status == _Received.END)
        taken = state.blocks
        if taken > 0:
            if _run_burst(at, table) > 0 or state.raised != 0:
                return _how_to_deliver(at)
            close_messages(state.burst, 2 * taken)
            state.blocks = 0
        if status == _Received.FAILED:
            state.errno = zmq_errno()
            return WorkerReason.FAILED
        if status == _Received.NOTHING:
            if wait_readable(at.dealer, numpy.int64(0), numpy.int64(-1), idle_ms(state), at.scratch) < 0:
                return WorkerReason.ENDED
        elif status == _Received.BLOCK and state.next_version != table.version:
            return WorkerReason.SWITCH
        elif status == _Received.BLOCK and taken == 0:
            return WorkerReason.GROW if state.next_epoch == state.epoch else WorkerReason.EPOCH
        # After the burst, so that timers longer than their interval do not starve blocks.
        if idle_ms(state) == 0:
            return WorkerReason.TICK
    return WorkerReason.ENDED
