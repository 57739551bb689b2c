"""Index entries in compiled code: built while records are written, or later from the records."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import numpy
from numpy.typing import NDArray

from blackbox.archive.files.format import (
    CODEC_NONE,
    ENTRY_BYTES,
    ENTRY_SPAN_BYTES,
    FILE_HEAD_BYTES,
    OFFSET_BLOCK_HEADER,
    RECORD_HEAD_BYTES,
    MarkKind,
    entry_at,
    mark_at,
    mark_bytes,
    record_bytes,
    record_head_at,
)
from blackbox.archive.files.journal_record import is_mark, is_record
from blackbox.block.form.format import HEADER_BYTES, layout_of, read_header, sequence_of
from blackbox.block.form.validate import KEY_OF_TOPICS, check_block
from blackbox.feed.routing.compiled_routing import find_key
from blackbox.native.compile.jit import njit
from blackbox.native.memory.intrinsics import bytes_at, inner, int32s_at, int64s_at
from blackbox.native.tables.xxh3 import checksum_32, xxh3

_LATEST: Final = (1 << 63) - 1
_CHECKED_BYTES: Final = ENTRY_BYTES - 4


class ScanStop(IntEnum):
    """Reason why `scan` stopped."""

    NO_RECORD = 0
    """Neither a whole record nor a mark begins here."""
    NO_ROOM = 1
    """All entries are full."""
    PACKED = 2
    """The record's body must be decompressed first."""
    BAD_BODY = 3
    """The record's body is not that of a block."""


@njit(nogil=True, cache=True)
def key_bit(header: int, body: int, key_rule: int) -> int:
    """Return the bit of a block's key, as uint64."""
    block = read_header(header)
    layout = layout_of(block)
    key, size = find_key(key_rule, body + layout.topics, numpy.int64(int32s_at(body + layout.topic_offsets, 2)[1]))
    return bit_of(key, size)


@njit(nogil=True, cache=True)
def bit_of(key: int, size: int) -> int:
    """Return the bit of a key in `ENTRY["keys"]`, as uint64."""
    return numpy.uint64(1) << (xxh3(key, size) & numpy.uint64(63))


@inner
def _begin(address: int, start: int, epoch: int) -> None:
    """Begin an empty entry for records from `start` on."""
    bytes_at(address, ENTRY_BYTES)[:] = 0
    entry = entry_at(address)
    entry.start = entry.stop = start
    entry.min_ts_out = entry.min_ts_recv = entry.min_ts_event = entry.min_sequence = _LATEST
    entry.max_ts_out = entry.max_ts_recv = entry.max_ts_event = entry.max_sequence = -_LATEST
    entry.epoch = epoch


@inner
def _belongs(address: int, start: int) -> bool:
    """Return True if a record at `start` is within the span of the entry."""
    entry = entry_at(address)
    return bool(entry.stop == start and entry.stop - entry.start < ENTRY_SPAN_BYTES)


@njit(nogil=True, cache=True)
def add_to_entry(
    address: int, header: int, body: int, ts_recv: int, first_row: int, size: int, start: int, key_rule: int
) -> bool:
    """Add a record of `size` bytes at `start`, with its decompressed body at `body`. An entry of zeros is begun.

    Returns False, with nothing added, if the record belongs to the next entry.
    """
    entry = entry_at(address)
    block = read_header(header)
    if entry.stop == 0:
        _begin(address, start, block.epoch)
    elif not _belongs(address, start) or (entry.records > 0 and entry.epoch != block.epoch):
        return False
    entry.stop = start + size
    _add(address, header, body, ts_recv, first_row, key_rule)
    return True


@inner
def _add(address: int, header: int, body: int, ts_recv: int, first_row: int, key_rule: int) -> None:
    """Add a record to an entry that has begun."""
    entry = entry_at(address)
    block = read_header(header)
    entry.epoch = block.epoch
    entry.records += 1
    entry.messages += block.count - first_row
    entry.min_ts_out = min(entry.min_ts_out, block.ts_out)
    entry.max_ts_out = max(entry.max_ts_out, block.ts_out)
    entry.min_ts_recv = min(entry.min_ts_recv, ts_recv)
    entry.max_ts_recv = max(entry.max_ts_recv, ts_recv)
    ts_event = int64s_at(body, block.count)
    low, high = entry.min_ts_event, entry.max_ts_event
    late = numpy.int64(0)
    for row in range(numpy.uint64(first_row), numpy.uint64(block.count)):
        time = ts_event[row]
        late += time < high
        low = min(low, time)
        high = max(high, time)
    entry.min_ts_event, entry.max_ts_event = low, high
    entry.late += late
    layout = layout_of(block)
    entry.min_sequence = min(entry.min_sequence, sequence_of(block, layout, body, first_row))
    entry.max_sequence = max(entry.max_sequence, sequence_of(block, layout, body, block.count - 1))
    entry.keys |= key_bit(header, body, key_rule)


