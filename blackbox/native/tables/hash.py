"""Hashes for tables in compiled code: of a name's bytes, and of an integer.

Names come from outside, and a sender that knew the hash could choose thousands that collide. So each table draws a
random key, and each word is folded with it: both halves of the product are used, so that no difference between two
names gives a predictable difference of hashes.
"""

from __future__ import annotations

import numpy

from blackbox.native.compile.jit import njit
from blackbox.native.memory.intrinsics import bytes_at, fold, load_word

_MIX = numpy.uint64(0x9E3779B97F4A7C15)


@njit(inline="always")
def short_word(address: int, size: int) -> int:
    """Return fewer than eight bytes as a uint64."""
    word = numpy.uint64(0)
    text = bytes_at(address, size)
    for i in range(numpy.uint64(size)):
        word = (word << numpy.uint64(8)) | numpy.uint64(text[i])
    return word


@njit(inline="always")
def hash_bytes(address: int, size: int, key: int, other_key: int) -> int:
    """Return the hash of `size` bytes as a uint64: the low bits choose a slot, the upper half is compared first.

    `key` and `other_key`: random uint64, the same for all names of a table.
    """
    total = numpy.uint64(size) ^ other_key
    if size < 8:
        return fold(short_word(address, size) ^ key, total)
    for at in range(0, size - 8, 8):
        total = fold(load_word(address + at) ^ total, key)
    return fold(load_word(address + size - 8) ^ total, key)  # the last eight bytes, overlapping the previous word


@njit(inline="always")
def hash_integer(value: int, bits: int) -> int:
    """Return a `bits`-bit hash of an int64: the slot in a table of `1 << bits`; `bits` is at least 1."""
    return numpy.int64((numpy.uint64(value) * _MIX) >> numpy.uint64(64 - bits))
