"""Compiled: check the numbers that Binance gives to frames, stream by stream. Without I/O.

    trade `t`, aggTrade `a`      consecutive; a jump is a gap of known size
    bookTicker `u`               rises, with holes
    depth `U` to `u`, spot       `U` is the last `u` plus 1; else frames are missing, an unknown number
    depth `pu`, `u`, futures     `pu` is the last `u`; else frames are missing

A frame that does not go beyond the last number is a repetition, and dropped. After `RESTART_AFTER` of them in a row,
with rising numbers, the venue has started again from another number: they count as missing, and the next one
is accepted.

A requested order book has the stream `SYMBOL@snapshot`. The frames since the last break continue it if none is missing
between: its `lastUpdateId` is at least the number before the first of them. Otherwise it is older than the frames, is
dropped, and requested again.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

import numpy
from numpy.typing import NDArray

from blackbox.native.compile.jit import njit
from blackbox.native.tables.name_table import FULL, NumberingAt, number_of
from blackbox.native.tables.xxh3 import xxh3
from blackbox_feeds.binance.frames import (
    AGGREGATE_ID,
    FIELDS,
    FIRST_ID,
    LAST_ID,
    PREVIOUS_ID,
    STREAM,
    TRADE_ID,
    UPDATE_ID,
    scan_frame,
    whole_number,
)


class Kind(IntEnum):
    """How the frames of a stream are numbered."""

    NONE = 0
    TRADE = 1
    AGGREGATE = 2
    TICKER = 3
    DEPTH = 4
    SNAPSHOT = 5


class Book(IntEnum):
    """State of the order book of a depth stream: without a snapshot, requested, or joined to the frames."""

    NONE = 0
    WANTED = 1
    JOINED = 2


LAST, BEFORE_FIRST, BOOK, STALE, STALE_ID = range(5)
"""Columns of a stream's state: its last number, or -1; the number before the first frame since a break; its `Book`; the
repetitions in a row, and the number of the last one."""
STATE_COLUMNS: Final = 5
RESTART_AFTER: Final = 1_024
_MOST_MISSING: Final = 1 << 32
"""A larger jump is no count of frames: the venue has changed its numbers."""
_TIME_BYTES: Final = 20
"""Receive time and space before a frame."""


class Checked(NamedTuple):
    """Room for the results of `check_frames`, for n frames."""

    keep: NDArray[numpy.bool_]
    """(n,) False for frames to drop."""
    hashes: NDArray[numpy.int64]
    """(n,) a hash of each frame without numbers; 0 for the others."""
    gaps: NDArray[numpy.int64]
    """(n, 2) place among the kept frames, and the number of frames missing before it."""
    wants: NDArray[numpy.bool_]
    """(streams,) True for depth streams that need a snapshot."""

    @classmethod
    def room(cls, frames: int, streams: int) -> Checked:
        """Return room for the results of some frames."""
        return cls(
            numpy.ones(frames, numpy.bool_),
            numpy.zeros(frames, numpy.int64),
            numpy.zeros((frames, 2), numpy.int64),
            numpy.zeros(streams, numpy.bool_),
        )


@njit(nogil=True, cache=True)
def _number(data: NDArray[numpy.uint8], fields: NDArray[numpy.int64], field: int) -> int:
    return whole_number(data, fields[field, 0], fields[field, 1])


@njit(nogil=True, cache=True)
def _is_repeated(state: NDArray[numpy.int64], number: int, is_overlap: bool) -> bool:
    """Count a number that is not beyond the last one; return False if the venue started again."""
    if is_overlap:
        return True
    state[STALE] = state[STALE] + 1 if number > state[STALE_ID] else 1
    state[STALE_ID] = number
    return state[STALE] <= RESTART_AFTER


@njit(nogil=True, cache=True)
def follow(state: NDArray[numpy.int64], before: int, number: int, is_overlap: bool) -> int:
    """Move a stream to `number`, which follows `before`; return the frames missing between, or -1 for a repetition.

    `is_overlap`: frames of a second connection, which repeat those of the first.
    """
    missing = 0
    if state[LAST] < 0:
        state[BEFORE_FIRST] = before
    elif number <= state[LAST]:
        if _is_repeated(state, number, is_overlap):
            return -1
        missing = state[STALE] - 1
    elif before > state[LAST]:
        missing = before - state[LAST]
        missing = missing if missing <= _MOST_MISSING else 1
    state[STALE], state[STALE_ID] = 0, -1
    state[LAST] = number
    if missing > 0:
        state[BEFORE_FIRST] = before
    return missing


@njit(nogil=True, cache=True)
def _check_depth(
    data: NDArray[numpy.uint8], fields: NDArray[numpy.int64], state: NDArray[numpy.int64], is_overlap: bool
) -> int:
    first, last = _number(data, fields, FIRST_ID), _number(data, fields, LAST_ID)
    before = _number(data, fields, PREVIOUS_ID)
    before = before if before >= 0 else first - 1
    if first < 0 or before >= last:
        return 0  # no numbers to check
    was_new = state[LAST] < 0
    missing = follow(state, before, last, is_overlap)
    if missing < 0:
        return -1
    if was_new or missing > 0:
        state[BOOK] = Book.WANTED
    return min(missing, 1)  # numbers count changes; a frame has many


@njit(nogil=True, cache=True)
def _join(states: NDArray[numpy.int64], symbols: NDArray[numpy.int64], symbol: int, number: int) -> bool:
    """Join a snapshot to the depth streams of its symbol; return False if it is older than their frames."""
    for stream in range(len(states)):
        is_waiting = symbols[stream] == symbol and states[stream, BOOK] == Book.WANTED
        if is_waiting and number < states[stream, BEFORE_FIRST]:
            return False
    for stream in range(len(states)):
        if symbols[stream] == symbol and states[stream, BOOK] == Book.WANTED:
            states[stream, BOOK] = Book.JOINED
    return True


@njit(nogil=True, cache=True)
def check_frames(
    data: NDArray[numpy.uint8],
    starts: NDArray[numpy.int64],
    lengths: NDArray[numpy.int32],
    names: NumberingAt,
    kinds: NDArray[numpy.int64],
    symbols: NDArray[numpy.int64],
    states: NDArray[numpy.int64],
    is_overlap: bool,
    checked: Checked,
) -> int:
    """Check frames of n lines; return the number of gaps.

    `names`: the streams, full, so that others have no number. `kinds`, `symbols`: of each; `states`: (streams,
    STATE_COLUMNS).
    """
    fields = numpy.zeros((FIELDS, 2), numpy.int64)
    gaps = kept = 0
    for row in range(len(starts)):
        at, end = starts[row] + _TIME_BYTES, starts[row] + lengths[row]
        line = data[:end]
        scan_frame(line, at, fields)
        start, stop = fields[STREAM, 0], fields[STREAM, 1]
        stream = number_of(names, data.ctypes.data + start, stop - start) if stop > start else FULL
        kind = kinds[stream] if stream != FULL else numpy.int64(Kind.NONE)
        missing, number = numpy.int64(0), numpy.int64(-1)
        if kind == Kind.DEPTH:
            missing = _check_depth(line, fields, states[stream], is_overlap)
        elif kind == Kind.SNAPSHOT:
            number = _number(line, fields, UPDATE_ID)
            if not _join(states, symbols, symbols[stream], number):
                missing = numpy.int64(-1)
        elif kind != Kind.NONE:
            field = TRADE_ID if kind == Kind.TRADE else AGGREGATE_ID if kind == Kind.AGGREGATE else LAST_ID
            number = _number(line, fields, field)
            if number >= 0:
                before = number - 1
                if kind == Kind.TICKER:
                    before = min(before, max(states[stream, LAST], -1))
                missing = follow(states[stream], before, number, is_overlap)
        else:
            checked.hashes[row] = numpy.int64(xxh3(data.ctypes.data + at, end - at)) | 1
        if missing > 0:
            checked.gaps[gaps, 0], checked.gaps[gaps, 1] = kept, missing
            gaps += 1
        checked.keep[row] = missing >= 0
        kept += missing >= 0
    for stream in range(len(kinds)):
        checked.wants[stream] = kinds[stream] == Kind.DEPTH and states[stream, BOOK] == Book.WANTED
    return gaps
