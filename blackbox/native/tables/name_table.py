"""Assign numbers to names in compiled code: a hash table from a name's bytes to its number, in order of arrival."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy
from numpy.typing import NDArray

from blackbox.native.compile.jit import njit
from blackbox.native.memory.intrinsics import copy_bytes, inner, int64s_at, load_word, uint64s_at
from blackbox.native.tables.hash import hash_bytes, short_word

_LEAST_SLOTS = 1 << 4


class NumberingAt(NamedTuple):
    """Addresses of a `Numbering`. Plain integers: for arrays compiled code would count references atomically."""

    slots: int
    starts: int
    text: int
    used: int
    """Address of uint64[4]: number of names, mask of slots, and the two keys of the hash."""
    capacity: int
    text_bytes: int


class Numbering:
    """Topics (or keys) numbered from 0 in order of arrival; bounded.

    Open addressing: a slot holds the upper half of a name's hash and its number plus 1. At least half the slots are
    empty; the table doubles as it fills, which takes 0.1 µs per name. One thread writes; others may read `names`. `at`
    is the argument for compiled code; the object must outlive its use. Name i is `text[starts[i]:starts[i + 1]]`.
    """

    def __init__(
        self,
        capacity: int,
        mean_bytes: int,
        make: Callable[[tuple[int, ...], Any], NDArray[Any]] = numpy.zeros,
    ) -> None:
        """Allocate room for `capacity` names of `mean_bytes` on average with `make`; pages are touched as they fill."""
        self._slots = make((max(_LEAST_SLOTS, 1 << (2 * capacity - 1).bit_length()),), numpy.uint64)
        self.starts = make((capacity + 1,), numpy.int64)
        self.text = make((capacity * mean_bytes + 8,), numpy.uint8)
        self._used = make((4,), numpy.int64)
        self._used[1] = _LEAST_SLOTS - 1
        self._used[2:] = numpy.frombuffer(secrets.token_bytes(16), numpy.int64)
        self.at = NumberingAt(
            self._slots.ctypes.data,
            self.starts.ctypes.data,
            self.text.ctypes.data,
            self._used.ctypes.data,
            capacity,
            self.text.nbytes,
        )

    def __len__(self) -> int:
        return int(self._used[0])

    def clear(self) -> None:
        """Remove all names."""
        self._slots[: self._used[1] + 1] = 0
        self._used[:2] = 0, _LEAST_SLOTS - 1

    def name(self, number: int) -> bytes:
        """Return one name."""
        return self.text[self.starts[number] : self.starts[number + 1]].tobytes()

    def names(self, first: int = 0) -> list[bytes]:
        """Return the names from number `first` on."""
        starts = self.starts[first : len(self) + 1]
        text = self.text[starts[0] : starts[-1]].tobytes()
        return [text[a:b] for a, b in pairwise((starts - starts[0]).tolist())]


FULL = -1
_UPPER = numpy.uint64(0xFFFFFFFF00000000)
_LOWER = numpy.uint64(0x00000000FFFFFFFF)
_HALF = numpy.uint64(32)


@njit(inline="always")
def _equal(address: int, other: int, size: int) -> bool:
    if size < 8:
        return short_word(address, size) == short_word(other, size)
    for at in range(0, size - 8, 8):
        if load_word(address + at) != load_word(other + at):
            return False
    return load_word(address + size - 8) == load_word(other + size - 8)


@njit(inline="always")
def _hash(numbering: NumberingAt, address: int, size: int) -> int:
    keys = uint64s_at(numbering.used, 4)
    return hash_bytes(address, size, keys[2], keys[3])


@inner
def forget_names(numbering: NumberingAt) -> None:
    """Remove all names, as `Numbering.clear` does."""
    used = int64s_at(numbering.used, 2)
    uint64s_at(numbering.slots, used[1] + 1)[:] = 0
    used[0], used[1] = 0, _LEAST_SLOTS - 1


@inner
def _take_more_slots(numbering: NumberingAt) -> None:
    """Double the number of slots and reinsert all names."""
    used = int64s_at(numbering.used, 2)
    mask = 2 * used[1] + 1
    slots = uint64s_at(numbering.slots, mask + 1)
    starts = int64s_at(numbering.starts, numbering.capacity + 1)
    slots[:] = 0
    for number in range(used[0]):
        code = _hash(numbering, numbering.text + starts[number], starts[number + 1] - starts[number])
        slot = numpy.int64(code) & mask
        while slots[slot] != 0:
            slot = (slot + 1) & mask
        slots[slot] = (code & _UPPER) | numpy.uint64(number + 1)
    used[1] = mask


@njit(nogil=True, cache=True)
def number_of(numbering: NumberingAt, address: int, size: int) -> int:
    """Return the number of the name at `address`, a new one for a new name; FULL if there is no room for it."""
    code = _hash(numbering, address, size)
    used = int64s_at(numbering.used, 2)
    mask = used[1]
    slots = uint64s_at(numbering.slots, mask + 1)
    starts = int64s_at(numbering.starts, numbering.capacity + 1)
    slot = numpy.int64(code) & mask
    while slots[slot] != 0:
        if (slots[slot] ^ code) & _UPPER == 0:
            number = numpy.int64(slots[slot] & _LOWER) - 1
            start = starts[number]
            if starts[number + 1] - start == size and _equal(numbering.text + start, address, size):
                return number
        slot = (slot + 1) & mask
    number = used[0]
    start = starts[number]
    if number >= numbering.capacity or start + size > numbering.text_bytes:
        return FULL
    copy_bytes(numbering.text + start, address, size)
    starts[number + 1] = start + size
    slots[slot] = (code & _UPPER) | numpy.uint64(number + 1)
    used[0] = number + 1
    if 2 * (number + 1) > mask and number + 1 < numbering.capacity:
        _take_more_slots(numbering)
    return number


NO_HINT = -1
HINT_WORDS = 4
"""Words kept per hint: the first and the last eight bytes of its name, the name's size, and its number."""
HINT_BYTES = 8 * HINT_WORDS
_INLINE_BYTES = 16


@njit(nogil=True, cache=True)
def number_by_hint(numbering: NumberingAt, hints: int, hint: int, address: int, size: int) -> int:
    """Return the same as `number_of`, without a search if this name came with this hint last time.

    `hints`: address of uint64[capacity, HINT_WORDS], zeroed, for one numbering that is never cleared; 0: no hints.
    `hint`: the sender's number of the name. A wrong hint costs only time, since the whole name is compared.
    """
    if hints == 0 or hint < 0 or hint >= numbering.capacity:
        return number_of(numbering, address, size)
    kept = uint64s_at(hints + HINT_BYTES * hint, HINT_WORDS)
    if size >= 8:
        first, last = load_word(address), load_word(address + size - 8)
    else:
        first, last = short_word(address, size), numpy.uint64(0)
    if kept[0] == first and kept[1] == last and kept[2] >> _HALF == numpy.uint64(size):
        number = numpy.int64(kept[2] & _LOWER) - 1
        if size <= _INLINE_BYTES:
            return number
        if _equal(numbering.text + int64s_at(numbering.starts + 8 * number, 1)[0], address, size):
            return number
    number = number_of(numbering, address, size)
    if number != FULL:
        kept[0], kept[1] = first, last
        kept[2] = numpy.uint64(size) << _HALF | numpy.uint64(number + 1)
    return number
