"""Compiled: read lines of receive time and JSON frame, with their bounds, times and topics.

    line = time | space | { ... } | line end
    time = 19 digits of ns; or 16 of us, 13 of ms, 10 of s, perhaps with a fraction

A malformed line is skipped up to the next line feed, and counted. So is a line with names that cannot be in a topic, or
with a time outside the years 2000 to 2099. An empty line is skipped. A byte order mark may precede any line.

A frame is scanned once, text by text and bracket by bracket. Only these fields are read, on the top level and in
`data`: `stream`, `e`, `s` or `symbol`, `E`, `T`, and those that identify the kind of a frame without an `e`. All but
the times form a key. Frames with equal keys have one topic, which Python writes when the key is new. Names are JSON
texts with escapes resolved, so that both spellings of a symbol have one topic.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import numpy
from numpy.typing import NDArray

from blackbox.native.compile.jit import njit
from blackbox.native.tables.name_table import FULL, NumberingAt, number_of
from blackbox_feeds.io.columns import Columns, put_row
from blackbox_feeds.io.lines import BAD, IS_SKIPPING, LINES, OWN, is_cut_filler, skip_filler, skip_line


class Reason(IntEnum):
    """Why reading stopped, or why a line was left out.

    END, FILLED, PARTIAL and CROWDED are reasons to stop: no more bytes, full columns, an incomplete line, too many
    streams. The others are faults of a line: no receive time, no JSON object, no line end after it, too long names, a
    time outside the years 2000 to 2099.
    """

    END = 0
    FILLED = 1
    PARTIAL = 2
    BAD_TIME = 3
    BAD_FRAME = 4
    BAD_END = 5
    LONG_KEY = 6
    CROWDED = 7
    OTHER_TIME = 8


STREAM, _EVENT, _SYMBOL, _EVENT_TIME, _TIME, UPDATE_ID, _BID_SIZE, _ASK_SIZE = range(8)
_DATA, _OTHER = 8, 9
FIRST_ID, LAST_ID, PREVIOUS_ID, TRADE_ID, AGGREGATE_ID = range(10, 15)
"""Rows of the numbers that live connections check: `U`, `u`, `pu`, `t`, `a`."""
FIELDS: Final = 15
_FIRST_SYMBOL, _SEVERAL, WITHOUT_TIME, PLACES = range(OWN, OWN + 4)
"""Indices in the state after those of lines: the first symbol's hash, 1 if there was another symbol, the count of
frames without time; and the number of indices."""
KEY_BYTES: Final = 1024
TIME_DIGITS = 19
_EARLIEST_NS, _LATEST_NS = 946_684_800_000_000_000, 4_102_444_800_000_000_000
"""2000-01-01 and 2100-01-01 UTC: a time outside has another unit, or is wrong."""
_LARGEST = (1 << 63) - 1
_DEEPEST = 62
_PRIME = 0x100000001B3
_BASIS = 0x4BF29CE484222325
SNAPSHOT, TICKER, _PLAIN = b"SB-"
KNOWN, _UNKNOWN = b"1?"
_QUOTE, _BACKSLASH, _SPACE, _CR, _LF, _COLON, _ZERO, _NINE = b'"\\ \r\n:09'
_AT, _BANG, _UPPER_A, _UPPER_Z, _POINT = b"@!AZ."

# The kinds of bytes outside of texts, and which of them may come next.
_NONE, _BLANK, _TEXT, _WORD, _OPEN, _OPEN_LIST, _CLOSE, _CLOSE_LIST, _COMMA = range(9)
_START, _VALUE, _FIRST_VALUE, _KEY, _FIRST_KEY, _BEHIND, _TOO_DEEP = range(7)
_KINDS = numpy.full(256, _WORD, numpy.int64)
_KINDS[:_SPACE] = _KINDS[_COLON] = _NONE
for _byte, _kind in zip(b' "{[}],', (_BLANK, _TEXT, _OPEN, _OPEN_LIST, _CLOSE, _CLOSE_LIST, _COMMA), strict=True):
    _KINDS[_byte] = _kind
_MAY = numpy.zeros((7, 9), numpy.bool_)
_MAY[_START, _OPEN] = True
_MAY[_VALUE, [_TEXT, _WORD, _OPEN, _OPEN_LIST]] = True
_MAY[_FIRST_VALUE, [_TEXT, _WORD, _OPEN, _OPEN_LIST, _CLOSE_LIST]] = True
_MAY[_KEY, _TEXT] = True
_MAY[_FIRST_KEY, [_TEXT, _CLOSE]] = True
_MAY[_BEHIND, [_CLOSE, _CLOSE_LIST, _COMMA]] = True
_MAY[_VALUE:_TOO_DEEP, _BLANK] = True

_LETTERS = numpy.full(256, _OTHER, numpy.int64)
"""The field of each key of one letter."""
for _letter, _known in zip(
    b"eETsBAUuta",
    (_EVENT, _EVENT_TIME, _TIME, _SYMBOL, _BID_SIZE, _ASK_SIZE, FIRST_ID, LAST_ID, TRADE_ID, AGGREGATE_ID),
    strict=True,
):
    _LETTERS[_letter] = _known
_NAMES = numpy.array([list(name.ljust(12, b"\0")) for name in (b"stream", b"data", b"symbol", b"lastUpdateId")], "u1")


@njit(nogil=True, cache=True)
def _is(data: NDArray[numpy.uint8], start: int, end: int, name: int) -> bool:
    size = end - start
    for place in range(size):
        if data[start + place] != _NAMES[name, place]:
            return False
    return size == 12 or _NAMES[name, size] == 0


@njit(nogil=True, cache=True)
def _field(data: NDArray[numpy.uint8], start: int, end: int, top: bool) -> int:
    """Return which field a key is, or `_OTHER`."""
    size = end - start
    if size == 1:
        return _LETTERS[data[start]]
    if size == 2:
        return PREVIOUS_ID if data[start] == 0x70 and data[start + 1] == 0x75 else _OTHER  # pu
    if size == 6 and top and _is(data, start, end, 0):
        return STREAM
    if size == 4 and top and _is(data, start, end, 1):
        return _DATA
    if size == 6 and _is(data, start, end, 2):
        return _SYMBOL
    if size == 12 and _is(data, start, end, 3):
        return UPDATE_ID
    return _OTHER


@njit(nogil=True, cache=True)
def _string_end(data: NDArray[numpy.uint8], at: int) -> int:
    """Return where the string opened before `at` ends; -1: a line end comes first; or the end of the data."""
    end = len(data)
    while at < end:
        byte = data[at]
        if byte == _QUOTE:
            return at
        if byte < 0x20:
            return -1
        if byte == _BACKSLASH:
            at += 1  # the escaped byte; a line may be cut here, too
            if at < end and data[at] < 0x20:
                return -1
        at += 1
    return end


@njit(nogil=True, cache=True)
def _scalar(data: NDArray[numpy.uint8], at: int) -> tuple[int, int, int, int]:
    """Return (start, stop, next position, Reason.END) of the text or word at `at`, without quotes; or a fault."""
    end = len(data)
    if data[at] == _QUOTE:
        stop = _string_end(data, at + 1)
        if stop < 0:
            return at, at, at, Reason.BAD_FRAME
        return at + 1, stop, stop + 1, Reason.END if stop < end else Reason.PARTIAL
    stop = at
    while stop < end and _KINDS[data[stop]] == _WORD:
        stop += 1
    return at, stop, stop, Reason.END if stop < end else Reason.PARTIAL


@njit(nogil=True, cache=True)
def _colon(data: NDArray[numpy.uint8], at: int) -> tuple[int, int]:
    """Return (position after the next colon, Reason.END), or (position of the fault, why)."""
    while at < len(data) and data[at] == _SPACE:
        at += 1
    if at >= len(data):
        return at, Reason.PARTIAL
    return (at + 1, Reason.END) if data[at] == _COLON else (at, Reason.BAD_FRAME)


@njit(nogil=True, cache=True)
def scan_frame(data: NDArray[numpy.uint8], at: int, fields: NDArray[numpy.int64]) -> tuple[int, int]:
    """Scan the JSON object at `at`: return (its end, Reason.END), or (position of the fault, why).

    `fields` gets the bounds of the values of known fields, without quotes.
    """
    fields[:] = 0
    depth = 0
    lists = 0  # a bit for each level: 1 for a list
    in_data = False
    field = _OTHER
    wants = _START
    while at < len(data):
        kind = _KINDS[data[at]]
        if not _MAY[wants, kind]:
            return at, Reason.BAD_FRAME
        if kind in (_TEXT, _WORD):
            start, stop, at, why = _scalar(data, at)
            if why != Reason.END:
                return at, why
            if wants in (_KEY, _FIRST_KEY):
                known = depth == 1 or (depth == 2 and in_data)
                field = _field(data, start, stop, depth == 1) if known else _OTHER
                wants = _VALUE
                at, why = _colon(data, at)
                if why != Reason.END:
                    return at, why
            else:
                field = _OTHER if kind == _WORD and field <= _SYMBOL else field  # a name is a text, not null
                fields[field, 0], fields[field, 1] = start, stop
                wants = _BEHIND
            continue
        if kind in (_OPEN, _OPEN_LIST):
            is_list = kind == _OPEN_LIST
            in_data = (in_data and depth > 1) or (depth == 1 and field == _DATA and not is_list)
            field = _OTHER
            depth += 1
            lists = lists << 1 | is_list
            wants = _FIRST_VALUE if is_list else _FIRST_KEY
            wants = _TOO_DEEP if depth > _DEEPEST else wants
        elif kind in (_CLOSE, _CLOSE_LIST):
            if (lists & 1) != (kind == _CLOSE_LIST):
                return at, Reason.BAD_FRAME
            depth -= 1
            lists >>= 1
            in_data = in_data and depth > 1
            field = _OTHER
            wants = _BEHIND
            if depth == 0:
                return at + 1, Reason.END
        elif kind == _COMMA:
            field = _OTHER
            wants = _VALUE if lists & 1 else _KEY
        at += 1
    return at, Reason.PARTIAL


@njit(nogil=True, cache=True)
def whole_number(data: NDArray[numpy.uint8], start: int, end: int) -> int:
    """Return the number in these bytes, `_LARGEST` for a larger one; -1 for anything else."""
    value = 0 if start < end else -1
    for at in range(start, end):
        if not _ZERO <= data[at] <= _NINE:
            return -1
        value = value * 10 + (data[at] - _ZERO) if value < _LARGEST // 10 else _LARGEST
    return value


@njit(nogil=True, cache=True)
def _received_ns(data: NDArray[numpy.uint8], at: int, digits: int) -> tuple[int, int]:
    """Return (receive time at `at`, its end), or a number below 0 for the time. `digits`: those before the point."""
    end = at + digits
    if end > len(data):
        return -1, at
    value = whole_number(data, at, end)
    left = TIME_DIGITS - digits
    if end < len(data) and data[end] == _POINT and left > 0:
        end += 1
        while end < len(data) and _ZERO <= data[end] <= _NINE and left > 0:
            value = value * 10 + (data[end] - _ZERO) if value >= 0 else value
            left -= 1
            end += 1
    while left > 0:
        value = value * 10 if value >= 0 else value
        left -= 1
    return value, end


@njit(nogil=True, cache=True)
def _event_ns(data: NDArray[numpy.uint8], fields: NDArray[numpy.int64]) -> int:
    """Return the exchange's time; 0 if the frame has no time, 1 if the time is outside the years 2000 to 2099.

    It is in ms, or in us if the subscription asked for that: the size shows which.
    """
    for field in (_EVENT_TIME, _TIME):
        value = whole_number(data, fields[field, 0], fields[field, 1])
        if value > 0:
            for unit in (1_000_000, 1_000, 1):
                if _EARLIEST_NS // unit <= value < _LATEST_NS // unit:
                    return value * unit
            return 1
    return 0


@njit(nogil=True, cache=True)
def _symbol_hash(data: NDArray[numpy.uint8], fields: NDArray[numpy.int64]) -> int:
    """Return a number for a frame's symbol, in lower case; 0 without a symbol."""
    start, end = fields[STREAM, 0], fields[STREAM, 1]
    if start == end or data[start] == _BANG:
        start, end = fields[_SYMBOL, 0], fields[_SYMBOL, 1]
    mixed = _BASIS
    at = start
    while at < end and data[at] != _AT:
        byte = numpy.int64(data[at])
        mixed = (mixed ^ (byte | 0x20 if _UPPER_A <= byte <= _UPPER_Z else byte)) * _PRIME
        at += 1
    return mixed if at > start else 0


