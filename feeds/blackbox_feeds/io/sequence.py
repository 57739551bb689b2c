"""Compiled: sequence numbers of a captured feed, with gaps, duplicates and late messages.

A capture may have two lines of one feed, or lack packets. A gap is reported at its position, at the end of a chunk.
Reordered packets fill their gap if they arrive before that.

Each session has its own numbers, from 1 on. Sessions may alternate: a session that returns continues where it was.

A second input may continue where the first ended, as the next of several captures does. An input that begins at or
before the start of the first is a repetition: its numbers start again.
"""

from __future__ import annotations

from typing import Final

import numpy
from numpy.typing import NDArray

from blackbox.native.compile.jit import njit
from blackbox.native.memory.intrinsics import int64s_at
from blackbox.native.memory.records import Field, Fields, SharedRecord, record_at
from blackbox_feeds.io.statistics import DUPLICATES, EARLIER, GAPS, LATE, MISSING, RESETS, SESSIONS, TOO_LATE

RANGES: Final = 1024
"""Open ranges of missing numbers that late messages can fill; beyond that, the lowest are closed."""
SESSIONS_KEPT: Final = 16
"""Sessions that can return."""
MOST_MISSING: Final = 1 << 32
"""A larger jump is not a loss: the sequence starts again."""
_REPORTED: Final = -1


class _Session(SharedRecord):
    """State of one session."""

    session = Field()
    """With `channel`: identifies the session."""
    channel = Field()
    send_time = Field()
    """The latest send time so far."""
    began = Field()
    """The first sequence number of the session in the input."""
    expected = Field()
    """The next sequence number."""
    given_up = Field()
    """Numbers below this one are unknown: their ranges were closed."""
    ranges = Field()
    """Open ranges of missing numbers, in order."""
    first = Fields(RANGES)
    """First number of each range."""
    end = Fields(RANGES)
    """Number after the last one of each range."""
    gap = Fields(RANGES)
    """The gap that the range belongs to, or _REPORTED."""


_SESSION_BYTES: Final = _Session.dtype.itemsize


