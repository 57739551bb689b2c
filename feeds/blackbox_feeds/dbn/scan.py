"""Compiled: read a DBN record stream, with the position, time and instrument of each record.

    length 1, in units of 4 bytes | rtype 1 | publisher_id 2 | instrument_id 4 | ts_event 8 | ...

Payloads are not copied, except for records that are upgraded to the newest version.

The time of a message is the one at which its content was known:

    trades, MBP, MBO                       ts_event: the venue's time of the event
    records of a snapshot (F_SNAPSHOT)     ts_recv: the time of the snapshot; ts_event is that of an older order
    sampled quotes (BBO, CBBO)             ts_recv: the end of the interval; ts_event is that of the last trade
    consolidated quotes (CMBP-1, TCBBO)    ts_recv: one venue's event with quotes of others, which may be later
    status, definition, statistics, imbalance
                                           ts_recv: the venue repeats old ones, with the first ts_event
    OHLCV                                  ts_event plus the interval: the end of the bar
    mapping, system, error                 ts_event: when the gateway sent it

A record without that time has the other one, or else the time of the previous record. No message has a time before that
of the first mapping in the stream, because the gateway's messages were not known earlier.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from enum import IntEnum
from typing import Any, Final

import numpy
from numpy.typing import NDArray

from blackbox.errors import SourceError
from blackbox.feed.routing.symbol import MARKET_SYMBOL
from blackbox.feed.source import Chunk
from blackbox.native.compile.jit import njit
from blackbox_feeds.dbn.mapped_names import UNNAMED, MappedAt, MappedNames, has_mappings, mapped_name, note_mapping
from blackbox_feeds.dbn.metadata import DbnMetadata, databento_dbn, two_symbols
from blackbox_feeds.dbn.records import (
    F_BAD_TS_RECV,
    F_MAYBE_BAD_BOOK,
    F_SNAPSHOT,
    METADATA_RTYPE,
    NAMES,
    NEWEST,
    TS_OUT_BYTES,
    TYPED,
    lengths_of,
)
from blackbox_feeds.io.columns import Columns, put_row
from blackbox_feeds.io.integers import little_32, little_64
from blackbox_feeds.io.template import TopicForm
from blackbox_feeds.io.topics import FULL, SYSTEM_SYMBOL, SymbolTopics, TopicsAt, key_number


class Reason(IntEnum):
    """Why reading stopped.

    No more bytes, full columns, too many topics, an incomplete record, an unknown type, a wrong length. SOUND: none.
    """

    END = 0
    FILLED = 1
    CROWDED = 2
    PARTIAL = 3
    BAD_TYPE = 4
    BAD_LENGTH = 5
    SOUND = 6


_INSTRUMENT_AT, _TS_EVENT_AT = 4, 8
_MAPPING: Final = TYPED["symbol-mapping"][0]
_FIRST_INSTRUMENT = 2
"""Offset of instruments in the keys of topics. 0 and 1 have other meanings; negative keys are mapped names."""
_SEGMENTS: Final = 0x7FFFFF00
"""Mask of the segment of time in a key's tag. An instrument has one symbol in a segment."""

_LENGTH, _RECEIVED_AT, _BY_RECEIPT, _DELAY, _FLAGS_AT, _FLAGS, _IS_OLD = range(7)
"""Columns of the table of types: the length (0: no such type), the offset of `ts_recv` (or else `ts_event`), 1 if a
message has its time, the addition to the time, the offset of the flags, the flags that count, and 1 if records are
upgraded."""
_COLUMNS: Final = 7

_TIME, _BAD_RECEIPT, _BAD_RECEIPT_IN_SNAPSHOT, _BAD_BOOK, _OLD, _DELAYED, _LIVE_SINCE = range(7)
"""State of the kernel between calls: the time of the last record, counts, and the time of the first mapping."""

_BAD: Final = F_BAD_TS_RECV | F_MAYBE_BAD_BOOK
_AT_THE_EVENT: Final = ("trades", "mbp-1", "mbp-10", "mbo")
"""Types with a `ts_recv` whose content was known at `ts_event`."""
_SECOND: Final = 1_000_000_000
_DAY: Final = 86_400 * _SECOND
_INTERVALS: Final = {
    "ohlcv": _DAY,
    "ohlcv-1s": _SECOND,
    "ohlcv-1m": 60 * _SECOND,
    "ohlcv-1h": 3_600 * _SECOND,
    "ohlcv-1d": _DAY,
    "ohlcv-eod": _DAY,
}
"""Length of the bars of each type, in ns. The old type `ohlcv` has none; a session is at most a day."""
_LATEST: Final = (1 << 63) - 1 - _DAY


