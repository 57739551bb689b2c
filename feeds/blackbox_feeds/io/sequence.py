"""Sequence numbers of a captured feed: gaps, duplicates and late messages, in compiled code.

A capture may hold two lines of one feed, or lack packets.
"""

from __future__ import annotations

import numpy
from numpy.typing import NDArray

from blackbox.native.jit import njit
from blackbox.native.records import Field, Fields, SharedRecord, record_at
from blackbox_feeds.io.statistics import DUPLICATES, GAPS, LATE, MISSING, RESETS, SESSIONS

_RANGES = 64


class Sequence(SharedRecord):
    """What has been seen of a feed. Compiled code takes its `address`; the object must outlive its use."""

    started = Field()
    """Whether anything has been seen."""
    expected = Field()
    """The next sequence number."""
    session = Field()
    """With `channel`: which session it is."""
    channel = Field()
    send_time = Field()
    """The latest so far."""
    next_range = Field()
    """The place of the next range: the newest ones are kept, as a ring."""
    first = Fields(_RANGES)
    """Where each range of missing numbers starts."""
    end = Fields(_RANGES)
    """Where it ends; the same as its start when nothing is missing there."""


_sequence_at = record_at(Sequence)


@njit(nogil=True, cache=True)
def _expect(sequence: int, first: int) -> None:
    """Start at `first`, with nothing missing."""
    seen = _sequence_at(sequence)
    seen.expected = first
    seen.next_range = 0
    for place in range(_RANGES):
        seen.first[place] = seen.end[place] = 0


@njit(nogil=True, cache=True)
def enter_session(
    sequence: int,
    counts: NDArray[numpy.int64],
    session: int,
    channel: int,
    first: int,
) -> None:
    """Take a datagram of a session that starts at sequence `first`: begin anew if the session is another."""
    seen = _sequence_at(sequence)
    if seen.started and seen.session == session and seen.channel == channel:
        return
    counts[SESSIONS] += 1
    seen.started, seen.session, seen.channel = 1, session, channel
    seen.send_time = -(1 << 62)
    _expect(sequence, first)


@njit(nogil=True, cache=True)
def notice_reset(sequence: int, counts: NDArray[numpy.int64], first: int, send_time: int) -> None:
    """Take a datagram sent at `send_time` that starts at sequence `first`, and see whether the sequence starts again.

    A second copy of a datagram, and one that is late, were sent earlier than the latest one seen.
    One that starts lower but was sent later starts the sequence again.
    """
    seen = _sequence_at(sequence)
    if send_time > seen.send_time:
        seen.send_time = send_time
        if first < seen.expected:
            counts[RESETS] += 1
            _expect(sequence, first)


@njit(nogil=True, cache=True)
def _add_range(sequence: int, first: int, end: int) -> None:
    seen = _sequence_at(sequence)
    seen.first[seen.next_range] = first
    seen.end[seen.next_range] = end
    seen.next_range = (seen.next_range + 1) % _RANGES


@njit(nogil=True, cache=True)
def arrive(sequence: int, counts: NDArray[numpy.int64], first: int, count: int) -> tuple[int, int]:
    """Take a datagram of `count` messages from sequence `first` on, and tell which of them are new.

    Return how many to skip, and how many to take after those. `count` 0 is a heartbeat.
    """
    seen = _sequence_at(sequence)
    expected = seen.expected
    end = first + count
    if first >= expected:
        if first > expected:
            counts[GAPS] += 1
            counts[MISSING] += first - expected
            _add_range(sequence, expected, first)
        seen.expected = end
        return 0, count
    if end > expected:
        counts[DUPLICATES] += expected - first
        seen.expected = end
        return expected - first, end - expected
    for place in range(_RANGES):
        low = max(first, seen.first[place])
        high = min(end, seen.end[place])
        if low < high:
            counts[LATE] += high - low
            counts[MISSING] -= high - low
            counts[DUPLICATES] += count - (high - low)
            last = seen.end[place]
            seen.end[place] = low
            if high < last:
                _add_range(sequence, high, last)
            return low - first, high - low
    counts[DUPLICATES] += count
    return 0, 0