@njit(nogil=True, cache=True)
def add_to_entries(
    records: NDArray[numpy.int64],
    bodies: NDArray[numpy.int64],
    numbers: NDArray[numpy.int64],
    table: int,
    key_rule: int,
) -> None:
    """Add checked records to the entries `numbers` of a table, which are zeros at first."""
    for index in range(len(records)):
        address = table + ENTRY_BYTES * numbers[index]
        if entry_at(address).records == 0:
            _begin(address, numpy.int64(0), numpy.int64(0))
        head = record_head_at(records[index])
        header = records[index] + OFFSET_BLOCK_HEADER
        _add(address, header, bodies[index], head.ts_recv, numpy.int64(head.first_row), key_rule)


@njit(nogil=True, cache=True)
def add_mark_to_entry(address: int, start: int, size: int, epoch: int, kind: int) -> bool:
    """Add a mark of `size` bytes at `start`, as `add_to_entry`."""
    entry = entry_at(address)
    if entry.stop == 0:
        _begin(address, start, epoch)
    elif not _belongs(address, start):
        return False
    entry.stop = start + size
    if kind == MarkKind.NOTE.value:
        entry.notes += 1
    else:
        entry.marks += 1
    return True


@njit(nogil=True, cache=True)
def seal_entry(address: int) -> None:
    """Set the checksum of an entry."""
    entry_at(address).checksum = checksum_32(address, _CHECKED_BYTES)


@njit(nogil=True, cache=True)
def good_entries(entries: int, count: int, size: int) -> int:
    """Return how many entries, from the first, are valid, ascending and within `size` bytes."""
    end = numpy.int64(FILE_HEAD_BYTES)
    for number in range(count):
        address = entries + ENTRY_BYTES * number
        entry = entry_at(address)
        if entry.checksum != checksum_32(address, _CHECKED_BYTES) or entry.start < end or entry.stop <= entry.start:
            return number
        if entry.stop > size or entry.records < 0 or entry.records + entry.marks + entry.notes == 0:
            return number
        end = entry.stop
    return count


@njit(nogil=True, cache=True)
def scan(
    memory: int, size: int, start: int, entries: int, count: int, room: int, key_rule: int
) -> tuple[int, int, int]:
    """Add all records and marks from `start` on to a table that has `count` entries and room for `room`.

    The last entry is continued. Returns the new number of entries, where it stopped, and why.
    """
    offset = start
    while True:
        address = memory + offset
        if is_mark(address, size - offset):
            step = mark_bytes(numpy.int64(mark_at(address).stored_bytes))
            count, noted = _note_mark(address, offset, step, entries, count, room)
        elif not is_record(address, size - offset):
            return count, offset, ScanStop.NO_RECORD.value
        else:
            head = record_head_at(address)
            if head.codec != CODEC_NONE:
                return count, offset, ScanStop.PACKED.value
            stored = numpy.int64(head.stored_bytes)
            body = address + RECORD_HEAD_BYTES
            if (
                check_block(address + OFFSET_BLOCK_HEADER, HEADER_BYTES, body, stored, body, KEY_OF_TOPICS, key_rule)
                != 0
            ):
                return count, offset, ScanStop.BAD_BODY.value
            step = record_bytes(stored)
            count, noted = note(address, body, offset, entries, count, room, key_rule)
        if not noted:
            return count, offset, ScanStop.NO_ROOM.value
        offset += step


@inner
def _note_mark(mark: int, offset: int, size: int, entries: int, count: int, room: int) -> tuple[int, bool]:
    epoch, kind = mark_at(mark).epoch, numpy.int64(mark_at(mark).kind)
    if count > 0 and add_mark_to_entry(entries + ENTRY_BYTES * (count - 1), offset, size, epoch, kind):
        return count, True
    if count == room:
        return count, False
    fresh = entries + ENTRY_BYTES * count
    bytes_at(fresh, ENTRY_BYTES)[:] = 0
    add_mark_to_entry(fresh, offset, size, epoch, kind)
    return count + 1, True


@njit(nogil=True, cache=True)
def note(record: int, body: int, offset: int, entries: int, count: int, room: int, key_rule: int) -> tuple[int, bool]:
    """Add a valid record at an offset, whose checked decompressed body is at `body`, as `scan` does.

    Returns the new number of entries, and False if there was no room.
    """
    header = record + OFFSET_BLOCK_HEADER
    head = record_head_at(record)
    first_row = numpy.int64(head.first_row)
    size = record_bytes(numpy.int64(head.stored_bytes))
    if count > 0:
        last = entries + ENTRY_BYTES * (count - 1)
        if add_to_entry(last, header, body, head.ts_recv, first_row, size, offset, key_rule):
            return count, True
    if count == room:
        return count, False
    fresh = entries + ENTRY_BYTES * count
    bytes_at(fresh, ENTRY_BYTES)[:] = 0
    add_to_entry(fresh, header, body, head.ts_recv, first_row, size, offset, key_rule)
    return count + 1, True
