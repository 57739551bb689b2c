"""Append received blocks to a segment, in compiled code, in the slice thread.

Small records are gathered in a buffer, which is written when it is full or the line falls idle, at most a thousand
times a second. Large bodies are written straight from the receive buffer. After a failed write, the lost messages are
counted and the file is cut back to the last whole record.

`blackbox.archive.record.append_marks` writes the marks between the records.
"""

from __future__ import annotations

import errno
from functools import cache
from typing import Any, Final

import numpy
from numba import types

from blackbox.archive.files.format import (
    CODEC_NONE,
    ENTRY_BYTES,
    FILE_HEAD_BYTES,
    RECORD_HEAD_BYTES,
    MarkKind,
    record_bytes,
)
from blackbox.archive.files.index_entry import add_to_entry
from blackbox.archive.files.journal_record import chain_after, write_head
from blackbox.archive.record.append_marks import (
    begin_epoch,
    begin_segment,
    finish,
    mark_control,
    note_sequences,
    put_note,
)
from blackbox.archive.record.journal_state import (
    AT_BEGUN,
    AT_BUFFERED,
    AT_LINK,
    AT_RECORDS,
    AT_WANTED,
    BUFFER_BYTES,
    COUNTER_BYTES,
    SEALED_MAX,
    Wanted,
    commit,
    end_of_segment,
    fail,
    flush,
    flush_entries,
    flush_from,
    journal_at,
    notify,
    reserve,
    seal,
    write_all,
    write_behind_buffer,
)
from blackbox.block.batch.block_handler import BLOCK, IDLE, NOTE
from blackbox.block.form.ack_format import NOTHING_MISSING
from blackbox.block.form.format import FLAG_CHECKSUM, FLAG_END, layout_of, read_header, sequence_of
from blackbox.native.compile.jit import cfunc, check_memory, njit
from blackbox.native.memory.intrinsics import bytes_at, call_with_address, copy_bytes, fence, inner
from blackbox.native.memory.records import load_shared, store_shared
from blackbox.native.system.posix import now_ns, sleep_microseconds, sync_file
from blackbox.native.tables.xxh3 import checksum_32

_DIRECT_BYTES: Final = 32 << 10
"""Bodies of at least this size are not copied to the buffer."""
_SEALED_FLUSH: Final = 32
_FLUSH_NS: Final = 1_000_000
_PATIENCE_US: Final = 10_000_000
_NAP_US: Final = 200
_NO_TIME: Final = errno.ETIMEDOUT
_HEARD_NS: Final = 1_000_000_000
"""Minimum time between marks for heartbeats that report nothing new."""
_SILENT_NS: Final = 10_000_000_000
"""The same, if nothing was recorded in between."""


@inner
def _switch(address: int, ts: int) -> bool:
    """Switch to the prepared segment. Return False if the buffer could not be written."""
    state = journal_at(address)
    if not finish(address, False, ts):
        return False
    state.fd = state.next_fd
    state.index_fd = state.next_index_fd
    state.offset = FILE_HEAD_BYTES
    state.reserved = 0
    state.day_end = state.next_day_end
    if state.next_is_new_day != 0:
        state.day_records = state.day_messages = state.day_marks = 0
        state.chain = state.next_chain
        state.epoch = 0
    commit(address)
    copy_bytes(address + AT_BEGUN, address + AT_RECORDS, COUNTER_BYTES)
    store_shared(state, "wanted", 0)
    store_shared(state, "next_ready", 0)
    store_shared(state, "switches", state.switches + 1)
    notify(address, AT_WANTED)
    return True


@inner
def _ask(address: int, what: int) -> None:
    state = journal_at(address)
    if state.wanted == 0:
        store_shared(state, "wanted", what)
        notify(address, AT_BUFFERED)


