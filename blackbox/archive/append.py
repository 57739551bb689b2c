"""Append received blocks to a segment, in compiled code, in the slice thread.

Small records are gathered in a buffer and written when it is full or the line falls idle, a thousand times a second at
most; a large body is written from where it was received. What could not be written is counted, and the file cut back to
the last whole record.

Between the records stand marks: see `blackbox.archive.marks`.
"""

from __future__ import annotations

import errno
from typing import Any, Final

import numpy
from numba import cfunc, types

from blackbox.archive.entry import add_mark_to_entry, add_to_entry, seal_entry
from blackbox.archive.format import (
    CODEC_NONE,
    ENTRY_BYTES,
    FILE_HEAD_BYTES,
    RECORD_HEAD_BYTES,
    entry_at,
    mark_bytes,
    record_bytes,
)
from blackbox.archive.key_positions import KeysAt, forget_keys, keys_that_differ, note_key, write_keys
from blackbox.archive.marks import (
    AFTER_KILL,
    EPOCH_BEGIN,
    EPOCH_END,
    HEARD,
    NAMES_LEFT_OUT,
    RECORDER_BEGIN,
    RECORDER_END,
    SEGMENT_BEGIN,
    SEGMENT_END,
    Totals,
    write_mark,
)
from blackbox.archive.record import chain_after, write_head
from blackbox.block.format import FLAG_CHECKSUM, FLAG_END, read_header
from blackbox.native.intrinsics import bytes_at, call_with_address, copy_bytes, inner
from blackbox.native.jit import njit
from blackbox.native.posix import cut_file, now_ns, poke, sleep_microseconds, sync_file, write_file
from blackbox.native.records import Field, Fields, load_shared, record_at, store_shared
from blackbox.native.xxh3 import checksum_32
from blackbox.subscribe.block_handler import BLOCK, IDLE, HandedBlock
from blackbox.transport.libzmq import zmq_errno

COUNTERS: Final = 7
"""int64s from `records` to `chain`: what is set back when something could not be written."""


class JournalState(HandedBlock):
    """One slice's journal, shared by the slice thread, which appends, and the recorder's maintenance thread."""

    # Set before the first block.
    fd = Field()
    index_fd = Field()
    offset = Field()
    """Bytes of the segment that are written."""
    buffer = Field()
    """Address of the buffer."""
    entries = Field()
    """Address of the sealed index entries that are not written yet; the one that grows stands behind them."""
    key_bytes = Field()
    segment_bytes = Field()
    """Size at which another segment is asked for."""
    sync_each = Field()
    """1: every record is durable before the next is taken."""
    pack = Field()
    """Address of the C function that compresses the body at hand, or 0."""
    codec = Field()
    maintenance_fd = Field()
    """Poked when the maintenance thread is wanted."""
    day_end = Field()
    """ns since 1970; a block received then or later belongs to another day."""
    started = Field()
    """When the recorder opened this journal, ns since 1970; 0 once that is marked."""
    after_kill = Field()
    """1: the recorder before this one was killed."""
    keys = Fields(len(KeysAt._fields))
    """Where the numbers of the keys lie: a `KeysAt`."""

    # Owned by the slice thread.
    flushed = Field()
    """When the buffer was last written since the line was idle, ns since 1970."""
    buffered = Field()
    """Bytes in the buffer."""
    safe = Field()
    """Where the last record that is written ends: a refused write cuts the segment back to here."""
    sealed = Field()
    """Sealed entries not written yet."""
    records = Field()
    """Records written, or waiting in the buffer, since the recorder began; the next two are their messages and bytes.
    Together with the day's totals behind them these are the COUNTERS."""
    messages = Field()
    stored_bytes = Field()
    day_records = Field()
    """Of the slice's day so far, whoever recorded it; so are the next three."""
    day_messages = Field()
    day_marks = Field()
    chain = Field()
    """The chain of checksums of all records and marks, see `chain_after`."""
    written = Fields(COUNTERS)
    """The counters as they were at `safe`."""
    begun = Fields(COUNTERS)
    """The counters as they were when the segment was begun."""
    ended = Fields(COUNTERS)
    """The counters just behind the last SEGMENT_END; the `chain` is 0 if there was none."""
    lost = Field()
    """Messages received and not recorded."""
    error = Field()
    """The errno with which the system refused a write; nothing is recorded from then on."""
    packed = Field()
    """Address and size of the compressed body, set by `pack`; size 0: it stays as it is."""
    packed_bytes = Field()
    epoch = Field()
    """The latest epoch of which a beginning was marked."""
    ended_epoch = Field()
    """The latest epoch of which the end was marked."""
    heard = Field()
    """When the last heartbeat was marked, ns since 1970, and how many records there were then."""
    heard_records = Field()
    link = Fields(2)
    """Scratch of `chain_after`."""

    # Exchanged by the slice thread and the maintenance thread.
    wanted = Field(own_line=True)
    """Set by the slice thread: MORE_ROOM or NEW_DAY; 0: nothing."""
    next_ready = Field(own_line=True)
    """Set by the maintenance thread to 1 once the next fields hold; back to 0 by the slice thread, which then owns
    them."""
    next_fd = Field()
    next_index_fd = Field()
    next_day_end = Field()
    next_is_new_day = Field()
    next_chain = Field()
    """Where the chain of that segment's day begins, if it is another day."""
    switches = Field(own_line=True)
    """Segments begun so far. After each, the maintenance thread closes the one before."""


