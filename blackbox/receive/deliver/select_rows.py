"""Select each callback's rows of a block. Compiled; runs in the thread that calls the callbacks."""

from __future__ import annotations

from typing import Final

import numpy
from numpy.typing import NDArray

from blackbox.block.batch.worker_envelope import TOPICS_AT, envelope_at, row_group, rows_at
from blackbox.block.form.format import FLAG_SAME, block_header_at, is_same, layout_of, read_header
from blackbox.native.memory.intrinsics import bytes_at, inner, int32s_at, int64s_at, load_acquire
from blackbox.receive.deliver.worker_state import (
    ALL_ROWS,
    ENTRY_BYTES,
    BatchEntry,
    WorkerAt,
    WorkerTableAt,
    batch_entry_at,
    worker_state_at,
)
from blackbox.transport.libzmq import MESSAGE_BYTES, msg_data, msg_size

MERGE: Final = -1
SLOT_BYTES: Final = 2 * MESSAGE_BYTES
"""A burst's slot: the envelope's and the body's message."""
_READ_AHEAD_BYTES: Final = 256
"""Bytes prefetched per message, with time and topic: a callback may read only the beginning of larger ones."""
_FEW_PARTS: Final = 32
"""Parts of a callback's rows to merge one by one. More are sorted: merging each takes as long as all before it."""
_LINE_BYTES: Final = 64
"""Bytes of a cache line."""


@inner
def entry_at(at: WorkerAt, number: int) -> BatchEntry:
    """Return a batch of the burst."""
    return batch_entry_at(at.entries + ENTRY_BYTES * number)


@inner
def add_entry(at: WorkerAt, slot: int, callback: int, rows: int, count: int, callback_state: int) -> None:
    """Add a batch to the burst."""
    state = worker_state_at(at.state)
    entry = entry_at(at, state.entries)
    entry.slot = slot
    entry.callback = callback
    entry.rows = rows
    entry.count = count
    entry.state = callback_state
    state.entries += 1


@inner
def keep_entry(at: WorkerAt, entry: BatchEntry, number: int) -> None:
    """Copy a batch of the burst to an earlier place."""
    kept = entry_at(at, number)
    kept.slot = entry.slot
    kept.callback = entry.callback
    kept.rows = entry.rows
    kept.count = entry.count
    kept.state = entry.state


@inner
def select(at: WorkerAt, table: WorkerTableAt, slot: int, rows_used: int) -> int:
    """List the rows of every callback with part of the block in `slot`, as batch entries.

    Rows of a single match set are used in place. Rows left out because the callback has their message under an earlier
    topic are counted in `left_out`. Return how many of `rows` are in use; -1: not enough, `rows_needed` would.
    """
    state = worker_state_at(at.state)
    state.left_out = 0
    before = state.entries
    used = _select(at, table, slot, rows_used)
    if used >= 0 and block_header_at(msg_data(state.burst + SLOT_BYTES * slot)).flags & FLAG_SAME:
        return _leave_out_same(at, table, slot, before, rows_used, used)
    return used


@inner
def _select(at: WorkerAt, table: WorkerTableAt, slot: int, rows_used: int) -> int:
    """List the rows of every callback, whatever their messages."""
    state = worker_state_at(at.state)
    frame = msg_data(state.burst + SLOT_BYTES * slot)
    header = read_header(frame)
    envelope = envelope_at(frame)
    wanted = header.count - envelope.first_row
    starts = int64s_at(table.starts, table.sets + 1)
    callbacks = int32s_at(table.callbacks, table.total)
    states = int64s_at(table.states, table.total + 1)
    if envelope.groups == 0:
        only = int32s_at(frame + TOPICS_AT + 4 * header.topics, 1)[0]
        for place in range(starts[only], starts[only + 1]):
            callback = numpy.int64(callbacks[place])
            add_entry(at, slot, callback, ALL_ROWS, wanted, states[callback])
        return rows_used
    rows = frame + rows_at(header.topics, envelope.groups)
    counts = int64s_at(at.counts, table.total)
    places = int64s_at(at.places, table.total)
    touched = int32s_at(at.touched, table.total)
    reached = 0
    for number in range(envelope.groups):
        group = row_group(frame, header.topics, number)
        if group.start == group.stop:
            continue
        for place in range(starts[group.match_set], starts[group.match_set + 1]):
            callback = callbacks[place]
            if counts[callback] == 0:
                touched[reached] = callback
                reached += 1
                places[callback] = rows + 4 * group.start
            else:
                places[callback] = MERGE
            counts[callback] += group.stop - group.start
    merged = _decide(at, touched, reached, wanted)
    if rows_used + merged > state.max_rows:
        state.rows_needed = merged
        for i in range(reached):
            counts[touched[i]] = 0
        return -1
    used = rows_used
    delivered = 0
    for i in range(reached):
        callback = numpy.int64(touched[i])
        count = counts[callback]
        place = places[callback]
        counts[callback] = 0
        delivered += count
        if place == MERGE:
            place = state.rows + 4 * used
            _merge(table, frame, callback, place)
            used += count
        add_entry(at, slot, callback, place, count, states[callback])
    body = state.burst + SLOT_BYTES * slot + MESSAGE_BYTES
    if reached > 1 and 4 * delivered > wanted and msg_size(body) < _READ_AHEAD_BYTES * header.count:
        _read_ahead(msg_data(body), msg_size(body))
    return used


