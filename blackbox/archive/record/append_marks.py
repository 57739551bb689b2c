"""Append marks to a segment, in compiled code. `blackbox.archive.files.marks` reads them."""

from __future__ import annotations

from typing import Final

import numpy

from blackbox.archive.files.format import (
    ENTRY_BYTES,
    FILE_HEAD_BYTES,
    MARK_HEAD_BYTES,
    RECORD_ALIGNMENT,
    MarkKind,
    mark_bytes,
)
from blackbox.archive.files.index_entry import add_mark_to_entry
from blackbox.archive.files.journal_record import chain_after
from blackbox.archive.files.marks import AFTER_KILL, NAMES_LEFT_OUT, MarkHead, Totals, write_mark
from blackbox.archive.record.journal_state import (
    AT_ENDED,
    AT_LINK,
    AT_RECORDS,
    BUFFER_BYTES,
    COUNTER_BYTES,
    SEALED_MAX,
    UNHEARD,
    end_of_segment,
    flush,
    flush_entries,
    journal_at,
    seal,
)
from blackbox.block.form.format import END_BYTES, FLAG_FIXED, body_layout, layout_of, read_header
from blackbox.native.compile.jit import njit
from blackbox.native.memory.intrinsics import bytes_at, copy_bytes, inner, int32s_at

_MOST_NAMES: Final = 8_192
"""Maximum number of keys in one mark. Earlier marks name the other keys."""
_MARK_BODY_BYTES: Final = BUFFER_BYTES // 2
"""Maximum size of a mark's body. A mark that would be larger names no keys."""


@inner
def _write_names(address: int, first: int, count: int, target: int) -> int:
    """Copy the ends of some keys of the current control block to `target`, which must be zero-filled.

    Returns their size in bytes. With `target` 0, only computes the size.
    """
    state = journal_at(address)
    layout = layout_of(read_header(state.head))
    offsets = int32s_at(state.body + layout.topic_offsets + 4 * first, count + 1)
    start = numpy.int64(offsets[0])
    topic_bytes = numpy.int64(offsets[count]) - start
    made = body_layout(count, count, topic_bytes, END_BYTES * count, numpy.int64(FLAG_FIXED))
    if target != 0:
        to_index = int32s_at(target + made.topic_index, count)
        to_offsets = int32s_at(target + made.topic_offsets, count + 1)
        for key in range(count):
            to_index[key] = key
            to_offsets[key + 1] = offsets[key + 1] - offsets[0]
        copy_bytes(target + made.topics, state.body + layout.topics + start, topic_bytes)
        copy_bytes(target + made.payloads, state.body + layout.payloads + END_BYTES * first, END_BYTES * count)
    return int(made.end)


@njit(nogil=True, cache=True)
def _put(address: int, kind: int, flags: int, ts: int, ts_out: int, is_heard: bool, first: int, names: int) -> None:
    """Append a mark. With `is_heard` it describes the current control block and its keys `[first, first + names)`."""
    state = journal_at(address)
    ts_event = sequence = body_bytes = numpy.int64(0)
    if is_heard:
        header = read_header(state.head)
        ts_event, sequence = header.ts_in, header.sequence
    named = numpy.int64(names)
    if names > 0:
        body_bytes = _write_names(address, first, names, numpy.int64(0))
        if body_bytes > _MARK_BODY_BYTES:
            named = body_bytes = numpy.int64(0)
            flags |= NAMES_LEFT_OUT
    size = mark_bytes(body_bytes)
    if state.buffered + size > BUFFER_BYTES and not flush(address):
        return
    start = end_of_segment(address)
    target = state.buffer + state.buffered
    bytes_at(target, size)[:] = 0
    if named > 0:
        _write_names(address, first, names, target + MARK_HEAD_BYTES)
    _finish(address, start, MarkHead(kind, flags, ts, ts_out, ts_event, sequence, named, body_bytes))


@inner
def _finish(address: int, start: int, head: MarkHead) -> None:
    """Write the head of the mark at the end of the buffer. `start` is its offset in the segment."""
    state = journal_at(address)
    target, size = state.buffer + state.buffered, mark_bytes(head.body_bytes)
    totals = Totals(state.day_records, state.day_messages, state.day_marks, state.chain)
    write_mark(target, head, state.epoch, totals)
    state.day_marks += 1
    state.chain = chain_after(state.chain, target, address + AT_LINK)
    state.buffered += size
    grown = state.entries + ENTRY_BYTES * SEALED_MAX
    if not add_mark_to_entry(grown, start, size, state.epoch, head.kind):
        seal(address)
        if state.error == 0:
            add_mark_to_entry(grown, start, size, state.epoch, head.kind)


