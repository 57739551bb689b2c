"""Sequence numbers of a captured feed: gaps, duplicates and late messages, in compiled code.

A capture may hold two lines of one feed, or lack packets. A gap is reported where its numbers were jumped over, at
the end of a chunk. Packets in another order fill their gap if they come before that.

Each session has its own numbers, from 1 on. Sessions may come in turns: one that comes again goes on where it was.

A second input may go on where the first input ended, as the next of several captures does. An input that begins where
the first input began, or earlier, is a repetition: its numbers start again.
"""

from __future__ import annotations

from typing import Final

import numpy
from numpy.typing import NDArray

from blackbox.native.intrinsics import int64s_at
from blackbox.native.jit import njit
from blackbox.native.records import Field, Fields, SharedRecord, record_at
from blackbox_feeds.io.statistics import DUPLICATES, EARLIER, GAPS, LATE, MISSING, RESETS, SESSIONS, TOO_LATE

RANGES: Final = 1024
"""Ranges of missing numbers that late messages can still fill; of more, the lowest are given up."""
SESSIONS_KEPT: Final = 16
"""Sessions that can come again."""
MOST_MISSING: Final = 1 << 32
"""More than this in one gap is no loss: the sequence starts again."""
_REPORTED: Final = -1
(
    _KEPT_SESSION,
    _KEPT_CHANNEL,
    _KEPT_SEND_TIME,
    _KEPT_BEGAN,
    _KEPT_EXPECTED,
    _KEPT_GIVEN_UP,
    _KEPT_REPORTS,
    _KEPT_RANGES,
) = range(8)
_KEPT_RANGE: Final = 8
"""Words of a session that is kept: one of each of these, then three of each open range."""
_KEPT_WORDS: Final = _KEPT_RANGE + 3 * RANGES


class _SequenceState(SharedRecord):
    """State of a `Sequence`, shared with compiled code."""

    sessions = Field()
    """Sessions so far."""
    place = Field()
    """Which place in `kept` the current session has."""
    kept = Fields(SESSIONS_KEPT * _KEPT_WORDS)
    """The latest sessions, as they were left."""
    reports = Field()
    """How often gaps were reported."""
    follows = Field()
    """1: the input goes on where another one ended, and nothing of it has come yet."""
    began = Field()
    """The first sequence number of the session in the input."""
    expected = Field()
    """The next sequence number."""
    session = Field()
    """With `channel`: which session it is."""
    channel = Field()
    send_time = Field()
    """The latest so far."""
    ranges = Field()
    """Ranges of missing numbers that are open, in order."""
    given_up = Field()
    """Numbers below this one may be missing or not: their ranges were given up."""
    first = Fields(RANGES)
    """First number of each range."""
    end = Fields(RANGES)
    """Number after the last one of each range."""
    gap = Fields(RANGES)
    """The gap that the range belongs to, or _REPORTED."""
    gaps = Field()
    """Gaps since the last report."""
    room = Field()
    """Gaps for which there is room."""
    rows = Field()
    """Address of int64[room]: the row before which each gap is."""
    counts = Field()
    """Address of int64[room]: messages that are missing in each."""


_state_at = record_at(_SequenceState)


class Sequence:
    """Follow the sequence numbers of a feed. Compiled code takes the `address`; the object must outlive its use."""

    def __init__(self, before: Sequence | None = None) -> None:
        """Start before the first datagram, of all or of those that follow the ones that `before` has seen."""
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
        """Have room for the gaps before this many datagrams."""
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


@njit(nogil=True, cache=True)
def forget_gaps(sequence: int) -> None:
    """Take all gaps as reported."""
    seen = _state_at(sequence)
    seen.gaps = 0
    seen.reports += 1
    for place in range(seen.ranges):
        seen.gap[place] = _REPORTED


@njit(nogil=True, cache=True)
def _expect(sequence: int, first: int) -> None:
    """Start at `first`, with nothing missing."""
    seen = _state_at(sequence)
    seen.began = first
    seen.expected = seen.given_up = first
    seen.ranges = 0