def _types(metadata: DbnMetadata) -> NDArray[numpy.int64]:
    """Return int64[256, _COLUMNS]: the kernel's table of types in a stream."""
    table = numpy.zeros((256, _COLUMNS), numpy.int64)
    table[:, _RECEIVED_AT] = _TS_EVENT_AT
    lengths = lengths_of(metadata.version)
    for name, (rtype, dtype) in TYPED.items():
        fields: Any = dtype.fields
        row = table[rtype]
        row[_LENGTH], row[_IS_OLD] = lengths[rtype], lengths[rtype] != dtype.itemsize
        row[_DELAY] = _INTERVALS.get(name, 0)
        if "ts_recv" in fields:
            row[_RECEIVED_AT], row[_BY_RECEIPT] = fields["ts_recv"][1], name not in _AT_THE_EVENT
        if "flags" in fields:
            row[_FLAGS_AT], row[_FLAGS] = fields["flags"][1], F_SNAPSHOT | _BAD
    table[TYPED["ohlcv"][0], _DELAY] = _INTERVALS.get(metadata.schema or "", _DAY)
    return table


@njit(nogil=True, cache=True)
def _segment(bounds: NDArray[numpy.int64], time: int, near: int) -> int:
    """Return the number of `bounds` that are not after `time`; `near` is a guess."""
    if (near == 0 or bounds[near - 1] <= time) and (near == len(bounds) or time < bounds[near]):
        return near
    return numpy.searchsorted(bounds, time, "right")


@njit(inline="always")
def _first_known(time: int, other: int, last: int) -> int:
    """Return the first of these that is defined: an undefined time is negative."""
    return time if time > 0 else other if other > 0 else last


@njit(inline="always")
def _fault_at(data: NDArray[numpy.uint8], position: int, appended: int, types: NDArray[numpy.int64]) -> int:
    """Return why no record can be read at `position`, or Reason.SOUND."""
    if position + 2 > len(data):
        return Reason.PARTIAL
    size = 4 * numpy.int64(data[position])
    expected = types[data[position + 1], _LENGTH]
    if expected == 0:
        return Reason.BAD_TYPE
    if size - appended != expected:
        return Reason.BAD_LENGTH
    return Reason.PARTIAL if position + size > len(data) else Reason.SOUND


@njit(nogil=True, cache=True)
def scan_records(
    data: NDArray[numpy.uint8],
    position: int,
    appended: int,
    types: NDArray[numpy.int64],
    bounds: NDArray[numpy.int64],
    mapped: MappedAt,
    topics: TopicsAt,
    columns: Columns,
    kept: NDArray[numpy.int64],
) -> tuple[int, int, int]:
    """Read records from `position` on, until the columns are full; each has `appended` bytes at its end.

    Returns (records, position, why it stopped).
    """
    n = 0
    segment = 0
    is_mapped = has_mappings(mapped)
    while position < len(data):
        if n == len(columns.starts):
            return n, position, Reason.FILLED
        fault = _fault_at(data, position, appended, types)
        if fault != Reason.SOUND:
            return n, position, fault
        size = 4 * numpy.int64(data[position])
        rtype = numpy.int64(data[position + 1])
        happened = little_64(data, position + _TS_EVENT_AT)
        received = little_64(data, position + types[rtype, _RECEIVED_AT])
        flags = data[position + types[rtype, _FLAGS_AT]] & types[rtype, _FLAGS]
        if types[rtype, _BY_RECEIPT] != 0 or flags & F_SNAPSHOT != 0:
            time = _first_known(received, happened, kept[_TIME])
        else:
            time = _first_known(happened, received, kept[_TIME])
        instrument = little_32(data, position + _INSTRUMENT_AT)
        named_at = _first_known(received, happened, time)
        if types[rtype, _DELAY] != 0 and happened > 0:
            time = min(happened, _LATEST) + types[rtype, _DELAY]
            kept[_DELAYED] += 1
        if rtype == _MAPPING:
            if not is_mapped:
                kept[_LIVE_SINCE] = time
            is_mapped = True
            name = note_mapping(mapped, data, position, size - appended, instrument)
        else:
            name = mapped_name(mapped, instrument, named_at) if is_mapped else UNNAMED
        if name == UNNAMED:
            segment = _segment(bounds, named_at, segment)
            number = key_number(topics, instrument + _FIRST_INSTRUMENT, rtype | segment << 8)
        else:
            number = FULL if name == FULL else key_number(topics, -name, rtype)
        if number == FULL:
            return n, position, Reason.CROWDED
        time = max(time, kept[_LIVE_SINCE])
        put_row(columns, n, number, time, position, size)
        kept[_TIME] = time
        kept[_OLD] += types[rtype, _IS_OLD]
        if flags & _BAD != 0:
            kept[_BAD_RECEIPT] += flags & F_BAD_TS_RECV != 0
            kept[_BAD_RECEIPT_IN_SNAPSHOT] += flags & F_BAD_TS_RECV != 0 and flags & F_SNAPSHOT != 0
            kept[_BAD_BOOK] += flags & F_MAYBE_BAD_BOOK != 0
        position += size
        n += 1
    return n, position, Reason.END


