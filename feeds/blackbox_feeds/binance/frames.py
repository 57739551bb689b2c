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

import unicodedata
from collections.abc import Iterator
from typing import Final

import numpy
from numpy.typing import NDArray

from blackbox.documents import DecodeError, Decoder
from blackbox.errors import SourceError
from blackbox.feed.routing.symbol import MARKET_SYMBOL
from blackbox.feed.source import Chunk
from blackbox.native.compile.jit import njit
from blackbox.native.tables.name_table import FULL, NumberingAt, number_of
from blackbox_feeds.io.columns import Columns, put_row
from blackbox_feeds.io.lines import BAD, EMPTY, IS_SKIPPING, LINES, OWN, is_cut_filler, skip_filler, skip_line
from blackbox_feeds.io.losses import NAMED, Losses
from blackbox_feeds.io.template import TopicForm
from blackbox_feeds.io.topics import KeyedTopics

MAX_KEYS: Final = 1 << 16
"""More distinct streams than this indicate corrupt input."""

END, FILLED, PARTIAL, BAD_TIME, BAD_FRAME, BAD_END, LONG_KEY, CROWDED, OTHER_TIME = range(9)
"""END, FILLED, PARTIAL and CROWDED are reasons to stop: no more bytes, full columns, an incomplete line, too many
streams. The others are faults of a line: no receive time, no JSON object, no line end after it, too long names, a time
outside the years 2000 to 2099."""

_STREAM, _EVENT, _SYMBOL, _EVENT_TIME, _TIME, _UPDATE_ID, _BID_SIZE, _ASK_SIZE = range(8)
_DATA, _OTHER = 8, 9
_FIELDS: Final = 10
_FIRST_SYMBOL, _SEVERAL, _WITHOUT_TIME, _PLACES = range(OWN, OWN + 4)
"""Indices in the state after those of lines: the first symbol's hash, 1 if there was another symbol, the count of
frames without time; and the number of indices."""
_NAME: Final = Decoder[str]("json", str)
_KEY_BYTES: Final = 1024
_MEAN_KEY_BYTES: Final = 64
_TIME_DIGITS = 19
_EARLIEST_NS, _LATEST_NS = 946_684_800_000_000_000, 4_102_444_800_000_000_000
"""2000-01-01 and 2100-01-01 UTC: a time outside has another unit, or is wrong."""
_LARGEST = (1 << 63) - 1
_DEEPEST = 62
_PRIME = 0x100000001B3
_BASIS = 0x4BF29CE484222325
_SNAPSHOT, _TICKER, _PLAIN = b"SB-"
_KNOWN, _UNKNOWN = b"1?"
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

_NAMES = numpy.array([list(name.ljust(12, b"\0")) for name in (b"stream", b"data", b"symbol", b"lastUpdateId")], "u1")
_SHOWN_BYTES: Final = 120


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
        letter = data[start]
        if letter == 0x65:  # e
            return _EVENT
        if letter == 0x45:  # E
            return _EVENT_TIME
        if letter == 0x54:  # T
            return _TIME
        if letter == 0x73:  # s
            return _SYMBOL
        if letter == 0x42:  # B
            return _BID_SIZE
        if letter == 0x41:  # A
            return _ASK_SIZE
        return _OTHER
    if size == 6 and top and _is(data, start, end, 0):
        return _STREAM
    if size == 4 and top and _is(data, start, end, 1):
        return _DATA
    if size == 6 and _is(data, start, end, 2):
        return _SYMBOL
    if size == 12 and _is(data, start, end, 3):
        return _UPDATE_ID
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
    """Return (start, stop, next position, END) of the text or word at `at`, without quotes; or a fault."""
    end = len(data)
    if data[at] == _QUOTE:
        stop = _string_end(data, at + 1)
        if stop < 0:
            return at, at, at, BAD_FRAME
        return at + 1, stop, stop + 1, END if stop < end else PARTIAL
    stop = at
    while stop < end and _KINDS[data[stop]] == _WORD:
        stop += 1
    return at, stop, stop, END if stop < end else PARTIAL


