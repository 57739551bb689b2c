"""Compiled: decode ITCH 5.0, from length-prefixed messages to topic, time and payload columns.

    ... | length 2 | message | length 2 | message | ...        lengths are big-endian

The bytes come in spans, each a run of complete frames: a plain file is one span, a MoldUDP64 datagram another. Payloads
are not copied. A stock is identified by its locate. Each message with a stock defines it for later messages without
one.

A message of an unknown type is skipped, and a longer one than specified is cut; both are counted. In a plain file a
wrong length could look like either, so a known and complete frame must follow, or the end of the input. The lengths in
a datagram have been checked before, so there only a message too short for its type is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum

import numpy
from numpy.typing import NDArray

from blackbox.feed.source import Chunk
from blackbox.native.compile.jit import njit
from blackbox.native.memory.intrinsics import prefetch
from blackbox_feeds.io.columns import Columns, Stop, put_row
from blackbox_feeds.io.integers import big_16, big_64, little_64
from blackbox_feeds.io.skipped import count_no_symbol, count_unknown
from blackbox_feeds.io.statistics import EXTENDED, NO_TYPE
from blackbox_feeds.io.template import TopicForm
from blackbox_feeds.io.topic_text import is_symbol
from blackbox_feeds.io.topics import FULL, SYSTEM_SYMBOL, TopicsAt, TopicTable, key_number
from blackbox_feeds.itch50.messages import SCHEMA, SYSTEM_TYPES
from blackbox_feeds.itch50.moldudp64 import Spans


class Reason(IntEnum):
    """Why decoding stopped.

    No more spans, full columns, too many topics, an incomplete frame in a span, a length of 0, an unknown type or
    unexpected length without a known frame after it.
    """

    END = 0
    FILLED = 1
    CROWDED = 2
    PARTIAL = 3
    END_MARK = 4
    BAD_TYPE = 5
    BAD_LENGTH = 6


_REJECTED = -2
"""Used as a key's number: the symbol is invalid."""

_BLANK_STOCK = 0x2020202020202020
_TIMESTAMP_MASK = (1 << 48) - 1
_SHORTEST_FRAME = 14
_LOCATES = 1 << 16

_NO_STOCK = 3
"""Offset of the eight bytes read as stock from a message without one: arbitrary."""

# The state of a locate is one row of 32 words: its stock (two words), then for each message type the topic's number
# plus one, 0 if unknown. The types that make up nearly all of a day share the first of the row's two cache lines.
_ROW_WORDS = 32
_ROW_BYTES = 4 * _ROW_WORDS
_FIRST_COLUMN = 2
_COMMON_TYPES = "ADUEFXPCIQLRHY"


def _layout() -> NDArray[numpy.int64]:
    """Return by type byte: length (-1: unknown type), offset of the stock, 1 if it has one, column."""
    layout = numpy.full((256, 4), -1, numpy.int64)
    others = [kind for kind in SCHEMA.records if kind not in _COMMON_TYPES]
    for place, kind in enumerate([*_COMMON_TYPES, *others]):
        dtype = SCHEMA.records[kind]
        stock = dtype.fields["stock"][1] if dtype.fields and "stock" in dtype.fields else 0
        column = _FIRST_COLUMN + place
        layout[ord(kind)] = (dtype.itemsize, stock or _NO_STOCK, bool(stock), column)
    return layout


_LAYOUT = _layout()
_SIZE, _STOCK, _HAS_STOCK, _COLUMN = range(4)
_FRAMES_AHEAD = 8
"""Number of frames by which the state of a locate is prefetched into the cache."""
_SYSTEM_BYTES = tuple(SYSTEM_TYPES.encode())


_MOST_UNKNOWN = 64
"""Most consecutive unknown frames; more count as damage."""


@njit(nogil=True, cache=True)
def _may_be(size: int, kind: int) -> bool:
    """Return True if a frame may be of a later type, or of a known type that was extended."""
    return 0x21 <= kind <= 0x7E and size >= max(_LAYOUT[kind, _SIZE], _SHORTEST_FRAME - 2)


