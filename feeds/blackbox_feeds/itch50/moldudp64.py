"""MoldUDP64: datagrams with consecutive ITCH messages of one session.

Source: "MoldUDP64 Protocol Specification" 1.00. Integers are big-endian.

    session 10 | sequence 8 | count 2 | { length 2 | message } * count

`count` 0 is a heartbeat and 0xFFFF the end of the session. Both have the next sequence number, so a loss just before
them is detected.

A request for lost messages has the form of a header: the session, the first sequence, and the number of messages. Its
sender receives datagrams of the usual form, as many messages as the server likes to send at a time.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

import numpy
from numpy.typing import NDArray

from blackbox.native.compile.jit import njit
from blackbox_feeds.io.integers import big_16, big_64
from blackbox_feeds.io.length_prefixed import skip_messages
from blackbox_feeds.io.pcap import Datagrams
from blackbox_feeds.io.sequence import RANGES, Sequence, enter_session, next_run, notice_gap

HEADER: Final = Struct(">10sQH")
"""Session, sequence and count: the header of a datagram, and a whole request."""
HEADER_BYTES = 20
END_OF_SESSION = 0xFFFF
MOST_MESSAGES: Final = END_OF_SESSION - 1
"""Most messages of a datagram or a request."""


class _Reason(IntEnum):
    """Why the search for spans stopped."""

    END = 0
    SHORT = 1
    OVERRUN = 2


@njit(nogil=True, cache=True)
def _find_spans(
    data: NDArray[numpy.uint8],
    starts: NDArray[numpy.int64],
    lengths: NDArray[numpy.int32],
    sequence: int,
    counts: NDArray[numpy.int64],
    span_starts: NDArray[numpy.int64],
    span_ends: NDArray[numpy.int64],
) -> tuple[int, int, int]:
    """Find the spans of new messages of each datagram; return (spans, datagrams, why it stopped)."""
    found = 0
    for row in range(len(starts)):
        start = starts[row]
        end = start + lengths[row]
        if lengths[row] < HEADER_BYTES:
            return found, row, _Reason.SHORT
        count = big_16(data, start + 18)
        if count == END_OF_SESSION:
            count = 0
        first_block = start + HEADER_BYTES
        if skip_messages(data, first_block, end, count, True) < 0:
            return found, row, _Reason.OVERRUN
        first = big_64(data, start + 10)
        enter_session(sequence, counts, big_64(data, start), big_16(data, start + 8), first)
        notice_gap(sequence, counts, first, found)
        done, position = 0, first_block
        while done < count:
            skip, take = next_run(sequence, counts, first, count, done)
            if take == 0:
                break
            span_starts[found] = skip_messages(data, position, end, skip, True)
            position = span_ends[found] = skip_messages(data, span_starts[found], end, take, True)
            done += skip + take
            found += 1
    return found, len(starts), _Reason.END


class Spans(NamedTuple):
    """Runs of new message blocks."""

    starts: NDArray[numpy.int64]
    ends: NDArray[numpy.int64]
    gaps: tuple[tuple[int, int], ...]
    """(span, count): `count` messages are missing before a span; the number of spans if none follows."""


class MoldUdp64:
    """Follows the sequence of MoldUDP64 datagrams and finds the new messages in each.

    Adds to `counts` (see `blackbox_feeds.io.statistics`). One object per iteration.
    """

    stopped: str | None = None
    """None, or the fault of the datagram after the last span."""

    def __init__(self, counts: NDArray[numpy.int64], sequence: Sequence) -> None:
        self._counts = counts
        self._sequence = sequence

    def spans(self, datagrams: Datagrams) -> Spans:
        """Return the runs of new message blocks in `datagrams.data`, and the gaps before them."""
        room = len(datagrams.starts)
        self._sequence.make_room(room)
        # Each datagram adds at most two runs and one range; each further run closes a range.
        starts, ends = (numpy.empty(3 * room + RANGES, numpy.int64) for _ in range(2))
        found, row, why = _find_spans(
            datagrams.data,
            datagrams.starts,
            datagrams.lengths,
            self._sequence.address,
            self._counts,
            starts,
            ends,
        )
        if why != _Reason.END:
            self.stopped = self._what_is_bad(datagrams, row, why)
        return Spans(starts[:found], ends[:found], self._sequence.report())

    @staticmethod
    def _what_is_bad(datagrams: Datagrams, row: int, why: int) -> str:
        start, length = int(datagrams.starts[row]), int(datagrams.lengths[row])
        where = f"no MoldUDP64 datagram starts at byte {datagrams.offset + start}"
        hint = "; if the capture holds other traffic too, give the feed's UDP port"
        if why == _Reason.SHORT:
            return f"{where}: its length was {length}, expected {HEADER_BYTES} or more{hint}"
        count = int.from_bytes(datagrams.data[start + 18 : start + 20].tobytes(), "big")
        return f"{where}: its {count} messages do not fit into its {length} bytes{hint}"
