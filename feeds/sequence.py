"""Sequence numbers of a captured feed: gaps, duplicates and late messages, in compiled code.

A capture may hold two lines of one feed, or lack packets. State is one int64 array:

    0 next expected | 1, 2 identity of the session | 3 latest send time | 4 started | 5 next range
    6... pairs (first, end) of the ranges that are missing, the newest 64, as a ring
"""

from __future__ import annotations

import numpy
from numba import njit
from numpy.typing import NDArray

from feeds.statistics import DUPLICATES, GAPS, LATE, MISSING, RESETS, SESSIONS

_EXPECTED, _SESSION, _CHANNEL, _SEND_TIME, _STARTED, _NEXT_RANGE = range(6)
_RANGES = 6
_RANGE_COUNT = 64


def new_sequence() -> NDArray[numpy.int64]:
    """The state of a feed of which nothing has been seen."""
    return numpy.zeros(_RANGES + 2 * _RANGE_COUNT, numpy.int64)


@njit(nogil=True, cache=True)
def enter_session(
    state: NDArray[numpy.int64],
    counts: NDArray[numpy.int64],
    session: int,
    channel: int,
    first: int,
) -> None:
    """A datagram of a session starts at sequence `first`: begin anew if the session is another."""
    if state[_STARTED] and state[_SESSION] == session and state[_CHANNEL] == channel:
        return
    counts[SESSIONS] += 1
    state[:] = 0
    state[_STARTED] = 1
    state[_SESSION] = session
    state[_CHANNEL] = channel
    state[_EXPECTED] = first
    state[_SEND_TIME] = -(1 << 62)


@njit(nogil=True, cache=True)
def notice_reset(state: NDArray[numpy.int64], counts: NDArray[numpy.int64], first: int, send_time: int) -> None:
    """A datagram sent at `send_time` starts at sequence `first`: is that the sequence again?

    A second copy of a datagram, and one that is late, were sent earlier than the latest one seen.
    One that starts lower but was sent later starts the sequence again.
    """
    if send_time > state[_SEND_TIME]:
        state[_SEND_TIME] = send_time
        if first < state[_EXPECTED]:
            counts[RESETS] += 1
            state[_EXPECTED] = first
            state[_NEXT_RANGE:] = 0


@njit(nogil=True, cache=True)
def _add_range(state: NDArray[numpy.int64], first: int, end: int) -> None:
    place = _RANGES + 2 * state[_NEXT_RANGE]
    state[place] = first
    state[place + 1] = end
    state[_NEXT_RANGE] = (state[_NEXT_RANGE] + 1) % _RANGE_COUNT


@njit(nogil=True, cache=True)
def arrive(state: NDArray[numpy.int64], counts: NDArray[numpy.int64], first: int, count: int) -> tuple[int, int]:
    """A datagram holds `count` messages from sequence `first` on: which of them are new?

    Returns how many to skip and how many to take after those. `count` 0 is a heartbeat.
    """
    expected = state[_EXPECTED]
    end = first + count
    if first >= expected:
        if first > expected:
            counts[GAPS] += 1
            counts[MISSING] += first - expected
            _add_range(state, expected, first)
        state[_EXPECTED] = end
        return 0, count
    if end > expected:
        counts[DUPLICATES] += expected - first
        state[_EXPECTED] = end
        return expected - first, end - expected
    for place in range(_RANGES, _RANGES + 2 * _RANGE_COUNT, 2):
        low = max(first, state[place])
        high = min(end, state[place + 1])
        if low < high:
            counts[LATE] += high - low
            counts[MISSING] -= high - low
            counts[DUPLICATES] += count - (high - low)
            last = state[place + 1]
            state[place + 1] = low
            if high < last:
                _add_range(state, high, last)
            return low - first, high - low
    counts[DUPLICATES] += count
    return 0, 0
