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

from blackbox.archive.append import append
from blackbox.archive.append_rows import Gathered, Journals, gather, put_rows
from blackbox.archive.codec import BLOCK_BYTES, Compression, check_packing
from blackbox.archive.day import Manifest, day_end_ns
from blackbox.archive.format import SEGMENT_BYTES
from blackbox.archive.journal_writer import WRITER_NEEDS, JournalWriter
from blackbox.archive.topic_numbers import TopicNumbers
from blackbox.block.block import Block, as_rows, as_topic_index, distinct_scratch
from blackbox.block.block_handler import CONTROL
from blackbox.block.encode import Origin
from blackbox.block.format import FLAG_END, HEADER_BYTES, HEARTBEAT_KEY
from blackbox.errors import ConfigError, JournalError
from blackbox.feed.feed import Feed
from blackbox.feed.schema import load_schema
from blackbox.native.limits import check_limits
from blackbox.publish.batcher import Encoder, group_by_key, make_selection
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
        self._topics = TopicNumbers(feed)
        self._rows = _ROWS_OF_KEYS if feed.key_bytes else _ROWS
        self._in_order = numpy.arange(self._rows, dtype=numpy.int32)
        self._gathered = Gathered.of(self._rows)
        self._gathered_rows = self._gathered_bytes = 0
        self._alive: list[Any] = []
        self._room = 0
        self._next_sequence = numpy.zeros(0, numpy.int64)
        self._make_room()
        self._header = numpy.zeros(HEADER_BYTES // 8, numpy.int64)
        self._body = numpy.zeros((block_bytes + _SPARE_BYTES) // 8, numpy.int64)
        check_limits(f"a day of feed {feed.name!r}", PIPE_NEEDS, *[WRITER_NEEDS] * len(feed.slices))
        Manifest.new(feed, date, time.time_ns()).write(day)
        self._origin = Origin(load_schema(feed.schema).schema_id, 0, feed.key_bytes, self._begin_ns)
        pipe = Pipe()
        self._writers: list[JournalWriter] = []
        for slice_id in range(len(feed.slices)):
            writer = JournalWriter(
                slice_id, feed.key_bytes, SEGMENT_BYTES, False, compression, pipe, lambda _: (day, _FAR_NS)
            )
            writer.state.started = self._begin_ns
            self._writers.append(writer)
        self._states = numpy.array([writer.state.address for writer in self._writers], numpy.int64)
        self._clocks = numpy.full(len(self._writers), self._begin_ns, numpy.int64)

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
        rows, columns = as_rows(payloads, ts_event, offsets, lengths, count, valid=valid)
        numbers = self._topics.numbers_of(topics)
        done = 0
        while done < count:
            at = self._gathered_rows
            stop = min(count, done + self._rows - at)
            # Payloads go by their address, so that rows of several buffers can be put together.
            octets, outside = gather(
                self._gathered, at, index.ctypes.data, numbers, rows, done, stop, self._begin_ns, self._end_ns
            )
            self._alive.append(columns[0])
            self.outside += outside
            self._gathered_rows += stop - done
            self._gathered_bytes += octets
            done = stop
            if self._gathered_rows == self._rows or self._gathered_bytes >= _GATHERED_BYTES:
                self._write_gathered()
        self.messages += count

    def close(self) -> None:
        """Write what was put, mark the end of the run, and make all of it durable. Raises JournalError."""
        self._write_gathered()
        for writer in self._writers:
            self._end(writer)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.close()
        finally:
            for writer in self._writers:
                writer.close()

    def _write_gathered(self) -> None:
        """Append all that was gathered."""
        count = self._gathered_rows
        if not count:
            return
        self._make_room()
        selection, topics = self._selection, self._topics
        if topics.groups > 1:
            selection.order[:count] = self._in_order[:count]
        groups = group_by_key(selection, count, topics.group_of, topics.groups)
        encoder = Encoder(
            selection,
            topics.table,
            topics.group_of,
            self._distinct,
            self._block_bytes,
            self._feed.checksum,
            self._origin,
        )
        at = 0
        while at < count:
            journals = Journals(
                self._states,
                self._clocks,
                self._end_ns + _DAY_NS,
                self._header.ctypes.data,
                self._body.ctypes.data,
                self._body.nbytes,
            )
            at, needed = put_rows(
                journals, encoder, self._gathered.rows, topics.slice_of, groups, at, self._next_sequence
            )
            if needed:
                self._body = numpy.zeros(needed // 8 + 1, numpy.int64)
        self._gathered_rows = self._gathered_bytes = 0
        self._alive.clear()
        for writer in self._writers:
            _check(writer)
            writer.tend()
            writer.sync(what_is_written=False)
            writer.begin_sync()

    def _make_room(self) -> None:
        """Have scratch for as many topics as there is room for."""
        if self._room == self._topics.room:
            return
        self._room = self._topics.room
        selection = make_selection(self._rows, self._room)
        selection.order[:] = self._in_order
        self._selection = selection._replace(topics=self._gathered.topics)
        self._distinct = distinct_scratch(self._room)
        sequences = numpy.zeros(self._room, numpy.int64)
        sequences[: len(self._next_sequence)] = self._next_sequence
        self._next_sequence = sequences

    def _end(self, writer: JournalWriter) -> None:
        """Note that nothing follows: what a publisher's last heartbeat tells a recorder. Then close."""
        slice_id = writer.slice_id
        now = int(self._clocks[slice_id])
        numbers = {key: int(self._next_sequence[group]) for key, group in self._topics.keys_of(slice_id).items()}
        block = Block.encode_sequences(
            HEARTBEAT_KEY,
            {key: number for key, number in numbers.items() if number},
            slice_id=slice_id,
            epoch=self._origin.epoch,
            ts_out=now,
            key_bytes=self._origin.key_bytes,
            flags=FLAG_END,
        )
        header = numpy.frombuffer(block.header, numpy.uint8)
        state = writer.state
        state.kind, state.head, state.body, state.body_bytes = (
            CONTROL,
            header.ctypes.data,
            block.body.ctypes.data,
            block.body.nbytes,
        )
        state.first_row, state.held, state.ts_recv = 0, 0, now
        append(state.address)
        _check(writer)
        writer.close()
        _check(writer)


def _check(writer: JournalWriter) -> None:
    """Raise JournalError when the disk refused a write."""
    if writer.error:
        raise JournalError(f"{writer.error}; the day is not written")
