"""Topics in compiled code: a byte trie that finds a topic's longest prefix, and a table that numbers topics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy
from numba import njit
from numpy.typing import NDArray

from blackbox.atoms import bytes_at, copy_bytes, inner, int64s_at, load_word, uint64s_at

_MIX = numpy.uint64(0x9E3779B97F4A7C15)


class Trie(NamedTuple):
    """Prefixes as a byte trie. Bytes that occur in no prefix share class 0, so nodes stay small.

    `child[node, class]` is the next node or 0; `terminal[node]` the number of the prefix that ends there, plus 1.
    Node 0 is the root.
    """

    byte_class: NDArray[numpy.uint8]
    child: NDArray[numpy.int32]
    terminal: NDArray[numpy.int32]


def build_trie(prefixes: Sequence[bytes]) -> Trie:
    """The trie of distinct prefixes; `longest_prefix` then answers with places in `prefixes`, plus 1."""
    text = numpy.frombuffer(b"".join(prefixes) or b"\0", numpy.uint8)
    sizes = numpy.fromiter(map(len, prefixes), numpy.int64, len(prefixes))
    byte_class = numpy.zeros(256, numpy.uint8)
    used = numpy.unique(text) if sizes.sum() else numpy.empty(0, numpy.uint8)
    # All 256 byte values would need class 256: the last one then shares its class with no other, as class 0.
    byte_class[used] = (numpy.arange(len(used)) + 1).astype(numpy.uint8)
    child = numpy.zeros((int(sizes.sum()) + 1, len(used) + 1), numpy.int32)
    terminal = numpy.zeros(len(child), numpy.int32)
    nodes = _insert(text, sizes, byte_class, child, terminal)
    return Trie(byte_class, child[:nodes].copy(), terminal[:nodes].copy())


@njit(nogil=True, cache=True)
def _insert(
    text: NDArray[numpy.uint8],
    sizes: NDArray[numpy.int64],
    byte_class: NDArray[numpy.uint8],
    child: NDArray[numpy.int32],
    terminal: NDArray[numpy.int32],
) -> int:
    nodes = 1
    at = 0
    for number in range(len(sizes)):
        node = 0
        for _ in range(sizes[number]):
            branch = byte_class[text[at]]
            if child[node, branch] == 0:
                child[node, branch] = nodes
                nodes += 1
            node = child[node, branch]
            at += 1
        terminal[node] = number + 1
    return nodes


@njit(nogil=True, cache=True)
def longest_prefix(trie: Trie, address: int, size: int) -> int:
    """The number, plus 1, of the longest prefix of the `size` bytes at `address`; 0: none."""
    text = bytes_at(address, size)
    found = trie.terminal[0]
    node = 0
    for i in range(size):
        branch = trie.byte_class[text[i]]
        node = trie.child[node, branch]
        if node == 0:
            break
        if trie.terminal[node] != 0:
            found = trie.terminal[node]
    return found


_LEAST_SLOTS = 1 << 4


class NumberingAt(NamedTuple):
    """Where a `Numbering` lies. Plain addresses: compiled code would count references to arrays, atomically."""

    slots: int
    starts: int
    text: int
    used: int
    """How many names there are, and which bits of a hash choose the slot: all but few slots would be out of cache."""
    capacity: int
    text_bytes: int


class Numbering:
    """Topics (or keys) numbered from 0 in the order in which they first came; bounded, never shrinks.

    Open addressing: a slot holds the upper half of a name's hash and its number plus 1. Half of the slots in use are
    free at least; twice as many are taken into use as names come, which takes 0.1 µs a name: a tenth of a second at a
    million. Written by one thread; others may read `names`. `at`
    is what compiled code takes; the object must outlive its use.
    """

    def __init__(
        self,
        capacity: int,
        mean_bytes: int,
        make: Callable[[tuple[int, ...], Any], NDArray[Any]] = numpy.zeros,
    ) -> None:
        """Room for `capacity` names of `mean_bytes` on average, in arrays from `make`, touched only as they fill."""
        self._slots = make((max(_LEAST_SLOTS, 1 << (2 * capacity - 1).bit_length()),), numpy.uint64)
        self._starts = make((capacity + 1,), numpy.int64)
        self._text = make((capacity * mean_bytes + 8,), numpy.uint8)
        self._used = make((2,), numpy.int64)
        self._used[1] = _LEAST_SLOTS - 1
        self.at = NumberingAt(
            self._slots.ctypes.data,
            self._starts.ctypes.data,
            self._text.ctypes.data,
            self._used.ctypes.data,
            capacity,
            self._text.nbytes,
        )

    def __len__(self) -> int:
        return int(self._used[0])

    def clear(self) -> None:
        """Forget all names."""
        self._slots[: self._used[1] + 1] = 0
        self._used[:] = 0, _LEAST_SLOTS - 1

    def names(self) -> list[bytes]:
        """All names, by number."""
        starts = self._starts[: len(self) + 1].tolist()
        text = self._text[: starts[-1]].tobytes()
        return [text[a:b] for a, b in pairwise(starts)]


FULL = -1
_UPPER = numpy.uint64(0xFFFFFFFF00000000)
_LOWER = numpy.uint64(0x00000000FFFFFFFF)


@njit(inline="always")
def _short_word(address: int, size: int) -> int:
    """Fewer than eight bytes, as a uint64."""
    word = numpy.uint64(0)
    text = bytes_at(address, size)
    for i in range(numpy.uint64(size)):
        word = (word << numpy.uint64(8)) | numpy.uint64(text[i])
    return word


@njit(inline="always")
def _hash(address: int, size: int) -> int:
    total = numpy.uint64(size) * _MIX
    if size < 8:
        total = (total ^ _short_word(address, size)) * _MIX
        return total ^ (total >> numpy.uint64(32))
    for at in range(0, size - 8, 8):
        total = (total ^ load_word(address + at)) * _MIX
        total ^= total >> numpy.uint64(29)
    total = (total ^ load_word(address + size - 8)) * _MIX  # the last eight bytes, some of them once more
    return total ^ (total >> numpy.uint64(32))


@njit(inline="always")
def _equal(address: int, other: int, size: int) -> bool:
    if size < 8:
        return _short_word(address, size) == _short_word(other, size)
    for at in range(0, size - 8, 8):
        if load_word(address + at) != load_word(other + at):
            return False
    return load_word(address + size - 8) == load_word(other + size - 8)


@inner
def _take_more_slots(numbering: NumberingAt) -> None:
    """Take twice as many slots into use, and put all names where they now belong."""
    used = int64s_at(numbering.used, 2)
    mask = 2 * used[1] + 1
    slots = uint64s_at(numbering.slots, mask + 1)
    starts = int64s_at(numbering.starts, numbering.capacity + 1)
    slots[:] = 0
    for number in range(used[0]):
        code = _hash(numbering.text + starts[number], starts[number + 1] - starts[number])
        slot = numpy.int64(code) & mask
        while slots[slot] != 0:
            slot = (slot + 1) & mask
        slots[slot] = (code & _UPPER) | numpy.uint64(number + 1)
    used[1] = mask


@njit(nogil=True, cache=True)
def number_of(numbering: NumberingAt, address: int, size: int) -> int:
    """The number of the name at `address`, a new one if it was not known; FULL when there is no room for it."""
    code = _hash(address, size)
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