@njit(nogil=True, cache=True)
def _write_key(
    data: NDArray[numpy.uint8], fields: NDArray[numpy.int64], state: NDArray[numpy.int64], key: NDArray[numpy.uint8]
) -> int:
    """Write `stream 0 event 0 symbol 0 kind known` to `key`; return its length, or 0 when it is too long."""
    length = 5
    for field in (STREAM, _EVENT, _SYMBOL):
        length += fields[field, 1] - fields[field, 0]
    if length > len(key):
        return 0
    place = 0
    for field in (STREAM, _EVENT, _SYMBOL):
        for at in range(fields[field, 0], fields[field, 1]):
            key[place] = data[at]
            place += 1
        key[place] = 0
        place += 1
    symbol = _symbol_hash(data, fields)
    if symbol != 0:
        if state[_FIRST_SYMBOL] == 0:
            state[_FIRST_SYMBOL] = symbol
        elif state[_FIRST_SYMBOL] != symbol:
            state[_SEVERAL] = 1
    kind = _PLAIN
    if fields[UPDATE_ID, 1] > 0:
        kind = SNAPSHOT
    elif fields[_EVENT, 1] == 0 and fields[_BID_SIZE, 1] > 0 and fields[_ASK_SIZE, 1] > 0:
        kind = TICKER
    key[place] = kind
    key[place + 1] = KNOWN if symbol != 0 or (state[_FIRST_SYMBOL] != 0 and state[_SEVERAL] == 0) else _UNKNOWN
    return length


