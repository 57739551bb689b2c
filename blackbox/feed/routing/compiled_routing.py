"""Compiled: find slice, key and symbol of a topic, as `slices`, `key_rule` and `symbol` of this folder define them.

Those must load without numba.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy
from numpy.typing import NDArray

from blackbox.feed.routing.key_rule import MAX_KEY_BYTES
from blackbox.feed.routing.slices import MAX_TOPIC_BYTES, PrefixRouting, ShareRouting
from blackbox.feed.routing.symbol import BEFORE_FIRST, WHOLE, SymbolRule
from blackbox.native.memory.intrinsics import bytes_at, inner

NO_SLICE: Final = -1
_POLYNOMIAL: Final = 0xEDB88320
"""The polynomial of IEEE 802.3, bits reversed."""


class Routes(NamedTuple):
    """How topics map to slices, for compiled code."""

    of: int
    """Number of shares; 0: slices have prefixes."""
    separator: int
    """The byte that ends the root of a topic."""
    slices: NDArray[numpy.int32]
    """int32[n]: the slice of each share, or of each prefix."""
    text: NDArray[numpy.uint8]
    """The sorted prefixes, concatenated."""
    ends: NDArray[numpy.int64]
    """int64[n + 1]: prefix i is `text[ends[i]:ends[i + 1]]`."""


def routes_of(routing: PrefixRouting | ShareRouting) -> Routes:
    """Return the routing of a feed for compiled code."""
    if isinstance(routing, ShareRouting):
        slices = numpy.array(routing.slice_of_share, numpy.int32)
        nothing = numpy.zeros(1, numpy.uint8), numpy.zeros(1, numpy.int64)
        return Routes(len(slices), routing.separator[0], slices, *nothing)
    prefixes = [prefix for prefix, _ in routing.prefixes]
    ends = numpy.cumsum([0, *map(len, prefixes)], dtype=numpy.int64)
    text = numpy.frombuffer(b"".join(prefixes) + b"\0", numpy.uint8)
    return Routes(0, 0, numpy.array([slice_id for _, slice_id in routing.prefixes], numpy.int32), text, ends)


def _crc_table() -> NDArray[numpy.uint32]:
    table = numpy.arange(256, dtype=numpy.uint32)
    for _ in range(8):
        table = numpy.where(table & 1, table >> 1 ^ numpy.uint32(_POLYNOMIAL), table >> 1)
    return table


_CRC = _crc_table()


@inner
def route(routes: Routes, topic: int, size: int) -> int:
    """Return the slice of the topic at an address; NO_SLICE: no slice has it, or it cannot be published."""
    if size < 1 or size > MAX_TOPIC_BYTES or bytes_at(topic, 1)[0] == 0:
        return NO_SLICE
    if routes.of > 0:
        return int(routes.slices[crc_of_root(topic, size, routes.separator) % routes.of])
    # Find the last prefix that sorts at or before the topic: no other can match.
    low, high = 0, len(routes.slices)
    while low < high:
        middle = (low + high) // 2
        if _compare(routes, middle, topic, size) > 0:
            high = middle
        else:
            low = middle + 1
    if low == 0 or _compare(routes, low - 1, topic, size) != 0:
        return NO_SLICE
    return int(routes.slices[low - 1])


@inner
def crc_of_root(topic: int, size: int, separator: int) -> int:
    """Return the CRC-32 of the root of a topic. `topic`: its address."""
    text = bytes_at(topic, size)
    crc = numpy.uint32(0xFFFFFFFF)
    for place in range(size):
        if text[place] == separator:
            break
        crc = _CRC[(crc ^ text[place]) & numpy.uint32(0xFF)] ^ (crc >> numpy.uint32(8))
    return int(numpy.int64(crc ^ numpy.uint32(0xFFFFFFFF)))


@inner
def _compare(routes: Routes, number: int, topic: int, size: int) -> int:
    """Return 0 if the topic starts with the prefix, 1 if the prefix sorts after it, -1 if before."""
    text = bytes_at(topic, size)
    start = routes.ends[number]
    length = routes.ends[number + 1] - start
    for place in range(min(length, size)):
        if routes.text[start + place] != text[place]:
            return 1 if routes.text[start + place] > text[place] else -1
    return 0 if length <= size else 1


_CHANNEL_KEYS = numpy.arange(256, dtype=numpy.uint8)


@inner
def find_key(rule: int, topic: int, size: int) -> tuple[Any, Any]:
    """Return the address and the size of a topic's key. `topic`: address of the topic."""
    if rule <= MAX_KEY_BYTES:
        return topic, min(numpy.int64(rule), size)
    crc = crc_of_root(topic, size, rule >> 8)
    return _CHANNEL_KEYS.ctypes.data + 1 + (crc >> 16) % ((rule & 0xFF) - MAX_KEY_BYTES), numpy.int64(1)


class CompiledSymbolRule(NamedTuple):
    """A `SymbolRule` for compiled code."""

    separator: int
    """The separator's byte; -1: the whole topic is its symbol."""
    first: bool
    """True if the symbol ends at the first separator, not the last."""

    @classmethod
    def of(cls, rule: SymbolRule) -> CompiledSymbolRule:
        """Return the compiled form of a rule."""
        return cls(-1 if rule.symbol == WHOLE else ord(rule.separator), rule.symbol == BEFORE_FIRST)


@inner
def separator_at(rule: CompiledSymbolRule, topic: int, size: int) -> int:
    """Return the offset of the separator between symbol and type; -1: no type. `topic`: address of the topic."""
    letters = bytes_at(topic, size)
    found = -1
    if rule.separator >= 0:
        for at in range(size):
            if letters[at] == rule.separator:
                found = at
                if rule.first:
                    break
    return found