journal_at = record_at(JournalState)


def _offset_of(name: str) -> int:
    return int(JournalState.dtype.fields[name][1])  # type: ignore[index]


_RECORDS: Final = _offset_of("records")
_WRITTEN: Final = _offset_of("written")
_BEGUN: Final = _offset_of("begun")
_ENDED: Final = _offset_of("ended")
_LINK: Final = _offset_of("link")
_KEYS: Final = _offset_of("keys")
_WANTED: Final = _offset_of("wanted")
_BUFFERED: Final = _offset_of("buffered")
_COUNTER_BYTES: Final = 8 * COUNTERS

MORE_ROOM: Final = 1
NEW_DAY: Final = 2
BUFFER_BYTES: Final = 1 << 20
SEALED_MAX: Final = 256
_DIRECT_BYTES: Final = 32 << 10
"""Bodies from this size on are written from where they are."""
_SEALED_FLUSH: Final = 32
_FLUSH_NS: Final = 1_000_000
_PATIENCE_US: Final = 10_000_000
_NAP_US: Final = 200
_NO_TIME: Final = errno.ETIMEDOUT
_HEARD_NS: Final = 1_000_000_000
"""Heartbeats that say nothing new are marked no more often than this."""
_SILENT_NS: Final = 10_000_000_000
"""The same, when nothing was recorded in between."""
_MARK_BODY_BYTES: Final = BUFFER_BYTES // 2
"""A mark that would be larger leaves out the names of its keys."""


@inner
def _write_all(fd: int, address: int, size: int) -> bool:
    done = numpy.int64(0)
    while done < size:
        written = write_file(fd, address + done, size - done)
        if written < 0:
            if zmq_errno() != errno.EINTR:
                return False
        else:
            done += written
    return True


@inner
def _set_back(at: int, place: int) -> None:
    """Go back to the counters kept at offset `place`; count the messages since then as lost."""
    state = journal_at(at)
    recorded = state.messages
    copy_bytes(at + _RECORDS, at + place, _COUNTER_BYTES)
    state.lost += recorded - state.messages


@njit(nogil=True, cache=True)
def lose_segment(at: int) -> None:
    """Count as lost what was recorded since the segment was begun."""
    _set_back(at, _BEGUN)


@inner
def _commit(at: int) -> None:
    state = journal_at(at)
    state.safe = state.offset
    copy_bytes(at + _WRITTEN, at + _RECORDS, _COUNTER_BYTES)


@inner
def _notify(at: int, read_into: int) -> None:
    """Wake the maintenance thread; `read_into` is where `poke` finds a byte to write."""
    poke(journal_at(at).maintenance_fd, at + read_into)


