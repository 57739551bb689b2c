"""Records and index entries in compiled code: write them, check them, walk them."""

from __future__ import annotations

from typing import Final

import numpy
from numba import njit

from blackbox.atoms import bytes_at, copy_bytes, inner, int32s_at, int64s_at, uint64s_at
from blackbox.check import check_header, read_header
from blackbox.journal.layout import (
    CODEC_ZSTD,
    ENTRY_BYTES,
    ENTRY_SPAN_BYTES,
    FILE_HEAD_BYTES,
    OFFSET_BLOCK_HEADER,
    OFFSET_CODEC,
    OFFSET_FIRST_ROW,
    OFFSET_RECORD_CHECKSUM,
    OFFSET_STORED_BYTES,
    OFFSET_STORED_CHECKSUM,
    OFFSET_TS_RECV,
    RECORD_ALIGNMENT,
    RECORD_HEAD_BYTES,
    RECORD_MAGIC,
)
from blackbox.layout import FLAG_CONTROL, FLAG_FIXED, HEADER_BYTES, LEAST_ROW_BYTES, MAX_BODY_BYTES, body_layout
from blackbox.xxh3 import checksum_32, xxh3

# Words of an index entry.
START: Final = 0
STOP: Final = 1
RECORDS: Final = 2
MESSAGES: Final = 3
MIN_OUT: Final = 4
MAX_OUT: Final = 5
MIN_RECV: Final = 6
MAX_RECV: Final = 7
MIN_EVENT: Final = 8
MAX_EVENT: Final = 9
EPOCH: Final = 10
KEYS: Final = 11
MIN_SEQUENCE: Final = 12
MAX_SEQUENCE: Final = 13
ENTRY_WORDS: Final = ENTRY_BYTES // 8

_LATEST: Final = (1 << 63) - 1


@njit(inline="always")
def _uint32(address: int) -> int:
    return numpy.int64(int32s_at(address, 1)[0]) & 0xFFFFFFFF


@njit(inline="always")
def padded(stored_bytes: int) -> int:
    """Bytes of a record: where the next one is."""
    return (RECORD_HEAD_BYTES + stored_bytes + RECORD_ALIGNMENT - 1) & -RECORD_ALIGNMENT