class _Topics(SymbolTopics):
    """Topics by instrument, segment of time and type, or by mapped name and type."""

    def __init__(self, form: TopicForm, metadata: DbnMetadata, mapped: MappedNames) -> None:
        super().__init__(form, self._topic)
        kinds = (0xFF if "type" in form.names else 0) | (_SEGMENTS if "symbol" in form.names else 0)
        self.at = self.at._replace(known_mask=kinds, unknown_mask=kinds)
        self._metadata = metadata
        self._mapped = mapped
        self._types = {rtype: name.encode() for rtype, name in NAMES.items()} | {METADATA_RTYPE: b"metadata"}
        if metadata.schema == "tbbo":
            self._types[TYPED["mbp-1"][0]] = b"tbbo"
        self._names: set[bytes] = set()
        self._numbers: set[bytes] = set()

    def _topic(self, symbol: int, tag: int) -> bytes:
        if symbol == SYSTEM_SYMBOL:
            return metadata_topic(self._form)
        rtype, segment, instrument = tag & 0xFF, tag >> 8, symbol - _FIRST_INSTRUMENT
        if "symbol" not in self._form.names or instrument == 0:
            name = MARKET_SYMBOL  # messages of the gateway concern no instrument
        elif symbol < 0:
            mapped_to, (name, *more) = self._mapped.names(-symbol)
            if more:
                raise two_symbols(self._metadata.path, mapped_to, name, *more)
            self._checked(name)
        else:
            found = self._metadata.symbol(instrument, segment)
            name = self._number(b"%d" % instrument) if found is None else self._checked(found)
        return self._form.topic(name, self._types.get(rtype, b""), 0)

    def _checked(self, name: bytes) -> bytes:
        """Return the venue's symbol. Raises SourceError if it cannot be used unchanged."""
        try:
            name.decode()
        except UnicodeDecodeError:
            raise self._refusal(name, "it is not UTF-8") from None
        if b"\0" in name:
            raise self._refusal(name, "it has a zero byte")
        if name == MARKET_SYMBOL:
            raise self._refusal(name, "it is reserved for the whole market")
        if name in self._numbers:
            raise self._refusal(name, "another instrument without a symbol has this number")
        self._names.add(name)
        return name

    def _number(self, name: bytes) -> bytes:
        """Return the name of an instrument without a symbol. Raises SourceError if it is another one's symbol."""
        if name in self._names:
            raise self._refusal(name, "another instrument without a symbol has this number")
        self._numbers.add(name)
        return name

    def _refusal(self, name: bytes, why: str) -> SourceError:
        return SourceError(
            f"{self._metadata.path}: the symbol {name!r} cannot be that of a topic: {why}; choose a topic template "
            "without {symbol}"
        )


def metadata_topic(form: TopicForm) -> bytes:
    """Return the topic of the message that holds a stream's metadata."""
    return form.topic(MARKET_SYMBOL, b"metadata", 0)