@njit(nogil=True, cache=True)
def _colon(data: NDArray[numpy.uint8], at: int) -> tuple[int, int]:
    """Return (position after the next colon, END), or (position of the fault, why)."""
    while at < len(data) and data[at] == _SPACE:
        at += 1
    if at >= len(data):
        return at, PARTIAL
    return (at + 1, END) if data[at] == _COLON else (at, BAD_FRAME)


@njit(nogil=True, cache=True)
def _scan(data: NDArray[numpy.uint8], at: int, fields: NDArray[numpy.int64]) -> tuple[int, int]:
    """Scan the JSON object at `at`: return (its end, END), or (position of the fault, why).

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
            return at, BAD_FRAME
        if kind in (_TEXT, _WORD):
            start, stop, at, why = _scalar(data, at)
            if why != END:
                return at, why
            if wants in (_KEY, _FIRST_KEY):
                known = depth == 1 or (depth == 2 and in_data)
                field = _field(data, start, stop, depth == 1) if known else _OTHER
                wants = _VALUE
                at, why = _colon(data, at)
                if why != END:
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
                return at, BAD_FRAME
            depth -= 1
            lists >>= 1
            in_data = in_data and depth > 1
            field = _OTHER
            wants = _BEHIND
            if depth == 0:
                return at + 1, END
        elif kind == _COMMA:
            field = _OTHER
            wants = _VALUE if lists & 1 else _KEY
        at += 1
    return at, PARTIAL


@njit(nogil=True, cache=True)
def _whole_number(data: NDArray[numpy.uint8], start: int, end: int) -> int:
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
    value = _whole_number(data, at, end)
    left = _TIME_DIGITS - digits
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
        value = _whole_number(data, fields[field, 0], fields[field, 1])
        if value > 0:
            for unit in (1_000_000, 1_000, 1):
                if _EARLIEST_NS // unit <= value < _LATEST_NS // unit:
                    return value * unit
            return 1
    return 0


@njit(nogil=True, cache=True)
def _symbol_hash(data: NDArray[numpy.uint8], fields: NDArray[numpy.int64]) -> int:
    """Return a number for a frame's symbol, in lower case; 0 without a symbol."""
    start, end = fields[_STREAM, 0], fields[_STREAM, 1]
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
    for field in (_STREAM, _EVENT, _SYMBOL):
        length += fields[field, 1] - fields[field, 0]
    if length > len(key):
        return 0
    place = 0
    for field in (_STREAM, _EVENT, _SYMBOL):
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
    if fields[_UPDATE_ID, 1] > 0:
        kind = _SNAPSHOT
    elif fields[_EVENT, 1] == 0 and fields[_BID_SIZE, 1] > 0 and fields[_ASK_SIZE, 1] > 0:
        kind = _TICKER
    key[place] = kind
    key[place + 1] = _KNOWN if symbol != 0 or (state[_FIRST_SYMBOL] != 0 and state[_SEVERAL] == 0) else _UNKNOWN
    return length


@njit(nogil=True, cache=True)
def _line_end(data: NDArray[numpy.uint8], at: int, last: bool) -> tuple[int, int]:
    """Return (start of the next line, END), or a fault if no line ends at `at`."""
    end = len(data)
    if at < end and data[at] == _CR:
        at += 1
        if at == end:
            return at, PARTIAL
    elif at == end and last:
        return at, END
    if at == end:
        return at, PARTIAL
    return (at + 1, END) if data[at] == _LF else (at, BAD_END)


