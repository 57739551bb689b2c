"""A slice's journal while it is written: what compiled code knows of it, and how bytes and entries reach its files."""

from __future__ import annotations

import errno
from typing import Final

import numpy

from blackbox.archive.format import ENTRY_BYTES, entry_at
from blackbox.archive.index_entry import seal_entry
from blackbox.block.block_handler import HandedBlock
from blackbox.native.intrinsics import bytes_at, copy_bytes, inner, int64s_at
from blackbox.native.jit import njit
from blackbox.native.posix import cut_file, poke, reserve_file, write_file, write_pieces
from blackbox.native.records import Field, Fields, record_at
from blackbox.transport.libzmq import zmq_errno

UNHEARD: Final = -1
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
    key_rule = Field()
    segment_bytes = Field()
    """Size at which another segment is asked for."""
    sync_each = Field()
    """1: every record is durable before the next is taken."""
    is_outbox = Field()
    """1: journal of a publisher. Each record is written before the next is taken. Each day has the ends of all keys,
    so that the publisher can continue after earlier days were deleted."""
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

    # Owned by the slice thread.
    flushed = Field()
    """When the buffer was last written since the line was idle, ns since 1970."""
    buffered = Field()
    """Bytes in the buffer."""
    writes = Field()
    """Times something was written to segments. It only grows, from segment to segment."""
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
    """Last epoch whose start was marked in this day; 0: none."""
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
    """The latest epoch of which the end was marked."""
    heard = Field()
    """When the last heartbeat was marked, ns since 1970, and how many records there were then."""
    heard_records = Field()
    link = Fields(2)
    """Scratch of `chain_after`."""
    pieces = Fields(4)
    """Scratch of `write_behind_buffer`."""
    reserved = Field()
    """Up to here the segment has disk space, or none can be had ahead."""

    # Written by the slice thread, read by the maintenance thread.
    position_version = Field(own_line=True)
    """Odd while the next fields change."""
    position_epoch = Field()
    position_begin = Field()
    """`begin` as of `position`."""
    position = Field()
    """Sequence before which all messages from `position_begin` on were written to the file."""
    position_missing = Field()
    """Sequence of the first missing message, where `position` stops; or NOTHING_MISSING."""

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
    """Write so many bytes; False: the system refused, and `zmq_errno` says why."""
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
    copy_bytes(at + AT_RECORDS, at + place, COUNTER_BYTES)
    state.lost += recorded - state.messages


@njit(nogil=True, cache=True)
def lose_segment(at: int) -> None:
    """Count as lost what was recorded since the segment was begun."""
    _set_back(at, AT_BEGUN)


@inner
def commit(at: int) -> None:
    """Take what is written as safe: a refused write cuts the segment back to here."""
    state = journal_at(at)
    state.safe = state.offset
    copy_bytes(at + AT_WRITTEN, at + AT_RECORDS, COUNTER_BYTES)


@inner
def notify(at: int, read_into: int) -> None:
    """Wake the maintenance thread; `read_into` is where `poke` finds a byte to write."""
    poke(journal_at(at).maintenance_fd, at + read_into)


@inner
def fail(at: int) -> bool:
    """Give up recording: cut the segment back to what is safe, count the rest as lost, forget its index entries."""
    state = journal_at(at)
    state.error = zmq_errno()
    state.offset = state.safe
    state.buffered = 0
    cut_file(state.fd, state.safe)
    _set_back(at, AT_WRITTEN)
    bytes_at(state.entries + ENTRY_BYTES * SEALED_MAX, ENTRY_BYTES)[:] = 0
    while state.sealed > 0 and entry_at(state.entries + ENTRY_BYTES * (state.sealed - 1)).stop > state.safe:
        state.sealed -= 1
    notify(at, AT_WANTED)
    return False


@inner
def flush(at: int) -> bool:
    """Write what is in the buffer. False: recording has failed."""
    return bool(flush_from(at, numpy.int64(0)))


@inner
def flush_from(at: int, done: int) -> bool:
    """As `flush`, where the first `done` bytes of the buffer have been written."""
    state = journal_at(at)
    if state.buffered == 0:
        return True
    if not write_all(state.fd, state.buffer + done, state.buffered - done):
        return bool(fail(at))
    state.offset += state.buffered
    state.writes += 1
    state.buffered = 0
    if state.sync_each == 0:
        commit(at)
    return True


@inner
def reserve(at: int, size: int) -> None:
    """See to it that the segment has disk space for so many more bytes, and some MiB with them.

    To find it for each page as it is written would take a third of the time of writing.
    """
    state = journal_at(at)
    if state.offset + size > state.reserved:
        ahead = size + _RESERVED_BYTES
        state.reserved = state.offset + ahead if reserve_file(state.fd, state.offset, ahead) else _NO_MORE


@inner
def write_behind_buffer(at: int, address: int, size: int) -> int:
    """Write the buffer, and so many bytes behind it; return how many the system took, which may be none.

    In one call, so that its page cache takes large pages for both: a small write before each large one costs a fifth.
    """
    state = journal_at(at)
    pieces = int64s_at(at + _AT_PIECES, 4)
    pieces[0], pieces[1], pieces[2], pieces[3] = state.buffer, state.buffered, address, size
    written: int = write_pieces(state.fd, at + _AT_PIECES, 2)
    return max(0, written)


@inner
def flush_entries(at: int) -> None:
    """Write the sealed entries. A refused write is no error: readers make missing entries from the records."""
    state = journal_at(at)
    if state.sealed > 0 and not write_all(state.index_fd, state.entries, ENTRY_BYTES * state.sealed):
        state.index_fd = -1  # it may end within an entry: no other could be found behind that
    state.sealed = 0


@inner
def seal(at: int) -> None:
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
        flush(at)
        flush_entries(at)


@inner
def end_of_segment(at: int) -> int:
    """Return where the next record or mark begins."""
    state = journal_at(at)
    return state.offset + state.buffered
