"""Append received blocks to a segment, in compiled code, in the slice thread.

Small records are gathered in a buffer and written when it is full or the line falls idle, a thousand times a second at
most; a large body is written from where it was received. What could not be written is counted, and the file cut back to
the last whole record.
"""

from __future__ import annotations

import errno
from typing import Any, Final

import numpy
from numba import cfunc, njit, types

from blackbox.atoms import bytes_at, call_with_address, copy_bytes, inner, int64s_at, load_acquire, store_release
from blackbox.check import read_header
from blackbox.journal.layout import CODEC_NONE, ENTRY_BYTES, RECORD_HEAD_BYTES
from blackbox.journal.record import add_to_entry, padded, seal_entry, write_head
from blackbox.layout import FLAG_CHECKSUM
from blackbox.sink import AGAIN, BLOCK, BODY, BODY_BYTES, FIRST_ROW, HEAD, KIND, SINK_WORDS, TS_RECV
from blackbox.xxh3 import checksum_32
from blackbox.zmqlib import cut_file, now_ns, poke, sleep_microseconds, sync_file, write_file, zmq_errno

# Words of a journal, behind those of every sink. The first ones are the keeper's to set before the first block.
FD: Final = SINK_WORDS + 0
INDEX_FD: Final = SINK_WORDS + 1
OFFSET: Final = SINK_WORDS + 2
"""Bytes of the segment that are written."""
BUFFER: Final = SINK_WORDS + 3
"""Address of the buffer."""
ENTRIES: Final = SINK_WORDS + 4
"""Address of the sealed index entries that are not written yet; the one that grows stands behind them."""
KEY_BYTES: Final = SINK_WORDS + 5
SEGMENT_BYTES: Final = SINK_WORDS + 6
"""Size at which another segment is asked for."""
SYNC: Final = SINK_WORDS + 7
"""1: every record is durable before the next is taken."""
PACK: Final = SINK_WORDS + 8
"""Address of the C function that compresses the body at hand, or 0."""
CODEC: Final = SINK_WORDS + 9
KEEPER_FD: Final = SINK_WORDS + 10
"""Poked when the keeper is wanted."""
DAY_END: Final = SINK_WORDS + 11
"""ns since the epoch; a block received then or later belongs to another day."""
FLUSHED: Final = SINK_WORDS + 12
"""When the buffer was last written since the line was idle, ns since the epoch."""

BUFFERED: Final = SINK_WORDS + 16
"""Bytes in the buffer."""
SAFE: Final = SINK_WORDS + 17
"""Where the last record that is written ends: a refused write cuts the segment back to here."""
SEALED: Final = SINK_WORDS + 18
"""Sealed entries not written yet."""
RECORDS: Final = SINK_WORDS + 19
"""Records that were written, or wait in the buffer; the next two words tell their messages and bytes."""
MESSAGES: Final = SINK_WORDS + 20
STORED: Final = SINK_WORDS + 21
LOST: Final = SINK_WORDS + 22
"""Messages received and not recorded."""
ERRNO: Final = SINK_WORDS + 23
"""What the system refused a write with; nothing is recorded from then on."""
PACKED: Final = SINK_WORDS + 24
"""Address and size of the compressed body, set by PACK; size 0: it stays as it is."""
PACKED_BYTES: Final = SINK_WORDS + 25
WRITTEN: Final = SINK_WORDS + 26
"""The three counters as they were at `SAFE`."""
BEGUN: Final = SINK_WORDS + 29
"""The three counters as they were when the segment was begun."""

# Handed to and fro between slice thread and keeper.
WANTED: Final = SINK_WORDS + 32
"""Set by the slice thread: MORE_ROOM or NEW_DAY; 0: nothing."""
NEXT_READY: Final = SINK_WORDS + 40
"""Set by the keeper to 1 once the next four words hold; back to 0 by the slice thread, which then owns them."""
NEXT_FD: Final = SINK_WORDS + 41
NEXT_INDEX_FD: Final = SINK_WORDS + 42
NEXT_OFFSET: Final = SINK_WORDS + 43
NEXT_DAY_END: Final = SINK_WORDS + 44
SWITCHES: Final = SINK_WORDS + 48
"""Segments begun so far: the keeper then closes the one before."""
JOURNAL_WORDS: Final = SINK_WORDS + 56

MORE_ROOM: Final = 1
NEW_DAY: Final = 2

BUFFER_BYTES: Final = 1 << 20
_DIRECT_BYTES: Final = 32 << 10
"""Bodies from this size on are written from where they are."""
SEALED_MAX: Final = 256
_SEALED_FLUSH: Final = 32
_FLUSH_NS: Final = 1_000_000
_PATIENCE_US: Final = 10_000_000
_NAP_US: Final = 200
_NO_TIME = errno.ETIMEDOUT
_COUNTERS = 3
_STOP = 1
_ENTRY_WORDS = ENTRY_BYTES // 8


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
def _keep_counts(at: int, place: int) -> None:
    words = int64s_at(at, JOURNAL_WORDS)
    for number in range(_COUNTERS):
        words[place + number] = words[RECORDS + number]


