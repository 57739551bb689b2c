"""The compiled reader of a DBN record stream: where records are, when they were, what they are about.

    length 1, in units of 4 bytes | rtype 1 | publisher_id 2 | instrument_id 4 | ts_event 8 | ...

Payloads are not copied.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy
from numpy.typing import NDArray

from blackbox.feed.source import Chunk
from blackbox.feed.symbol import MARKET_SYMBOL
from blackbox.native.jit import njit
from blackbox_feeds.dbn.metadata import DbnMetadata
from blackbox_feeds.dbn.records import F_SNAPSHOT, LENGTHS, METADATA_RTYPE, NAMES, SCHEMA, TS_OUT_BYTES, TYPED, UNTYPED
from blackbox_feeds.io.columns import Columns, put_row
from blackbox_feeds.io.integers import little_32, little_64
from blackbox_feeds.io.template import TopicForm
from blackbox_feeds.io.topics import FULL, SYSTEM_SYMBOL, SymbolTopics, TopicsAt, key_number, printable

END, FILLED, CROWDED, PARTIAL, BAD_TYPE, BAD_LENGTH = range(6)
"""Why the kernel stopped: no more bytes, full columns, too many topics, a record that is not all there, a type that
there is not, a length that is not its type's."""

_HEADER_BYTES: Final = 16
_INSTRUMENT_AT, _TS_EVENT_AT = 4, 8
_MBO: Final = TYPED["mbo"][0]
_FLAGS_AT: Final = SCHEMA.offset("mbo", "flags")
_FIRST_INSTRUMENT = 2
"""Of the keys of topics: 0 and 1 mean other things."""
_SEGMENTS: Final = 0x7FFFFF00
"""Of a key's tag: where the segment of time stands, in which an instrument has one symbol."""
_MOST_LENGTHS: Final = 3
_TIMED: Final = ("definition", "imbalance", "statistics")
"""Types other than those of `TYPED` that have a `ts_recv`, right behind the header."""


def _lengths() -> NDArray[numpy.int64]:
    """Return int64[256, 3]: the lengths that each type may have; of a type that there is not, 0."""
    table = numpy.zeros((256, _MOST_LENGTHS), numpy.int64)
    for rtype, lengths in LENGTHS.items():
        table[rtype] = (lengths * _MOST_LENGTHS)[:_MOST_LENGTHS]
    return table


def _index_times() -> NDArray[numpy.int64]:
    """Return int64[256]: where in each type the time stands by which a stream is ordered: `ts_recv`, or `ts_event`."""
    table = numpy.full(256, _TS_EVENT_AT, numpy.int64)
    for rtype, dtype in TYPED.values():
        if dtype.fields and "ts_recv" in dtype.fields:
            table[rtype] = dtype.fields["ts_recv"][1]
    table[[UNTYPED[name][0] for name in _TIMED]] = _HEADER_BYTES
    return table


_LENGTHS = _lengths()
_INDEX_TIMES = _index_times()


@njit(nogil=True, cache=True)
def _segment(bounds: NDArray[numpy.int64], time: int, near: int) -> int:
    """Return how many of `bounds` are not after `time`; `near` is a guess."""
    if (near == 0 or bounds[near - 1] <= time) and (near == len(bounds) or time < bounds[near]):
        return near
    return numpy.searchsorted(bounds, time, "right")


@njit(nogil=True, cache=True)
def _is_length(rtype: int, size: int) -> bool:
    lengths = _LENGTHS[rtype]
    return size == lengths[0] or size == lengths[1] or size == lengths[2]


@njit(nogil=True, cache=True)
def scan_records(
    data: NDArray[numpy.uint8],
    position: int,
    appended: int,
    bounds: NDArray[numpy.int64],
    topics: TopicsAt,
    columns: Columns,
) -> tuple[int, int, int]:
    """Read records from `position` on, until the columns are full; each has `appended` bytes at its end.

    Returns (records, position, why it stopped).
    """
    n = 0
    segment = 0
    while position < len(data):
        if n == len(columns.starts):
            return n, position, FILLED
        if position + 2 > len(data):
            return n, position, PARTIAL
        size = 4 * numpy.int64(data[position])
        rtype = data[position + 1]
        if _LENGTHS[rtype, 0] == 0:
            return n, position, BAD_TYPE
        if not _is_length(rtype, size - appended):
            return n, position, BAD_LENGTH
        if position + size > len(data):
            return n, position, PARTIAL
        happened = little_64(data, position + _TS_EVENT_AT)
        indexed = little_64(data, position + _INDEX_TIMES[rtype])
        if rtype == _MBO and data[position + _FLAGS_AT] & F_SNAPSHOT:
            happened = indexed  # what it was told at; its own time is that at which its order came
        segment = _segment(bounds, indexed, segment)
        instrument = little_32(data, position + _INSTRUMENT_AT)
        number = key_number(topics, instrument + _FIRST_INSTRUMENT, numpy.int64(rtype) | segment << 8)
        if number == FULL:
            return n, position, CROWDED
        put_row(columns, n, number, happened if happened >= 0 else max(0, indexed), position, size)
        position += size
        n += 1
    return n, position, END


