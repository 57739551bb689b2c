"""Read one recorded day: its blocks in order, filtered by topic and time, during or after recording."""

from __future__ import annotations

import datetime
import logging
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack

import msgspec
import numpy
from numpy.typing import NDArray

from blackbox.archive.data_frames import FrameOptions, Frames, Instruments, Ticks, needs, scanned
from blackbox.archive.files.codec import Compression
from blackbox.archive.files.day import (
    MANIFEST,
    Date,
    Manifest,
    as_date,
    inode_of,
    recorded_days,
    session_date,
    session_ns,
)
from blackbox.archive.files.marks import Mark, marks_of
from blackbox.archive.files.segment import Damage, Segment
from blackbox.archive.maintain.audit import examine
from blackbox.archive.objects.fetch import one_day
from blackbox.archive.objects.store import is_stored
from blackbox.archive.read.filter import Clock, Filter, RowFilter, Selection, Time, filter_of
from blackbox.archive.read.overview import message_count, recording_view
from blackbox.archive.read.reader import Bodies, RecordRun, blocks_of, read_runs
from blackbox.archive.read.segments import Segments
from blackbox.archive.read.summary import Examined, Rate, Summary, gaps_and_late, message_rate, summarise, topic_counts
from blackbox.archive.serve.newest_of_slice import Newest
from blackbox.arguments import all_as_bytes, as_bytes
from blackbox.block.batch.batch import Batch
from blackbox.block.batch.received_block import BatchFeed, ReceivedBlock
from blackbox.block.gap import Gap
from blackbox.errors import ConfigError, JournalError
from blackbox.feed.feed import Feed, check_is_feed
from blackbox.feed.schema.schema import RAW, Schema, load_schema, schema_of
from blackbox.feed.symbol_choice import TopicChoice
from blackbox.numbers import counted
from blackbox.timestamps import MAX_NS, MIN_NS, check_unit, ns_of, parse_time

if TYPE_CHECKING:
    import pyarrow

    from blackbox.archive.export.parquet import Order, ParquetDay
    from blackbox.archive.export.pushed import Pushed
    from blackbox.book.books import Books
    from blackbox.feed.schema.prices import Prices

_log = logging.getLogger(__name__)