@njit(nogil=True, cache=True)
def lose_since(at: int, place: int) -> None:
    """Count as lost what was recorded since the counters were kept at `place`: WRITTEN or BEGUN."""
    words = int64s_at(at, JOURNAL_WORDS)
    words[LOST] += words[MESSAGES] - words[place + 1]
    for number in range(_COUNTERS):
        words[RECORDS + number] = words[place + number]


@inner
def _commit(at: int) -> None:
    words = int64s_at(at, JOURNAL_WORDS)
    words[SAFE] = words[OFFSET]
    _keep_counts(at, numpy.int64(WRITTEN))


@inner
def _fail(at: int) -> bool:
    """Give up recording: cut the segment back to what is safe, count the rest as lost, forget its index entries."""
    words = int64s_at(at, JOURNAL_WORDS)
    words[ERRNO] = zmq_errno()
    words[OFFSET] = words[SAFE]
    words[BUFFERED] = 0
    cut_file(words[FD], words[SAFE])
    lose_since(at, numpy.int64(WRITTEN))
    int64s_at(words[ENTRIES] + ENTRY_BYTES * SEALED_MAX, _ENTRY_WORDS)[:] = 0
    while words[SEALED] > 0:
        last = int64s_at(words[ENTRIES] + ENTRY_BYTES * (words[SEALED] - 1), _ENTRY_WORDS)
        if last[_STOP] <= words[SAFE]:
            break
        words[SEALED] -= 1
    poke(words[KEEPER_FD], at + 8 * WANTED)
    return False


@inner
def _flush(at: int) -> bool:
    words = int64s_at(at, JOURNAL_WORDS)
    if words[BUFFERED] == 0:
        return True
    if not _write_all(words[FD], words[BUFFER], words[BUFFERED]):
        return _fail(at)
    words[OFFSET] += words[BUFFERED]
    words[BUFFERED] = 0
    if words[SYNC] == 0:
        _commit(at)
    return True


@inner
def _flush_entries(at: int) -> None:
    """Write the sealed entries. The index is derived, so a refused write is not an error: readers do without."""
    words = int64s_at(at, JOURNAL_WORDS)
    if words[SEALED] > 0 and not _write_all(words[INDEX_FD], words[ENTRIES], ENTRY_BYTES * words[SEALED]):
        words[INDEX_FD] = -1  # it may end within an entry: no other could be found behind that
    words[SEALED] = 0


@inner
def _seal(at: int) -> None:
    """Close the entry that grows, unless it is empty."""
    words = int64s_at(at, JOURNAL_WORDS)
    grown = words[ENTRIES] + ENTRY_BYTES * SEALED_MAX
    entry = int64s_at(grown, _ENTRY_WORDS)
    if entry[_STOP] == 0:
        return
    seal_entry(grown)
    copy_bytes(words[ENTRIES] + ENTRY_BYTES * words[SEALED], grown, ENTRY_BYTES)
    entry[:] = 0
    words[SEALED] += 1
    if words[SEALED] == SEALED_MAX:
        _flush(at)
        _flush_entries(at)


@njit(nogil=True, cache=True)
def finish(at: int) -> bool:
    """Write what is still in memory, entries and all."""
    done = _flush(at)
    _seal(at)
    _flush_entries(at)
    return done


@inner
def _switch(at: int) -> bool:
    """Go over to the segment that the keeper has made. False: what was in the buffer could not be written."""
    words = int64s_at(at, JOURNAL_WORDS)
    if not finish(at):
        return False
    words[FD] = words[NEXT_FD]
    words[INDEX_FD] = words[NEXT_INDEX_FD]
    words[OFFSET] = words[NEXT_OFFSET]
    words[DAY_END] = words[NEXT_DAY_END]
    _commit(at)
    _keep_counts(at, numpy.int64(BEGUN))
    store_release(at + 8 * WANTED, 0)
    store_release(at + 8 * NEXT_READY, 0)
    store_release(at + 8 * SWITCHES, words[SWITCHES] + 1)
    poke(words[KEEPER_FD], at + 8 * WANTED)
    return True


@inner
def _ask(at: int, what: int) -> None:
    words = int64s_at(at, JOURNAL_WORDS)
    if words[WANTED] == 0:
        store_release(at + 8 * WANTED, what)
        poke(words[KEEPER_FD], at + 8 * BUFFERED)