@njit(nogil=True, cache=True)
def put_note(address: int) -> None:
    """Append the current note."""
    state = journal_at(address)
    size = mark_bytes(state.body_bytes)
    if state.buffered + size > BUFFER_BYTES and not flush(address):
        return
    start = end_of_segment(address)
    target = state.buffer + state.buffered
    bytes_at(target, MARK_HEAD_BYTES)[:] = 0
    bytes_at(target + size - RECORD_ALIGNMENT, RECORD_ALIGNMENT)[:] = 0
    copy_bytes(target + MARK_HEAD_BYTES, state.body, state.body_bytes)
    none = numpy.int64(0)
    head = MarkHead(
        numpy.int64(MarkKind.NOTE.value), none, state.ts_recv, none, none, state.first_row, none, state.body_bytes
    )
    _finish(address, start, head)


@inner
def put_mark(address: int, kind: int, ts: int, ts_out: int) -> None:
    """Append a mark without a control block."""
    flags = AFTER_KILL if kind == MarkKind.RECORDER_BEGIN.value and journal_at(address).after_kill != 0 else 0
    _put(address, numpy.int64(kind), numpy.int64(flags), ts, ts_out, False, numpy.int64(0), numpy.int64(0))


@inner
def mark_control(address: int, kind: int, with_names: bool) -> None:
    """Mark the current control block: its next sequence and, with `with_names`, the end of each key."""
    state = journal_at(address)
    header = read_header(state.head)
    first, left = numpy.int64(0), header.topics if with_names else numpy.int64(0)
    while left > _MOST_NAMES:
        _put(
            address,
            numpy.int64(MarkKind.HEARD.value),
            numpy.int64(NAMES_LEFT_OUT),
            state.ts_recv,
            header.ts_out,
            True,
            first,
            numpy.int64(_MOST_NAMES),
        )
        first += _MOST_NAMES
        left -= _MOST_NAMES
    _put(address, numpy.int64(kind), numpy.int64(0), state.ts_recv, header.ts_out, True, first, left)


@inner
def begin_segment(address: int, ts: int) -> None:
    """Mark the beginning of an empty segment and, if needed, of the recorder."""
    state = journal_at(address)
    if end_of_segment(address) == FILE_HEAD_BYTES:
        put_mark(address, MarkKind.SEGMENT_BEGIN.value, ts, numpy.int64(0))
        if state.started != 0:
            put_mark(address, MarkKind.RECORDER_BEGIN.value, state.started, numpy.int64(0))
            state.started = 0


@njit(nogil=True, cache=True)
def finish(address: int, is_last: bool, ts: int) -> bool:
    """Mark the end of a segment that is not empty, and write the buffer and the index entries.

    `is_last`: the recorder stops.
    """
    state = journal_at(address)
    bytes_at(address + AT_ENDED, COUNTER_BYTES)[:] = 0
    is_ended = state.error == 0 and end_of_segment(address) > FILE_HEAD_BYTES
    if is_ended:
        if is_last:
            put_mark(address, MarkKind.RECORDER_END.value, ts, numpy.int64(0))
        put_mark(address, MarkKind.SEGMENT_END.value, ts, numpy.int64(0))
    done = flush(address)
    if is_ended and state.error == 0:  # a failed write has removed the mark
        copy_bytes(address + AT_ENDED, address + AT_RECORDS, COUNTER_BYTES)
    seal(address)
    flush_entries(address)
    return bool(done)


@inner
def begin_epoch(address: int, epoch: int, ts_recv: int, ts_out: int) -> None:
    """Mark a new epoch. It is below the last one if the publisher's clock was set back."""
    state = journal_at(address)
    if epoch != state.epoch:
        state.epoch = epoch
        state.names_due = state.is_outbox
        put_mark(address, MarkKind.EPOCH_BEGIN.value, ts_recv, ts_out)
    if epoch != state.recorded_epoch:  # equal after a change of the day
        state.recorded_epoch = epoch
        state.begin = UNHEARD
        state.recorded = state.following = 0


@inner
def note_sequences(address: int, first: int, stop: int) -> None:
    """Note that messages `[first, stop)` are recorded. An empty range only reports the next sequence."""
    state = journal_at(address)
    if state.begin == UNHEARD:
        state.begin = state.recorded = first
        state.unheard += first
    if first > state.following:
        state.names_due = 1
    if first <= state.recorded:
        state.recorded = max(state.recorded, stop)
    state.following = max(state.following, stop)
