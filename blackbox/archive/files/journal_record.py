"""Write, check and list records and marks, in compiled code."""

from __future__ import annotations

from typing import Final

import numpy

from blackbox.archive.files.format import (
    CODEC_ZSTD,
    FILE_HEAD_BYTES,
    MARK_HEAD_BYTES,
    MARK_MAGIC,
    OFFSET_BLOCK_HEADER,
    OFFSET_CHECKED,
    RECORD_ALIGNMENT,
    RECORD_HEAD_BYTES,
    RECORD_MAGIC,
    mark_at,
    mark_bytes,
    record_bytes,
    record_head_at,
)
from blackbox.block.form.format import FLAG_CONTROL, HEADER_BYTES, LEAST_ROW_BYTES, MAX_BODY_BYTES, read_header
from blackbox.block.form.validate import check_header
from blackbox.native.compile.jit import njit
from blackbox.native.memory.intrinsics import bytes_at, copy_bytes, inner, int64s_at, uint32_at
from blackbox.native.tables.xxh3 import checksum_32, xxh3

CHAIN_BYTES: Final = 16
"""Size of the scratch memory of `chain_after`."""


@njit(nogil=True, cache=True)
def write_head(
    target: int, block_header: int, ts_recv: int, first_row: int, codec: int, stored_bytes: int, stored_checksum: int
) -> None:
    """Write a record's head at `target`."""
    bytes_at(target, OFFSET_BLOCK_HEADER)[:] = 0
    head = record_head_at(target)
    head.magic = RECORD_MAGIC
    head.ts_recv = ts_recv
    head.stored_bytes = stored_bytes
    head.first_row = first_row
    head.codec = codec
    head.stored_checksum = stored_checksum
    copy_bytes(target + OFFSET_BLOCK_HEADER, block_header, HEADER_BYTES)
    head.checksum = checksum_32(target + OFFSET_CHECKED, RECORD_HEAD_BYTES - OFFSET_CHECKED)


@inner
def is_record(address: int, room: int) -> bool:
    """Return True if a whole record of at most `room` bytes begins at `address`. Checks only the head."""
    if room < RECORD_HEAD_BYTES or uint32_at(address) != RECORD_MAGIC:
        return False
    head = record_head_at(address)
    if head.checksum != checksum_32(address + OFFSET_CHECKED, RECORD_HEAD_BYTES - OFFSET_CHECKED):
        return False
    if head.codec > CODEC_ZSTD or check_header(address + OFFSET_BLOCK_HEADER, HEADER_BYTES) != 0:
        return False
    header = read_header(address + OFFSET_BLOCK_HEADER)
    stored = numpy.int64(head.stored_bytes)
    if header.flags & FLAG_CONTROL or stored > MAX_BODY_BYTES or (head.codec == 0 and stored != header.body_bytes):
        return False
    if header.count * LEAST_ROW_BYTES > header.body_bytes:
        return False
    return numpy.int64(head.first_row) < header.count and record_bytes(stored) <= room


@inner
def is_mark(address: int, room: int) -> bool:
    """Return True if a whole mark of at most `room` bytes begins at `address`. Checks only the head."""
    if room < MARK_HEAD_BYTES or uint32_at(address) != MARK_MAGIC:
        return False
    mark = mark_at(address)
    if mark.checksum != checksum_32(address + OFFSET_CHECKED, MARK_HEAD_BYTES - OFFSET_CHECKED):
        return False
    stored = numpy.int64(mark.stored_bytes)
    return stored <= MAX_BODY_BYTES and mark_bytes(stored) <= room


@njit(nogil=True, cache=True)
def is_whole(address: int) -> bool:
    """Return True if the stored body of the record at `address` matches its checksum."""
    head = record_head_at(address)
    return bool(head.stored_checksum == checksum_32(address + RECORD_HEAD_BYTES, numpy.int64(head.stored_bytes)))


@inner
def size_at(address: int, room: int) -> int:
    """Return the size of the record or mark at `address`; 0 if neither begins there."""
    if is_record(address, room):
        return int(record_bytes(numpy.int64(record_head_at(address).stored_bytes)))
    if is_mark(address, room):
        return int(mark_bytes(numpy.int64(mark_at(address).stored_bytes)))
    return 0


@njit(nogil=True, cache=True)
def is_cut(address: int, room: int) -> bool:
    """Return True if the record or mark at `address` is longer than the `room` bytes left in the file."""
    if room < min(RECORD_HEAD_BYTES, MARK_HEAD_BYTES):
        return True
    if room < RECORD_HEAD_BYTES and uint32_at(address) == RECORD_MAGIC:
        return True
    return bool(size_at(address, numpy.int64(1) << 40) > room)


@njit(nogil=True, cache=True)
def walk(memory: int, size: int, start: int, offsets: int, heads: int, room: int) -> tuple[int, int]:
    """List up to `room` records from `start` on: write their offsets, int64, and heads, `RECORD`, to two addresses.

    Marks are skipped and bodies are not checked. Returns the number of records and the offset where it stopped: `size`,
    or bytes that are neither record nor mark, or the next record if there was no room.
    """
    places = int64s_at(offsets, room)
    offset = start
    found = 0
    while found < room:
        step = size_at(memory + offset, size - offset)
        if step == 0:
            break
        if uint32_at(memory + offset) == RECORD_MAGIC:
            places[found] = offset
            copy_bytes(heads + RECORD_HEAD_BYTES * found, memory + offset, RECORD_HEAD_BYTES)
            found += 1
        offset += step
    return found, offset


@njit(nogil=True, cache=True)
def next_record(memory: int, size: int, start: int) -> int:
    """Return the offset of the next record or mark with a valid head, at or after `start`; -1 if not found."""
    offset = FILE_HEAD_BYTES + (
        (max(start, FILE_HEAD_BYTES) - FILE_HEAD_BYTES + RECORD_ALIGNMENT - 1) & -RECORD_ALIGNMENT
    )
    while offset + min(RECORD_HEAD_BYTES, MARK_HEAD_BYTES) <= size:
        if size_at(memory + offset, size - offset) != 0:
            return offset
        offset += RECORD_ALIGNMENT
    return -1


@inner
def chain_after(chain: int, address: int, scratch: int) -> int:
    """Return the checksum chain, int64, after the record or mark at `address`.

    It is XXH3 of the chain before and the head's first eight bytes: magic and checksum. `scratch` is the address of
    CHAIN_BYTES of memory.
    """
    words = int64s_at(scratch, 2)
    words[0] = chain
    words[1] = int64s_at(address, 1)[0]
    return numpy.int64(xxh3(scratch, CHAIN_BYTES))
