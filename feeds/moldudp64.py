"""MoldUDP64: the datagrams that carry ITCH, each some consecutive messages of one session.

Source: "MoldUDP64 Protocol Specification" 1.00. Integers are big-endian.

    session 10 | sequence 8 | count 2 | { length 2 | message } * count

`count` 0 is a heartbeat and 0xFFFF the end of the session; both have the sequence number that comes
next, so a loss just before them shows.
"""

from __future__ import annotations

import numpy
from numba import njit
from numpy.typing import NDArray

from feeds.pcap import Datagrams
from feeds.sequence import arrive, enter_session, new_sequence
from feeds.words import big_16, big_64

HEADER_BYTES = 20
END_OF_SESSION = 0xFFFF

_END, _SHORT, _OVERRUN = range(3)


@njit(nogil=True, cache=True)
def _skip_blocks(data: NDArray[numpy.uint8], position: int, end: int, count: int) -> int:
    """Where `count` message blocks from `position` on end, or -1 if that is after `end`."""
    for _ in range(count):
        if position + 2 > end:
            return -1
        position += 2 + big_16(data, position)
    return position if position <= end else -1


@njit(nogil=True, cache=True)
def _find_spans(
    data: NDArray[numpy.uint8],
    starts: NDArray[numpy.int64],
    lengths: NDArray[numpy.int32],
    state: NDArray[numpy.int64],
    counts: NDArray[numpy.int64],
    span_starts: NDArray[numpy.int64],
    span_ends: NDArray[numpy.int64],
) -> tuple[int, int, int]:
    """The span of new messages of each datagram; returns (spans, datagrams, why it stopped)."""
    found = 0
    for row in range(len(starts)):
        start = starts[row]
        end = start + lengths[row]
        if lengths[row] < HEADER_BYTES:
            return found, row, _SHORT
        count = big_16(data, start + 18)
        if count == END_OF_SESSION:
            count = 0
        first_block = start + HEADER_BYTES
        if _skip_blocks(data, first_block, end, count) < 0:
            return found, row, _OVERRUN
        first = big_64(data, start + 10)
        enter_session(state, counts, big_64(data, start), big_16(data, start + 8), first)
        skip, take = arrive(state, counts, first, count)
        if take:
            span_starts[found] = _skip_blocks(data, first_block, end, skip)
            span_ends[found] = _skip_blocks(data, span_starts[found], end, take)
            found += 1
    return found, len(starts), _END


class MoldUdp64:
    """Follow the sequence of MoldUDP64 datagrams and find the new messages in each.

    `counts` (see `feeds.statistics`) is added to. One object per iteration.
    """

    stopped: str | None = None
    """None, or what was wrong with the datagram after the last span."""

    def __init__(self, counts: NDArray[numpy.int64]) -> None:
        self._counts = counts
        self._state = new_sequence()

    def spans(self, datagrams: Datagrams) -> tuple[NDArray[numpy.int64], NDArray[numpy.int64]]:
        """Where in `datagrams.data` runs of new message blocks start and end."""
        span_starts = numpy.empty(len(datagrams.starts), numpy.int64)
        span_ends = numpy.empty(len(datagrams.starts), numpy.int64)
        found, row, why = _find_spans(
            datagrams.data,
            datagrams.starts,
            datagrams.lengths,
            self._state,
            self._counts,
            span_starts,
            span_ends,
        )
        if why != _END:
            self.stopped = self._what_is_bad(datagrams, row, why)
        return span_starts[:found], span_ends[:found]

    @staticmethod
    def _what_is_bad(datagrams: Datagrams, row: int, why: int) -> str:
        start, length = int(datagrams.starts[row]), int(datagrams.lengths[row])
        where = f"no MoldUDP64 datagram starts at byte {datagrams.offset + start}"
        hint = "; if the capture holds other traffic too, give the feed's UDP port"
        if why == _SHORT:
            return f"{where}: its length was {length}, expected {HEADER_BYTES} or more{hint}"
        count = int.from_bytes(datagrams.data[start + 18 : start + 20].tobytes(), "big")
        return f"{where}: its {count} messages do not fit into its {length} bytes{hint}"
