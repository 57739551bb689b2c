"""Compiled: read tape rows file by file, from text to records, times and positions.

A bad row is skipped up to the next line feed, and counted. An empty line is skipped, and so is a byte order mark before
a row.
"""

from __future__ import annotations

import re
from typing import Final

import numpy
from numpy.typing import NDArray

from blackbox.native.compile.jit import njit
from blackbox_feeds.io.dates import LocalDay, local_day
from blackbox_feeds.io.integers import put_little_32, put_little_64
from blackbox_feeds.io.lines import BAD, EMPTY, IS_SKIPPING, LINES, OWN, is_cut_filler, losses, skip_filler, skip_line
from blackbox_feeds.io.losses import NAMED, Losses
from blackbox_feeds.io.window import FileWindow
from blackbox_feeds.tape.files import TapeFile
from blackbox_feeds.tape.records import COLUMNS, CR_LF, LF, NO_LINE_END, NUMBER, SCHEMA, SIGNED, TEXT, layout

END, FILLED, PARTIAL, MALFORMED = range(4)
"""Why the kernel stopped: no more bytes, full columns, an incomplete row. MALFORMED: a bad row."""

_ROW_BYTES: Final = 24
"""Assumed size of a row when making room; for shorter rows, a window takes two calls."""
_SHOWN_BYTES: Final = 120
_COMMA, _CR, _LF, _ZERO, _NINE, _MINUS = (ord(sign) for sign in ",\r\n09-")
_MOST_DIGITS = 18
_WHOLE: Final = {NUMBER: re.compile(rb"0|[1-9][0-9]*"), SIGNED: re.compile(rb"0|-?[1-9][0-9]*")}
_LATEST, _LATE, _PLACES = range(OWN, OWN + 3)
_TIME_AT = 4
_LINE_END_AT = 3


@njit(nogil=True, cache=True)
def _number(data: NDArray[numpy.uint8], at: int, largest: int) -> tuple[int, int]:
    """Return (the number at `at`, or -1, and its end): digits without a leading 0."""
    start = at
    value = 0
    while at < len(data) and _ZERO <= data[at] <= _NINE and at - start <= _MOST_DIGITS:
        value = value * 10 + (data[at] - _ZERO)
        at += 1
    digits = at - start
    good = 0 < digits <= _MOST_DIGITS and value <= largest and (digits == 1 or data[start] != _ZERO)
    return value if good else -1, at


@njit(nogil=True, cache=True)
def _text(data: NDArray[numpy.uint8], at: int, longest: int) -> int:
    """Return the end of the text that starts at `at`, or -1."""
    start = at
    while at < len(data) and data[at] != _COMMA and data[at] > 0x20 and data[at] < 0x7F:
        at += 1
        if at - start > longest:
            return -1
    return at


@njit(nogil=True, cache=True)
def _columns(
    data: NDArray[numpy.uint8],
    at: int,
    layout: NDArray[numpy.int64],
    records: NDArray[numpy.uint8],
    target: int,
) -> tuple[int, int]:
    """Read a row's columns into the record at `target`: return (their end, END), or a fault."""
    end = len(data)
    for column in range(len(layout)):
        if column > 0:
            if at == end:
                return at, PARTIAL
            if data[at] != _COMMA:
                return at, MALFORMED
            at += 1
        offset, size, largest = layout[column, 1], layout[column, 2], layout[column, 3]
        start = at
        if layout[column, 0] != TEXT:
            below = layout[column, 0] == SIGNED and at < end and data[at] == _MINUS
            value, at = _number(data, at + below, largest)
            if value < below:  # -0 is not a number
                return at, PARTIAL if at == end else MALFORMED
            if below:
                value = -value
            if size == 1:
                records[target + offset] = value
            elif size == 4:
                put_little_32(records, target + offset, value)
            else:
                put_little_64(records, target + offset, value)
        else:
            at = _text(data, at, largest)
            if at < 0:
                return at, MALFORMED
            for place in range(start, at):
                records[target + offset + place - start] = data[place]
    return at, END


