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
from blackbox.block.form.block import Block, HeaderFields
from blackbox.block.form.encode import Origin, Rows
from blackbox.block.form.format import FLAG_END, HEADER_BYTES, HEARTBEAT_KEY
from blackbox.block.form.rows import PayloadColumns, as_rows, as_topic_index
from blackbox.block.gap import shares_of
from blackbox.errors import ConfigError, JournalError
from blackbox.feed.feed import Feed
from blackbox.feed.schema.schema import load_schema
from blackbox.native.system.limits import check_limits
from blackbox.publish.send.batcher import Selection, group_by_key, make_selection
from blackbox.timestamps import DAY_NS
from blackbox.transport.wakeup import PIPE_NEEDS, Pipe

_ROWS: Final = 1 << 20
"""Messages grouped by key at a time; each key gets its own blocks of them. Without keys: messages between two checks
of the segment's size."""
_GATHERED_BYTES: Final = 64 << 20
_NO_NUMBERS: Final = numpy.zeros(0, numpy.int32)
_FAR_NS: Final = 1 << 62


class Written(NamedTuple):
    """Counts of the messages written to a day."""

    messages: int = 0
    outside: int = 0
    """Messages with a time outside the session date."""
    missing: int = 0
    """Sequence numbers skipped."""


class _TopicGroups:
    """The topics of a day and their groups, each of one slice and key, with the next sequences of slices and groups."""

    def __init__(self, feed: Feed) -> None:
        slices = len(feed.slices)
        self.topics = TopicNumbers(feed)
        self._has_keys = feed.key_rule > 0
        self._known = self._groups = 0
        """Topics and groups in the tables below."""
        self._about = numpy.zeros(0, ABOUT)
        self._generation = numpy.zeros(1, numpy.int64)
        self.following = numpy.zeros(slices, numpy.int64)
        """Next sequence of each slice."""
        self._skipped = numpy.zeros(slices, numpy.int64)
        """Sequence after the last one that each slice skipped."""
        self._ends = numpy.zeros(0, numpy.int64)
        """Sequence after the last message of each group."""
        self._counts = numpy.zeros(0, numpy.int64)
        """Number of messages of each group."""
        self._make_room()

    def numbers_of(self, topics: Sequence[bytes]) -> NDArray[numpy.int32]:
        """Return the numbers of a source's topics. Raises ConfigError if one cannot be published."""
        numbers = self.topics.numbers_of(topics)
        self._make_room()
        new = slice(self._known, len(self.topics))
        for name, column in (("size", self.topics.table.sizes), ("group", self.topics.group_of)):
            self._about[name][new] = column[new]
        fresh = slice(self._groups, self.topics.groups)
        self._ends[fresh] = skipped = self._skipped[self.topics.slice_of[fresh]]
        self._counts[fresh] = numpy.minimum(skipped, 1) if self._has_keys else skipped
        self._known, self._groups = new.stop, fresh.stop
        return numbers

    def skip(self, shares: NDArray[numpy.int64]) -> None:
        """Skip sequences of each slice."""
        self.following += shares
        self._skipped[:] = self.following
        slices = self.topics.slice_of[: self._groups]
        self._ends[: self._groups] = self.following[slices]
        self._counts[: self._groups] += 1 if self._has_keys else shares[slices]

    def tables(self) -> Topics:
        """Return the tables for compiled code. They are valid until the next `numbers_of`."""
        numbers = self.following, self._ends, self._counts
        return Topics(self._about, self.topics.table, self._generation, self.topics.slice_of, *numbers)

    def _make_room(self) -> None:
        more = self.topics.room - len(self._about)
        if more:
            self._about = numpy.concatenate((self._about, numpy.zeros(more, ABOUT)))
            self._ends, self._counts = numpy.pad(self._ends, (0, more)), numpy.pad(self._counts, (0, more))


