"""Find again what an index should tell, from the records themselves."""

from __future__ import annotations

from typing import Final

import numpy
from numba import njit

from blackbox.atoms import bytes_at, int32s_at, int64s_at
from blackbox.check import check_block
from blackbox.journal.layout import (
    CODEC_NONE,
    ENTRY_BYTES,
    OFFSET_BLOCK_HEADER,
    OFFSET_CODEC,
    OFFSET_FIRST_ROW,
    OFFSET_STORED_BYTES,
    OFFSET_TS_RECV,
    RECORD_HEAD_BYTES,
)
from blackbox.journal.record import ENTRY_WORDS, add_to_entry, is_record, padded
from blackbox.layout import HEADER_BYTES

NO_RECORD: Final = 0
"""No whole record begins there."""
NO_ROOM: Final = 1
"""All entries are full."""
PACKED: Final = 2
"""The record's body must be unpacked first."""
BAD_BODY: Final = 3
"""The record's body is not a block's."""


@njit(inline="always")
def _uint32(address: int) -> int:
    return numpy.int64(int32s_at(address, 1)[0]) & 0xFFFFFFFF


@njit(nogil=True, cache=True)
def scan(
    memory: int, size: int, start: int, entries: int, count: int, room: int, key_bytes: int
) -> tuple[int, int, int]:
    """Note the records from `start` on in the entries at an address: `count` are there, for `room` there is space.

    The last entry that is there is gone on with. Returns how many there are now, where it stopped, and why.
    """
    at = start
    while is_record(memory + at, size - at):
        record = memory + at
        if bytes_at(record + OFFSET_CODEC, 1)[0] != CODEC_NONE:
            return count, at, PACKED
        stored = _uint32(record + OFFSET_STORED_BYTES)
        body = record + RECORD_HEAD_BYTES
        if check_block(record + OFFSET_BLOCK_HEADER, HEADER_BYTES, body, stored, body, 0) != 0:
            return count, at, BAD_BODY
        count, noted = note(record, body, at, entries, count, room, key_bytes)
        if not noted:
            return count, at, NO_ROOM
        at += padded(stored)
    return count, at, NO_RECORD


@njit(nogil=True, cache=True)
def note(record: int, body: int, at: int, entries: int, count: int, room: int, key_bytes: int) -> tuple[int, bool]:
    """Note the good record at offset `at`, whose checked body lies unpacked at `body`, as `scan` does.

    Returns how many entries there are now, and whether there was room for it.
    """
    header = record + OFFSET_BLOCK_HEADER
    ts_recv = int64s_at(record + OFFSET_TS_RECV, 1)[0]
    first_row = _uint32(record + OFFSET_FIRST_ROW)
    size = padded(_uint32(record + OFFSET_STORED_BYTES))
    if count > 0:
        last = entries + ENTRY_BYTES * (count - 1)
        if add_to_entry(last, header, body, ts_recv, first_row, size, at, key_bytes):
            return count, True
    if count == room:
        return count, False
    fresh = entries + ENTRY_BYTES * count
    int64s_at(fresh, ENTRY_WORDS)[:] = 0
    add_to_entry(fresh, header, body, ts_recv, first_row, size, at, key_bytes)
    return count + 1, True
