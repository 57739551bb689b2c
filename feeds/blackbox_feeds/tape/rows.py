"""Compiled: read tape rows file by file, from text to records, times and positions.

A bad row is skipped up to the next line feed, and counted. An empty line is skipped, and so is a byte order mark before
a row.
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import Final, NamedTuple, Self
from zipfile import ZipFile

import numpy
from numpy.typing import NDArray

from blackbox.native.compile.jit import njit
from blackbox_feeds.io.dates import LocalDay, local_day
from blackbox_feeds.io.integers import put_little_32, put_little_64
from blackbox_feeds.io.lines import (
    BAD,
    EMPTY,
    IS_SKIPPING,
    LINES,
    OWN,
    goes_on_after,
    is_cut_filler,
    losses,
    skip_filler,
    skip_line,
)
from blackbox_feeds.io.losses import NAMED, Losses
from blackbox_feeds.io.window import FileWindow
from blackbox_feeds.tape.files import TapeFile
from blackbox_feeds.tape.records import COLUMNS, CR_LF, LF, NO_LINE_END, NUMBER, SCHEMA, SIGNED, TEXT, layout


class Reason(IntEnum):
    """Why reading stopped: no more bytes, full columns, an incomplete row, a malformed row."""

    END = 0
    FILLED = 1
    PARTIAL = 2
    MALFORMED = 3


class RowForm(NamedTuple):
    """The common form of the rows of a file, for compiled code."""

    layout: NDArray[numpy.int64]
    """See `blackbox_feeds.tape.records.layout`."""
    template: NDArray[numpy.uint8]
    """A record with the common fields of all rows."""
    day: LocalDay

    @classmethod
    def of(cls, file: TapeFile) -> Self:
        """Return the form of a file's rows."""
        record = numpy.zeros(1, SCHEMA.records[file.type])
        record["type"], record["date"], record["symbol"] = file.type, int(file.date.strftime("%Y%m%d")), file.symbol
        return cls(layout(file.type), record.view(numpy.uint8), local_day(file.date))


class Rows(NamedTuple):
    """Rows read, or room for them."""

    ts_event: NDArray[numpy.int64]
    places: NDArray[numpy.int64]
    """Largest time up to each row: rows stay in file order."""
    records: NDArray[numpy.uint8]

    @classmethod
    def room(cls, count: int, record_bytes: int) -> Self:
        """Return room for `count` rows."""
        stamps, places = numpy.empty(count, numpy.int64), numpy.empty(count, numpy.int64)
        return cls(stamps, places, numpy.empty(count * record_bytes, numpy.uint8))


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
    """Read a row's columns into the record at `target`: return (their end, Reason.END), or a fault."""
    end = len(data)
    for column in range(len(layout)):
        if column > 0:
            if at == end:
                return at, Reason.PARTIAL
            if data[at] != _COMMA:
                return at, Reason.MALFORMED
            at += 1
        offset, size, largest = layout[column, 1], layout[column, 2], layout[column, 3]
        start = at
        if layout[column, 0] != TEXT:
            below = layout[column, 0] == SIGNED and at < end and data[at] == _MINUS
            value, at = _number(data, at + below, largest)
            if value < below:  # -0 is not a number
                return at, Reason.PARTIAL if at == end else Reason.MALFORMED
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
                return at, Reason.MALFORMED
            for place in range(start, at):
                records[target + offset + place - start] = data[place]
    return at, Reason.END


@njit(nogil=True, cache=True)
def _line_end(data: NDArray[numpy.uint8], at: int, last: bool) -> tuple[int, int, int]:
    """Return (start of the next row, Reason.END, `line_end`), or a fault if the row does not end at `at`."""
    end = len(data)
    if at == end:
        return at, Reason.END if last else Reason.PARTIAL, NO_LINE_END
    if data[at] == _LF:
        return at + 1, Reason.END, LF
    if data[at] == _CR:
        if at + 1 == end:
            return at, Reason.MALFORMED if last else Reason.PARTIAL, NO_LINE_END
        if data[at + 1] == _LF:
            return at + 2, Reason.END, CR_LF
    return at, Reason.MALFORMED, NO_LINE_END


