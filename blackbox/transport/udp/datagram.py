"""A datagram: one part of a block, with a checksum or a tag. See `wire-format` in the docs."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final

import numpy

from blackbox.block.form import layout as table
from blackbox.block.form.format import HEADER_BYTES, MAX_BODY_BYTES, MAX_SEQUENCE
from blackbox.feed.routing.key_rule import MAX_KEY_BYTES
from blackbox.native.compile.jit import njit
from blackbox.native.memory.intrinsics import call_with_six, inner, uint64s_at
from blackbox.native.memory.records import structure_at
from blackbox.native.tables.xxh3 import xxh3

DATAGRAM: Final = table.dtype_of(table.DATAGRAM)
DATAGRAM_BYTES: Final = DATAGRAM.itemsize
"""Bytes of a datagram before its part of the block."""
TAG_BYTES: Final = 16
GROUP_KEY_BYTES: Final = 32
LEAST_PART_BYTES: Final = 512
"""Large enough for a key and a header, which are therefore in the first part."""
MOST_PAYLOAD_BYTES: Final = 65_507
"""Largest payload of a UDP datagram over IPv4."""
MOST_PARTS: Final = (MAX_KEY_BYTES + HEADER_BYTES + MAX_BODY_BYTES) // LEAST_PART_BYTES + 1
MAGIC: Final = int.from_bytes(table.DATAGRAM_MAGIC, "little")
VERSION: Final = table.VERSION
assert MAX_KEY_BYTES + HEADER_BYTES <= LEAST_PART_BYTES

datagram_at: Final = structure_at(DATAGRAM)
"""For compiled code: the datagram at an address."""


class DatagramFault(IntEnum):
    """Reason to ignore a datagram; 0: none."""

    FORM = 1
    """It is not of this format, or its sizes contradict each other."""
    TAG = 2
    """Its checksum is wrong; with a group key, its tag."""
    SLICE = 3
    """It is of another slice."""


_TAG: Final = numpy.int64(TAG_BYTES)
_KEY: Final = numpy.int64(GROUP_KEY_BYTES)


@inner
def write_tag(tag: int, datagram: int, size: int, hash_function: int, group_key: int) -> None:
    """Write the tag of a datagram of `size` bytes to the 16 bytes at `tag`.

    `hash_function`: address of `crypto_generichash`; 0: no group key, the tag is a checksum.
    """
    start, rest = datagram + TAG_BYTES, size - TAG_BYTES
    if hash_function != 0:
        call_with_six(hash_function, tag, _TAG, start, rest, group_key, _KEY)
    else:
        words = uint64s_at(tag, 2)
        words[0] = numpy.uint64(xxh3(start, rest))
        words[1] = numpy.uint64(0)


@inner
def _has_tag(datagram: int, size: int, hash_function: int, group_key: int, scratch: int) -> bool:
    write_tag(scratch, datagram, size, hash_function, group_key)
    expected, found = uint64s_at(scratch, 2), uint64s_at(datagram, 2)
    # Always both words: the time must not depend on where a forged tag differs.
    return bool((expected[0] ^ found[0]) | (expected[1] ^ found[1]) == 0)


@inner
def part_size(datagram: Any) -> Any:
    """Return the expected size of the part in a datagram; not above 0: there is no such part."""
    part_bytes = numpy.int64(datagram.part_bytes)
    return min(part_bytes, numpy.int64(datagram.block_bytes) - numpy.int64(datagram.part) * part_bytes)


@njit(nogil=True, cache=True)
def check_datagram(address: int, size: int, slice_id: int, hash_function: int, group_key: int, scratch: int) -> int:
    """Return the fault of a datagram received by a slice; 0: none. `scratch`: 16 bytes."""
    if size < DATAGRAM_BYTES:
        return DatagramFault.FORM
    datagram = datagram_at(address)
    if datagram.magic != MAGIC or datagram.version != VERSION:
        return DatagramFault.FORM
    if not _has_tag(address, size, hash_function, group_key, scratch):
        return DatagramFault.TAG
    if datagram.slice != slice_id:
        return DatagramFault.SLICE
    part_bytes, key_bytes = numpy.int64(datagram.part_bytes), numpy.int64(datagram.key_bytes)
    body_bytes = numpy.int64(datagram.block_bytes) - key_bytes - HEADER_BYTES
    fits = (
        key_bytes <= MAX_KEY_BYTES
        and 0 <= body_bytes <= MAX_BODY_BYTES
        and LEAST_PART_BYTES <= part_bytes <= MOST_PAYLOAD_BYTES
        and part_size(datagram) > 0
        and part_size(datagram) == size - DATAGRAM_BYTES
        and datagram.stream > 0
        and 0 <= datagram.block <= MAX_SEQUENCE
        and datagram.zero == 0
    )
    return 0 if fits else DatagramFault.FORM