@njit(nogil=True, cache=True)
def _judge(data: NDArray[numpy.uint8], position: int, end: int, is_all: bool) -> int:
    """Return why the frame at `position` does not match the specification; Reason.END: it may be of a newer version.

    `is_all`: nothing follows `end`.
    """
    if position + 2 <= end and big_16(data, position) == 0:
        return Reason.END_MARK
    if position + 3 > end:
        return Reason.PARTIAL
    expected = _LAYOUT[data[position + 2], _SIZE]
    if big_16(data, position) == expected:
        return Reason.PARTIAL
    wrong = Reason.BAD_TYPE if expected < 0 else Reason.BAD_LENGTH
    for _ in range(_MOST_UNKNOWN):
        size = big_16(data, position)
        if not _may_be(size, data[position + 2]):
            return wrong
        position += 2 + size
        if position > end:
            return wrong if is_all else Reason.PARTIAL
        if position + 3 > end:
            return Reason.END if is_all else Reason.PARTIAL
        if big_16(data, position) == _LAYOUT[data[position + 2], _SIZE]:
            return Reason.END
    return wrong


@njit(nogil=True, cache=True)
def judge_whole(data: NDArray[numpy.uint8], position: int) -> int:
    """Do as `_judge` for a complete frame: only one too short for its type is wrong."""
    size = big_16(data, position)
    return Reason.BAD_LENGTH if size > 0 and size < _LAYOUT[data[position + 2], _SIZE] else Reason.END


@njit(nogil=True, cache=True)
def _skip_unknown(data: NDArray[numpy.uint8], position: int, counts: NDArray[numpy.int64]) -> int:
    """Count the frame at `position` by its type; return where the next one starts."""
    size = big_16(data, position)
    count_unknown(counts, numpy.int64(data[position + 2]) if size > 0 else NO_TYPE)
    return position + 2 + size


@njit(nogil=True, cache=True)
def _learn(
    data: NDArray[numpy.uint8],
    start: int,
    rows: NDArray[numpy.int32],
    stocks: NDArray[numpy.int64],
    topics: TopicsAt,
) -> int:
    """Return the key's number, `FULL` or _REJECTED, of a message whose stock or topic is new to its locate's row."""
    kind = data[start]
    locate = big_16(data, start + 1)
    if _LAYOUT[kind, _HAS_STOCK]:
        stock = little_64(data, start + _LAYOUT[kind, _STOCK])
        is_blank = stock & ~_BLANK_STOCK == 0  # padded with blanks or zeros
        if not is_blank and stock != stocks[locate, 0]:
            if not is_symbol(stock):
                return _REJECTED
            rows[locate] = 0
            stocks[locate, 0] = stock
    symbol = SYSTEM_SYMBOL if kind in _SYSTEM_BYTES else stocks[locate, 0]
    number = key_number(topics, symbol, kind | locate << 8)
    if number != FULL:
        rows[locate, _LAYOUT[kind, _COLUMN]] = number + 1
    return number


@njit(inline="always")
def _look_ahead(data: NDArray[numpy.uint8], ahead: int, end: int, rows_at: int) -> int:
    """Prefetch the state of the locate of the frame at `ahead`; return where the next frame begins."""
    if ahead + _SHORTEST_FRAME > end:
        return end
    prefetch(rows_at + _ROW_BYTES * big_16(data, ahead + 3))
    return ahead + 2 + big_16(data, ahead)


@njit(nogil=True, cache=True)
def decode_frames(
    data: NDArray[numpy.uint8],
    span_starts: NDArray[numpy.int64],
    span_ends: NDArray[numpy.int64],
    span: int,
    position: int,
    midnight_ns: int,
    rows: NDArray[numpy.int32],
    stocks: NDArray[numpy.int64],
    topics: TopicsAt,
    columns: Columns,
    is_all: bool,
    is_framed: bool,
    counts: NDArray[numpy.int64],
    span_rows: NDArray[numpy.int64],
) -> tuple[int, int, int, int]:
    """Decode from `position` in span number `span` on, until the columns are full.

    `rows` and `stocks` are two views of the states of locates. `is_all`: nothing follows the last span. `is_framed`:
    spans are known to hold complete frames. Sets in `span_rows`, for each span that begins, the row of its first
    message. Returns (messages, span, position, why it stopped). Nothing is read outside the spans.
    """
    n = 0
    rows_at = rows.ctypes.data
    while span < len(span_starts):
        end = span_ends[span]
        ahead = position
        for _ in range(_FRAMES_AHEAD):
            ahead = _look_ahead(data, ahead, end, rows_at)
        while position < end:
            is_full = n == len(columns.starts)
            if is_full or (position + _SHORTEST_FRAME > end and not is_framed):
                return n, span, position, Reason.FILLED if is_full else _judge(data, position, end, is_all)
            # The next frame's position depends on this length alone, so that the processor can run ahead of the other
            # lookups.
            size = big_16(data, position)
            start = position + 2
            layout = _LAYOUT[data[min(start, end - 1)]]  # the last message of a datagram may be empty
            ahead = _look_ahead(data, ahead, end, rows_at)
            if size != layout[_SIZE] or start + size > end:
                why = judge_whole(data, position) if is_framed else _judge(data, position, end, is_all)
                if why != Reason.END:
                    return n, span, position, why
                if size == 0 or layout[_SIZE] < 0:
                    position = _skip_unknown(data, position, counts)
                    continue
                counts[EXTENDED] += 1
            locate = big_16(data, start + 1)
            number = rows[locate, layout[_COLUMN]] - 1
            other = little_64(data, start + layout[_STOCK]) != stocks[locate, 0]
            if number < 0 or (layout[_HAS_STOCK] != 0) & other:
                number = _learn(data, start, rows, stocks, topics)
                if number == FULL:
                    return n, span, position, Reason.CROWDED
                if number == _REJECTED:
                    count_no_symbol(counts, little_64(data, start + layout[_STOCK]))
                    position = start + size
                    continue
            time = midnight_ns + (big_64(data, start + 3) & _TIMESTAMP_MASK)
            put_row(columns, n, number, time, start, layout[_SIZE])
            position = start + size
            n += 1
        span += 1
        if span < len(span_starts):
            position = span_starts[span]
            span_rows[span] = n
    return n, span, position, Reason.END