@njit(nogil=True, cache=True)
def _line_end(data: NDArray[numpy.uint8], at: int, last: bool) -> tuple[int, int, int]:
    """Return (start of the next row, END, `line_end`), or a fault if the row does not end at `at`."""
    end = len(data)
    if at == end:
        return at, END if last else PARTIAL, NO_LINE_END
    if data[at] == _LF:
        return at + 1, END, LF
    if data[at] == _CR:
        if at + 1 == end:
            return at, MALFORMED if last else PARTIAL, NO_LINE_END
        if data[at + 1] == _LF:
            return at + 2, END, CR_LF
    return at, MALFORMED, NO_LINE_END


@njit(nogil=True, cache=True)
def _good_rows(
    data: NDArray[numpy.uint8],
    position: int,
    last: bool,
    layout: NDArray[numpy.int64],
    template: NDArray[numpy.uint8],
    day: tuple[int, int, int],
    state: NDArray[numpy.int64],
    records: NDArray[numpy.uint8],
    ts_event: NDArray[numpy.int64],
    places: NDArray[numpy.int64],
) -> tuple[int, int, int]:
    """Read as `read_rows`, up to the first bad row."""
    midnight_ns, change_ns, shift_ns = day
    size = len(template)
    latest = state[_LATEST]
    n, why = 0, END  # starting n at 0 shows that no index is negative, which saves checks
    while position < len(data):
        if n == len(ts_event):
            why = FILLED
            break
        target = n * size
        for byte in range(size):
            records[target + byte] = template[byte]
        at, why = _columns(data, position, layout, records, target)
        if why != END:
            break
        at, why, line_end = _line_end(data, at, last)
        if why != END:
            break
        records[target + _LINE_END_AT] = line_end
        since = 0
        for byte in range(3, -1, -1):
            since = since << 8 | numpy.int64(records[target + _TIME_AT + byte])
        since *= 1_000_000
        time = midnight_ns + since + (shift_ns if since >= change_ns else 0)
        if time < latest:
            state[_LATE] += 1
        else:
            latest = time
        ts_event[n], places[n] = time, latest
        position = at
        n += 1
    state[_LATEST] = latest
    return n, position, why


@njit(nogil=True, cache=True)
def read_rows(
    data: NDArray[numpy.uint8],
    position: int,
    last: bool,
    layout: NDArray[numpy.int64],
    template: NDArray[numpy.uint8],
    day: tuple[int, int, int],
    state: NDArray[numpy.int64],
    bad: NDArray[numpy.int64],
    records: NDArray[numpy.uint8],
    ts_event: NDArray[numpy.int64],
    places: NDArray[numpy.int64],
) -> tuple[int, int, int]:
    """Read rows from `position` on, until the columns are full; `last`: nothing follows `data`.

    `template` is a record with the common fields of all rows. Bad rows are skipped and counted in `state`; `bad` gets
    (number, start) of the first. `places` gets, for each row, the largest time up to it. Returns (rows, position, why
    it stopped).
    """
    n = found = 0
    while position < len(data):
        behind = skip_filler(data, position, state)
        if behind > position:
            position = behind
            continue
        good, position, why = _good_rows(
            data,
            position,
            last,
            layout,
            template,
            day,
            state,
            records[n * len(template) :],
            ts_event[n:],
            places[n:],
        )
        state[LINES] += good
        n += good
        if why == FILLED or (why == PARTIAL and not last):
            return n, position, why
        if why == END:
            break
        behind = skip_filler(data, position, state)
        if behind > position:
            position = behind
            continue
        if not last and is_cut_filler(data, position):
            return n, position, PARTIAL
        state[LINES] += 1
        if found < len(bad):
            bad[found, 0], bad[found, 1] = state[LINES], position
            found += 1
        state[BAD] += 1
        position = skip_line(data, position, state)
    return n, position, END