@inner
def _read_ahead(address: int, size: int) -> None:
    """Prefetch a whole body: callbacks that take turns on its rows would wait for each row separately.

    With five callbacks that share messages of 100 bytes it takes 20 instead of 36 ns per message and callback.
    """
    for place in range(numpy.uint64(0), numpy.uint64(size & -8), numpy.uint64(_LINE_BYTES)):
        load_acquire(address + numpy.int64(place))


@inner
def _decide(at: WorkerAt, touched: NDArray[numpy.int32], reached: int, wanted: int) -> int:
    """Find the callbacks of all rows after counting; return the rows to merge."""
    merged = 0
    for i in range(reached):
        callback = touched[i]
        count = int64s_at(at.counts + 8 * callback, 1)[0]
        place = int64s_at(at.places + 8 * callback, 1)
        if count == wanted:
            place[0] = ALL_ROWS
        elif place[0] == MERGE:
            merged += count
    return merged


@inner
def _merge(table: WorkerTableAt, frame: int, callback: int, target: int) -> None:
    """Write a callback's rows of several match sets, ascending."""
    header = read_header(frame)
    groups = envelope_at(frame).groups
    starts = int64s_at(table.starts, table.sets + 1)
    callbacks = int32s_at(table.callbacks, table.total)
    rows = int32s_at(frame + rows_at(header.topics, groups), header.count)
    out = int32s_at(target, header.count)
    used = parts = 0
    for number in range(groups):
        group = row_group(frame, header.topics, number)
        for place in range(starts[group.match_set], starts[group.match_set + 1]):
            if callbacks[place] == callback:
                if parts < _FEW_PARTS:
                    used = _merge_rows(out, used, rows, group.start, group.stop)
                else:
                    for row in range(group.start, group.stop):
                        out[used] = rows[row]
                        used += 1
                parts += 1
                break
    if parts > _FEW_PARTS:
        out[:used].sort()


@inner
def _merge_rows(out: NDArray[numpy.int32], used: int, rows: NDArray[numpy.int32], start: int, stop: int) -> int:
    """Merge ascending `rows[start:stop]` into ascending `out[:used]`, from the end; return the new length."""
    total = used + stop - start
    left, right = used - 1, stop - 1
    for place in range(total - 1, -1, -1):
        if right < start:
            break
        if left >= 0 and out[left] > rows[right]:
            out[place] = out[left]
            left -= 1
        else:
            out[place] = rows[right]
            right -= 1
    return total


@inner
def _leave_out_same(at: WorkerAt, table: WorkerTableAt, slot: int, first: int, rows_used: int, used: int) -> int:
    """Leave out rows of the batches from `first` on that repeat a message; return the rows in use as `select`.

    A callback gets a message with the first of its topics that match, also if that row was delivered earlier.
    """
    state = worker_state_at(at.state)
    gets_all = bytes_at(table.gets_all, table.many)
    needed = used - rows_used
    for number in range(first, state.entries):
        needed += entry_at(at, number).count
    if rows_used + needed > state.max_rows:
        state.rows_needed = needed
        return -1
    left = first
    for number in range(first, state.entries):
        entry = entry_at(at, number)
        if gets_all[entry.callback] == 0:
            count = entry.count
            kept = _copy_once(at, table, slot, entry, state.rows + 4 * used)
            state.left_out += count - kept
            if kept != count:
                entry.rows, entry.count = state.rows + 4 * used, kept
                used += kept
        if entry.count > 0:
            keep_entry(at, entry, left)
            left += 1
    state.entries = left
    return used


@inner
def _copy_once(at: WorkerAt, table: WorkerTableAt, slot: int, entry: BatchEntry, target: int) -> int:
    """Copy one row of each message of a batch; return their number."""
    message = worker_state_at(at.state).burst + SLOT_BYTES * slot
    frame, body = msg_data(message), msg_data(message + MESSAGE_BYTES)
    header, first_row = read_header(frame), envelope_at(frame).first_row
    layout = layout_of(header)
    is_all = entry.rows == ALL_ROWS
    rows = int32s_at(target if is_all else entry.rows, entry.count)
    out = int32s_at(target, entry.count)
    kept = 0
    before = numpy.int64(-1)
    for i in range(entry.count):
        row = first_row + i if is_all else numpy.int64(rows[i])
        back, is_told = row, False
        while back > 0 and back > before and is_same(header, layout, body, back):
            back -= 1
            if i == 0 and back < first_row:
                topic = int32s_at(body + layout.topic_index, header.count)[back]
                match_set = int32s_at(frame + TOPICS_AT + 4 * header.topics, header.topics)[topic]
                is_told |= _has_callback(table, match_set, entry.callback)
        if i > 0:
            is_told = back == before
        if not is_told:
            out[kept] = row
            kept += 1
        before = row
    return kept


@inner
def _has_callback(table: WorkerTableAt, match_set: int, callback: int) -> bool:
    starts = int64s_at(table.starts, table.sets + 1)
    callbacks = int32s_at(table.callbacks, table.total)
    found = False
    for place in range(starts[match_set], starts[match_set + 1]):
        found |= callbacks[place] == callback
    return found
