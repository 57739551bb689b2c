"""Tape records back to rows: a zip archive of CSV files, one for each symbol, day and kind.

    part of messages ──► member of each ──► text, member by member ──► temporary file ──► archive, members by name

The rows of a member come in pieces, but an archive needs them together, so the text is collected in a file.
"""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from datetime import date
from enum import IntEnum
from typing import IO, TYPE_CHECKING, Final

import numpy
from numpy.typing import NDArray

from blackbox.errors import SourceError
from blackbox.native.compile.jit import njit
from blackbox.native.tables.name_table import FULL, Numbering, NumberingAt, number_of
from blackbox_feeds.io.integers import little_32, little_64
from blackbox_feeds.tape.records import CR_LF, LF, NO_LINE_END, SCHEMA, TEXT, TYPES, layout

if TYPE_CHECKING:
    from blackbox.archive.export.time_order import Messages

_PIECE_BYTES: Final = 1 << 20
_LONGEST_ROW: Final = 128
"""Upper bound for the size of a row: 8 columns of at most 20 bytes."""
_MOST_MEMBERS: Final = 1 << 17
_COMMA, _CR, _LF, _ZERO, _MINUS = (ord(sign) for sign in ",\r\n0-")
_TRADE, _QUOTE = (ord(kind) for kind in TYPES.values())
_SYMBOL_AT = {ord(kind): SCHEMA.records[kind].fields["symbol"][1] for kind in TYPES.values()}  # type: ignore[index]
_TRADE_SYMBOL, _QUOTE_SYMBOL = _SYMBOL_AT[_TRADE], _SYMBOL_AT[_QUOTE]
_TRADE_BYTES, _QUOTE_BYTES = (SCHEMA.records[kind].itemsize for kind in TYPES.values())
_TRADE_LAYOUT, _QUOTE_LAYOUT = (layout(kind) for kind in TYPES.values())
_DATE_AT = 8
_LINE_END_AT = 3
_SYMBOL_BYTES, _DATE_BYTES = 12, 4
_KEY_BYTES = 1 + _SYMBOL_BYTES + _DATE_BYTES
"""Key of a member: type, symbol and date."""
_NOTHING, _TEN = numpy.uint64(0), numpy.uint64(10)


class _Reason(IntEnum):
    """Why the search for members stopped."""

    END = 0
    NO_RECORD = 1
    CROWDED = 2


@njit(nogil=True, cache=True)
def _members(
    payloads: NDArray[numpy.uint8],
    offsets: NDArray[numpy.int64],
    known: NumberingAt,
    members: NDArray[numpy.int32],
) -> tuple[int, int]:
    """Find the member of each record. Returns (the row at which it stopped, why)."""
    key = numpy.empty(_KEY_BYTES, numpy.uint8)
    for at in range(len(offsets) - 1):
        start, size = offsets[at], offsets[at + 1] - offsets[at]
        kind = payloads[start] if size > 0 else 0
        if not ((kind == _TRADE and size == _TRADE_BYTES) or (kind == _QUOTE and size == _QUOTE_BYTES)):
            return at, _Reason.NO_RECORD
        symbol = start + (_TRADE_SYMBOL if kind == _TRADE else _QUOTE_SYMBOL)
        key[0] = kind
        key[1 : 1 + _SYMBOL_BYTES] = payloads[symbol : symbol + _SYMBOL_BYTES]
        key[1 + _SYMBOL_BYTES :] = payloads[start + _DATE_AT : start + _DATE_AT + _DATE_BYTES]
        member = number_of(known, key.ctypes.data, _KEY_BYTES)
        if member == FULL:
            return at, _Reason.CROWDED
        members[at] = member
    return len(offsets) - 1, _Reason.END


@njit(nogil=True, cache=True)
def _put_number(text: NDArray[numpy.uint8], at: int, value: int) -> int:
    if value < 0:
        text[at] = _MINUS
        at += 1
    left = numpy.uint64(-value if value < 0 else value)
    digits = 1
    rest = left // _TEN
    while rest > _NOTHING:
        digits += 1
        rest //= _TEN
    for place in range(at + digits - 1, at - 1, -1):
        text[place] = _ZERO + numpy.uint8(left % _TEN)
        left //= _TEN
    return at + digits


@njit(nogil=True, cache=True)
def _put_row(payloads: NDArray[numpy.uint8], start: int, text: NDArray[numpy.uint8], at: int) -> int:
    columns = _TRADE_LAYOUT if payloads[start] == _TRADE else _QUOTE_LAYOUT
    for column in range(len(columns)):
        offset, size = start + columns[column, 1], columns[column, 2]
        if column > 0:
            text[at] = _COMMA
            at += 1
        if columns[column, 0] == TEXT:
            for place in range(offset, offset + size):
                if payloads[place] != 0:
                    text[at] = payloads[place]
                    at += 1
        elif size == 1:
            at = _put_number(text, at, numpy.int64(payloads[offset]))
        elif size == 4:
            at = _put_number(text, at, little_32(payloads, offset))
        else:
            at = _put_number(text, at, little_64(payloads, offset))
    return at