@inner
def _make_ready(address: int, ts_recv: int) -> bool:
    """Make sure that the segment has room and is of the right day. A full one is used until the next one is ready."""
    state = journal_at(address)
    waited = numpy.int64(0)
    while True:
        if state.wanted != 0 and load_shared(state, "next_ready") != 0 and not _switch(address, ts_recv):
            return False
        if ts_recv < state.day_end:
            if end_of_segment(address) >= state.segment_bytes:
                _ask(address, numpy.int64(Wanted.MORE_ROOM.value))
            begin_segment(address, ts_recv)
            return state.error == 0
        _ask(address, numpy.int64(Wanted.NEW_DAY.value))
        if waited > _PATIENCE_US:
            state.error = _NO_TIME
        if load_shared(state, "error") != 0:
            return False
        sleep_microseconds(_NAP_US)
        waited += _NAP_US


@inner
def _note(address: int, size: int, start: int) -> None:
    state = journal_at(address)
    grown = state.entries + ENTRY_BYTES * SEALED_MAX
    if not add_to_entry(grown, state.head, state.body, state.ts_recv, state.first_row, size, start, state.key_rule):
        seal(address)
        if state.error == 0:
            add_to_entry(grown, state.head, state.body, state.ts_recv, state.first_row, size, start, state.key_rule)


@inner
def _make_safe(address: int) -> None:
    """Write and sync the appended record, as far as the settings require."""
    state = journal_at(address)
    if state.is_outbox == 0 and state.sync_each == 0:
        return
    if flush(address) and state.sync_each != 0:
        if sync_file(state.fd) == 0:
            commit(address)
        else:
            fail(address)


@inner
def _append(address: int) -> None:
    state = journal_at(address)
    head = state.head
    header = read_header(head)
    count = header.count - state.first_row
    if state.error != 0 or not _make_ready(address, state.ts_recv):
        state.lost += count
        return
    begin_epoch(address, header.epoch, state.ts_recv, header.ts_out)
    body, stored, codec = state.body, state.body_bytes, numpy.int64(CODEC_NONE)
    packed = False
    if state.pack != 0:
        state.packed_bytes = 0
        call_with_address(state.pack, address)
        packed = state.packed_bytes > 0
    if packed:
        body, stored, codec = state.packed, state.packed_bytes, state.codec
    if packed or header.flags & FLAG_CHECKSUM == 0:
        checksum = numpy.int64(checksum_32(body, stored))
    else:
        checksum = header.body_checksum
    size = record_bytes(stored)
    direct = stored >= _DIRECT_BYTES
    in_buffer = RECORD_HEAD_BYTES if direct else size
    if state.error != 0 or (state.buffered + in_buffer > BUFFER_BYTES and not flush(address)):
        state.lost += count
        return
    start = end_of_segment(address)
    target = state.buffer + state.buffered
    write_head(target, head, state.ts_recv, state.first_row, codec, stored, checksum)
    chain = chain_after(state.chain, target, address + AT_LINK)
    state.buffered += in_buffer
    if direct:
        reserve(address, state.buffered + stored)
        # This write fails if the disk is full, either before the body or within it.
        written = write_behind_buffer(address, body, stored)
        of_buffer = min(written, state.buffered)
        of_body = written - of_buffer
        if not flush_from(address, of_buffer):
            state.lost += count
            return
        state.safe = start
        if not write_all(state.fd, body + of_body, stored - of_body):
            fail(address)
            state.lost += count
            return
        state.offset += stored
        state.writes += 1
        rest = size - RECORD_HEAD_BYTES - stored
        bytes_at(state.buffer, rest)[:] = 0
        state.buffered = rest
    else:
        copy_bytes(target + RECORD_HEAD_BYTES, body, stored)
        bytes_at(target + RECORD_HEAD_BYTES + stored, size - RECORD_HEAD_BYTES - stored)[:] = 0
    state.records += 1
    state.messages += count
    state.stored_bytes += size
    state.day_records += 1
    state.day_messages += count
    state.chain = chain
    layout = layout_of(header)
    stop = sequence_of(header, layout, state.body, header.count - 1) + 1
    note_sequences(address, sequence_of(header, layout, state.body, state.first_row), stop)
    if direct and state.buffered == 0 and state.sync_each == 0:  # a record without its padding is incomplete
        commit(address)
    _note(address, size, start)
    _make_safe(address)


