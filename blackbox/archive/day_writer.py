"""Write a day from columns, without sockets: the same blocks, journals and indexes as a recorder's.

Nobody sends such blocks. So their `ts_out` and `ts_recv` are the latest `ts_event` so far of their slice, and not
before the session date begins; a time a day or more behind its end does not count. The epoch is when the session date
begins: a day that is written again has the same numbers.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy
from numpy.typing import NDArray

from blackbox.archive.append import append
from blackbox.archive.append_rows import Journal, put_rows
from blackbox.archive.codec import BLOCK_BYTES, Compression, check_packing
from blackbox.archive.day import Manifest, day_end_ns
from blackbox.archive.format import SEGMENT_BYTES
from blackbox.archive.journal_writer import WRITER_NEEDS, JournalWriter
from blackbox.block.block import Block, as_rows, as_topic_index, distinct_scratch
from blackbox.block.block_handler import CONTROL
from blackbox.block.encode import Origin, Rows, TopicTable
from blackbox.block.format import FLAG_END, HEADER_BYTES, HEARTBEAT_KEY
from blackbox.errors import ConfigError, JournalError
from blackbox.feed.feed import Feed
from blackbox.feed.schema import load_schema
from blackbox.native.limits import check_limits
from blackbox.publish.batcher import Encoder, group_by_key, make_selection, select_rows
from blackbox.transport.wakeup import PIPE_NEEDS, Pipe

_ROWS: Final = 1 << 17
"""Messages that are grouped by key at a time, where a slice has one key."""
_ROWS_OF_KEYS: Final = 1 << 20
"""The same where it has many: more messages of each then share a block."""
_GATHERED_BYTES: Final = 64 << 20
_SPARE_BYTES: Final = 64 << 10
_FAR_NS: Final = 1 << 62
_DAY: Final = datetime.timedelta(1)
_DAY_NS: Final = 86_400 * 10**9


class DayWriter:
    """Write messages in columns into the journals of a day, in the order in which they are put.

    Attributes: `messages`, how many were put; `outside`, how many of them have a time outside of the session date.
    Used by one thread, in a `with` block; what it leaves after an error is no day.
    """

    def __init__(
        self,
        day: Path,
        feed: Feed,
        date: datetime.date,
        *,
        compression: Compression = "none",
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        """Begin a day in an empty directory.

        Raises as `compact` for a setting, ConfigError for a date before 1970, OSError when it cannot be written.
        """
        check_packing(compression, block_bytes)
        self.messages = self.outside = 0
        self._begin_ns, self._end_ns = day_end_ns(feed, date - _DAY), day_end_ns(feed, date)
        if self._begin_ns <= 0:  # it is the epoch
            raise ConfigError(f"date was {date}, expected one that begins after 1970-01-01 00:00 UTC")
        self._feed, self._block_bytes = feed, block_bytes
        self._rows = _ROWS_OF_KEYS if feed.key_bytes else _ROWS
        self._topics = _Topics(feed, self._rows)
        self._columns: list[tuple[NDArray[Any], ...]] = []
        self._alive: list[Any] = []
        self._gathered_rows = self._gathered_bytes = 0
        self._body = numpy.zeros((block_bytes + _SPARE_BYTES) // 8, numpy.int64)
        check_limits(f"a day of feed {feed.name!r}", PIPE_NEEDS, *[WRITER_NEEDS] * len(feed.slices))
        Manifest.new(feed, date, time.time_ns()).write(day)
        schema_id, pipe = load_schema(feed.schema).schema_id, Pipe()
        self._slices: list[_Slice] = []
        for slice_id in range(len(feed.slices)):
            writer = JournalWriter(
                slice_id, feed.key_bytes, SEGMENT_BYTES, False, compression, pipe, lambda _: (day, _FAR_NS)
            )
            origin = Origin(schema_id, slice_id, feed.key_bytes, self._begin_ns)
            self._slices.append(_Slice(writer, origin, self._end_ns + _DAY_NS))

    def put(
        self,
        topics: Sequence[bytes],
        topic_index: Any,
        payloads: Any,
        ts_event: Any = None,
        offsets: Any = None,
        lengths: Any = None,
        valid: Any = None,
    ) -> None:
        """Append messages in columns, the same as those of `Publisher.publish_many`. They may be kept until `close`.

        Raises ValueError naming a column that does not fit, ConfigError as `Publisher.publish`, JournalError when the
        disk refuses a write.
        """
        index = as_topic_index(topic_index, topics)
        count = len(index)
        rows, (data, times, starts, sizes, _) = as_rows(payloads, ts_event, offsets, lengths, count, valid=valid)
        if not rows.starts:
            starts = numpy.arange(count, dtype=numpy.int64) * rows.stride
            sizes = numpy.full(count, rows.stride, numpy.int32)
        if not rows.ts_event:
            times = numpy.zeros(count, numpy.int64)
        is_outside = (times < self._begin_ns) | (times >= self._end_ns)
        self.messages += count
        self.outside += int(numpy.count_nonzero(is_outside & (times != 0)))
        # Payloads go by their address, so that rows of several buffers can be put together.
        self._columns.append((self._topics.numbers_of(topics)[index], times, starts + rows.payloads, sizes))
        self._alive.append(data)
        self._gathered_rows += count
        self._gathered_bytes += int(sizes.sum(dtype=numpy.int64))
        if self._gathered_rows >= self._rows or self._gathered_bytes >= _GATHERED_BYTES:
            self._write_gathered()

    def close(self) -> None:
        """Write what was put, mark the end of the run, and make all of it durable. Raises JournalError."""
        self._write_gathered()
        for each in self._slices:
            each.end(self._topics.keys)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.close()
        finally:
            for each in self._slices:
                each.writer.close()

    def _write_gathered(self) -> None:
        if not self._columns:
            return
        index, times, starts, sizes = (numpy.concatenate(column) for column in zip(*self._columns, strict=True))
        rows = Rows(times.ctypes.data, 0, starts.ctypes.data, sizes.ctypes.data, 0, 0)
        for start in range(0, len(index), self._rows):
            for each in self._slices:
                self._write(each, index, rows, start, min(start + self._rows, len(index)))
        self._columns.clear()
        self._alive.clear()
        self._gathered_rows = self._gathered_bytes = 0

    def _write(self, to: _Slice, index: NDArray[numpy.int32], rows: Rows, start: int, stop: int) -> None:
        """Append those of rows `[start, stop)` that are of a slice."""
        topics = self._topics
        encoder = topics.encoder(self._block_bytes, self._feed.checksum, to.origin)
        slice_id = to.origin.slice_id
        index_at = index.ctypes.data
        count = select_rows(encoder.selection, index_at, start, stop, topics.slice_of, topics.itself, slice_id)
        groups = group_by_key(encoder.selection, count, topics.key_of, len(topics.keys))
        at = 0
        to.next_sequence = _grown(to.next_sequence, len(topics.keys))
        while at < count:
            journal = Journal(to.writer.state.address, to.header.ctypes.data, self._body.ctypes.data, self._body.nbytes)
            at, needed = put_rows(journal, encoder, rows, groups, at, to.next_sequence, to.clock)
            to.check()
            if needed:
                self._body = numpy.zeros(needed // 8 + 1, numpy.int64)
        to.writer.tend()
        to.writer.sync(what_is_written=False)


class _Slice:
    """A slice's journal, and how far its messages have come."""

    def __init__(self, writer: JournalWriter, origin: Origin, limit_ns: int) -> None:
        self.writer, self.origin = writer, origin
        self.header = numpy.zeros(HEADER_BYTES // 8, numpy.int64)
        self.clock = numpy.array([origin.epoch, limit_ns], numpy.int64)
        self.next_sequence = numpy.zeros(1, numpy.int64)
        writer.state.started = origin.epoch

    def check(self) -> None:
        """Raise JournalError when the disk refused a write."""
        if self.writer.error:
            raise JournalError(f"{self.writer.error}; the day is not written")

    def end(self, keys: dict[bytes, int]) -> None:
        """Note that nothing follows: what a publisher's last heartbeat tells a recorder. Then close."""
        now = int(self.clock[0])
        used = {
            key: int(self.next_sequence[number]) for key, number in keys.items() if number < len(self.next_sequence)
        }
        block = Block.encode_sequences(
            HEARTBEAT_KEY,
            {key: number for key, number in used.items() if number},
            slice_id=self.origin.slice_id,
            epoch=self.origin.epoch,
            ts_out=now,
            key_bytes=self.origin.key_bytes,
            flags=FLAG_END,
        )
        header = numpy.frombuffer(block.header, numpy.uint8)
        state = self.writer.state
        state.kind, state.head, state.body, state.body_bytes = (
            CONTROL,
            header.ctypes.data,
            block.body.ctypes.data,
            block.body.nbytes,
        )
        state.first_row, state.held, state.ts_recv = 0, 0, now
        append(state.address)
        self.check()
        self.writer.close()
        self.check()


class _Topics:
    """The topics of a day, numbered as they come, and what compiled code needs to know of them."""

    def __init__(self, feed: Feed, rows: int) -> None:
        self.keys: dict[bytes, int] = {}
        self.slice_of, self.key_of, self.itself = (numpy.zeros(0, numpy.int32) for _ in range(3))
        self._feed, self._rows = feed, rows
        self._numbers: dict[bytes, int] = {}
        self._given: Sequence[bytes] = ()
        self._of_given = numpy.zeros(0, numpy.int32)
        self._text = numpy.zeros(0, numpy.uint8)
        self._ends = numpy.zeros(1, numpy.int64)
        self._sizes = numpy.zeros(0, numpy.int32)
        self._take_more(1_024)

    def numbers_of(self, topics: Sequence[bytes]) -> NDArray[numpy.int32]:
        """Return the numbers of a source's topics. Raises ConfigError when one cannot be published."""
        if topics is not self._given:
            # They grow at the end: those before are the same objects, and compared in no time.
            known = len(self._given) if tuple(topics[: len(self._given)]) == self._given else 0
            fresh = topics[known:]
            self._add([topic for topic in dict.fromkeys(fresh) if topic not in self._numbers])
            numbers = numpy.fromiter(map(self._numbers.__getitem__, fresh), numpy.int32, len(fresh))
            self._of_given = numpy.concatenate([self._of_given[:known], numbers])
            self._given = tuple(topics)
        return self._of_given

    def encoder(self, block_bytes: int, checksum: bool, origin: Origin) -> Encoder:
        """Return what blocks of a slice are encoded with."""
        table = TopicTable(self._text, self._ends, self._sizes)
        return Encoder(self._selection, table, self.key_of, self._distinct, block_bytes, checksum, origin)

    def _add(self, topics: list[bytes]) -> None:
        """Number topics that are not known yet."""
        if not topics:
            return
        feed, start, count = self._feed, len(self._numbers), len(topics)
        slices = numpy.fromiter(map(feed.slice_of, topics), numpy.int32, count)
        stop = start + count
        if stop > feed.max_topics * len(feed.slices):
            raise ConfigError(f"topics were {stop} or more, expected at most {feed.max_topics} (max_topics) a slice")
        if stop > len(self.itself):
            self._take_more(stop)
        sizes = numpy.fromiter(map(len, topics), numpy.int32, count)
        begin = int(self._ends[start])
        self._ends[start + 1 : stop + 1] = begin + numpy.cumsum(sizes)
        end = int(self._ends[stop])
        self._text = _grown(self._text, end)
        self._text[begin:end] = numpy.frombuffer(b"".join(topics), numpy.uint8)
        self._sizes[start:stop], self.slice_of[start:stop] = sizes, slices
        self.key_of[start:stop] = [self.keys.setdefault(feed.key_of(topic), len(self.keys)) for topic in topics]
        self._numbers.update(zip(topics, range(start, stop), strict=True))

    def _take_more(self, topics: int) -> None:
        """Make room for so many, and for twice as many as there was."""
        room = max(topics, 2 * len(self.itself))
        self.slice_of, self.key_of, self._sizes = (
            _grown(each, room) for each in (self.slice_of, self.key_of, self._sizes)
        )
        self._ends = _grown(self._ends, room + 1)
        self.itself = numpy.arange(room, dtype=numpy.int32)
        self._selection = make_selection(self._rows, room)
        self._distinct = distinct_scratch(room)


def _grown(array: NDArray[Any], size: int) -> NDArray[Any]:
    """Return an array of at least this size that begins with what is there."""
    if size <= len(array):
        return array
    more = numpy.zeros(max(size, 2 * len(array)), array.dtype)
    more[: len(array)] = array
    return more