class _SequenceState(SharedRecord):
    """State of a `Sequence`, shared with compiled code."""

    sessions = Field()
    """Sessions so far."""
    place = Field()
    """Index of the current session in `kept`."""
    follows = Field()
    """1: the input continues another one, and nothing of it was read yet."""
    gaps = Field()
    """Gaps since the last report."""
    room = Field()
    """Gaps for which there is room."""
    rows = Field()
    """Address of int64[room]: the row after each gap."""
    counts = Field()
    """Address of int64[room]: messages missing in each gap."""
    kept = Fields(SESSIONS_KEPT * _SESSION_BYTES // 8)
    """The latest sessions."""


_state_at = record_at(_SequenceState)
_session_at = record_at(_Session)
_KEPT_AT: Final = 8 * _SequenceState.kept.start


class Sequence:
    """Follows the sequence numbers of a feed. Compiled code takes the `address`; the object must outlive its use."""

    def __init__(self, before: Sequence | None = None) -> None:
        """Start before the first datagram, or continue after those that `before` has seen."""
        self._state: _SequenceState = _SequenceState(None if before is None else numpy.array(before._state.words))
        self._rows = self._counts = numpy.zeros(0, numpy.int64)
        self._state.room = self._state.rows = self._state.counts = 0
        if before is not None:
            forget_gaps(self.address)
            self._state.follows = int(self._state.sessions > 0)

    @property
    def address(self) -> int:
        """Address of the state."""
        return self._state.address

    def make_room(self, datagrams: int) -> None:
        """Make room for the gaps before this many datagrams."""
        if datagrams > len(self._rows):
            self._rows, self._counts = (numpy.zeros(datagrams + 1, numpy.int64) for _ in range(2))
            self._state.room = datagrams + 1
            self._state.rows, self._state.counts = self._rows.ctypes.data, self._counts.ctypes.data

    def report(self) -> tuple[tuple[int, int], ...]:
        """Return the gaps since the last report, as (row, missing messages). Later messages do not change them."""
        many = self._state.gaps
        found = zip(self._rows[:many].tolist(), self._counts[:many].tolist(), strict=True)
        if many:
            forget_gaps(self.address)
        return tuple((row, count) for row, count in found if count > 0)


@njit(inline="always")
def _kept(sequence: int, place: int) -> _Session:
    """Return a session by its index."""
    return _session_at(sequence + _KEPT_AT + _SESSION_BYTES * place)


@njit(inline="always")
def _current(sequence: int) -> _Session:
    return _kept(sequence, _state_at(sequence).place)


@njit(nogil=True, cache=True)
def forget_gaps(sequence: int) -> None:
    """Mark all gaps as reported."""
    seen = _state_at(sequence)
    seen.gaps = 0
    for place in range(min(seen.sessions, SESSIONS_KEPT)):
        session = _kept(sequence, place)
        for number in range(session.ranges):
            session.gap[number] = _REPORTED


@njit(nogil=True, cache=True)
def _expect(sequence: int, first: int) -> None:
    """Start at `first`, with nothing missing."""
    session = _current(sequence)
    session.began = first
    session.expected = session.given_up = first
    session.ranges = 0


@njit(nogil=True, cache=True)
def _add_gap(sequence: int, row: int, missing: int) -> int:
    """Add a gap to report; return its number."""
    seen = _state_at(sequence)
    gap = seen.gaps
    int64s_at(seen.rows, seen.room)[gap] = row
    int64s_at(seen.counts, seen.room)[gap] = missing
    seen.gaps += 1
    return gap


@njit(nogil=True, cache=True)
def _return_to_session(sequence: int, session: int, channel: int) -> bool:
    """Continue a known session. Return False if it is unknown."""
    seen = _state_at(sequence)
    for place in range(min(seen.sessions, SESSIONS_KEPT)):
        kept = _kept(sequence, place)
        if kept.session == session and kept.channel == channel:
            seen.place = place
            return True
    return False


@njit(nogil=True, cache=True)
def enter_session(
    sequence: int,
    counts: NDArray[numpy.int64],
    session: int,
    channel: int,
    first: int,
) -> None:
    """Process a datagram that starts at sequence `first`, of any session.

    The numbers of a session begin at 1. Messages missing before the input's first datagram are reported before row 0.
    Those before the first datagram of a later session are left to `notice_gap`, unless so many sessions were seen that
    this one may be a forgotten one.
    """
    seen = _state_at(sequence)
    follows = seen.follows != 0
    if seen.sessions > 0:
        seen.follows = 0
        current = _current(sequence)
        is_known = current.session == session and current.channel == channel
        is_known = is_known or _return_to_session(sequence, session, channel)
        if is_known and not (follows and first <= _current(sequence).began):
            return
        if is_known:
            seen.sessions = 0
    elif 1 < first <= MOST_MISSING:
        counts[EARLIER] += first - 1
        _add_gap(sequence, numpy.int64(0), first - 1)
    counts[SESSIONS] += 1
    begins_here = seen.sessions == 0 or seen.sessions >= SESSIONS_KEPT
    seen.place = seen.sessions % SESSIONS_KEPT
    seen.sessions += 1
    current = _current(sequence)
    current.session, current.channel = session, channel
    current.send_time = -(1 << 62)
    _expect(sequence, first if begins_here else min(first, 1))


@njit(nogil=True, cache=True)
def notice_reset(sequence: int, counts: NDArray[numpy.int64], first: int, send_time: int) -> None:
    """Check if the sequence starts again with a datagram sent at `send_time` that starts at sequence `first`.

    Copies and late datagrams were sent earlier than the latest one seen. A datagram that starts lower but was sent
    later starts the sequence again.
    """
    session = _current(sequence)
    if send_time > session.send_time:
        session.send_time = send_time
        if first < session.expected:
            counts[RESETS] += 1
            _expect(sequence, first)


@njit(nogil=True, cache=True)
def _insert(sequence: int, place: int, first: int, end: int, gap: int) -> None:
    """Insert a range; later ranges move up. Without room, the lowest range is dropped."""
    session = _current(sequence)
    if session.ranges == RANGES:
        session.given_up = session.end[0]
        _remove(sequence, 0)
        place = max(0, place - 1)
    for other in range(session.ranges, place, -1):
        session.first[other], session.end[other], session.gap[other] = (
            session.first[other - 1],
            session.end[other - 1],
            session.gap[other - 1],
        )
    session.first[place], session.end[place], session.gap[place] = first, end, gap
    session.ranges += 1


@njit(nogil=True, cache=True)
def _remove(sequence: int, place: int) -> None:
    session = _current(sequence)
    session.ranges -= 1
    for other in range(place, session.ranges):
        session.first[other], session.end[other], session.gap[other] = (
            session.first[other + 1],
            session.end[other + 1],
            session.gap[other + 1],
        )


@njit(nogil=True, cache=True)
def notice_gap(sequence: int, counts: NDArray[numpy.int64], first: int, row: int) -> None:
    """Process a datagram that starts at `first`, before row number `row`: skipped numbers are missing."""
    session = _current(sequence)
    missing = first - session.expected
    if missing <= 0:
        return
    if missing > MOST_MISSING:
        counts[RESETS] += 1
        _expect(sequence, first)
        return
    counts[GAPS] += 1
    counts[MISSING] += missing
    _insert(sequence, session.ranges, session.expected, first, _add_gap(sequence, row, missing))
    session.expected = first


@njit(nogil=True, cache=True)
def _range_of(sequence: int, number: int) -> int:
    """Return the place of the first range that ends after a number."""
    session = _current(sequence)
    low, high = 0, session.ranges
    while low < high:
        middle = (low + high) // 2
        if session.end[middle] > number:
            high = middle
        else:
            low = middle + 1
    return low


@njit(nogil=True, cache=True)
def _skip(sequence: int, counts: NDArray[numpy.int64], number: int, end: int) -> None:
    """Count skipped messages: known ones, and those too late to decide."""
    unsure = max(0, min(end, _current(sequence).given_up) - number)
    counts[TOO_LATE] += unsure
    counts[DUPLICATES] += end - number - unsure


@njit(nogil=True, cache=True)
def next_run(sequence: int, counts: NDArray[numpy.int64], first: int, count: int, done: int) -> tuple[int, int]:
    """Return the next run of new messages in a datagram of `count` messages, from message `done` on.

    The datagram starts at sequence `first`; `notice_gap` has processed it. Returns the numbers of messages to skip and
    then to take: 0 if no new ones are left.
    """
    seen, session = _state_at(sequence), _current(sequence)
    number, end = first + done, first + count
    known_end = max(number, min(end, session.expected))
    place = _range_of(sequence, number)
    if number < known_end and place < session.ranges and session.first[place] < known_end:
        start, last, gap = session.first[place], session.end[place], session.gap[place]
        low, high = max(number, start), min(end, last)
        _skip(sequence, counts, number, low)
        counts[LATE] += high - low
        counts[MISSING] -= high - low
        if gap != _REPORTED:
            int64s_at(seen.counts, seen.room)[gap] -= high - low
        if low > start:
            session.end[place] = low
            if high < last:
                _insert(sequence, place + 1, high, last, gap)
        elif high < last:
            session.first[place] = high
        else:
            _remove(sequence, place)
        return low - number, high - low
    _skip(sequence, counts, number, known_end)
    session.expected = max(session.expected, end)
    return known_end - number, end - known_end
