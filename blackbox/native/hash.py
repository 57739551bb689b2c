"""The hashes of tables in compiled code: of a name's bytes, and of an integer.

Names come from outside. Whoever knows how they are hashed can choose thousands that meet in one slot. So each table
draws a key at random. Each word goes through a product with that key, of which both halves count: no difference between
two names leads to a known difference of their hashes.
"""

from __future__ import annotations

import numpy

from blackbox.native.intrinsics import bytes_at, fold, load_word
from blackbox.native.jit import njit

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
    """Return the hash of `size` bytes as a uint64: its low bits choose a slot, its upper half tells names apart.

    `key` and `other_key`: random uint64, the same for all names of a table.
    """
    total = numpy.uint64(size) ^ other_key
    if size < 8:
        return fold(short_word(address, size) ^ key, total)
    for at in range(0, size - 8, 8):
        total = fold(load_word(address + at) ^ total, key)
    return fold(load_word(address + size - 8) ^ total, key)  # the last eight bytes, some of them once more


@njit(inline="always")
def hash_integer(value: int, bits: int) -> int:
    """Return `bits` bits of hash of an int64: the slot in a table of `1 << bits`, `bits` being 1 or more."""
    return numpy.int64((numpy.uint64(value) * _MIX) >> numpy.uint64(64 - bits))