class FrameDecoder:
    """Turns spans of length-prefixed ITCH messages into chunks; one object per iteration.

    Remembers topics and the stocks of locates between calls.
    """

    stop: Stop | None = None
    """After `chunks`: None if all spans were decoded, else the position and the reason."""

    def __init__(
        self, form: TopicForm, midnight_ns: int, counts: NDArray[numpy.int64], chunk_messages: int | None = None
    ) -> None:
        """Adds to `counts` (see `blackbox_feeds.io.statistics`). `chunk_messages`: most messages of a chunk."""
        self._chunk_messages = chunk_messages
        self._topics = TopicTable(form)
        self._counts = counts
        self._midnight_ns = midnight_ns
        self._rows = numpy.zeros((_LOCATES, _ROW_WORDS), numpy.int32)
        self._stocks = self._rows.view(numpy.int64)

    def chunks(
        self, data: NDArray[numpy.uint8], spans: Spans, *, is_all: bool = True, is_framed: bool = False
    ) -> Iterator[Chunk]:
        """Yield the messages of the spans, and the gaps between them.

        `is_all`: nothing follows the last span. `is_framed`: spans are known to hold complete frames.
        """
        topics, starts, gaps = self._topics, spans.starts, list(spans.gaps)
        self.stop = None
        span, position, why = 0, int(starts[0]) if len(starts) else 0, Reason.FILLED
        span_rows = numpy.zeros(len(starts) + 1, numpy.int64)
        while why == Reason.FILLED:
            columns = Columns.new(self._chunk_messages)
            n, span, position, why = decode_frames(
                data,
                starts,
                spans.ends,
                span,
                position,
                self._midnight_ns,
                self._rows,
                self._stocks,
                topics.at,
                columns,
                is_all,
                is_framed,
                self._counts,
                span_rows,
            )
            topics.settle(columns.topic_index[:n])
            here = []
            while gaps and (why == Reason.END or gaps[0][0] <= span):
                before, missing = gaps.pop(0)
                here.append((int(span_rows[before]) if before < len(starts) else n, missing))
            if n or here:
                yield columns.chunk(n, topics.topics, data, tuple(here))
        if why == Reason.CROWDED:
            raise topics.overflow()
        if why != Reason.END:
            self.stop = Stop(position, why)


def describe(stop: Stop, data: NDArray[numpy.uint8], path: str, offset: int) -> str:
    """Describe an invalid frame; `offset`: offset of `data` in the file."""
    where = f"{path}: no valid message starts at byte {offset + stop.position}"
    if stop.why == Reason.END_MARK:
        return f"{where}: its length was 0, expected {_SHORTEST_FRAME - 2} or more"
    kind = bytes([data[stop.position + 2]])
    if stop.why == Reason.BAD_TYPE:
        return f"{where}: its type was {kind!r}, expected one of {''.join(SCHEMA.records)}"
    length = int.from_bytes(data[stop.position : stop.position + 2].tobytes(), "big")
    expected = SCHEMA.records[kind.decode()].itemsize
    return f"{where}: its length was {length}, expected {expected} for type {kind.decode()}"
