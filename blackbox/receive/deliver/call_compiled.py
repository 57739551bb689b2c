"""Call compiled callbacks for their batches, and count lost messages and errors of each."""

from __future__ import annotations

from typing import Final

import numpy
from numpy.typing import NDArray

from blackbox.block.batch.worker_envelope import TOPICS_AT, envelope_at
from blackbox.block.form.format import FLAG_FIXED, layout_of, read_header
from blackbox.native.memory.intrinsics import bytes_at, call_with_address, inner, int32s_at, int64s_at, prefetch
from blackbox.native.memory.records import load_shared, store_shared
from blackbox.native.system.posix import coarse_monotonic_ns
from blackbox.receive.deliver.select_rows import SLOT_BYTES, entry_at, keep_entry
from blackbox.receive.deliver.worker_state import (
    ALL_ROWS,
    GAP_NOTICE_BYTES,
    BatchEntry,
    WorkerAt,
    WorkerReason,
    WorkerTableAt,
    callback_call_at,
    gap_notice_at,
    worker_state_at,
)
from blackbox.receive.state import Stopping, slice_state_at, worker_counters_at
from blackbox.transport.libzmq import MESSAGE_BYTES, msg_data, msg_size

_AHEAD: Final = 4
"""Batches ahead for which a compiled callback's state is prefetched: of 10,000 callbacks most are not in the cache."""


@inner
def _lost_of(table: WorkerTableAt, callback: int) -> NDArray[numpy.int64]:
    """Return a compiled callback's counter of lost messages, int64[1]."""
    return int64s_at(int64s_at(table.lost + 8 * callback, 1)[0], 1)


@inner
def _may_be_same(start: int, start_bytes: int, key: int, key_bytes: int) -> bool:
    """Return True if a start of keys and a key, or a start of one, agree in their common length."""
    many = min(start_bytes, key_bytes)
    left, right = bytes_at(start, many), bytes_at(key, many)
    is_same = True
    for i in range(many):
        is_same &= left[i] == right[i]
    return is_same


@inner
def note_gap(at: WorkerAt, table: WorkerTableAt) -> None:
    """Add the gap in `notice` to compiled callbacks' next batches."""
    place = worker_state_at(at.state).notice
    notice = gap_notice_at(place)
    ends = int64s_at(table.key_ends, table.many + 1)
    lost = int64s_at(table.lost, table.many)
    for callback in range(table.many):
        if lost[callback] != 0:
            start, size = ends[callback], ends[callback + 1] - ends[callback]
            if _may_be_same(table.keys + start, size, place + GAP_NOTICE_BYTES, notice.key_bytes):
                _lost_of(table, callback)[0] += notice.count


@inner
def run_notice(at: WorkerAt, table: WorkerTableAt, ask: int, message: int) -> None:
    """Pass the gap in a message to the callbacks of the slice thread; `ask` as in `run_block`."""
    state = worker_state_at(at.state)
    state.notice = msg_data(message)
    state.next_epoch = gap_notice_at(state.notice).epoch
    if state.next_epoch > state.epoch:  # callbacks get a loss of an earlier one, which archives have left, in this one
        call_with_address(ask, WorkerReason.EPOCH)
    if load_shared(slice_state_at(at.slice_state), "stopping") != Stopping.TERMINATE:
        note_gap(at, table)
        if table.listens != 0:
            call_with_address(ask, WorkerReason.GAP)
    state.notice = 0


@inner
def call_compiled(at: WorkerAt, table: WorkerTableAt, entry: BatchEntry, start: int, count: int, origins: int) -> None:
    """Run a compiled callback on `count` rows of its batch, from index `start` on."""
    state = worker_state_at(at.state)
    counters = worker_counters_at(at.counters)
    function = int64s_at(table.functions, entry.callback + 1)[entry.callback]
    if function <= 0:  # it was removed meanwhile
        counters.unwanted += count
        return
    slot = state.burst + SLOT_BYTES * entry.slot
    frame = msg_data(slot)
    body_message = slot + MESSAGE_BYTES
    header = read_header(frame)
    envelope = envelope_at(frame)
    fixed = header.flags & FLAG_FIXED != 0
    layout = layout_of(header)
    call = callback_call_at(at.call)
    rows = at.identity + 4 * envelope.first_row if entry.rows == ALL_ROWS else entry.rows
    call.rows = rows + 4 * start
    call.row_count = count
    call.block_count = header.count
    call.body = msg_data(body_message)
    call.topic_count = header.topics
    call.numbers = frame + TOPICS_AT
    call.topic_bytes = header.topic_bytes
    call.payload_bytes = msg_size(body_message) - layout.payloads
    call.stride = header.stride if fixed else -1
    call.ts_out = header.ts_out
    call.ts_recv = envelope.ts_recv
    call.sequence = header.sequence
    call.state = entry.state
    call.error = 0
    call.flags = header.flags
    call.origins = origins
    lost = _lost_of(table, entry.callback)
    call.lost = lost[0]
    lost[0] = 0
    call_with_address(function, at.call)
    if callback_call_at(at.call).error != 0:
        raises = int64s_at(at.raises + 8 * entry.callback, 1)
        if raises[0] == 0:
            int32s_at(at.raised + 4 * state.raised, 1)[0] = entry.callback
            state.raised += 1
        raises[0] += 1
        counters.errors += 1
        counters.failed += count
        return
    counters.delivered += count
    counters.batches += 1


@inner
def run_compiled(at: WorkerAt, table: WorkerTableAt, first: int, origins: int) -> int:
    """Run the compiled callbacks of the entries from `first` on; keep those of Python ones, and return their number.

    `origins`: origins of the only block's messages if a replay merged it; else 0.
    """
    state = worker_state_at(at.state)
    counters = worker_counters_at(at.counters)
    functions = int64s_at(table.functions, table.total + 1)
    left = first
    for i in range(first, state.entries):
        entry = entry_at(at, i)
        if functions[entry.callback] == 0:
            keep_entry(at, entry, left)
            left += 1
        else:
            if i + _AHEAD < state.entries:
                coming = entry_at(at, i + _AHEAD)
                prefetch(coming.state)
                prefetch(int64s_at(table.lost + 8 * coming.callback, 1)[0])
            store_shared(counters, "has_more", max(numpy.int64(0), state.blocks - 1 - entry.slot))
            store_shared(counters, "busy_since_ns", coarse_monotonic_ns())
            call_compiled(at, table, entry, numpy.int64(0), entry.count, origins)
    store_shared(counters, "busy_since_ns", 0)
    store_shared(counters, "has_more", 0)
    state.entries = left
    return left