@njit(nogil=True, cache=True)
def _good_rows(
    data: NDArray[numpy.uint8], position: int, last: bool, form: RowForm, state: NDArray[numpy.int64], rows: Rows
) -> tuple[int, int, int]:
    """Read as `read_rows`, up to the first bad row."""
    midnight_ns, change_ns, shift_ns = form.day
    template, records = form.template, rows.records
    size = len(template)
    latest = state[_LATEST]
    n, why = 0, Reason.END  # starting n at 0 shows that no index is negative, which saves checks
    while position < len(data):
        if n == len(rows.ts_event):
            why = Reason.FILLED
            break
        target = n * size
        for byte in range(size):
            records[target + byte] = template[byte]
        at, why = _columns(data, position, form.layout, records, target)
        if why != Reason.END:
            break
        at, why, line_end = _line_end(data, at, last)
        if why != Reason.END:
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
        rows.ts_event[n], rows.places[n] = time, latest
        position = at
        n += 1
    state[_LATEST] = latest
    return n, position, why


@njit(nogil=True, cache=True)
def read_rows(
    data: NDArray[numpy.uint8],
    position: int,
    last: bool,
    form: RowForm,
    state: NDArray[numpy.int64],
    bad: NDArray[numpy.int64],
    rows: Rows,
) -> tuple[int, int, int]:
    """Read rows from `position` on, until `rows` is full; `last`: nothing follows `data`.

    Bad rows are skipped and counted in `state`; `bad` gets (number, start) of the first. Returns (number of rows,
    position, why it stopped).
    """
    n = found = 0
    while position < len(data):
        behind = skip_filler(data, position, state)
        if behind > position:
            position = behind
            continue
        left = Rows(rows.ts_event[n:], rows.places[n:], rows.records[n * len(form.template) :])
        good, position, why = _good_rows(data, position, last, form, state, left)
        state[LINES] += good
        n += good
        if why == Reason.FILLED or (why == Reason.PARTIAL and not last):
            return n, position, why
        if why == Reason.END:
            break
        behind = skip_filler(data, position, state)
        if behind > position:
            position = behind
            continue
        if not last and is_cut_filler(data, position):
            return n, position, Reason.PARTIAL
        state[LINES] += 1
        if found < len(bad):
            bad[found, 0], bad[found, 1] = state[LINES], position
            found += 1
        state[BAD] += 1
        position = skip_line(data, position, state)
    return n, position, Reason.END


class RowReader:
    """The rows of one file, read on demand: `rows` holds those read last."""

    done = False
    """True if all rows have been read."""

    def __init__(self, file: TapeFile, topic: int, window_bytes: int, archive: ZipFile | None = None) -> None:
        """`archive`: that of the file, if it is open."""
        self.topic = topic
        """Topic number of the rows."""
        self._file = file
        self._window: FileWindow = file.open(window_bytes, archive)
        self._position = 0
        self._form = RowForm.of(file)
        self._count = 0
        self._state = numpy.zeros(_PLACES, numpy.int64)
        self._state[_LATEST] = -(1 << 63)
        self._bad = Losses("bad rows")
        self._ends = Losses("damaged places")
        self._capacity = max(1, window_bytes // _ROW_BYTES)
        self.rows = Rows.room(0, 0)

    @property
    def record_bytes(self) -> int:
        """Size of a record."""
        return len(self._form.template)

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
        return list(losses(self._file, "rows", self._count, self._bad, self._ends))

    def read(self) -> None:
        """Read the next rows, unless `done`."""
        while not self.done and not len(self.rows.places):
            self.rows = Rows.room(self._capacity, self.record_bytes)
            window = self._window
            whole = window.last and window.fault is None
            bad = numpy.zeros((NAMED, 2), numpy.int64)
            count = int(self._state[BAD])
            n, position, why = read_rows(window.data, self._position, whole, self._form, self._state, bad, self.rows)
            self._count += n
            count = int(self._state[BAD]) - count
            for line, at in bad.tolist()[:count]:
                self._bad.name(f"line {line}: {_complaint(window.data[at:], self._file.type)}")
            self._bad.count += count
            self._move(position, why)
            self.rows = self.first(n)

    def close(self) -> None:
        """Close the file."""
        self._window.close()

    def first(self, many: int) -> Rows:
        """Return the first `many` of the rows."""
        return Rows(self.rows.ts_event[:many], self.rows.places[:many], self.rows.records[: many * self.record_bytes])

    def drop(self, many: int) -> None:
        """Drop the first `many` rows, which have been used."""
        self.rows = Rows(
            self.rows.ts_event[many:], self.rows.places[many:], self.rows.records[many * self.record_bytes :]
        )

    def _move(self, position: int, why: int) -> None:
        if why == Reason.FILLED:
            self._position = position
            self._window.release(position)
            return
        self._position = 0
        if not self._window.last:
            self._window.slide(position)
        elif goes_on_after(self._window, position, "row", self._ends):
            self._state[IS_SKIPPING] = 1  # the rest of a row may look like a row: skip the first piece
        else:
            self.done = True


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