@njit(nogil=True, cache=True)
def _read_line(
    data: NDArray[numpy.uint8], position: int, last: bool, digits: int, fields: NDArray[numpy.int64]
) -> tuple[int, int, int, int]:
    """Return (receive time of the line at `position`, its event time or 0, start of the next line, END).

    Instead of END it may be a fault.
    """
    received, at = _received_ns(data, position, digits)
    if at >= len(data) or (received < 0 and at == position):
        return 0, 0, position, BAD_TIME if last else PARTIAL
    if received < 0 or data[at] != _SPACE:
        return 0, 0, position, BAD_TIME
    at, why = _scan(data, at + 1, fields)
    if why == PARTIAL and last:
        why = BAD_FRAME
    if why == END:
        at, why = _line_end(data, at, last)
    if why == PARTIAL and last:
        why = BAD_END
    happened = 0
    if why == END:
        happened = _event_ns(data, fields)
        if not _EARLIEST_NS <= (happened or received) < _LATEST_NS:
            why = OTHER_TIME
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
    fields = numpy.zeros((_FIELDS, 2), numpy.int64)
    key = numpy.empty(_KEY_BYTES, numpy.uint8)
    n = found = 0
    while position < len(data):
        if n == len(columns.starts):
            return n, position, FILLED
        if state[IS_SKIPPING] or not _ZERO <= data[position] <= _NINE:
            behind = skip_filler(data, position, state)
            if behind > position:
                position = behind
                continue
            if not last and is_cut_filler(data, position):
                return n, position, PARTIAL
        received, happened, at, why = _read_line(data, position, last, digits, fields)
        number = 0
        if why == PARTIAL:
            return n, position, PARTIAL
        if why == END:
            length = _write_key(data, fields, state, key)
            if length == 0:
                why = LONG_KEY
            else:
                number = number_of(keys, key.ctypes.data, length)
        if number == FULL:
            return n, position, CROWDED
        state[LINES] += 1
        if why != END:
            if found < len(bad):
                bad[found, 0], bad[found, 1], bad[found, 2] = state[LINES], position, why
                found += 1
            state[BAD] += 1
            position = skip_line(data, position, state)
            continue
        state[_WITHOUT_TIME] += happened == 0
        put_row(columns, n, number, happened or received, position, at - position)
        position = at
        n += 1
    return n, position, END


class _NameError(Exception):
    """A stream, event or symbol that cannot be in a topic. The text names it and the reason."""


class FrameReader:
    """Turns lines into chunks; one object per iteration. Remembers keys and topics between calls."""

    position = 0
    """After `chunks`: the position in the data at which it ended."""
    lines = 0
    """Lines that became messages."""

    def __init__(self, form: TopicForm, time_digits: int) -> None:
        """`time_digits`: digits of a receive time."""
        self._form = form
        self._digits = time_digits
        self._topics = KeyedTopics(MAX_KEYS, _MEAN_KEY_BYTES, self._topic)
        self._symbol = b""
        self._state = numpy.zeros(_PLACES, numpy.int64)
        self._wrong: list[str] = []
        self.bad = Losses("bad lines")
        """Lines left out."""

    @property
    def without_time(self) -> int:
        """Number of frames without a time of the exchange."""
        return int(self._state[_WITHOUT_TIME])

    @property
    def empty(self) -> int:
        """Empty lines."""
        return int(self._state[EMPTY])

    def skip_damage(self) -> None:
        """Skip the first piece of the next data: it may be the rest of a line that was damaged."""
        self._state[IS_SKIPPING] = 1

    def chunks(self, data: NDArray[numpy.uint8], last: bool) -> Iterator[Chunk]:
        """Yield the lines at the start of `data`.

        Raises:
            SourceError: there are more than `MAX_KEYS` distinct streams.
        """
        self.position, why = 0, FILLED
        while why == FILLED:
            columns = Columns.new()
            bad = numpy.zeros((NAMED, 3), numpy.int64)
            begin, count = self.position, int(self._state[BAD])
            lines = int(self._state[LINES] - self._state[IS_SKIPPING])  # a skipped rest of a line counts a line feed
            n, self.position, why = read_lines(
                data, begin, last, self._digits, self._topics.keys.at, self._state, bad, columns
            )
            count = int(self._state[BAD]) - count
            for line, at, reason in bad.tolist()[:count]:
                self.bad.name(f"line {line}: {_complaint(data, at, reason, self._digits)}")
            self.bad.count += count
            if n:
                self._topics.settle(columns.topic_index[:n])
                chunk = columns.chunk(n, self._topics.topics, data)
                if self._wrong:
                    chunk = self._without_wrong(chunk, begin, lines)
                self.lines += len(chunk.starts)
                if len(chunk.starts):
                    yield chunk
        if why == CROWDED:
            raise SourceError(f"the input has more than {MAX_KEYS} distinct streams: it is corrupt")

    def _without_wrong(self, chunk: Chunk, begin: int, lines: int) -> Chunk:
        """Leave out lines with names that cannot be in a topic.

        `lines`: number of lines before byte `begin` of the data.
        """
        rows = numpy.flatnonzero(chunk.topic_index < 0)
        for row in rows[:NAMED].tolist():
            line = lines + 1 + int(numpy.count_nonzero(chunk.payloads[begin : chunk.starts[row]] == _LF))
            self.bad.name(f"line {line}: {self._wrong[~chunk.topic_index[row]]}")
        self.bad.count += len(rows)
        right = chunk.topic_index >= 0
        return chunk._replace(
            topic_index=chunk.topic_index[right],
            ts_event=chunk.ts_event[right],
            starts=chunk.starts[right],
            lengths=chunk.lengths[right],
        )

    def _topic(self, key: bytes) -> bytes | int:
        """Return the topic of a key; or the inverted index in `_wrong` if a name cannot be in a topic."""
        try:
            return self._topic_of(*key.split(b"\0"))
        except _NameError as error:
            self._wrong.append(str(error))
            return ~(len(self._wrong) - 1)

    def _topic_of(self, stream: bytes, event: bytes, symbol: bytes, kind_and_known: bytes) -> bytes:
        kind, known = kind_and_known
        stream, event, symbol = _name(stream), _name(event), _name(symbol)
        subject, _, name = stream.partition(b"@")
        if subject.startswith(b"!"):
            # A stream of a whole market: a frame may concern one symbol, or many.
            subject, name = symbol, subject[1:]
        # Streams are lower case, symbols upper case. Only ASCII letters are folded: these are the ones that Binance
        # changes, and no two symbols differ only in them.
        subject = (subject or symbol).lower()
        self._symbol = self._symbol or subject
        name = name.partition(b"@")[0] or event.removesuffix(b"Update")
        if kind == _SNAPSHOT and not stream:
            name = b"snapshot"
            subject = subject or (self._symbol if known == _KNOWN else b"") or b"#unknown"
        elif kind == _TICKER:
            name = name or b"bookTicker"
        if b"." in name:  # a symbol ends at the last dot
            raise _NameError(f"type was {name.decode()!r}, expected one without '.'")
        return self._form.topic(subject or MARKET_SYMBOL, name or b"other", 0)