@njit(nogil=True, cache=True)
def _line_end(data: NDArray[numpy.uint8], at: int, last: bool) -> tuple[int, int]:
    """Return (start of the next line, Reason.END), or a fault if no line ends at `at`."""
    end = len(data)
    if at < end and data[at] == _CR:
        at += 1
        if at == end:
            return at, Reason.PARTIAL
    elif at == end and last:
        return at, Reason.END
    if at == end:
        return at, Reason.PARTIAL
    return (at + 1, Reason.END) if data[at] == _LF else (at, Reason.BAD_END)


@njit(nogil=True, cache=True)
def _read_line(
    data: NDArray[numpy.uint8], position: int, last: bool, digits: int, fields: NDArray[numpy.int64]
) -> tuple[int, int, int, int]:
    """Return (receive time of the line at `position`, its event time or 0, start of the next line, Reason.END).

    Instead of Reason.END it may be a fault.
    """
    received, at = _received_ns(data, position, digits)
    if at >= len(data) or (received < 0 and at == position):
        return 0, 0, position, Reason.BAD_TIME if last else Reason.PARTIAL
    if received < 0 or data[at] != _SPACE:
        return 0, 0, position, Reason.BAD_TIME
    at, why = scan_frame(data, at + 1, fields)
    if why == Reason.PARTIAL and last:
        why = Reason.BAD_FRAME
    if why == Reason.END:
        at, why = _line_end(data, at, last)
    if why == Reason.PARTIAL and last:
        why = Reason.BAD_END
    happened = 0
    if why == Reason.END:
        happened = _event_ns(data, fields)
        if not _EARLIEST_NS <= (happened or received) < _LATEST_NS:
            why = Reason.OTHER_TIME
    return received, happened, at, why


