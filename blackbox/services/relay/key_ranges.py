"""Check in compiled code whether a filter covers a key. Filters are sorted ranges of keys, as words of 8 bytes."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import numpy
from numpy.typing import NDArray

from blackbox.feed.routing.key_rule import MAX_KEY_BYTES
from blackbox.native.memory.intrinsics import bytes_at, inner, int64s_at

_ALL: Final = numpy.uint64(0xFFFF_FFFF_FFFF_FFFF)
_TOP: Final = numpy.uint64(1 << 63)
_SIGN: Final = numpy.int64(-(1 << 63))


def ranges_of(filters: Collection[bytes]) -> NDArray[numpy.int64]:
    """Return the first word of each range, ascending, and the last word covered by it or an earlier range."""
    sizes = numpy.fromiter(map(len, filters), numpy.uint64, len(filters))
    first = numpy.array(list(filters), f"S{MAX_KEY_BYTES}").view(">u8").astype(numpy.uint64)
    last = first | _ALL >> numpy.uint64(8) * numpy.minimum(sizes, numpy.uint64(MAX_KEY_BYTES))
    order = first.argsort()
    return (numpy.stack([first[order], numpy.maximum.accumulate(last[order])]) ^ _TOP).view(numpy.int64)


@inner
def covers(ranges: int, count: int, key: int, size: int) -> Any:
    """Return True if one of the `count` filters at an address covers a key of up to 8 bytes."""
    text, word = bytes_at(key, size), numpy.int64(0)
    for place in range(MAX_KEY_BYTES):
        word = (word << 8) | (numpy.int64(text[place]) if place < size else 0)
    word ^= _SIGN
    words = int64s_at(ranges, 2 * count)
    low, high = 0, count
    while low < high:
        middle = (low + high) >> 1
        if words[middle] <= word:
            low = middle + 1
        else:
            high = middle
    return low > 0 and word <= words[count + low - 1]