@njit(nogil=True, cache=True)
def _add_gap(sequence: int, row: int, missing: int) -> int:
    """Add a gap to those to report; return its number."""
    seen = _state_at(sequence)
    gap = seen.gaps
    int64s_at(seen.rows, seen.room)[gap] = row
    int64s_at(seen.counts, seen.room)[gap] = missing
    seen.gaps += 1
    return gap


@njit(nogil=True, cache=True)
def _leave_session(sequence: int) -> None:
    """Keep the current session as it is now."""
    seen = _state_at(sequence)
    at = seen.place * _KEPT_WORDS
    seen.kept[at + _KEPT_SESSION], seen.kept[at + _KEPT_CHANNEL] = seen.session, seen.channel
    seen.kept[at + _KEPT_SEND_TIME] = seen.send_time
    seen.kept[at + _KEPT_BEGAN] = seen.began
    seen.kept[at + _KEPT_EXPECTED], seen.kept[at + _KEPT_GIVEN_UP] = seen.expected, seen.given_up
    seen.kept[at + _KEPT_REPORTS], seen.kept[at + _KEPT_RANGES] = seen.reports, seen.ranges
    for place in range(seen.ranges):
        word = at + _KEPT_RANGE + 3 * place
        seen.kept[word], seen.kept[word + 1] = seen.first[place], seen.end[place]
        seen.kept[word + 2] = seen.gap[place]


@njit(nogil=True, cache=True)
def _return_to_session(sequence: int, session: int, channel: int) -> bool:
    """Go on with a session where it was left; False if it is not known."""
    seen = _state_at(sequence)
    for kept in range(min(seen.sessions, SESSIONS_KEPT)):
        at = kept * _KEPT_WORDS
        if seen.kept[at + _KEPT_SESSION] == session and seen.kept[at + _KEPT_CHANNEL] == channel:
            seen.place, seen.session, seen.channel = kept, session, channel
            seen.send_time = seen.kept[at + _KEPT_SEND_TIME]
            seen.began = seen.kept[at + _KEPT_BEGAN]
            seen.expected, seen.given_up = seen.kept[at + _KEPT_EXPECTED], seen.kept[at + _KEPT_GIVEN_UP]
            seen.ranges = seen.kept[at + _KEPT_RANGES]
            is_reported = seen.kept[at + _KEPT_REPORTS] != seen.reports
            for place in range(seen.ranges):
                word = at + _KEPT_RANGE + 3 * place
                seen.first[place], seen.end[place] = seen.kept[word], seen.kept[word + 1]
                seen.gap[place] = _REPORTED if is_reported else seen.kept[word + 2]
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
    """Take a datagram that starts at sequence `first`, of any session.

    The numbers of a session begin at 1. What the input lacks before its first datagram is reported before row 0. What
    it lacks before the first datagram of a later session is left to `notice_gap`, unless there were so many sessions
    that this one may be known.
    """
    seen = _state_at(sequence)
    follows = seen.follows != 0
    if seen.sessions > 0:
        seen.follows = 0
        is_known = seen.session == session and seen.channel == channel
        if not is_known:
            _leave_session(sequence)
            is_known = _return_to_session(sequence, session, channel)
        if is_known and not (follows and first <= seen.began):
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
    seen.session, seen.channel = session, channel
    seen.send_time = -(1 << 62)
    _expect(sequence, first if begins_here else min(first, 1))


@njit(nogil=True, cache=True)
def notice_reset(sequence: int, counts: NDArray[numpy.int64], first: int, send_time: int) -> None:
    """Take a datagram sent at `send_time` that starts at sequence `first`, and see whether the sequence starts again.

    A second copy of a datagram, and one that is late, were sent earlier than the latest one seen.
    One that starts lower but was sent later starts the sequence again.
    """
    seen = _state_at(sequence)
    if send_time > seen.send_time:
        seen.send_time = send_time
        if first < seen.expected:
            counts[RESETS] += 1
            _expect(sequence, first)


