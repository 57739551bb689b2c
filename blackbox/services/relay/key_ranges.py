"""Keys that a relay expects from its source, as sorted ranges of words of 8 bytes that compiled code checks."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Final

import numpy
from numpy.typing import NDArray

from blackbox.feed.routing.key_rule import MAX_KEY_BYTES
from blackbox.native.memory.intrinsics import bytes_at, inner, int64s_at

_MOST_WITHDRAWN: Final = 65_536
"""Most withdrawn prefixes remembered per connection; above that all are forgotten and not withdrawn again."""
_RANGES_S: Final = 50e-6
"""Least time per filter between two updates of `ranges`, which take about a hundredth of it."""
_MOST_REPEATS: Final = 3
"""Repeated withdrawals on one connection before the relay reconnects."""
_ALL: Final = numpy.uint64(0xFFFF_FFFF_FFFF_FFFF)
_TOP: Final = numpy.uint64(1 << 63)
_SIGN: Final = numpy.int64(-(1 << 63))


class ExpectedKeys:
    """Keys of the requested filters, and of withdrawn filters until the source has confirmed their withdrawal.

    Requests and withdrawals have versions, see `Upstream`. Attributes: `ranges`, see `ranges_of`, or None if unknown;
    `repeats`, number of repeated withdrawals on this connection.
    """

    def __init__(self) -> None:
        self.ranges: NDArray[numpy.int64] | None = None
        self.repeats = 0
        self._withdrawn = dict[bytes, int]()
        """Version in which each filter was withdrawn on this connection."""
        self._version, self._update_at = -1, 0.0
        """Confirmed version of `ranges`, and the earliest time of its next update."""

    @property
    def is_ignored(self) -> bool:
        """True if the source still sends keys that were withdrawn several times."""
        return self.repeats > _MOST_REPEATS

    def reconnect(self, confirmed: int) -> None:
        """Forget withdrawals confirmed on an earlier connection. Others may apply to the new one already."""
        self.repeats = 0
        self._withdrawn = {prefix: version for prefix, version in self._withdrawn.items() if version > confirmed}

    def withdraw(self, prefixes: Iterable[bytes], version: int) -> bool:
        """Note withdrawn filters. Return False if all were forgotten, because there are too many."""
        self._withdrawn |= dict.fromkeys(prefixes, version)
        if len(self._withdrawn) <= _MOST_WITHDRAWN:
            return True
        self._withdrawn.clear()
        return False

    def withdrawn_again(self, key: bytes, filters: set[bytes], confirmed: int) -> list[bytes]:
        """Return the filters of an unwanted key whose confirmed withdrawal must be repeated, and count that."""
        covering = ({key[:size] for size in range(len(key) + 1)} & self._withdrawn.keys()) - filters
        again = sorted(prefix for prefix in covering if self._withdrawn[prefix] <= confirmed)
        self.repeats += bool(again)
        return again

    def update(self, filters: set[bytes], confirmed: int, now: float) -> None:
        """Compute `ranges` if more is confirmed and the last update was long enough ago."""
        if (self.ranges is None or self._version < confirmed) and now >= self._update_at:
            unconfirmed = (prefix for prefix, version in self._withdrawn.items() if version > confirmed)
            self.ranges = ranges_of(filters.union(unconfirmed))
            self._version, self._update_at = confirmed, now + _RANGES_S * len(filters)


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