class RowReader:
    """The rows of one file, read on demand: `ts_event`, `places` and `records` hold those read last.

    A row's position is the largest time up to it: rows stay in file order.
    """

    done = False
    """True if all rows have been read."""

    def __init__(self, file: TapeFile, topic: int, window_bytes: int) -> None:
        self.topic = topic
        """Topic number of the rows."""
        self._file = file
        self._window: FileWindow = file.open(window_bytes)
        self._position = 0
        self._layout = layout(file.type)
        self._day: LocalDay = local_day(file.date)
        dtype = SCHEMA.records[file.type]
        self._template = numpy.zeros(1, dtype)
        self._template["type"] = file.type
        self._template["date"] = int(file.date.strftime("%Y%m%d"))
        self._template["symbol"] = file.symbol
        self._rows = 0
        self._state = numpy.zeros(_PLACES, numpy.int64)
        self._state[_LATEST] = -(1 << 63)
        self._bad = Losses("bad rows")
        self._ends = Losses("damaged places")
        capacity = max(1, window_bytes // _ROW_BYTES)
        self._capacity = capacity
        self.record_bytes = dtype.itemsize
        self._take(numpy.empty(0, numpy.int64), numpy.empty(0, numpy.int64), numpy.empty(0, numpy.uint8))

    @property
    def late(self) -> int:
        """Number of rows with a time before that of an earlier one."""
        return int(self._state[_LATE])

    @property
    def empty(self) -> int:
        """Empty lines."""
        return int(self._state[EMPTY])

    @property
    def lost(self) -> list[str]:
        """Losses of the file, a sentence each: bad rows, damaged places, an early end."""
        return list(losses(self._file, "rows", self._rows, self._bad, self._ends))

    def read(self) -> None:
        """Read the next rows, unless `done`."""
        while not self.done:
            records = numpy.empty(self._capacity * self.record_bytes, numpy.uint8)
            ts_event = numpy.empty(self._capacity, numpy.int64)
            places = numpy.empty(self._capacity, numpy.int64)
            window = self._window
            whole = window.last and window.fault is None
            bad = numpy.zeros((NAMED, 2), numpy.int64)
            count = int(self._state[BAD])
            n, position, why = read_rows(
                window.data,
                self._position,
                whole,
                self._layout,
                self._template.view(numpy.uint8),
                self._day,
                self._state,
                bad,
                records,
                ts_event,
                places,
            )
            self._rows += n
            count = int(self._state[BAD]) - count
            for line, at in bad.tolist()[:count]:
                self._bad.name(f"line {line}: {_complaint(window.data[at:], self._file.type)}")
            self._bad.count += count
            self._move(position, why)
            if n:
                self._take(ts_event[:n], places[:n], records[: n * self.record_bytes])
                return

    def close(self) -> None:
        """Close the file."""
        self._window.close()

    def drop(self, many: int) -> None:
        """Drop the first `many` rows, which have been used."""
        self._take(self.ts_event[many:], self.places[many:], self.records[many * self.record_bytes :])

    def _take(
        self, ts_event: NDArray[numpy.int64], places: NDArray[numpy.int64], records: NDArray[numpy.uint8]
    ) -> None:
        self.ts_event, self.places, self.records = ts_event, places, records

    def _move(self, position: int, why: int) -> None:
        window = self._window
        if why == FILLED:
            self._position = position
            window.release(position)
        elif window.last:
            end = window.ending(position, "row")
            goes_on = window.skip_damage() if end else None
            if end:
                self._ends.name(f"{end}; {goes_on}, with the next whole row" if goes_on else end)
                self._ends.count += 1
            if goes_on is None:
                self.done = True
            else:
                # The rest of a row may look like a row: skip the first piece.
                self._state[IS_SKIPPING] = 1
                self._position = 0
        else:
            window.slide(position)
            self._position = 0


def _complaint(data: NDArray[numpy.uint8], kind: str) -> str:
    """Describe what is wrong with the row at the start of `data`."""
    line = data[: _SHOWN_BYTES + 1].tobytes().partition(b"\n")[0].removesuffix(b"\r")
    names = COLUMNS[kind]
    columns = line.split(b",")
    for name, column, text in zip(names, layout(kind).tolist(), columns, strict=False):
        form, largest = column[0], column[3]
        if form != TEXT and not (_WHOLE[form].fullmatch(text) and abs(int(text[: 2 * _MOST_DIGITS])) <= largest):
            least = -largest if form == SIGNED else 0
            return f"{name} was {_shown(text)}, expected a whole number, {least} to {largest}, without leading zeros"
        if form == TEXT and (len(text) > largest or not all(0x20 < byte < 0x7F for byte in text)):
            return f"{name} was {_shown(text)}, expected at most {largest} printable characters"
    if len(columns) != len(names):
        return f"the row had {len(columns)} columns ({_shown(line)}), expected {len(names)}: {', '.join(names)}"
    return f"the row was {_shown(line)}, expected a line feed, or a carriage return and a line feed, after it"


def _shown(text: bytes) -> str:
    return repr(text[:_SHOWN_BYTES].decode("latin-1")) + "..." * (len(text) > _SHOWN_BYTES)