@njit(nogil=True, cache=True)
def _insert(sequence: int, place: int, first: int, end: int, gap: int) -> None:
    """Put a range at a place; the ranges from there on move up. The lowest is given up where there is no room."""
    seen = _state_at(sequence)
    if seen.ranges == RANGES:
        seen.given_up = seen.end[0]
        _remove(sequence, 0)
        place = max(0, place - 1)
    for other in range(seen.ranges, place, -1):
        seen.first[other], seen.end[other], seen.gap[other] = (
            seen.first[other - 1],
            seen.end[other - 1],
            seen.gap[other - 1],
        )
    seen.first[place], seen.end[place], seen.gap[place] = first, end, gap
    seen.ranges += 1


@njit(nogil=True, cache=True)
def _remove(sequence: int, place: int) -> None:
    seen = _state_at(sequence)
    seen.ranges -= 1
    for other in range(place, seen.ranges):
        seen.first[other], seen.end[other], seen.gap[other] = (
            seen.first[other + 1],
            seen.end[other + 1],
            seen.gap[other + 1],
        )


@njit(nogil=True, cache=True)
def notice_gap(sequence: int, counts: NDArray[numpy.int64], first: int, row: int) -> None:
    """Take a datagram that starts at sequence `first`, before row number `row`: numbers jumped over are missing."""
    seen = _state_at(sequence)
    missing = first - seen.expected
    if missing <= 0:
        return
    if missing > MOST_MISSING:
        counts[RESETS] += 1
        _expect(sequence, first)
        return
    counts[GAPS] += 1
    counts[MISSING] += missing
    _insert(sequence, seen.ranges, seen.expected, first, _add_gap(sequence, row, missing))
    seen.expected = first


@njit(nogil=True, cache=True)
def _range_of(sequence: int, number: int) -> int:
    """Return the place of the first range that ends after a number."""
    seen = _state_at(sequence)
    low, high = 0, seen.ranges
    while low < high:
        middle = (low + high) // 2
        if seen.end[middle] > number:
            high = middle
        else:
            low = middle + 1
    return low


@njit(nogil=True, cache=True)
def _skip(sequence: int, counts: NDArray[numpy.int64], number: int, end: int) -> None:
    """Count messages that are skipped: they came before, or nothing is known of them any more."""
    unsure = max(0, min(end, _state_at(sequence).given_up) - number)
    counts[TOO_LATE] += unsure
    counts[DUPLICATES] += end - number - unsure


@njit(nogil=True, cache=True)
def next_run(sequence: int, counts: NDArray[numpy.int64], first: int, count: int, done: int) -> tuple[int, int]:
    """Return where the next run of new messages is in a datagram of `count` messages, from message `done` on.

    The datagram starts at sequence `first`; `notice_gap` has seen it. Returns how many to skip, and how many to take
    after those: 0 if no new ones are left.
    """
    seen = _state_at(sequence)
    number, end = first + done, first + count
    known_end = max(number, min(end, seen.expected))
    place = _range_of(sequence, number)
    if number < known_end and place < seen.ranges and seen.first[place] < known_end:
        start, last, gap = seen.first[place], seen.end[place], seen.gap[place]
        low, high = max(number, start), min(end, last)
        _skip(sequence, counts, number, low)
        counts[LATE] += high - low
        counts[MISSING] -= high - low
        if gap != _REPORTED:
            int64s_at(seen.counts, seen.room)[gap] -= high - low
        if low > start:
            seen.end[place] = low
            if high < last:
                _insert(sequence, place + 1, high, last, gap)
        elif high < last:
            seen.first[place] = high
        else:
            _remove(sequence, place)
        return low - number, high - low
    _skip(sequence, counts, number, known_end)
    seen.expected = max(seen.expected, end)
    return known_end - number, end - known_end
