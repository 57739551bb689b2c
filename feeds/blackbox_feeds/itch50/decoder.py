"""The compiled ITCH 5.0 decoder: length-prefixed messages to topic, time and payload columns.

    ... | length 2 | message | length 2 | message | ...        lengths are big-endian

The bytes come as spans, each a run of whole frames: a plain file is one span, a MoldUDP64 datagram
another. Payloads are not copied. A stock is known by its locate: each message that carries a stock
teaches it, so that one without can be given its symbol.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy
from numpy.typing import NDArray

from blackbox.feed.source import Chunk
from blackbox.native.intrinsics import prefetch
from blackbox.native.jit import njit
from blackbox_feeds.io.columns import Columns, put_row
from blackbox_feeds.io.integers import big_16, big_64, little_64
from blackbox_feeds.io.template import TopicForm
from blackbox_feeds.io.topics import FULL, SYSTEM_SYMBOL, TopicsAt, TopicTable, key_number
from blackbox_feeds.itch50.messages import SCHEMA, SYSTEM_TYPES

END, FILLED, CROWDED, PARTIAL, END_MARK, BAD_TYPE, BAD_LENGTH = range(7)
"""Why the kernel stopped: no more spans, full columns, too many topics, a frame that its span
does not hold whole, a length of 0, a type that there is not, a length that is not its type's."""

_BLANK_STOCK = 0x2020202020202020
_TIMESTAMP_MASK = (1 << 48) - 1
_SHORTEST_FRAME = 14
_LOCATES = 1 << 16

_NO_STOCK = 3
"""Where the eight bytes in place of a stock are read from a message that has none: anywhere."""

# What is known of a locate is one row of 32 words: its stock (two words), then for each message
# type the topic's number plus one, 0 when not known yet. The types that make up nearly all of a day
# share the first of the row's two cache lines.
_ROW_WORDS = 32
_ROW_BYTES = 4 * _ROW_WORDS
_FIRST_COLUMN = 2
_COMMON_TYPES = "ADUEFXPCIQLRHY"


def _layout() -> NDArray[numpy.int64]:
    """By type byte: length (-1: no such type), offset of the stock, whether it has one, column."""
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
"""So many frames before it is needed, what is known of a locate is brought into the cache."""
_SYSTEM_BYTES = tuple(SYSTEM_TYPES.encode())


@njit(nogil=True, cache=True)
def _what_is_wrong(data: NDArray[numpy.uint8], position: int, end: int) -> int:
    """Return why no whole, valid frame starts at `position`."""
    if position + 2 <= end and big_16(data, position) == 0:
        return END_MARK
    if position + 3 > end:
        return PARTIAL
    size = _LAYOUT[data[position + 2], _SIZE]
    if size < 0:
        return BAD_TYPE
    return BAD_LENGTH if size != big_16(data, position) else PARTIAL


@njit(nogil=True, cache=True)
def _learn(
    data: NDArray[numpy.uint8],
    start: int,
    rows: NDArray[numpy.int32],
    stocks: NDArray[numpy.int64],
    topics: TopicsAt,
) -> int:
    """Return the key's number, or `FULL`, of a message whose stock or topic is new to its locate's row."""
    kind = data[start]
    locate = big_16(data, start + 1)
    if _LAYOUT[kind, _HAS_STOCK]:
        stock = little_64(data, start + _LAYOUT[kind, _STOCK])
        if stock not in (_BLANK_STOCK, stocks[locate, 0]):
            rows[locate] = 0
            stocks[locate, 0] = stock
    symbol = SYSTEM_SYMBOL if kind in _SYSTEM_BYTES else stocks[locate, 0]
    number = key_number(topics, symbol, kind | locate << 8)
    if number != FULL:
        rows[locate, _LAYOUT[kind, _COLUMN]] = number + 1
    return number