@njit(nogil=True, cache=True)
def _write(
    payloads: NDArray[numpy.uint8],
    offsets: NDArray[numpy.int64],
    order: NDArray[numpy.int64],
    members: NDArray[numpy.int32],
    open_ends: NDArray[numpy.bool_],
    text: NDArray[numpy.uint8],
    ends: NDArray[numpy.int64],
) -> None:
    """Write the rows in `order`, sorted by member. `ends[member]` becomes the end of its text, 0 if it has none.

    `open_ends`: for each member, True if its last row so far has no line end and needs one before the next row.
    """
    at = 0
    for row in order:
        start = offsets[row]
        member = members[row]
        if open_ends[member]:
            text[at] = _LF
            at += 1
        at = _put_row(payloads, start, text, at)
        line_end = payloads[start + _LINE_END_AT]
        if line_end == CR_LF:
            text[at] = _CR
            at += 1
        if line_end in (LF, CR_LF):
            text[at] = _LF
            at += 1
        open_ends[member] = line_end == NO_LINE_END
        ends[member] = at


class _Spool:
    """The text of all members in one temporary file, with the pieces of each."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._known = Numbering(_MOST_MEMBERS, _KEY_BYTES)
        self._open_ends = numpy.zeros(0, numpy.bool_)
        self.names: list[str] = []
        self.pieces: list[list[tuple[int, int]]] = []
        """(start, length) of each piece, by member."""

    def add(self, part: Messages) -> None:
        """Write the rows of some messages. Raises SourceError if one is not a tape record."""
        members = self._members_of(part)
        order = numpy.argsort(members, kind="stable")
        text = numpy.empty(len(members) * _LONGEST_ROW, numpy.uint8)
        ends = numpy.zeros(len(self._known), numpy.int64)
        _write(part.payloads, part.offsets, order, members, self._open_ends, text, ends)
        base = self._file.tell()
        done = 0
        for member in numpy.flatnonzero(ends).tolist():
            end = int(ends[member])
            self.pieces[member].append((base + done, end - done))
            done = end
        self._file.write(text[:done].data)

    def read(self, member: int) -> Iterator[bytes]:
        """Yield a member's text."""
        for start, size in self.pieces[member]:
            self._file.seek(start)
            for at in range(0, size, _PIECE_BYTES):
                yield self._file.read(min(_PIECE_BYTES, size - at))

    def _members_of(self, part: Messages) -> NDArray[numpy.int32]:
        members = numpy.empty(len(part.ts_event), numpy.int32)
        row, why = _members(part.payloads, part.offsets, self._known.at, members)
        self._learn(part, members[:row])
        if why == _Reason.CROWDED:
            raise SourceError(
                f"the messages are of more than {_MOST_MEMBERS} symbols, days and kinds: they are corrupt"
            )
        if why == _Reason.NO_RECORD:
            start, end = part.offsets[row : row + 2].tolist()
            kind = part.payloads[start : start + 1].tobytes()
            sizes = ", ".join(f"{kind} with {dtype.itemsize}" for kind, dtype in SCHEMA.records.items())
            raise SourceError(f"a message was of type {kind!r} with {end - start} bytes, expected one of tape: {sizes}")
        return members

    def _learn(self, part: Messages, members: NDArray[numpy.int32]) -> None:
        """Name the new members."""
        first = len(self.names)
        for member in range(first, len(self._known)):
            row = int(numpy.argmax(members == member))
            payload = part.payloads[part.offsets[row] : part.offsets[row + 1]]
            self.names.append(_name(payload.tobytes()))
            self.pieces.append([])
        self._open_ends = numpy.concatenate([self._open_ends, numpy.zeros(len(self._known) - first, numpy.bool_)])


def archive_of(parts: Iterable[Messages]) -> Iterator[NDArray[numpy.uint8]]:
    """Yield the bytes of a zip archive with the rows of these messages.

    Raises:
        SourceError: a message is not a tape record.
    """
    with tempfile.TemporaryFile() as file:
        spool = _Spool(file)
        for part in parts:
            spool.add(part)
        sink = _Sink()
        with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:  # type: ignore[call-overload]
            for name, member in sorted((name, member) for member, name in enumerate(spool.names)):
                year = min(max(int(name[:4]), 1980), 2107)  # the years of zip
                info = zipfile.ZipInfo(name, (year, int(name[4:6]), int(name[6:8]), 0, 0, 0))
                info.compress_type = zipfile.ZIP_DEFLATED
                info.file_size = sum(size for _, size in spool.pieces[member])
                with archive.open(info, "w") as packed:
                    for piece in spool.read(member):
                        packed.write(piece)
                        yield from sink.taken()
        yield from sink.taken()


class _Sink:
    """A file without seeking, from which written data can be taken."""

    def __init__(self) -> None:
        self._written: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._written.append(bytes(data))
        return len(data)

    def flush(self) -> None:
        """Nothing waits."""

    def taken(self) -> Iterator[NDArray[numpy.uint8]]:
        """Yield what was written since the last call."""
        written, self._written = self._written, []
        yield numpy.frombuffer(b"".join(written), numpy.uint8)


def _name(payload: bytes) -> str:
    """Return Lean's name of the file with a record's row."""
    record = numpy.frombuffer(payload, SCHEMA.records[chr(payload[0])], 1)[0]
    kind = {type_: kind for kind, type_ in TYPES.items()}[record["type"].decode()]
    day, symbol = int(record["date"]), record["symbol"].decode("latin-1").lower()
    try:
        date.fromisoformat(f"{day:08d}")
    except ValueError:
        raise SourceError(f"the date of a record of tape was {day}, expected one such as 20131007") from None
    return f"{day:08d}_{symbol}_{kind.capitalize()}_Tick.csv"