@inner
def _note_position(address: int, sequence: int) -> None:
    """Write the buffer, then update the position to acknowledge, up to the publisher's next sequence.

    The first position of an epoch starts at its first message, or at the sequence from which the publisher confirmed
    the subscription.
    """
    state = journal_at(address)
    is_new = state.position_epoch != state.recorded_epoch
    if is_new and (state.begin > 0 or state.recorded < sequence):
        if state.in_force == 0 or state.following > sequence:
            return
        if state.recorded < sequence:
            state.begin = state.recorded = sequence
    missing = state.recorded if state.recorded < sequence else numpy.int64(NOTHING_MISSING)
    is_same = state.recorded == state.position and missing == state.position_missing
    if (is_same and not is_new) or not flush(address):
        return
    store_shared(state, "position_version", state.position_version + 1)
    fence()
    state.position_epoch, state.position_begin = state.recorded_epoch, state.begin
    state.position, state.position_missing = state.recorded, missing
    store_shared(state, "position_version", state.position_version + 1)
    notify(address, AT_WANTED)


@inner
def _hear(address: int) -> None:
    """Mark a control block if it reports messages that are not recorded, or if a mark is due."""
    state = journal_at(address)
    header = read_header(state.head)
    epoch, sequence = header.epoch, header.sequence
    is_end = header.flags & FLAG_END != 0
    # While blocks wait for the other line, this sequence is higher than the journal's. The next heartbeat repeats it.
    if state.error != 0 or (state.held != 0 and not is_end):
        return
    if not _make_ready(address, state.ts_recv):
        return
    begin_epoch(address, epoch, state.ts_recv, header.ts_out)
    if state.held != 0:
        return
    is_ahead = state.following < sequence
    note_sequences(address, sequence, sequence)
    _note_position(address, sequence)
    if is_end:
        if epoch != state.ended_epoch:
            state.ended_epoch = epoch
            mark_control(address, MarkKind.EPOCH_END.value, is_ahead)
        return
    since = state.ts_recv - state.heard
    is_due = since >= (_HEARD_NS if state.records > state.heard_records else _SILENT_NS) or since < 0
    if is_ahead or is_due or state.names_due != 0:
        mark_control(address, MarkKind.HEARD.value, is_ahead or state.names_due != 0)
        state.heard, state.heard_records, state.names_due = state.ts_recv, state.records, numpy.int64(0)


@inner
def _rest(address: int) -> None:
    """Write the buffer, unless it was just written: a busy line falls idle after every few blocks."""
    state = journal_at(address)
    now = now_ns()
    state.again = numpy.int64(state.buffered > 0 and 0 <= now - state.flushed < _FLUSH_NS)
    if state.again != 0:
        return
    state.flushed = now
    flush(address)
    if state.sealed >= _SEALED_FLUSH:
        flush_entries(address)


@njit(nogil=True, cache=True)
def append(address: int) -> None:
    """Handle one event of the slice thread: a block, a note, a control block or idle."""
    state = journal_at(address)
    if state.kind == BLOCK:
        _append(address)
        state.refused = numpy.int64(state.error != 0)
    elif state.kind == NOTE:
        if state.error == 0 and _make_ready(address, state.ts_recv):
            put_note(address)
            if state.in_force != 0:
                _make_safe(address)
        state.refused = numpy.int64(state.error != 0)
    elif state.kind == IDLE:
        state.again = 0
        if state.error == 0:
            _rest(address)
    else:
        _hear(address)


@cache
def compile_append() -> Any:
    """Return `append` as a C function; it has `.address`."""
    check_memory()
    return cfunc(types.void(types.int64), nogil=True, cache=True)(_entry)


def _entry(address: int) -> None:
    append(address)