@njit(nogil=True, cache=True)
def write_head(
    target: int, block_header: int, ts_recv: int, first_row: int, codec: int, stored_bytes: int, stored_checksum: int
) -> None:
    """Write a record's head at `target`."""
    int64s_at(target, OFFSET_BLOCK_HEADER // 8)[:] = 0
    int32s_at(target, 1)[0] = RECORD_MAGIC
    int64s_at(target + OFFSET_TS_RECV, 1)[0] = ts_recv
    int32s_at(target + OFFSET_STORED_BYTES, 1)[0] = stored_bytes
    int32s_at(target + OFFSET_FIRST_ROW, 1)[0] = first_row
    bytes_at(target + OFFSET_CODEC, 1)[0] = codec
    int32s_at(target + OFFSET_STORED_CHECKSUM, 1)[0] = stored_checksum
    copy_bytes(target + OFFSET_BLOCK_HEADER, block_header, HEADER_BYTES)
    int32s_at(target + OFFSET_RECORD_CHECKSUM, 1)[0] = checksum_32(
        target + OFFSET_TS_RECV, RECORD_HEAD_BYTES - OFFSET_TS_RECV
    )


@njit(nogil=True, cache=True)
def is_record(address: int, room: int) -> bool:
    """Whether a whole record begins at `address`, of which `room` bytes may be read; looks at its head only."""
    if room < RECORD_HEAD_BYTES or _uint32(address) != RECORD_MAGIC:
        return False
    checksum = checksum_32(address + OFFSET_TS_RECV, RECORD_HEAD_BYTES - OFFSET_TS_RECV)
    if _uint32(address + OFFSET_RECORD_CHECKSUM) != checksum:
        return False
    codec = bytes_at(address + OFFSET_CODEC, 1)[0]
    if codec > CODEC_ZSTD or check_header(address + OFFSET_BLOCK_HEADER, HEADER_BYTES) != 0:
        return False
    header = read_header(address + OFFSET_BLOCK_HEADER)
    stored = _uint32(address + OFFSET_STORED_BYTES)
    if header.flags & FLAG_CONTROL or stored > MAX_BODY_BYTES or (codec == 0 and stored != header.body_bytes):
        return False
    if header.count * LEAST_ROW_BYTES > header.body_bytes:
        return False
    return _uint32(address + OFFSET_FIRST_ROW) < header.count and padded(stored) <= room


@njit(nogil=True, cache=True)
def is_whole(address: int) -> bool:
    """Whether the stored body of the record at `address` is what its checksum says."""
    stored = _uint32(address + OFFSET_STORED_BYTES)
    return _uint32(address + OFFSET_STORED_CHECKSUM) == checksum_32(address + RECORD_HEAD_BYTES, stored)


@njit(nogil=True, cache=True)
def walk(memory: int, size: int, start: int, offsets: int, heads: int, room: int) -> tuple[int, int]:
    """List up to `room` records from `start` on: their offsets, int64, and heads, `RECORD`, at two addresses.

    Returns how many, and where it stopped: behind the last one, which is `size`, or where no whole record begins, or
    where there was no more room. Bodies are not looked at.
    """
    places = int64s_at(offsets, room)
    at = start
    found = 0
    while found < room and is_record(memory + at, size - at):
        places[found] = at
        copy_bytes(heads + RECORD_HEAD_BYTES * found, memory + at, RECORD_HEAD_BYTES)
        at += padded(_uint32(memory + at + OFFSET_STORED_BYTES))
        found += 1
    return found, at


@njit(nogil=True, cache=True)
def next_record(memory: int, size: int, start: int) -> int:
    """Where the next record with a good head begins, at or behind `start`; -1: none does."""
    at = FILE_HEAD_BYTES + ((max(start, FILE_HEAD_BYTES) - FILE_HEAD_BYTES + 31) & -RECORD_ALIGNMENT)
    while at + RECORD_HEAD_BYTES <= size:
        if is_record(memory + at, size - at):
            return at
        at += RECORD_ALIGNMENT
    return -1


@njit(nogil=True, cache=True)
def key_bit(header: int, body: int, key_bytes: int) -> int:
    """The bit, as uint64, of a block's key: the first `key_bytes` of its first topic."""
    block = read_header(header)
    layout = body_layout(block.count, block.topics, block.topic_bytes, 0, block.flags & FLAG_FIXED != 0)
    size = min(key_bytes, numpy.int64(int32s_at(body + layout.topic_offsets, 2)[1]))
    return bit_of(body + layout.topics, size)


@njit(nogil=True, cache=True)
def bit_of(key: int, size: int) -> int:
    """The bit, as uint64, that stands for a key in `ENTRY["keys"]`."""
    return numpy.uint64(1) << (xxh3(key, size) & numpy.uint64(63))


@inner
def begin_entry(entry: int, start: int, epoch: int) -> None:
    """Make the entry at `entry` an empty one for records from `start` on."""
    words = int64s_at(entry, ENTRY_WORDS)
    words[:] = 0
    words[START] = start
    words[STOP] = start
    for low in (MIN_OUT, MIN_RECV, MIN_EVENT, MIN_SEQUENCE):
        words[low] = _LATEST
    for high in (MAX_OUT, MAX_RECV, MAX_EVENT, MAX_SEQUENCE):
        words[high] = -_LATEST
    words[EPOCH] = epoch


@njit(nogil=True, cache=True)
def add_to_entry(
    entry: int, header: int, body: int, ts_recv: int, first_row: int, size: int, start: int, key_bytes: int
) -> bool:
    """Note a record of `size` bytes at `start`, whose body lies unpacked at `body`; an entry of zeros is begun anew.

    False: it belongs to the next entry, and nothing was noted.
    """
    words = int64s_at(entry, ENTRY_WORDS)
    block = read_header(header)
    epoch = numpy.int64(block.epoch)
    if words[RECORDS] == 0:
        begin_entry(entry, start, epoch)
    elif words[EPOCH] != epoch or words[STOP] - words[START] >= ENTRY_SPAN_BYTES or words[STOP] != start:
        return False
    words[STOP] = start + size
    words[RECORDS] += 1
    words[MESSAGES] += block.count - first_row
    words[MIN_OUT] = min(words[MIN_OUT], block.ts_out)
    words[MAX_OUT] = max(words[MAX_OUT], block.ts_out)
    words[MIN_RECV] = min(words[MIN_RECV], ts_recv)
    words[MAX_RECV] = max(words[MAX_RECV], ts_recv)
    ts_event = int64s_at(body, block.count)
    low, high = words[MIN_EVENT], words[MAX_EVENT]
    for row in range(numpy.uint64(first_row), numpy.uint64(block.count)):
        low = min(low, ts_event[row])
        high = max(high, ts_event[row])
    words[MIN_EVENT], words[MAX_EVENT] = low, high
    words[MIN_SEQUENCE] = min(words[MIN_SEQUENCE], block.sequence + first_row)
    words[MAX_SEQUENCE] = max(words[MAX_SEQUENCE], block.sequence + block.count - 1)
    uint64s_at(entry + 8 * KEYS, 1)[0] |= key_bit(header, body, key_bytes)
    return True


@njit(nogil=True, cache=True)
def seal_entry(entry: int) -> None:
    """Put the checksum in."""
    int32s_at(entry + ENTRY_BYTES - 4, 1)[0] = checksum_32(entry, ENTRY_BYTES - 4)


@njit(nogil=True, cache=True)
def good_entries(entries: int, count: int, size: int) -> int:
    """How many entries, from the first on, are whole and tell of records one behind the other within `size` bytes."""
    at = FILE_HEAD_BYTES
    for number in range(count):
        entry = entries + ENTRY_BYTES * number
        words = int64s_at(entry, ENTRY_WORDS)
        whole = _uint32(entry + ENTRY_BYTES - 4) == checksum_32(entry, ENTRY_BYTES - 4)
        if not whole or words[START] < at or words[STOP] <= words[START] or words[STOP] > size or words[RECORDS] <= 0:
            return number
        at = words[STOP]
    return count
