"""State of the journal of a recorder's or outbox's slice, and compiled code that writes its buffer and index."""

from __future__ import annotations

import errno
from enum import IntEnum
from typing import Final

import numpy

from blackbox.archive.files.format import ENTRY_BYTES, entry_at
from blackbox.archive.files.index_entry import seal_entry
from blackbox.block.batch.block_handler import HandedBlock
from blackbox.native.compile.jit import njit
from blackbox.native.memory.intrinsics import bytes_at, copy_bytes, inner, int64s_at
from blackbox.native.memory.records import Field, Fields, record_at
from blackbox.native.system.posix import cut_file, poke, reserve_file, write_file, write_pieces
from blackbox.transport.libzmq import zmq_errno

UNHEARD: Final = -1
COUNTERS: Final = 7
"""int64s from `records` to `chain`. They are restored after a failed write."""


class Wanted(IntEnum):
    """Request of the slice thread to the keeper thread."""

    NOTHING = 0
    MORE_ROOM = 1
    """Another segment, because this one is full."""
    NEW_DAY = 2
    """The first segment of the next day."""


class JournalState(HandedBlock):
    """One slice's journal, shared by the slice thread, which appends, and the keeper thread."""

    # Set before the first block.
    fd = Field()
    index_fd = Field()
    offset = Field()
    """Bytes of the segment that have been written."""
    buffer = Field()
    """Address of the buffer."""
    entries = Field()
    """Address of the sealed index entries that are not written yet. The current entry follows them."""
    key_rule = Field()
    segment_bytes = Field()
    """Size at which the next segment is requested."""
    sync_each = Field()
    """1: every record is synced before the next one is appended."""
    is_outbox = Field()
    """1: journal of a publisher. Each record is written before the next is appended. Each day has the ends of all keys,
    so that the publisher can continue after earlier days were deleted."""
    pack = Field()
    """Address of the C function that compresses the current body, or 0."""
    codec = Field()
    keeper_fd = Field()
    """Pipe that wakes the keeper thread."""
    day_end = Field()
    """ns since 1970; blocks received then or later belong to the next day."""
    started = Field()
    """Time at which the recorder opened this journal, ns since 1970; 0 once RECORDER_BEGIN is written."""
    after_kill = Field()
    """1: the previous recorder was killed."""

    # Owned by the slice thread.
    flushed = Field()
    """Time of the last write while idle, ns since 1970."""
    buffered = Field()
    """Bytes in the buffer."""
    writes = Field()
    """Number of writes to segments, over all segments."""
    safe = Field()
    """End of the last whole record on file. A failed write cuts the segment back to here."""
    sealed = Field()
    """Sealed entries not written yet."""
    records = Field()
    """Records appended since the recorder began, including those in the buffer. Their messages and bytes follow. With
    the day's totals after them these are the COUNTERS."""
    messages = Field()
    stored_bytes = Field()
    day_records = Field()
    """Totals of the slice's day over all recorders, like the next three fields."""
    day_messages = Field()
    day_marks = Field()
    chain = Field()
    """Checksum chain of all records and marks, see `chain_after`."""
    written = Fields(COUNTERS)
    """The counters at `safe`."""
    begun = Fields(COUNTERS)
    """The counters at the beginning of the segment."""
    ended = Fields(COUNTERS)
    """The counters after the SEGMENT_END of the last finished segment; 0: it was empty."""
    lost = Field()
    """Messages received but not recorded."""
    error = Field()
    """The errno of a failed write. Nothing is recorded after it."""
    packed = Field()
    """Address and size of the compressed body, set by `pack`. Size 0: it is stored uncompressed."""
    packed_bytes = Field()
    epoch = Field()
    """Last epoch with an EPOCH_BEGIN mark in this day; 0: none."""
    names_due = Field()
    """1: the next heartbeat must be marked with the ends of all keys."""
    recorded_epoch = Field()
    """Epoch of `begin`, `recorded` and `following`."""
    begin = Field()
    """Sequence of the first message recorded or reported; UNHEARD: nothing was received yet."""
    recorded = Field()
    """All messages from `begin` to before this sequence are recorded."""
    following = Field()
    """Sequence after the last record, or the next sequence of the last mark, whichever is larger."""
    unheard = Field()
    """Messages before `begin`, over all epochs."""
    ended_epoch = Field()
    """The latest epoch with an EPOCH_END mark."""
    heard = Field()
    """Time of the last HEARD mark, ns since 1970, and the number of records at that time."""
    heard_records = Field()
    link = Fields(2)
    """Scratch memory of `chain_after`."""
    pieces = Fields(4)
    """Scratch memory of `write_behind_buffer`."""
    reserved = Field()
    """End of the reserved disk space, or a huge value if reserving failed."""

    # Written by the slice thread, read by the keeper thread.
    position_version = Field(own_line=True)
    """Odd while the next fields are changed."""
    position_epoch = Field()
    position_begin = Field()
    """`begin` at `position`."""
    position = Field()
    """Sequence before which all messages from `position_begin` on were written to the file."""
    position_missing = Field()
    """Sequence of the first missing message, at `position`; or NOTHING_MISSING."""

    # Exchanged by the slice thread and the keeper thread.
    wanted = Field(own_line=True)
    """Set by the slice thread: a `Wanted`."""
    next_ready = Field(own_line=True)
    """Set to 1 by the keeper thread once the next fields are valid; reset by the slice thread, which then owns
    them."""
    next_fd = Field()
    next_index_fd = Field()
    next_day_end = Field()
    next_is_new_day = Field()
    next_chain = Field()
    """Start of the chain, if the prepared segment is of another day."""
    switches = Field(own_line=True)
    """Segments begun so far. After each, the keeper thread closes the previous one."""


