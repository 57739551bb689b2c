"""Write a day from columns, without sockets: the same blocks, journals and indexes as a recorder's.

No publisher sends these blocks, so `ts_out` and `ts_recv` are the slice's highest `ts_event` so far, at least the
start of the session date. Times more than a day after its end are ignored. The epoch is the start of the session
date, so that a day imported twice has the same positions.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import numpy
from numpy.typing import NDArray

from blackbox.archive.files.codec import BLOCK_BYTES, Compression, check_packing
from blackbox.archive.files.day import Manifest, session_ns
from blackbox.archive.files.topic_numbers import TopicNumbers
from blackbox.archive.importing.growing_blocks import ABOUT, GrowingBlocks, Journals, Topics
from blackbox.archive.importing.import_rows import Gathered, gather, put_groups, put_rest, put_rows
from blackbox.archive.record.append import append
from blackbox.archive.record.journal_writer import WRITER_NEEDS, JournalWriter
from blackbox.archive.record.settings import JournalSettings
from blackbox.block.batch.block_handler import CONTROL
from blackbox.block.form.block import Block
from blackbox.block.form.encode import Origin, Rows
from blackbox.block.form.format import FLAG_END, HEADER_BYTES, HEARTBEAT_KEY
from blackbox.block.form.rows import as_rows, as_topic_index
from blackbox.block.gap import shares_of
from blackbox.errors import ConfigError, JournalError
from blackbox.feed.feed import Feed
from blackbox.feed.schema.schema import load_schema
from blackbox.native.system.limits import check_limits
from blackbox.publish.send.batcher import group_by_key, make_selection
from blackbox.transport.wakeup import PIPE_NEEDS, Pipe

_ROWS: Final = 1 << 20
"""Messages grouped by key at a time; each key gets its own blocks of them. Without keys: messages between two checks
of the segment's size."""
_GATHERED_BYTES: Final = 64 << 20
_NO_NUMBERS: Final = numpy.zeros(0, numpy.int32)
_FAR_NS: Final = 1 << 62
_DAY_NS: Final = 86_400 * 10**9


class Written(NamedTuple):
    """Counts of the messages written to a day."""

    messages: int = 0
    outside: int = 0
    """Messages with a time outside the session date."""
    missing: int = 0
    """Sequence numbers skipped."""