@inner
def _fail(at: int) -> bool:
    """Give up recording: cut the segment back to what is safe, count the rest as lost, forget its index entries."""
    state = journal_at(at)
    state.error = zmq_errno()
    state.offset = state.safe
    state.buffered = 0
    cut_file(state.fd, state.safe)
    _set_back(at, _WRITTEN)
    bytes_at(state.entries + ENTRY_BYTES * SEALED_MAX, ENTRY_BYTES)[:] = 0
    while state.sealed > 0 and entry_at(state.entries + ENTRY_BYTES * (state.sealed - 1)).stop > state.safe:
        state.sealed -= 1
    _notify(at, _WANTED)
    return False


@inner
def _flush(at: int) -> bool:
    state = journal_at(at)
    if state.buffered == 0:
        return True
    if not _write_all(state.fd, state.buffer, state.buffered):
        return _fail(at)
    state.offset += state.buffered
    state.buffered = 0
    if state.sync_each == 0:
        _commit(at)
    return True


@inner
def _flush_entries(at: int) -> None:
    """Write the sealed entries. A refused write is no error: readers make missing entries from the records."""
    state = journal_at(at)
    if state.sealed > 0 and not _write_all(state.index_fd, state.entries, ENTRY_BYTES * state.sealed):
        state.index_fd = -1  # it may end within an entry: no other could be found behind that
    state.sealed = 0


@inner
def _seal(at: int) -> None:
    """Close the entry that grows, unless it is empty."""
    state = journal_at(at)
    grown = state.entries + ENTRY_BYTES * SEALED_MAX
    if entry_at(grown).stop == 0:
        return
    seal_entry(grown)
    copy_bytes(state.entries + ENTRY_BYTES * state.sealed, grown, ENTRY_BYTES)
    bytes_at(grown, ENTRY_BYTES)[:] = 0
    state.sealed += 1
    if state.sealed == SEALED_MAX:
        _flush(at)
        _flush_entries(at)


@inner
def _end_of_segment(at: int) -> int:
    state = journal_at(at)
    return state.offset + state.buffered


@inner
def _keys_of(at: int) -> KeysAt:
    keys = journal_at(at).keys
    return KeysAt(keys[0], keys[1], keys[2], keys[3], keys[4], keys[5], keys[6])


@inner
def _mark(at: int, kind: int, ts: int, ts_out: int, heard: int) -> None:
    """Append a mark. `heard`: address of a control block's body, whose keys are named where numbers differ; or 0."""
    state = journal_at(at)
    flags = names = topic_bytes = numpy.int64(0)
    if kind == RECORDER_BEGIN and state.after_kill != 0:
        flags = numpy.int64(AFTER_KILL)
    if heard != 0:
        names, topic_bytes = keys_that_differ(_keys_of(at), state.head, heard)
    size = mark_bytes(0)
    if names > 0:
        body_bytes = write_keys(_keys_of(at), state.head, heard, names, topic_bytes, numpy.int64(0))
        if body_bytes > _MARK_BODY_BYTES:
            names, flags = numpy.int64(0), numpy.int64(NAMES_LEFT_OUT)
        else:
            size = mark_bytes(body_bytes)
    if state.buffered + size > BUFFER_BYTES and not _flush(at):
        return
    start = _end_of_segment(at)
    place = state.buffer + state.buffered
    bytes_at(place, size)[:] = 0
    body_bytes = numpy.int64(0)
    if names > 0:
        body = place + mark_bytes(0)
        body_bytes = write_keys(_keys_of(at), state.head, heard, names, topic_bytes, body)
    totals = Totals(state.day_records, state.day_messages, state.day_marks, state.chain)
    write_mark(place, kind, flags, ts, state.epoch, names, ts_out, totals, body_bytes)
    state.day_marks += 1
    state.chain = chain_after(state.chain, place, at + _LINK)
    state.buffered += size
    grown = state.entries + ENTRY_BYTES * SEALED_MAX
    if not add_mark_to_entry(grown, start, size, state.epoch):
        _seal(at)
        if state.error == 0:
            add_mark_to_entry(grown, start, size, state.epoch)