class _Topics(SymbolTopics):
    """Topics by instrument, segment of time and type."""

    def __init__(self, form: TopicForm, metadata: DbnMetadata) -> None:
        super().__init__(form, self._topic)
        kinds = (0xFF if "type" in form.names else 0) | (_SEGMENTS if "symbol" in form.names else 0)
        self.at = self.at._replace(known_mask=kinds, unknown_mask=kinds)
        self._metadata = metadata
        self._types = {rtype: name.encode() for rtype, name in NAMES.items()} | {METADATA_RTYPE: b"metadata"}
        if metadata.is_tbbo:
            self._types[TYPED["mbp-1"][0]] = b"tbbo"

    def _topic(self, symbol: int, tag: int) -> bytes:
        if symbol == SYSTEM_SYMBOL:
            return metadata_topic(self._form)
        rtype, segment, instrument = tag & 0xFF, tag >> 8, symbol - _FIRST_INSTRUMENT
        # Messages of the gateway are about no instrument.
        name = self._metadata.symbol(instrument, segment) if instrument > 0 else MARKET_SYMBOL
        return self._form.topic(printable(name), self._types.get(rtype, b""), 0)


def metadata_topic(form: TopicForm) -> bytes:
    """Return the topic of the message that holds a stream's metadata."""
    return form.topic(MARKET_SYMBOL, b"metadata", 0)


class RecordReader:
    """Turn records into chunks; one object per iteration. Remembers topics from call to call."""

    position = 0
    """After `chunks`: where it ended in the data."""
    stopped = END
    """After `chunks`: why."""

    def __init__(self, form: TopicForm, metadata: DbnMetadata) -> None:
        self._topics = _Topics(form, metadata)
        self._bounds = numpy.array(metadata.bounds, numpy.int64)
        self._appended = TS_OUT_BYTES if metadata.ts_out else 0
        topics = self._topics
        number = key_number(topics.at, SYSTEM_SYMBOL, METADATA_RTYPE)
        index = numpy.array([number], numpy.int32)
        topics.settle(index)
        payload = numpy.frombuffer(metadata.payload, numpy.uint8)
        time, start = numpy.array([metadata.start]), numpy.zeros(1, numpy.int64)
        self._head = Chunk(topics.topics, index, time, payload, start, numpy.array([len(payload)], numpy.int32))

    def head(self, first: Chunk | None) -> Chunk:
        """Return the metadata as a message; it happened when the earliest of the first records did."""
        if first is None:
            return self._head
        return self._head._replace(ts_event=first.ts_event.min(keepdims=True))

    def chunks(self, data: NDArray[numpy.uint8], position: int) -> Iterator[Chunk]:
        """Yield the records of `data` from `position` on."""
        topics = self._topics
        self.position, self.stopped = position, FILLED
        while self.stopped == FILLED:
            columns = Columns.new()
            n, self.position, self.stopped = scan_records(
                data,
                self.position,
                self._appended,
                self._bounds,
                topics.at,
                columns,
            )
            topics.settle(columns.topic_index[:n])
            if n:
                yield columns.chunk(n, topics.topics, data)
        if self.stopped == CROWDED:
            raise topics.overflow()

    def complaint(self, data: NDArray[numpy.uint8]) -> str | None:
        """Return what is wrong with the record at `position`; None when nothing is."""
        if self.stopped not in {BAD_TYPE, BAD_LENGTH}:
            return None
        size, rtype = data[self.position : self.position + 2].tolist()
        if self.stopped == BAD_TYPE:
            known = ", ".join(f"{number:#04x} ({name})" for number, name in sorted(NAMES.items()))
            return f"its rtype was {rtype:#04x}, expected one of: {known}"
        expected = " or ".join(str(length + self._appended) for length in LENGTHS[rtype])
        return f"its length was {4 * size}, expected {expected} for {NAMES[rtype]}"