class ColumnWriter:
    """Writes messages in columns to the journals of a day, in the order of the calls.

    Attributes: `messages`, the number written; `outside`, those with a time outside the session date; `missing`,
    sequence numbers skipped.
    Use it from one thread, in a `with` block. After an error the directory does not contain a valid day.
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

        Raises as `compact` for a setting, ConfigError for a date before 1970, OSError if it cannot be written.
        """
        check_packing(compression, block_bytes)
        self.messages = self.outside = self.missing = 0
        self._begin_ns, self._end_ns = session_ns(feed, date)
        if self._begin_ns <= 0:  # it is used as the epoch
            raise ConfigError(f"date was {date}, expected one that begins after 1970-01-01 00:00 UTC")
        self._feed = feed
        self._topics = TopicNumbers(feed)
        self._blocks = GrowingBlocks(block_bytes)
        self._has_keys = feed.key_rule > 0
        if self._has_keys:
            self._in_order = numpy.arange(_ROWS, dtype=numpy.int32)
            self._gathered = Gathered.of(_ROWS)
            self._blocks.make_room(1)
        self._gathered_rows = self._gathered_bytes = 0
        self._alive: list[Any] = []
        self._room = self._known = self._groups = 0
        self._about = numpy.zeros(0, ABOUT)
        self._generation = numpy.zeros(1, numpy.int64)
        self._following = numpy.zeros(len(feed.slices), numpy.int64)
        """Next sequence of each slice."""
        self._skipped = numpy.zeros(len(feed.slices), numpy.int64)
        """Sequence after the last one that each slice skipped."""
        self._ends = numpy.zeros(0, numpy.int64)
        """Sequence after the last message of each group."""
        self._counts = numpy.zeros(0, numpy.int64)
        """Number of messages of each group."""
        self._make_room()
        self._header = numpy.zeros(HEADER_BYTES // 8, numpy.int64)
        check_limits(f"a day of feed {feed.name!r}", PIPE_NEEDS, *[WRITER_NEEDS] * len(feed.slices))
        Manifest.new(feed, date, time.time_ns()).write(day)
        self._origin = Origin(load_schema(feed.schema).schema_id, 0, feed.key_rule, self._begin_ns)
        pipe, settings = Pipe(), JournalSettings(compression=compression)
        self._writers: list[JournalWriter] = []
        for slice_id in range(len(feed.slices)):
            writer = JournalWriter(slice_id, feed.key_rule, settings, pipe, lambda _: (day, _FAR_NS))
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
        """Append messages in columns, as in `Publisher.publish_many`. The columns must not change until `close`.

        Raises ValueError naming a column that does not fit, ConfigError as `Publisher.publish`, JournalError if a
        write fails.
        """
        index = as_topic_index(topic_index, topics)
        count = len(index)
        rows, columns = as_rows(payloads, ts_event, offsets, lengths, count, valid=valid, borrowed=True)
        numbers = self._topics.numbers_of(topics)
        self._learn()
        if self._has_keys:
            self._gather(index, numbers, rows, columns)
        else:
            self._put(index, numbers, rows, columns)
        self.messages += count

    @property
    def written(self) -> Written:
        """Counts of the messages so far."""
        return Written(self.messages, self.outside, self.missing)

    def skip(self, count: int) -> None:
        """Skip sequences as `Publisher.skip` does: `count` messages of the venue are missing here.

        Each slice skips its share. With keys, the keys of the missing messages are unknown, so each key counts one
        message as missing.

        Raises JournalError if a write fails.
        """
        self._put_rest()
        shares = numpy.array(shares_of(count, len(self._writers)), numpy.int64)
        self.missing += int(shares.sum())
        latest_ns = int(self._clocks.max())
        self._clocks[:] = latest_ns
        for slice_id in numpy.flatnonzero(self._following == 0).tolist():
            self._note_end(slice_id)  # the slice starts here, so the skipped messages are a gap
        self._following += shares
        self._skipped[:] = self._following
        slices = self._topics.slice_of[: self._groups]
        self._ends[: self._groups] = self._following[slices]
        self._counts[: self._groups] += 1 if self._has_keys else shares[slices]
        for slice_id in range(len(shares)):
            self._note_end(slice_id, ts_event=latest_ns)

    def _put(
        self, index: NDArray[numpy.int32], numbers: NDArray[numpy.int32], rows: Rows, columns: tuple[Any, ...]
    ) -> None:
        """Add rows to the growing blocks."""
        blocks, count, done = self._blocks, len(index), 0
        blocks.make_room(self._topics.groups)
        while done < count:
            stop = min(done + _ROWS, count)
            done, outside = put_rows(
                blocks.address,
                self._journals(),
                self._topics_now(),
                rows,
                columns[0].nbytes,
                index.ctypes.data,
                numbers if self._topics.differ else _NO_NUMBERS,
                done,
                stop,
                self._begin_ns,
                self._end_ns,
            )
            self.outside += outside
            if done < stop:
                group = int(self._topics.group_of[numbers[index[done]]])
                blocks.lengthen(group, int(columns[3][done]) if rows.lengths else rows.stride)
            else:
                self._tend()

    def _gather(
        self, index: NDArray[numpy.int32], numbers: NDArray[numpy.int32], rows: Rows, columns: tuple[Any, ...]
    ) -> None:
        """Collect rows until there are enough for each key."""
        count, done = len(index), 0
        while done < count:
            at = self._gathered_rows
            stop = min(count, done + _ROWS - at)
            # Payloads are kept by address, so rows of several buffers can be grouped.
            octets, outside = gather(
                self._gathered, at, index.ctypes.data, numbers, rows, done, stop, self._begin_ns, self._end_ns
            )
            self._alive.append(columns[0])
            self.outside += outside
            self._gathered_rows += stop - done
            self._gathered_bytes += octets
            done = stop
            if self._gathered_rows == _ROWS or self._gathered_bytes >= _GATHERED_BYTES:
                self._put_gathered()

    def close(self) -> None:
        """Write all messages, mark the end of the epoch, and make the day durable. Raises JournalError."""
        self._put_rest()
        for writer in self._writers:
            self._note_end(writer.slice_id, FLAG_END)  # as after a publisher's last heartbeat
            writer.close()
            _check(writer)

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

    def _put_rest(self) -> None:
        """Append the messages that are not in a journal yet."""
        if self._has_keys:
            self._put_gathered()
        else:
            put_rest(self._blocks.address, len(self._blocks), self._topics_now(), self._journals())

    def _put_gathered(self) -> None:
        """Append the collected rows, grouped by key."""
        count, blocks, topics = self._gathered_rows, self._blocks, self._topics
        selection = self._selection
        if topics.groups > 1:
            selection.order[:count] = self._in_order[:count]
        groups = group_by_key(selection, count, topics.group_of, topics.groups)
        at = 0
        while at < count:
            at = put_groups(blocks.address, self._journals(), self._topics_now(), self._gathered, selection, groups, at)
            if at < count:
                blocks.lengthen(0, int(self._gathered.sizes[selection.order[at]]))
        self._gathered_rows = self._gathered_bytes = 0
        self._alive.clear()
        self._tend()

    def _tend(self) -> None:
        """Prepare, close and sync the journals' segments."""
        for writer in self._writers:
            _check(writer)
            writer.tend()
            writer.sync(what_is_written=False)
            writer.begin_sync()

    def _topics_now(self) -> Topics:
        topics, numbers = self._topics, (self._following, self._ends, self._counts)
        return Topics(self._about, topics.table, self._generation, topics.slice_of, *numbers)

    def _journals(self) -> Journals:
        return Journals(
            self._states,
            self._clocks,
            self._end_ns + _DAY_NS,
            self._header.ctypes.data,
            self._blocks.body.ctypes.data,
            self._origin,
            self._feed.checksum,
        )

    def _learn(self) -> None:
        """Add new topics and groups to the tables."""
        self._make_room()
        new = slice(self._known, len(self._topics))
        for name, column in (("size", self._topics.table.sizes), ("group", self._topics.group_of)):
            self._about[name][new] = column[new]
        self._known = new.stop
        fresh = slice(self._groups, self._topics.groups)
        self._ends[fresh] = skipped = self._skipped[self._topics.slice_of[fresh]]
        self._counts[fresh] = numpy.minimum(skipped, 1) if self._has_keys else skipped
        self._groups = fresh.stop

    def _make_room(self) -> None:
        """Grow the scratch arrays to the number of topics."""
        if self._room == self._topics.room:
            return
        self._room = self._topics.room
        if self._has_keys:
            selection = make_selection(_ROWS, self._room)
            selection.order[:] = self._in_order
            self._selection = selection._replace(topics=self._gathered.topics)
        about = numpy.zeros(self._room, ABOUT)
        about[: len(self._about)] = self._about
        self._about = about
        more = self._room - len(self._ends)
        self._ends, self._counts = numpy.pad(self._ends, (0, more)), numpy.pad(self._counts, (0, more))

    def _note_end(self, slice_id: int, flags: int = 0, ts_event: int = 0) -> None:
        """Append a heartbeat with the slice's next sequence, as a recorder does; see `Block.encode_ends`."""
        now, writer = int(self._clocks[slice_id]), self._writers[slice_id]
        block = Block.encode_ends(
            HEARTBEAT_KEY,
            {},
            slice_id=slice_id,
            epoch=self._origin.epoch,
            ts_out=now,
            sequence=int(self._following[slice_id]),
            ts_event=ts_event,
            key_rule=self._origin.key_rule,
            flags=flags,
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


def _check(writer: JournalWriter) -> None:
    """Raise JournalError if a write failed."""
    if writer.error:
        raise JournalError(f"{writer.error}; the day is not written")