class RecordReader:
    """Turns records into chunks; one object per iteration. Remembers topics between calls."""

    position = 0
    """After `chunks`: the position in the data at which it ended."""
    stopped: Reason = Reason.END
    """After `chunks`: the reason for its end."""

    def __init__(self, form: TopicForm, metadata: DbnMetadata) -> None:
        self._metadata = metadata
        self._mapped = MappedNames()
        self._topics = topics = _Topics(form, metadata, self._mapped)
        self._types = _types(metadata)
        self._bounds = numpy.array(metadata.bounds, numpy.int64)
        self._appended = TS_OUT_BYTES if metadata.ts_out else 0
        self._kept = numpy.zeros(7, numpy.int64)
        self._kept[_TIME] = metadata.start
        number = key_number(topics.at, SYSTEM_SYMBOL, METADATA_RTYPE)
        index = numpy.array([number], numpy.int32)
        topics.settle(index)
        payload = numpy.frombuffer(metadata.payload, numpy.uint8)
        time, start = numpy.array([metadata.start]), numpy.zeros(1, numpy.int64)
        self._head = Chunk(topics.topics, index, time, payload, start, numpy.array([len(payload)], numpy.int32))

    def head(self, first: Chunk | None) -> Chunk:
        """Return the metadata as a message, with the time of the first record."""
        return self._head if first is None else self._head._replace(ts_event=first.ts_event[:1])

    def chunks(self, data: NDArray[numpy.uint8], position: int) -> Iterator[Chunk]:
        """Yield the records of `data` from `position` on."""
        topics, mapped = self._topics, self._mapped.at
        self.position, self.stopped = position, Reason.FILLED
        while self.stopped == Reason.FILLED:
            columns = Columns.new()
            self._kept[[_OLD, _DELAYED]] = 0
            n, self.position, self.stopped = scan_records(
                data,
                self.position,
                self._appended,
                self._types,
                self._bounds,
                mapped,
                topics.at,
                columns,
                self._kept,
            )
            topics.settle(columns.topic_index[:n])
            if n:
                chunk = columns.chunk(n, topics.topics, data)
                yield self._upgraded(chunk) if self._kept[_OLD] else chunk
        if self.stopped == Reason.CROWDED:
            raise topics.overflow()

    def delays(self, chunk: Chunk) -> NDArray[numpy.int64] | None:
        """Return how much later the time of each message in the last chunk is than its position in the file, or None.

        It is None if all are in order, and in files with bars only, which are ordered by their ends.
        """
        is_of_bars = self._metadata.schema in _INTERVALS
        return (
            self._types[chunk.payloads[chunk.starts + 1], _DELAY] if self._kept[_DELAYED] and not is_of_bars else None
        )

    def _upgraded(self, chunk: Chunk) -> Chunk:
        """Return a copy of a chunk with all records in the layouts of the newest version."""
        kinds = self._types[chunk.payloads[chunk.starts + 1]]
        old = numpy.flatnonzero(kinds[:, _IS_OLD])
        ends = chunk.starts + chunk.lengths
        # Others are copied only if there are any.
        first, last = (0, 0) if len(old) == len(ends) else (int(chunk.starts[0]), int(ends[-1]))
        data = chunk.payloads.data
        records = b"".join(
            [data[start:end] for start, end in zip(chunk.starts[old].tolist(), ends[old].tolist(), strict=True)]
        )
        made = numpy.frombuffer(_upgraded(records, self._metadata), numpy.uint8)
        newest = lengths_of(NEWEST)
        lengths, starts = chunk.lengths.copy(), chunk.starts - first
        lengths[old] = numpy.array([newest[rtype] for rtype in chunk.payloads[chunk.starts[old] + 1].tolist()])
        lengths[old] += self._appended
        starts[old] = last - first + numpy.cumsum(lengths[old], dtype=numpy.int64) - lengths[old]
        payloads = numpy.concatenate([chunk.payloads[first:last], made])
        return chunk._replace(payloads=payloads, starts=starts, lengths=lengths)

    def notes(self) -> tuple[str, ...]:
        """Return a line for each flag of data quality that occurred."""
        receipts, in_snapshots, books = self._kept[[_BAD_RECEIPT, _BAD_RECEIPT_IN_SNAPSHOT, _BAD_BOOK]].tolist()
        told = []
        if receipts:
            told.append(
                f"records without an exact ts_recv (F_BAD_TS_RECV): {receipts}, {in_snapshots} of them in "
                "snapshots (it is the time of the snapshot)"
            )
        if books:
            told.append(f"records after lost messages of the venue (F_MAYBE_BAD_BOOK): {books}")
        return tuple(told)

    def complaint(self, data: NDArray[numpy.uint8]) -> str | None:
        """Describe what is wrong with the record at `position`; None if nothing is."""
        if self.stopped not in {Reason.BAD_TYPE, Reason.BAD_LENGTH}:
            return None
        size, rtype = data[self.position : self.position + 2].tolist()
        if self.stopped == Reason.BAD_TYPE:
            known = ", ".join(f"{number:#04x} ({name})" for number, name in sorted(NAMES.items()))
            return f"its rtype was {rtype:#04x}, expected one of: {known}"
        expected = int(self._types[rtype, _LENGTH]) + self._appended
        return f"its length was {4 * size}, expected {expected} for {NAMES[rtype]} in version {self._metadata.version}"


def _upgraded(records: bytes, metadata: DbnMetadata) -> bytes:
    """Return records in the layouts of the newest version."""
    library: Any = databento_dbn()
    made = io.BytesIO()
    transcoder = library.Transcoder(
        made,
        library.Encoding.DBN,
        library.Compression.NONE,
        has_metadata=False,
        ts_out=metadata.ts_out,
        input_version=metadata.version,
        upgrade_policy=library.VersionUpgradePolicy.UPGRADE_TO_V3,
    )
    transcoder.write(records)
    transcoder.flush()
    return made.getvalue()