def _name(text: bytes) -> bytes:
    """Return a JSON text with its escapes resolved, in UTF-8. Raises `_NameError` if it cannot be in a topic."""
    try:
        name = _NAME.decode(b'"%b"' % text)
        if any(unicodedata.category(character) == "Cc" for character in name):
            raise ValueError("it has a control character")
        return name.encode()
    except (DecodeError, ValueError) as error:
        shown = text.decode("latin-1")
        raise _NameError(f"stream, event or symbol was {shown!r}, which cannot be a name: {error}") from None


def _complaint(data: NDArray[numpy.uint8], position: int, why: int, digits: int) -> str:
    """Describe what is wrong with the line at `position`."""
    line = data[position : position + _SHOWN_BYTES].tobytes().partition(b"\n")[0].removesuffix(b"\r").decode("latin-1")
    if why == BAD_TIME:
        return _wrong_time(line, digits)
    if why == BAD_END:
        return f"its frame is followed by more text, expected a line end: {line!r}"
    if why == OTHER_TIME:
        return f"its event time, else its receive time, was outside the years 2000 to 2099 in ms, us or ns: {line!r}"
    if why == LONG_KEY:
        return f"stream, event and symbol of its frame have more than {_KEY_BYTES} bytes: {line!r}"
    return f"its frame was {line.partition(' ')[2]!r}, expected one whole JSON object"


def _wrong_time(line: str, digits: int) -> str:
    unit = {10: "s", 13: "ms", 16: "us", 19: "ns"}
    whole = line.partition(" ")[0].partition(".")[0]
    if whole.isascii() and whole.isdecimal() and len(whole) != digits and len(whole) in unit:
        found = unit[len(whole)]
        return (
            f"its receive time was {line.partition(' ')[0]}, which is in {found}, expected {unit[digits]}: give the "
            f"source's option `time_unit`, e.g. `--option time_unit={found}`, in Python time_unit={found!r}"
        )
    return (
        f"its start was {line[: _TIME_DIGITS + 1]!r}, expected the receive time in {unit[digits]}, {digits} digits, "
        "and a space"
    )
