"""Turn lines of receive time and JSON frame into chunks: topics of frames, and complaints about lines left out."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from typing import Final

import numpy
from numpy.typing import NDArray

from blackbox.documents import DecodeError, Decoder
from blackbox.errors import SourceError
from blackbox.feed.routing.symbol import MARKET_SYMBOL
from blackbox.feed.source import Chunk, rows_of
from blackbox_feeds.binance.frames import (
    KEY_BYTES,
    KNOWN,
    PLACES,
    SNAPSHOT,
    TICKER,
    TIME_DIGITS,
    WITHOUT_TIME,
    Reason,
    read_lines,
)
from blackbox_feeds.io.columns import Columns
from blackbox_feeds.io.lines import BAD, EMPTY, IS_SKIPPING, LINES
from blackbox_feeds.io.losses import NAMED, Losses
from blackbox_feeds.io.template import TopicForm
from blackbox_feeds.io.topics import KeyedTopics

MAX_KEYS: Final = 1 << 16
"""More distinct streams than this indicate corrupt input."""

_NAME: Final = Decoder[str]("json", str)
_MEAN_KEY_BYTES: Final = 64
_SHOWN_BYTES: Final = 120
_LF: Final = 10


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
        self._state = numpy.zeros(PLACES, numpy.int64)
        self._wrong: list[str] = []
        self.bad = Losses("bad lines")
        """Lines left out."""

    @property
    def without_time(self) -> int:
        """Number of frames without a time of the exchange."""
        return int(self._state[WITHOUT_TIME])

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
        self.position, why = 0, Reason.FILLED
        while why == Reason.FILLED:
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
        if why == Reason.CROWDED:
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
        return rows_of(chunk, chunk.topic_index >= 0)

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
        if kind == SNAPSHOT and not stream:
            name = b"snapshot"
            subject = subject or (self._symbol if known == KNOWN else b"") or b"#unknown"
        elif kind == TICKER:
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
    if why == Reason.BAD_TIME:
        return _wrong_time(line, digits)
    if why == Reason.BAD_END:
        return f"its frame is followed by more text, expected a line end: {line!r}"
    if why == Reason.OTHER_TIME:
        return f"its event time, else its receive time, was outside the years 2000 to 2099 in ms, us or ns: {line!r}"
    if why == Reason.LONG_KEY:
        return f"stream, event and symbol of its frame have more than {KEY_BYTES} bytes: {line!r}"
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
        f"its start was {line[: TIME_DIGITS + 1]!r}, expected the receive time in {unit[digits]}, {digits} digits, "
        "and a space"
    )
