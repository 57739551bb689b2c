"""Messages with a two-byte length prefix: write them, or skip them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy
from numpy.typing import NDArray

from blackbox.errors import SourceError
from blackbox.native.compile.jit import njit
from blackbox_feeds.io.integers import big_16, little_16

if TYPE_CHECKING:
    from blackbox.archive.export.time_order import Messages

_LENGTH_BYTES = 2
_LONGEST = 0xFFFF


def length_prefixed(parts: Iterable[Messages], big_endian: bool) -> Iterator[NDArray[numpy.uint8]]:
    """Yield the bytes of messages, each after its length.

    Raises:
        SourceError: a message is longer than 65,535 bytes.
    """
    for part in parts:
        many = len(part.ts_event)
        longest = int(numpy.diff(part.offsets).max(initial=0))
        if longest > _LONGEST:
            raise SourceError(f"a message had {longest} bytes, expected at most {_LONGEST}: its length has two bytes")
        framed = numpy.empty(len(part.payloads) + _LENGTH_BYTES * many, numpy.uint8)
        _frame(part.payloads, part.offsets, big_endian, framed)
        yield framed


@njit(nogil=True, cache=True)
def skip_messages(data: NDArray[numpy.uint8], position: int, end: int, count: int, big_endian: bool) -> int:
    """Return the end of `count` messages from `position` on, or -1 if that is after `end`."""
    for _ in range(count):
        if position + 2 > end:
            return -1
        position += 2 + (big_16(data, position) if big_endian else little_16(data, position))
    return position if position <= end else -1


@njit(nogil=True, cache=True)
def _frame(
    payloads: NDArray[numpy.uint8], offsets: NDArray[numpy.int64], big_endian: bool, framed: NDArray[numpy.uint8]
) -> None:
    place = 0
    for i in range(len(offsets) - 1):
        start, stop = offsets[i], offsets[i + 1]
        size = stop - start
        high, low = numpy.uint8(size >> 8), numpy.uint8(size & 0xFF)
        framed[place] = high if big_endian else low
        framed[place + 1] = low if big_endian else high
        place += 2
        for at in range(start, stop):
            framed[place] = payloads[at]
            place += 1