@njit(nogil=True, cache=True)
def read_lines(
    data: NDArray[numpy.uint8],
    position: int,
    last: bool,
    digits: int,
    keys: NumberingAt,
    state: NDArray[numpy.int64],
    bad: NDArray[numpy.int64],
    columns: Columns,
) -> tuple[int, int, int]:
    """Read lines from `position` on, until the columns are full; `last`: nothing follows `data`.

    `digits`: those of a receive time. Bad lines are skipped and counted; `bad` gets (number, start, why) of the first.
    Returns (lines, position, why it stopped).
    """
    fields = numpy.zeros((FIELDS, 2), numpy.int64)
    key = numpy.empty(KEY_BYTES, numpy.uint8)
    n = found = 0
    while position < len(data):
        if n == len(columns.starts):
            return n, position, Reason.FILLED
        if state[IS_SKIPPING] or not _ZERO <= data[position] <= _NINE:
            behind = skip_filler(data, position, state)
            if behind > position:
                position = behind
                continue
            if not last and is_cut_filler(data, position):
                return n, position, Reason.PARTIAL
        received, happened, at, why = _read_line(data, position, last, digits, fields)
        number = 0
        if why == Reason.PARTIAL:
            return n, position, Reason.PARTIAL
        if why == Reason.END:
            length = _write_key(data, fields, state, key)
            if length == 0:
                why = Reason.LONG_KEY
            else:
                number = number_of(keys, key.ctypes.data, length)
        if number == FULL:
            return n, position, Reason.CROWDED
        state[LINES] += 1
        if why != Reason.END:
            if found < len(bad):
                bad[found, 0], bad[found, 1], bad[found, 2] = state[LINES], position, why
                found += 1
            state[BAD] += 1
            position = skip_line(data, position, state)
            continue
        state[WITHOUT_TIME] += happened == 0
        put_row(columns, n, number, happened or received, position, at - position)
        position = at
        n += 1
    return n, position, Reason.END