@inner
def _begin(at: int, ts: int) -> None:
    """Mark the beginning of a segment that holds nothing yet, and that of the recorder."""
    state = journal_at(at)
    if _end_of_segment(at) == FILE_HEAD_BYTES:
        _mark(at, numpy.int64(SEGMENT_BEGIN), ts, numpy.int64(0), numpy.int64(0))
        if state.started != 0:
            _mark(at, numpy.int64(RECORDER_BEGIN), state.started, numpy.int64(0), numpy.int64(0))
            state.started = 0


@njit(nogil=True, cache=True)
def finish(at: int, is_last: bool, ts: int) -> bool:
    """Mark the end of the segment, unless it holds nothing, and write what is in memory, entries and all.

    `is_last`: the recorder stops.
    """
    state = journal_at(at)
    is_ended = state.error == 0 and _end_of_segment(at) > FILE_HEAD_BYTES
    if is_ended:
        if is_last:
            _mark(at, numpy.int64(RECORDER_END), ts, numpy.int64(0), numpy.int64(0))
        _mark(at, numpy.int64(SEGMENT_END), ts, numpy.int64(0), numpy.int64(0))
    done = _flush(at)
    if is_ended and state.error == 0:  # a refused write has cut the mark off
        copy_bytes(at + _ENDED, at + _RECORDS, _COUNTER_BYTES)
    _seal(at)
    _flush_entries(at)
    return done


@inner
def _switch(at: int, ts: int) -> bool:
    """Go over to the segment that is ready. False: what was in the buffer could not be written."""
    state = journal_at(at)
    if not finish(at, False, ts):
        return False
    state.fd = state.next_fd
    state.index_fd = state.next_index_fd
    state.offset = FILE_HEAD_BYTES
    state.day_end = state.next_day_end
    if state.next_is_new_day != 0:
        state.day_records = state.day_messages = state.day_marks = 0
        state.chain = state.next_chain
        state.epoch = 0
    _commit(at)
    copy_bytes(at + _BEGUN, at + _RECORDS, _COUNTER_BYTES)
    store_shared(state, "wanted", 0)
    store_shared(state, "next_ready", 0)
    store_shared(state, "switches", state.switches + 1)
    _notify(at, _WANTED)
    return True


@inner
def _ask(at: int, what: int) -> None:
    state = journal_at(at)
    if state.wanted == 0:
        store_shared(state, "wanted", what)
        _notify(at, _BUFFERED)


@inner
def _make_ready(at: int, ts_recv: int) -> bool:
    """Make sure that the segment has room and is of the right day. A full one is used until the next one is made."""
    state = journal_at(at)
    waited = numpy.int64(0)
    while True:
        if state.wanted != 0 and load_shared(state, "next_ready") != 0 and not _switch(at, ts_recv):
            return False
        if ts_recv < state.day_end:
            if _end_of_segment(at) >= state.segment_bytes:
                _ask(at, numpy.int64(MORE_ROOM))
            _begin(at, ts_recv)
            return state.error == 0
        _ask(at, numpy.int64(NEW_DAY))
        if waited > _PATIENCE_US:
            state.error = _NO_TIME
        if load_shared(state, "error") != 0:
            return False
        sleep_microseconds(_NAP_US)
        waited += _NAP_US


@inner
def _begin_epoch(at: int, epoch: int, ts_recv: int, ts_out: int) -> None:
    """Mark an epoch that is later than all before; blocks of earlier ones that come late change nothing."""
    state = journal_at(at)
    if epoch > state.epoch:
        state.epoch = epoch
        forget_keys(_keys_of(at))
        _mark(at, numpy.int64(EPOCH_BEGIN), ts_recv, ts_out, numpy.int64(0))


@inner
def _note(at: int, size: int, start: int) -> None:
    state = journal_at(at)
    grown = state.entries + ENTRY_BYTES * SEALED_MAX
    if not add_to_entry(grown, state.head, state.body, state.ts_recv, state.first_row, size, start, state.key_bytes):
        _seal(at)
        if state.error == 0:
            add_to_entry(grown, state.head, state.body, state.ts_recv, state.first_row, size, start, state.key_bytes)