class Recording(Frames):
    """One feed's recorded day, read in place.

    Attributes: `path`, its directory; `feed`; `date` of the session; `schema`, the recorded schema of the payloads,
    even if it is not registered here, or the one named by the blocks if the feed names none; `encrypted`, True if the
    feed had `[security]`; `damage` found so far, without repetitions.

    Only memory maps are held open; arrays and batches of the recording keep them alive. The day may be read while it
    is recorded; data recorded after opening is visible after `refresh`. Use it from one thread at a time.
    """

    def __init__(self, path: Path, manifest: Manifest) -> None:
        """Wrap a day's directory. Use `open` instead."""
        self.path = path
        self.feed, self.date = manifest.feed, manifest.date
        self.encrypted = manifest.encrypted
        self._created_ns = manifest.created_ns
        self.schema = manifest.schema.schema()
        if not manifest.has_registered_schema():
            self.feed = msgspec.structs.replace(self.feed, schema=self.schema)
        self.segments = Segments(path, self.feed)
        self.damage = self.segments.damage
        self.refresh()
        if self.schema is RAW and (schema := _schema_of_blocks(self.segments)) is not RAW:
            self.schema = schema
            self.feed = msgspec.structs.replace(self.feed, schema=schema.name)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Open a day's directory, which contains `manifest.json`; or a day at `s3://BUCKET/PREFIX/FEED/DATE`.

        A day in an object store is first copied to the cache, see `blackbox.archive.objects.fetch`.

        Raises JournalError naming what is missing, damaged or of another format. Damaged records raise nothing: they
        are left out and reported in `damage`.
        """
        directory = one_day(path) if is_stored(path) else Path(path)
        while True:
            inode = inode_of(directory)
            recording = cls(directory, Manifest.read(directory))
            if inode_of(directory) == inode:
                return recording
            # `exchange_directories` came in between: the files are of two directories

    @classmethod
    def latest(cls, directory: str | os.PathLike[str]) -> Self:
        """Open the newest day in a feed's directory, such as "recordings/nasdaq".

        Raises as `open`; JournalError if there is no recorded day, naming the feeds if the directory has several.
        """
        path = Path(directory)
        days = recorded_days(path)
        if not days:
            if (path / MANIFEST).exists():
                raise JournalError(f"{path} is a recorded day, expected the directory of a feed, such as {path.parent}")
            feeds = sorted({day.parent.parent.name for day in path.glob(f"*/*/{MANIFEST}")})
            there = f"the feeds {', '.join(feeds)}" if feeds else "no recorded day"
            raise JournalError(f"{path} holds {there}, expected the directory of a feed with its days")
        return cls.open(max(days, key=_date_of_day))

    @classmethod
    def create(
        cls,
        directory: str | os.PathLike[str],
        feed: Feed,
        table: Any,
        *,
        message_type: str | None = None,
        date: Date | None = None,
        compression: Compression = "none",
        replace: bool = False,
    ) -> Self:
        """Write your own messages as the day `directory/<feed>/<date>`, and return it after reading and checking it.

        Columns are those of `to_arrow`: `topic` (text or bytes), `ts_event` (ns since 1970, or timestamps, in UTC
        unless they have a time zone; 0 or null: no time), and `payload` (bytes or text; None: the topic has no value).
        With `message_type`, the fields of that type replace the payload; the field with the type may be left out. Texts
        are padded with zeros. Integers in a price column are the venue's units; floats and decimals are currency.
        Messages keep the order of the rows. If all times are before April 1970 they are rejected as microseconds or
        seconds.

        Args:
            directory: directory of the recordings. Created if missing.
            feed: its name, slices and schema, for example `Feed.local(name, schema=...)`.
            table: a dict of numpy arrays or lists, an Arrow table, or a pandas or polars data frame.
            message_type: the message type of all rows.
            date: the session date, or its text. Default: that of all messages that have a time.
            compression: as in `compact`.
            replace: True to replace an existing day.

        Raises ConfigError naming the column that does not fit, or if messages have several dates and none is given;
        JournalError if the day exists or cannot be written.
        """
        from blackbox.archive.importing.column_writer import ColumnWriter
        from blackbox.archive.importing.fresh_day import FreshDays, check_whole, fresh_day
        from blackbox.block.columns.user_columns import columns_of

        check_is_feed(feed)
        columns = columns_of(table, load_schema(feed.schema), message_type)
        day = _date_of(feed, columns.ts_event) if date is None else as_date(date)
        place = Path(directory) / feed.name
        with FreshDays(place, replace=replace), fresh_day(place, day, replace=replace) as fresh:
            with ColumnWriter(fresh, feed, day, compression=compression) as writer:
                topics, index, payloads, times, offsets, valid = columns
                writer.put(topics, index, payloads, times, offsets, valid=valid)
            check_whole(cls.open(fresh), writer.written)
        return cls.open(place / day.isoformat())

    def __repr__(self) -> str:
        messages = counted(message_count(self.segments), "message")
        return f"Recording({self.feed.name!r}, {self.date}, {messages}, {str(self.path)!r})"

    def _repr_html_(self) -> str:
        return recording_view(self)

    def refresh(self, slice_id: int | None = None) -> None:
        """Add data recorded since, of all slices or of one. Iterators in use are not affected.

        Raises JournalError if the day cannot be read or a segment is missing.
        """
        self.segments.refresh(slice_id)

    def runs(
        self, prefix: str | bytes = b"", *, bodies: Bodies = "checked", ahead: int = 0, **selection: Unpack[Selection]
    ) -> Iterator[RecordRun]:
        """Yield the records that may hold such messages (see `batches`), many at a time, for compiled code.

        `bodies` and `ahead` as in `blackbox.archive.read.reader.read_runs`. Records are filtered by index and head,
        rows are not filtered.
        """
        prefix = as_bytes("prefix", prefix)
        wanted = filter_of(self.feed, self.time, prefix, selection)
        streams = self.segments.streams(wanted.prefix, selection.get("slices"))
        return read_runs(streams, wanted, self.segments.note, bodies=bodies, ahead=ahead)

    def batches(self, prefix: str | bytes = b"", **selection: Unpack[Selection]) -> Iterator[Batch]:
        """Yield the messages of the `Selection` whose topic starts with `prefix`, block by block.

        The keywords are `start`, `stop` and `by` (times in `[start, stop)` of that clock; see `time` for the formats),
        `slices`, `epoch`, `first_sequence` and `symbols`.

        Batches contain only the selected rows; columns of uncompressed blocks are views of the file. Every block is
        checked before use. Damaged blocks are left out and reported in `damage`, with the number of their messages.

        Raises ConfigError for a reserved prefix or a start after the stop, ValueError for an invalid time, slice or
        clock, JournalError if a decompression library is not installed.
        """
        prefix = as_bytes("prefix", prefix)
        wanted = filter_of(self.feed, self.time, prefix, selection)
        return self._batches(wanted, self.segments.streams(wanted.prefix, selection.get("slices")))

    def newest(
        self, prefix: str | bytes = b"", until: Time | None = None, *, symbols: Iterable[str | bytes] | None = None
    ) -> Iterator[Batch]:
        """Yield the newest message of each topic that starts with `prefix`, at a time or at the end.

        `until`: only messages received before it. `symbols`: only topics of exactly these symbols. Batches are ordered
        by slice, epoch and publication; each has one key and is `is_image`. Topics whose newest message has no value
        are left out.

        Reads everything up to that time. Raises as `batches`; JournalError if a slice has more topics than the feed's
        `max_topics`, or their newest messages exceed 1 GiB.
        """
        chosen = TopicChoice.of(self.feed, as_bytes("prefix", prefix), symbols)
        feed = BatchFeed(self.feed.name, self.schema if self.schema.records else None, self.feed.symbol_rule)
        for slice_id in self.segments.wanted(chosen.prefix):
            newest = Newest(slice_id, self.feed.key_rule, self.feed.max_topics)
            for run in self.runs(chosen.prefix, stop=until, by="ts_recv", slices=[slice_id]):
                newest.take(run)
            of = None if chosen.symbols is None else numpy.array([chosen.has(each) for each in newest.names()], bool)
            for block in newest.blocks(chosen.prefixes, of=of):
                yield Batch(block, None, ReceivedBlock.of_block(block, feed, 0, is_image=True))

    def book_at(
        self,
        time: Time,
        prefix: str | bytes = b"",
        *,
        symbols: Iterable[str | bytes] | None = None,
        max_bytes: int = 1 << 30,
    ) -> Books:
        """Return the order books of all symbols at a time, after all messages before it.

        A replay with `start=time, books=True` begins with the same books. Reads the day up to that time. A book's
        `synced` is False if the recording lacks some of its messages.

        Args:
            time: as in `time`; compared with the messages' `ts_event`, or with `ts_out` if none has a venue time.
            prefix: of the topics, such as b"AAPL.". Symbols with other topics as well are not synced.
            symbols: only the books of exactly these symbols.
            max_bytes: of all books together.

        Raises ConfigError if the schema has no books; as `time`.
        """
        from blackbox import Replay, Subscriber  # later in the import order

        subscriber = Subscriber(self.feed)
        symbols = None if symbols is None else all_as_bytes("symbols", symbols)
        books = subscriber.book(prefix, symbols=symbols, max_bytes=max_bytes)
        by: Clock = "ts_event" if self.time_range("ts_event")[1] > 0 else "ts_out"
        subscriber.replay(Replay(self, stop=self.time(time, by), prefix=prefix, symbols=symbols))
        return books

    def topics(self) -> list[bytes]:
        """Return all topics, sorted. Reads everything, as `counts`."""
        return sorted(self.counts())

    def counts(self) -> dict[bytes, int]:
        """Return the number of messages of each topic. Reads everything; damaged blocks are left out."""
        total: Counter[bytes] = Counter()
        for slice_id in self.segments.of_slice:
            total.update(topic_counts(self.segments.blocks(slice_id)))
        return dict(total)

    def gaps(self, slices: Iterable[int] | None = None) -> list[Gap]:
        """Return the gaps of each epoch in each slice. Reads everything, or only `slices`.

        Messages published before the recorder was connected are not gaps. The keys of missing messages are unknown:
        `Gap.key` is b"".
        """
        return list(gaps_and_late(self.segments, self.segments.wanted(b"", slices), defaultdict(dict))[0])

    def marks(self, slices: Iterable[int] | None = None) -> Iterator[Mark]:
        """Yield the marks between the records, slice by slice: epochs, outages, heartbeats."""
        return marks_of(chain.from_iterable(self.segments.streams(b"", slices)))

    def summary(self) -> Summary:
        """Return counts and times of the messages. Reads the heads of all records, but not their bodies."""
        return summarise(self.segments)

    def rate(self, bins: int = 60) -> Rate:
        """Return messages over time, from the first to the last `ts_out`, in `bins` intervals of equal length."""
        if bins < 1:
            raise ValueError(f"bins were {bins}, expected at least 1")
        return message_rate(self.segments, bins)

    def verify(self, progress: Callable[[int], object] | None = None) -> list[Damage]:
        """Read everything, check every checksum, and return all that is damaged or missing, by file and offset.

        Includes records, segments and slices that are missing according to the marks and `closed.json`, index entries
        that do not match their records, and bytes after the last whole record of a slice. During recording the latter
        may be a record that is being written. `progress` is called with the bytes read so far, of `file_bytes`.
        """
        return self.examine(progress)[0]

    def examine(self, progress: Callable[[int], object] | None = None) -> Examined:
        """Return the results of `verify` and `gaps` from one pass, and the epochs that begin late."""
        return examine(self.segments, self._created_ns, progress or (lambda _: None))

    @property
    def file_bytes(self) -> int:
        """Size of all segments, without their indexes."""
        return self.segments.file_bytes

    def to_parquet(
        self,
        path: str | os.PathLike[str],
        prefix: str | bytes = b"",
        *,
        message_type: str | None = None,
        prices: Prices = "decimal",
        order: Order = "capture",
        progress: Callable[[int], object] | None = None,
        **selection: Unpack[Selection],
    ) -> ParquetDay:
        """Write the messages of `batches` as Parquet: a file for each slice, compressed with zstd.

        The day is `path/date=<date>/slice=<slice>/part-00000.parquet`, next to other days of the feed. It is renamed
        into place once complete. Memory does not grow with the recording.

        Columns: those of the Spark data source, `date` and `slice` as directories. `feed`, `topic`, `symbol`, `type`
        (strings; invalid UTF-8 is escaped); `ts_event`, `ts_out`, `ts_recv` (int64 ns); the same in microseconds
        as timestamps `event_time` (null if the venue sent none), `out_time`, `recv_time`; `epoch` (the 64 bits,
        signed), `sequence`; and `payload`, or with `message_type` the fields of that type as in `Schema.arrow`, with
        these exceptions: prices are decimals, null from 10^18 units on; uint64 is int64 of the same bits, and a time in
        ns is int64 ns, because Spark cannot read others; a field with the name of another column gets the prefix
        `record_`.

        Args:
            path: the directory. Created if missing.
            prefix: of the topics.
            message_type: the message type. Default: all messages, with payloads.
            prices: "decimal", exact; "float"; or "integer", as sent by the venue, with the number of decimals in the
                file's metadata.
            order: "capture", as recorded: row groups of a million messages, each of a short time. "topic": each
                million messages sorted by topic, in row groups an eighth as large, each of few topics.
            progress: called with the number of messages so far.
            selection: the keywords of `batches`. A slice without messages gets a file without rows.

        Raises as `to_arrow`; ConfigError for invalid prices or order; JournalError if the day exists or cannot be
        written, or if the length of a message differs from that of `message_type`.
        """
        parquet = needs("pyarrow", "arrow", "blackbox.archive.export.parquet")
        content = parquet.Content(self.feed, str(self.date), self.schema, message_type, prices, order)
        batches = self._batches_by_slice(as_bytes("prefix", prefix), selection)
        day: ParquetDay = parquet.write_day(Path(path), content, batches, progress)
        return day

    def to_delta(
        self,
        table: str | os.PathLike[str],
        prefix: str | bytes = b"",
        *,
        message_type: str | None = None,
        prices: Prices = "decimal",
        storage_options: Mapping[str, str] | None = None,
        progress: Callable[[int], object] | None = None,
        **selection: Unpack[Selection],
    ) -> int:
        """Append the messages of `batches` to a Delta Lake table, and return their number. Needs the extra `delta`.

        The day is one commit: readers see all of it or nothing. The table is created if it does not exist, with
        partitions by `date` and `slice`. Columns and arguments are those of `to_parquet`, with wider signed integers
        for unsigned ones. `storage_options` are those of `deltalake`; `progress` is called with the messages so far.

        Raises as `to_parquet`; JournalError if the table has rows of this day or cannot be written.
        """
        delta = needs("deltalake", "delta", "blackbox.archive.export.delta")
        content = delta.Content(self.feed, str(self.date), self.schema, message_type, prices)
        batches = self._batches_by_slice(as_bytes("prefix", prefix), selection)
        messages: int = delta.append_day(os.fspath(table), content, batches, progress, storage_options)
        return messages

    def _batches_by_slice(self, prefix: bytes, selection: Selection) -> dict[int, Iterator[Batch]]:
        wanted = filter_of(self.feed, self.time, prefix, selection)
        ids = self.segments.wanted(prefix, selection.get("slices"))
        return {slice_id: self._batches(wanted, self.segments.streams(prefix, [slice_id])) for slice_id in ids}

    @property
    def trades(self) -> Ticks:
        """The trades as tables and frames. Raises ConfigError if the schema declares none."""
        return Ticks(self, "trades")

    @property
    def quotes(self) -> Ticks:
        """The quotes as tables and frames. Raises ConfigError if the schema declares none."""
        return Ticks(self, "quotes")

    @property
    def instruments(self) -> Instruments:
        """The instruments as a table: definitions, statuses and symbol mappings."""
        return Instruments(self)

    def time(self, value: Time, by: Clock = "ts_event") -> int:
        """Return a time as ns since 1970, int64.

        Text is parsed by `blackbox.timestamps`, in the feed's time zone by default. A time of day alone is on the
        recording's date. If no message of that session has a time by this clock, it is on the date of the first
        message's session, as for a file of an earlier year that was recorded today.

        Raises ValueError for invalid text, a datetime without a time zone, or a number in seconds, ms or us; TypeError
        for other types.
        """
        if isinstance(value, int | numpy.integer) and not isinstance(value, bool):
            check_unit(int(value), self.time_range(by)[1])
            return max(MIN_NS, min(int(value), MAX_NS))
        if isinstance(value, datetime.datetime):
            return max(MIN_NS, min(ns_of(value), MAX_NS))
        if isinstance(value, str):
            low, high = self.time_range(by)
            begin, end = session_ns(self.feed, self.date)
            if low <= high and (high < begin or low >= end):
                begin, end = session_ns(self.feed, session_date(self.feed, low))
            return parse_time(value, self.feed.time_zone, begin, end - 1)
        raise TypeError(f"time was {value!r}, expected ns since the epoch, a datetime or text")

    def _scanned(
        self, prefix: bytes, options: FrameOptions, names: list[str] | None, pushed: Pushed
    ) -> Iterator[pyarrow.RecordBatch]:
        columns, selection = self._asked(options, prefix)
        yield from scanned(self, columns if names is None else columns.narrowed(names), prefix, selection, pushed)

    def _batches(self, wanted: Filter, slices: list[list[Segment]]) -> Iterator[Batch]:
        feed = BatchFeed(self.feed.name, self.schema if self.schema.records else None, self.feed.symbol_rule)
        select = RowFilter(wanted)
        for run in read_runs(slices, wanted, self.segments.note):
            for block, ts_recv, first_row, header, body in blocks_of(run, wanted.key_rule):
                rows = select.rows(block, first_row, header, body)
                if rows is None or len(rows):
                    yield Batch(block, rows, ReceivedBlock.of_block(block, feed, ts_recv))

    def time_range(self, by: Clock = "ts_event") -> tuple[int, int]:
        """Return the lowest time above 0 and the highest one of all messages, from the indexes, ns; (0, -1) if none."""
        return self.segments.time_range(by)


def _date_of_day(day: Path) -> datetime.date:
    """Return the date of a day's directory: from its name, or from the manifest of a renamed copy."""
    try:
        return datetime.date.fromisoformat(day.name)
    except ValueError:
        return Manifest.read(day).date


def _date_of(feed: Feed, times: NDArray[numpy.int64]) -> datetime.date:
    """Return the session date that contains all of these times. Raises ConfigError if not found."""
    known = times[times != 0]
    if not len(known):
        raise ConfigError("no message had a time, expected a date")
    first, last = (session_date(feed, int(time)) for time in (known.min(), known.max()))
    if first != last:
        raise ConfigError(f"messages were of {first} to {last}, expected one date: give the date")
    return first


def open_kept(path: Path) -> Recording | None:
    """Open a day; return None if it has been deleted or is being deleted. Raises as `Recording.open`."""
    try:
        recording = Recording.open(path)
    except JournalError:
        if path.exists():
            raise
        return None
    return recording if path.exists() else None


def _schema_of_blocks(segments: Segments) -> Schema:
    """Return the schema that all blocks have if the feed names none; else RAW."""
    everything = Filter(segments.feed.key_rule)
    ids = {
        int(run.heads["schema"][0])
        for _, each in segments.of()
        for run in islice(read_runs([each], everything, lambda _: None, bodies="stored"), 1)
    }
    return schema_of(ids.pop()) if len(ids) == 1 and segments.feed.schema_name == RAW.name else RAW