class _DayJournals:
    """The journals of a day, and the clock of each slice. Attribute: `session_ns`, beginning and end of the day."""

    def __init__(self, day: Path, feed: Feed, date: datetime.date, settings: JournalSettings) -> None:
        self.session_ns = begin_ns, self._end_ns = session_ns(feed, date)
        if begin_ns <= 0:  # it is used as the epoch
            raise ConfigError(f"date was {date}, expected one that begins after 1970-01-01 00:00 UTC")
        check_limits(f"a day of feed {feed.name!r}", PIPE_NEEDS, *[WRITER_NEEDS] * len(feed.slices))
        Manifest.new(feed, date, time.time_ns()).write(day)
        self._origin = Origin(load_schema(feed.schema).schema_id, 0, feed.key_rule, begin_ns)
        self._checksum, self._header = feed.checksum, numpy.zeros(HEADER_BYTES // 8, numpy.int64)
        pipe = Pipe()
        self._writers: list[JournalWriter] = []
        for slice_id in range(len(feed.slices)):
            writer = JournalWriter(slice_id, feed.key_rule, settings, pipe, lambda _: (day, _FAR_NS))
            writer.state.started = begin_ns
            self._writers.append(writer)
        self._states = numpy.array([writer.state.address for writer in self._writers], numpy.int64)
        self.clocks = numpy.full(len(self._writers), begin_ns, numpy.int64)
        for slice_id in range(len(self._writers)):
            self.note_end(slice_id, 0)  # else the epoch would begin at the end of the first block

    def target(self, body: int) -> Journals:
        """Return the journals for compiled code, which writes bodies at an address."""
        limit_ns, header = self._end_ns + DAY_NS, self._header.ctypes.data
        return Journals(self._states, self.clocks, limit_ns, header, body, self._origin, self._checksum)

    def note_end(self, slice_id: int, following: int, flags: int = 0, ts_event: int = 0) -> None:
        """Append a heartbeat with the slice's next sequence, as a recorder does; see `Block.encode_ends`."""
        now, writer = int(self.clocks[slice_id]), self._writers[slice_id]
        state = writer.state
        fields = HeaderFields(
            slice_id=slice_id,
            epoch=self._origin.epoch,
            ts_out=now,
            sequence=following,
            key_rule=self._origin.key_rule,
            flags=flags,
            ts_in=ts_event,
        )
        block = Block.encode_ends(HEARTBEAT_KEY, {}, fields)
        header = numpy.frombuffer(block.header, numpy.uint8)
        state.kind, state.head = CONTROL, header.ctypes.data
        state.body, state.body_bytes = block.body.ctypes.data, block.body.nbytes
        state.first_row, state.held, state.ts_recv = 0, 0, now
        append(state.address)

    def tend(self) -> None:
        """Prepare, close and sync the segments."""
        for writer in self._writers:
            _check(writer)
            writer.tend()
            writer.sync(what_is_written=False)
            writer.begin_sync()

    def finish(self) -> None:
        """Write everything, close all files and make them durable. Raises JournalError, OSError."""
        for writer in self._writers:
            writer.close()
            _check(writer)

    def close(self) -> None:
        """Close all files. May be called again."""
        for writer in self._writers:
            writer.close()


def _check(writer: JournalWriter) -> None:
    """Raise JournalError if a write failed."""
    if writer.error:
        raise JournalError(f"{writer.error}; the day is not written")


class _Gathering:
    """Rows of a feed with keys, collected until there are enough for each key."""

    def __init__(self) -> None:
        self.rows = Gathered.of(_ROWS)
        self.count = self._bytes = 0
        self._in_order = numpy.arange(_ROWS, dtype=numpy.int32)
        self._alive: list[Any] = []
        """Buffers of the payloads, which are kept by address, so that rows of several buffers can be grouped."""
        self._selection: Selection | None = None

    @property
    def is_full(self) -> bool:
        """True if the rows should be written."""
        return self.count == _ROWS or self._bytes >= _GATHERED_BYTES

    def add(self, count: int, octets: int, buffer: Any) -> None:
        """Count rows that were added."""
        self.count += count
        self._bytes += octets
        self._alive.append(buffer)

    def by_group(self, topics: TopicNumbers) -> tuple[Selection, int]:
        """Return the rows in the order of their groups, and the number of groups."""
        selection = self._selection
        if selection is None or len(selection.counts) < topics.room:
            selection = make_selection(_ROWS, topics.room)
            selection.order[:] = self._in_order
            self._selection = selection = selection._replace(topics=self.rows.topics)
        if topics.groups > 1:
            selection.order[: self.count] = self._in_order[: self.count]
        return selection, group_by_key(selection, self.count, topics.group_of, topics.groups)

    def clear(self) -> None:
        """Remove all rows."""
        self.count = self._bytes = 0
        self._alive.clear()


class ColumnWriter:
    """Writes messages in columns to the journals of a day, in the order of the calls.

    Attribute: `written`, counts of the messages so far.
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
        self.written = Written()
        self._groups = _TopicGroups(feed)
        self._blocks = GrowingBlocks(block_bytes)
        self._gathering: _Gathering | None = None
        if feed.key_rule > 0:
            self._gathering = _Gathering()
            self._blocks.make_room(1)
        self._journals = _DayJournals(day, feed, date, JournalSettings(compression=compression))

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
        given = PayloadColumns(payloads, ts_event, offsets, lengths, valid)
        rows, columns = as_rows(given, count, borrowed=True)
        numbers = self._groups.numbers_of(topics)
        if self._gathering is not None:
            outside = self._gather(self._gathering, index, numbers, rows, columns[0])
        else:
            outside = self._put(index, numbers, rows, columns)
        written = self.written
        self.written = written._replace(messages=written.messages + count, outside=written.outside + outside)

    def skip(self, count: int) -> None:
        """Skip sequences as `Publisher.skip` does: `count` messages of the venue are missing here.

        Each slice skips its share. With keys, the keys of the missing messages are unknown, so each key counts one
        message as missing.
        """
        self._put_rest()
        following, clocks = self._groups.following, self._journals.clocks
        shares = numpy.array(shares_of(count, len(following)), numpy.int64)
        self.written = self.written._replace(missing=self.written.missing + int(shares.sum()))
        clocks[:] = latest_ns = int(clocks.max())
        self._groups.skip(shares)
        for slice_id, sequence in enumerate(following.tolist()):
            self._journals.note_end(slice_id, sequence, ts_event=latest_ns)

    def _put(
        self, index: NDArray[numpy.int32], numbers: NDArray[numpy.int32], rows: Rows, columns: tuple[Any, ...]
    ) -> int:
        """Add rows to the growing blocks. Return how many have a time outside the session date."""
        blocks, topics, count, done, outside = self._blocks, self._groups.topics, len(index), 0, 0
        blocks.make_room(topics.groups)
        given = numbers if topics.differ else _NO_NUMBERS
        while done < count:
            stop = min(done + _ROWS, count)
            done, late = put_rows(
                blocks.address,
                self._journals.target(blocks.body.ctypes.data),
                self._groups.tables(),
                rows,
                columns[0].nbytes,
                index.ctypes.data,
                given,
                done,
                stop,
                *self._journals.session_ns,
            )
            outside += late
            if done < stop:
                group = int(topics.group_of[numbers[index[done]]])
                blocks.lengthen(group, int(columns[3][done]) if rows.lengths else rows.stride)
            else:
                self._journals.tend()
        return outside

    def _gather(
        self,
        gathering: _Gathering,
        index: NDArray[numpy.int32],
        numbers: NDArray[numpy.int32],
        rows: Rows,
        payloads: Any,
    ) -> int:
        """Collect rows until there are enough for each key. Return how many have a time outside the session date."""
        count, done, outside = len(index), 0, 0
        while done < count:
            first = gathering.count
            stop = min(count, done + _ROWS - first)
            session = self._journals.session_ns
            octets, late = gather(gathering.rows, first, index.ctypes.data, numbers, rows, done, stop, *session)
            gathering.add(stop - done, octets, payloads)
            outside += late
            done = stop
            if gathering.is_full:
                self._put_gathered(gathering)
        return outside

    def close(self) -> None:
        """Write all messages, mark the end of the epoch, and make the day durable. Raises JournalError."""
        self._put_rest()
        for slice_id, sequence in enumerate(self._groups.following.tolist()):
            self._journals.note_end(slice_id, sequence, FLAG_END)  # as after a publisher's last heartbeat
        self._journals.finish()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.close()
        finally:
            self._journals.close()

    def _put_rest(self) -> None:
        """Append the messages that are not in a journal yet."""
        if self._gathering is not None:
            self._put_gathered(self._gathering)
            return
        blocks, target = self._blocks, self._journals.target(self._blocks.body.ctypes.data)
        put_rest(blocks.address, len(blocks), self._groups.tables(), target)

    def _put_gathered(self, gathering: _Gathering) -> None:
        """Append the collected rows, grouped by key."""
        blocks, rows, index = self._blocks, gathering.rows, 0
        selection, groups = gathering.by_group(self._groups.topics)
        while index < gathering.count:
            target = self._journals.target(blocks.body.ctypes.data)
            index = put_groups(blocks.address, target, self._groups.tables(), rows, selection, groups, index)
            if index < gathering.count:
                blocks.lengthen(0, int(rows.sizes[selection.order[index]]))
        gathering.clear()
        self._journals.tend()
