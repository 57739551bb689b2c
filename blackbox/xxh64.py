"""XXH64, seed 0: the checksum of headers and bodies.

Source: xxHash specification 0.1.1, section "XXH64 algorithm description". Chosen because every language has it,
and because its four independent lanes keep a superscalar core busy without vector intrinsics.
"""

from __future__ import annotations

import numpy
from numba import njit

from blackbox.atoms import bytes_at, int32s_at, uint64s_at

_PRIME_1 = numpy.uint64(0x9E3779B185EBCA87)
_PRIME_2 = numpy.uint64(0xC2B2AE3D27D4EB4F)
_PRIME_3 = numpy.uint64(0x165667B19E3779F9)
_PRIME_4 = numpy.uint64(0x85EBCA77C2B2AE63)
_PRIME_5 = numpy.uint64(0x27D4EB2F165667C5)
_MASK_32 = numpy.uint64(0xFFFFFFFF)


@njit(inline="always")
def _rotate(value: int, bits: int) -> int:
    return (value << numpy.uint64(bits)) | (value >> numpy.uint64(64 - bits))


@njit(inline="always")
def _round(lane: int, word: int) -> int:
    return _rotate(lane + word * _PRIME_2, 31) * _PRIME_1


@njit(inline="always")
def _merge(total: int, lane: int) -> int:
    return (total ^ _round(numpy.uint64(0), lane)) * _PRIME_1 + _PRIME_4


@njit(nogil=True, cache=True)
def xxh64(address: int, size: int) -> int:
    """XXH64 of `size` bytes at `address` (8-byte aligned), as uint64."""
    words = uint64s_at(address, size >> 3)
    position = 0
    if size >= 32:
        lane_1 = _PRIME_1 + _PRIME_2
        lane_2 = _PRIME_2
        lane_3 = numpy.uint64(0)
        lane_4 = numpy.uint64(0) - _PRIME_1
        for stripe in range(size >> 5):
            position = stripe << 2
            lane_1 = _round(lane_1, words[position])
            lane_2 = _round(lane_2, words[position + 1])
            lane_3 = _round(lane_3, words[position + 2])
            lane_4 = _round(lane_4, words[position + 3])
        position = (size >> 5) << 2
        total = _rotate(lane_1, 1) + _rotate(lane_2, 7) + _rotate(lane_3, 12) + _rotate(lane_4, 18)
        total = _merge(_merge(_merge(_merge(total, lane_1), lane_2), lane_3), lane_4)
    else:
        total = _PRIME_5
    total += numpy.uint64(size)
    while position < size >> 3:
        total = _rotate(total ^ _round(numpy.uint64(0), words[position]), 27) * _PRIME_1 + _PRIME_4
        position += 1
    position <<= 3
    if size - position >= 4:
        half = numpy.uint64(int32s_at(address + position, 1)[0]) & _MASK_32
        total = _rotate(total ^ (half * _PRIME_1), 23) * _PRIME_2 + _PRIME_3
        position += 4
    tail = bytes_at(address, size)
    while position < size:
        total = _rotate(total ^ (numpy.uint64(tail[position]) * _PRIME_5), 11) * _PRIME_1
        position += 1
    total = (total ^ (total >> numpy.uint64(33))) * _PRIME_2
    total = (total ^ (total >> numpy.uint64(29))) * _PRIME_3
    return total ^ (total >> numpy.uint64(32))


@njit(inline="always")
def checksum_32(address: int, size: int) -> int:
    """The low 32 bits of XXH64: what the header has room for."""
    return numpy.uint32(xxh64(address, size) & _MASK_32)