@inner
def _append(at: int) -> None:
    state = journal_at(at)
    head = state.head
    header = read_header(head)
    count = header.count - state.first_row
    if state.error != 0 or not _make_ready(at, state.ts_recv):
        state.lost += count
        return
    _begin_epoch(at, header.epoch, state.ts_recv, header.ts_out)
    body, stored, codec = state.body, state.body_bytes, numpy.int64(CODEC_NONE)
    packed = False
    if state.pack != 0:
        state.packed_bytes = 0
        call_with_address(state.pack, at)
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
    if state.error != 0 or (state.buffered + in_buffer > BUFFER_BYTES and not _flush(at)):
        state.lost += count
        return
    start = _end_of_segment(at)
    place = state.buffer + state.buffered
    write_head(place, head, state.ts_recv, state.first_row, codec, stored, checksum)
    chain = chain_after(state.chain, place, at + _LINK)
    state.buffered += in_buffer
    if direct:
        if not _flush(at):
            state.lost += count
            return
        state.safe = start
        if not _write_all(state.fd, body, stored):
            _fail(at)
            state.lost += count
            return
        state.offset += stored
        rest = size - RECORD_HEAD_BYTES - stored
        bytes_at(state.buffer, rest)[:] = 0
        state.buffered = rest
    else:
        copy_bytes(place + RECORD_HEAD_BYTES, body, stored)
        bytes_at(place + RECORD_HEAD_BYTES + stored, size - RECORD_HEAD_BYTES - stored)[:] = 0
    state.records += 1
    state.messages += count
    state.stored_bytes += size
    state.day_records += 1
    state.day_messages += count
    state.chain = chain
    note_key(_keys_of(at), head, state.body, state.key_bytes)
    if direct and state.buffered == 0 and state.sync_each == 0:  # without its padding a record is not whole
        _commit(at)
    _note(at, size, start)
    if state.sync_each != 0 and _flush(at):
        if sync_file(state.fd) == 0:
            _commit(at)
        else:
            _fail(at)


@inner
def _hear(at: int) -> None:
    """Mark what a control block says beyond what the records show."""
    state = journal_at(at)
    header = read_header(state.head)
    epoch = header.epoch
    is_end = header.flags & FLAG_END != 0
    # While blocks wait for the other line, these numbers are ahead of the journal. The next heartbeat repeats them.
    if state.error != 0 or epoch < state.epoch or (state.held != 0 and not is_end):
        return
    if not _make_ready(at, state.ts_recv):
        return
    _begin_epoch(at, epoch, state.ts_recv, header.ts_out)
    if is_end:
        if state.held == 0 and epoch > state.ended_epoch:
            state.ended_epoch = epoch
            _mark(at, numpy.int64(EPOCH_END), state.ts_recv, header.ts_out, state.body)
        return
    names, _ = keys_that_differ(_keys_of(at), state.head, state.body)
    since = state.ts_recv - state.heard
    is_due = since >= (_HEARD_NS if state.records > state.heard_records else _SILENT_NS) or since < 0
    if names > 0 or is_due:
        _mark(at, numpy.int64(HEARD), state.ts_recv, header.ts_out, state.body)
        state.heard, state.heard_records = state.ts_recv, state.records


@inner
def _rest(at: int) -> None:
    """Write the buffer, unless that was done just now: a busy line falls idle after every few blocks."""
    state = journal_at(at)
    now = now_ns()
    state.again = numpy.int64(state.buffered > 0 and 0 <= now - state.flushed < _FLUSH_NS)
    if state.again != 0:
        return
    state.flushed = now
    _flush(at)
    if state.sealed >= _SEALED_FLUSH:
        _flush_entries(at)


@njit(nogil=True, cache=True)
def append(at: int) -> None:
    """Take what the slice thread has: a block, a control block, or the notice that nothing more has come."""
    state = journal_at(at)
    if state.kind == BLOCK:
        _append(at)
    elif state.kind == IDLE:
        state.again = 0
        if state.error == 0:
            _rest(at)
    else:
        _hear(at)


def compile_append() -> Any:
    """Return `append` as a C function; it has `.address`."""
    return cfunc(types.void(types.int64), nogil=True, cache=True)(_entry)


def _entry(at: int) -> None:
    append(at)