@inner
def _make_ready(at: int, ts_recv: int) -> bool:
    """See that the segment has room and is of the right day. A full one is used until the keeper has made the next."""
    words = int64s_at(at, JOURNAL_WORDS)
    waited = numpy.int64(0)
    while True:
        if words[WANTED] != 0 and load_acquire(at + 8 * NEXT_READY) != 0 and not _switch(at):
            return False
        if ts_recv < words[DAY_END]:
            if words[OFFSET] + words[BUFFERED] >= words[SEGMENT_BYTES]:
                _ask(at, numpy.int64(MORE_ROOM))
            return True
        _ask(at, numpy.int64(NEW_DAY))
        if waited > _PATIENCE_US:
            words[ERRNO] = _NO_TIME
        if load_acquire(at + 8 * ERRNO) != 0:
            return False
        sleep_microseconds(_NAP_US)
        waited += _NAP_US


@inner
def _note(at: int, size: int, head: int, body: int, ts_recv: int, first_row: int, start: int) -> None:
    words = int64s_at(at, JOURNAL_WORDS)
    grown = words[ENTRIES] + ENTRY_BYTES * SEALED_MAX
    if not add_to_entry(grown, head, body, ts_recv, first_row, size, start, words[KEY_BYTES]):
        _seal(at)
        if words[ERRNO] == 0:
            add_to_entry(grown, head, body, ts_recv, first_row, size, start, words[KEY_BYTES])


@inner
def _append(at: int) -> None:
    words = int64s_at(at, JOURNAL_WORDS)
    head = words[HEAD]
    header = read_header(head)
    count = header.count - words[FIRST_ROW]
    if words[ERRNO] != 0 or not _make_ready(at, words[TS_RECV]):
        words[LOST] += count
        return
    body, stored, codec = words[BODY], words[BODY_BYTES], numpy.int64(CODEC_NONE)
    packed = False
    if words[PACK] != 0:
        words[PACKED_BYTES] = 0
        call_with_address(words[PACK], at)
        packed = words[PACKED_BYTES] > 0
    if packed:
        body, stored, codec = words[PACKED], words[PACKED_BYTES], words[CODEC]
    if packed or header.flags & FLAG_CHECKSUM == 0:
        checksum = numpy.int64(checksum_32(body, stored))
    else:
        checksum = header.body_checksum
    size = padded(stored)
    direct = stored >= _DIRECT_BYTES
    in_buffer = RECORD_HEAD_BYTES if direct else size
    if words[BUFFERED] + in_buffer > BUFFER_BYTES and not _flush(at):
        words[LOST] += count
        return
    start = words[OFFSET] + words[BUFFERED]
    place = words[BUFFER] + words[BUFFERED]
    write_head(place, head, words[TS_RECV], words[FIRST_ROW], codec, stored, checksum)
    words[BUFFERED] += in_buffer
    if direct:
        if not _flush(at):
            words[LOST] += count
            return
        words[SAFE] = start
        if not _write_all(words[FD], body, stored):
            _fail(at)
            words[LOST] += count
            return
        words[OFFSET] += stored
        rest = size - RECORD_HEAD_BYTES - stored
        bytes_at(words[BUFFER], rest)[:] = 0
        words[BUFFERED] = rest
    else:
        copy_bytes(place + RECORD_HEAD_BYTES, body, stored)
        bytes_at(place + RECORD_HEAD_BYTES + stored, size - RECORD_HEAD_BYTES - stored)[:] = 0
    words[RECORDS] += 1
    words[MESSAGES] += count
    words[STORED] += size
    if direct and words[BUFFERED] == 0 and words[SYNC] == 0:  # without its padding a record is not whole
        _commit(at)
    _note(at, size, head, words[BODY], words[TS_RECV], words[FIRST_ROW], start)
    if words[SYNC] != 0 and _flush(at):
        if sync_file(words[FD]) == 0:
            _commit(at)
        else:
            _fail(at)


@inner
def _rest(at: int) -> None:
    """Write what is there, unless that was done just now: a busy line falls idle after each few blocks."""
    words = int64s_at(at, JOURNAL_WORDS)
    now = now_ns()
    words[AGAIN] = words[BUFFERED] > 0 and 0 <= now - words[FLUSHED] < _FLUSH_NS
    if words[AGAIN] != 0:
        return
    words[FLUSHED] = now
    _flush(at)
    if words[SEALED] >= _SEALED_FLUSH:
        _flush_entries(at)


@njit(nogil=True, cache=True)
def append(at: int) -> None:
    """Take what the slice thread has: a block, or word that nothing more is there now."""
    words = int64s_at(at, JOURNAL_WORDS)
    if words[KIND] == BLOCK:
        _append(at)
    else:
        words[AGAIN] = 0
        if words[ERRNO] == 0:
            _rest(at)


def compile_append() -> Any:
    """`append` as a C function; has `.address`."""
    return cfunc(types.void(types.int64), nogil=True, cache=True)(_entry)


def _entry(at: int) -> None:
    append(at)