journal_at = record_at(JournalState)


def _offset_of(name: str) -> int:
    return int(JournalState.dtype.fields[name][1])  # type: ignore[index]


AT_RECORDS: Final = _offset_of("records")
AT_WRITTEN: Final = _offset_of("written")
AT_BEGUN: Final = _offset_of("begun")
AT_ENDED: Final = _offset_of("ended")
AT_LINK: Final = _offset_of("link")
_AT_PIECES: Final = _offset_of("pieces")
AT_WANTED: Final = _offset_of("wanted")
AT_BUFFERED: Final = _offset_of("buffered")
COUNTER_BYTES: Final = 8 * COUNTERS

BUFFER_BYTES: Final = 1 << 20
SEALED_MAX: Final = 256
_RESERVED_BYTES: Final = 4 << 20
_NO_MORE: Final = 1 << 62


@inner
def write_all(fd: int, address: int, size: int) -> bool:
    """Write `size` bytes. Return False on error, with the reason in `zmq_errno`."""
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
def _set_back(address: int, offset: int) -> None:
    """Restore the counters at an offset, and count the messages since then as lost."""
    state = journal_at(address)
    recorded = state.messages
    copy_bytes(address + AT_RECORDS, address + offset, COUNTER_BYTES)
    state.lost += recorded - state.messages


@njit(nogil=True, cache=True)
def lose_segment(address: int) -> None:
    """Count the messages of the current segment as lost."""
    _set_back(address, AT_BEGUN)


@inner
def commit(address: int) -> None:
    """Update `safe` after a write. A failed write cuts the segment back to it."""
    state = journal_at(address)
    state.safe = state.offset
    copy_bytes(address + AT_WRITTEN, address + AT_RECORDS, COUNTER_BYTES)


@inner
def notify(address: int, read_into: int) -> None:
    """Wake the keeper thread. `read_into` is the offset of a byte that `poke` may write."""
    poke(journal_at(address).keeper_fd, address + read_into)


@inner
def fail(address: int) -> bool:
    """Stop recording: cut the segment back to `safe`, count the rest as lost, drop its index entries."""
    state = journal_at(address)
    state.error = zmq_errno()
    state.offset = state.safe
    state.buffered = 0
    cut_file(state.fd, state.safe)
    _set_back(address, AT_WRITTEN)
    bytes_at(state.entries + ENTRY_BYTES * SEALED_MAX, ENTRY_BYTES)[:] = 0
    while state.sealed > 0 and entry_at(state.entries + ENTRY_BYTES * (state.sealed - 1)).stop > state.safe:
        state.sealed -= 1
    notify(address, AT_WANTED)
    return False


@inner
def flush(address: int) -> bool:
    """Write the buffer. Return False if recording has failed."""
    return bool(flush_from(address, numpy.int64(0)))


@inner
def flush_from(address: int, done: int) -> bool:
    """Write the buffer except for its first `done` bytes, which are written already."""
    state = journal_at(address)
    if state.buffered == 0:
        return True
    if not write_all(state.fd, state.buffer + done, state.buffered - done):
        return bool(fail(address))
    state.offset += state.buffered
    state.writes += 1
    state.buffered = 0
    if state.sync_each == 0:
        commit(address)
    return True


@inner
def reserve(address: int, size: int) -> None:
    """Reserve disk space for `size` more bytes and some MiB.

    Allocating each page as it is written takes a third of the write time.
    """
    state = journal_at(address)
    if state.offset + size > state.reserved:
        ahead = size + _RESERVED_BYTES
        state.reserved = state.offset + ahead if reserve_file(state.fd, state.offset, ahead) else _NO_MORE


@inner
def write_behind_buffer(journal: int, address: int, size: int) -> int:
    """Write the buffer followed by `size` bytes. Return how many bytes were written, 0 on error.

    One call lets the page cache use large pages for both. A small write before each large one costs 20 %.
    """
    state = journal_at(journal)
    pieces = int64s_at(journal + _AT_PIECES, 4)
    pieces[0], pieces[1], pieces[2], pieces[3] = state.buffer, state.buffered, address, size
    written: int = write_pieces(state.fd, journal + _AT_PIECES, 2)
    return max(0, written)


@inner
def flush_entries(address: int) -> None:
    """Write the sealed entries. A failed write is not an error: readers rebuild missing entries from the records."""
    state = journal_at(address)
    if state.sealed > 0 and not write_all(state.index_fd, state.entries, ENTRY_BYTES * state.sealed):
        state.index_fd = -1  # the index may end within an entry, so no entry can follow
    state.sealed = 0


@inner
def seal(address: int) -> None:
    """Seal the current entry, unless it is empty."""
    state = journal_at(address)
    grown = state.entries + ENTRY_BYTES * SEALED_MAX
    if entry_at(grown).stop == 0:
        return
    seal_entry(grown)
    copy_bytes(state.entries + ENTRY_BYTES * state.sealed, grown, ENTRY_BYTES)
    bytes_at(grown, ENTRY_BYTES)[:] = 0
    state.sealed += 1
    if state.sealed == SEALED_MAX:
        flush(address)
        flush_entries(address)


@inner
def end_of_segment(address: int) -> int:
    """Return the offset of the next record or mark."""
    state = journal_at(address)
    return state.offset + state.buffered
