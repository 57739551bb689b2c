"""Find the longest matching prefix of a name in compiled code, in a byte trie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy
from numpy.typing import NDArray

from blackbox.native.compile.jit import njit
from blackbox.native.memory.intrinsics import bytes_at


class Trie(NamedTuple):
    """Prefixes as a byte trie. Bytes that occur in no prefix share class 0, so nodes stay small.

    `child[node, class]` is the next node or 0; `terminal[node]` is the number of the prefix that ends there, plus 1.
    Node 0 is the root.
    """

    byte_class: NDArray[numpy.uint8]
    child: NDArray[numpy.int32]
    terminal: NDArray[numpy.int32]


def build_trie(prefixes: Sequence[bytes]) -> Trie:
    """Return the trie of distinct prefixes; `longest_prefix` then returns an index into `prefixes`, plus 1."""
    text = numpy.frombuffer(b"".join(prefixes) or b"\0", numpy.uint8)
    sizes = numpy.fromiter(map(len, prefixes), numpy.int64, len(prefixes))
    byte_class = numpy.zeros(256, numpy.uint8)
    used = numpy.unique(text) if sizes.sum() else numpy.empty(0, numpy.uint8)
    # With all 256 byte values in use, class 256 wraps to class 0, which no other byte then uses.
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
    """Return the index, plus 1, of the longest prefix of the `size` bytes at `address`; 0: none."""
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