@njit(inline="always")
def _look_ahead(data: NDArray[numpy.uint8], ahead: int, end: int, rows_at: int) -> int:
    """Have what is known of the locate of the frame at `ahead` brought into the cache; return where the next begins."""
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
) -> tuple[int, int, int, int]:
    """Decode from `position` in span number `span` on, until the columns are full.

    `rows` and `stocks` are two views of what is known of each locate. Returns (messages, span,
    position, why it stopped). Nothing is read outside the spans.
    """
    n = 0
    rows_at = rows.ctypes.data
    while span < len(span_starts):
        end = span_ends[span]
        ahead = position
        for _ in range(_FRAMES_AHEAD):
            ahead = _look_ahead(data, ahead, end, rows_at)
        while position < end:
            if n == len(columns.starts):
                return n, span, position, FILLED
            if position + _SHORTEST_FRAME > end:
                return n, span, position, _what_is_wrong(data, position, end)
            # The place of the next frame hangs on this length alone, so that the processor can run
            # ahead of everything else that is looked up here.
            size = big_16(data, position)
            start = position + 2
            layout = _LAYOUT[data[start]]
            ahead = _look_ahead(data, ahead, end, rows_at)
            if size != layout[_SIZE] or start + size > end:
                return n, span, position, _what_is_wrong(data, position, end)
            locate = big_16(data, start + 1)
            number = rows[locate, layout[_COLUMN]] - 1
            other = little_64(data, start + layout[_STOCK]) != stocks[locate, 0]
            if number < 0 or (layout[_HAS_STOCK] != 0) & other:
                number = _learn(data, start, rows, stocks, topics)
                if number == FULL:
                    return n, span, position, CROWDED
            put_row(columns, n, number, midnight_ns + (big_64(data, start + 3) & _TIMESTAMP_MASK), start, size)
            position = start + size
            n += 1
        span += 1
        if span < len(span_starts):
            position = span_starts[span]
    return n, span, position, END


class Stop(NamedTuple):
    """Where decoding ended before the end of its spans, and why."""

    position: int
    why: int


class FrameDecoder:
    """Turn spans of length-prefixed ITCH messages into chunks; one object per iteration.

    Remembers topics and the stocks of locates from call to call.
    """

    stop: Stop | None = None
    """After `chunks`: None when all spans were used up, else where it ended and why."""

    def __init__(self, form: TopicForm, midnight_ns: int) -> None:
        self._topics = TopicTable(form)
        self._midnight_ns = midnight_ns
        self._rows = numpy.zeros((_LOCATES, _ROW_WORDS), numpy.int32)
        self._stocks = self._rows.view(numpy.int64)

    def chunks(
        self,
        data: NDArray[numpy.uint8],
        span_starts: NDArray[numpy.int64],
        span_ends: NDArray[numpy.int64],
    ) -> Iterator[Chunk]:
        """Yield the messages of the spans `data[start:end]`, of which there is at least one."""
        topics = self._topics
        self.stop = None
        span, position, why = 0, int(span_starts[0]), FILLED
        while why == FILLED:
            columns = Columns.new()
            n, span, position, why = decode_frames(
                data,
                span_starts,
                span_ends,
                span,
                position,
                self._midnight_ns,
                self._rows,
                self._stocks,
                topics.at,
                columns,
            )
            topics.settle(columns.topic_index[:n])
            if n:
                yield columns.chunk(n, topics.topics, data)
        if why == CROWDED:
            raise topics.overflow()
        if why != END:
            self.stop = Stop(position, why)


def describe(stop: Stop, data: NDArray[numpy.uint8], path: str, offset: int) -> str:
    """Return one sentence on a frame that is not valid; `offset`: where in the file `data` starts."""
    where = f"{path}: no valid message starts at byte {offset + stop.position}"
    if stop.why == END_MARK:
        return f"{where}: its length was 0, expected {_SHORTEST_FRAME - 2} or more"
    kind = bytes([data[stop.position + 2]])
    if stop.why == BAD_TYPE:
        return f"{where}: its type was {kind!r}, expected one of {''.join(SCHEMA.records)}"
    length = int.from_bytes(data[stop.position : stop.position + 2].tobytes(), "big")
    expected = SCHEMA.records[kind.decode()].itemsize
    return f"{where}: its length was {length}, expected {expected} for type {kind.decode()}"
