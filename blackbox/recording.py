"""Read one recorded day: its blocks in order, chosen by topic and time, while it is recorded or afterwards."""

from __future__ import annotations

import datetime
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self
from zoneinfo import ZoneInfo

import numpy

from blackbox.batch import Batch, Opened
from blackbox.errors import ConfigError, JournalError
from blackbox.journal.blocks import Recorded, RowFilter, read_blocks
from blackbox.journal.census import Gap, Rate, Summary, find_gaps, message_rate, summarise, topic_counts
from blackbox.journal.chunks import Chunk, Clock, Query, read_chunks
from blackbox.journal.day import Manifest, as_journal_error, day_end_ns, segment_path, session_date, slice_directory
from blackbox.journal.segment import NO_GOOD_RECORD, Damage, Segment, open_end
from blackbox.schema import RAW, Schema, load_schema

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

    from blackbox.journal.parquet import Order, ParquetDay, Prices

_log = logging.getLogger(__name__)

Time = int | datetime.datetime | str
"""A time: ns since the epoch; an aware datetime; or text, see `Recording.time`."""

_SLICE: Final = re.compile(r"slice-(\d{5})")
_SEGMENT: Final = re.compile(r"(\d{6,})\.journal")
_INDEX: Final = re.compile(r"(\d{6,})\.index")
_CLOCKS: Final = ("ts_event", "ts_out", "ts_recv")


class Recording:
    """One feed's recorded day, read in place.

    Attributes: `path`, its directory; `feed`; `date`, of the session; `schema` of the payloads, RAW when the feed's is
    not registered here; `damage`, what was found to be unreadable so far, each thing once.

    Nothing is held open but memory maps, which arrays and batches of the recording keep alive. It may be written while
    it is read: what is there is what was there when it was opened, until `refresh`. From one thread at a time.
    """

    def __init__(self, path: Path, manifest: Manifest) -> None:
        """Wrap a day's directory; others use `open`."""
        self.path = path
        self.feed, self.date = manifest.feed, manifest.date
        self.damage: list[Damage] = []
        self._told: set[Damage] = set()
        try:
            self.schema: Schema = load_schema(manifest.feed.schema)
        except ConfigError as error:
            _log.warning("%s: %s; payloads are read as plain bytes", path, error)
            self.schema = RAW
        self._slices: dict[int, list[Segment]] = {}
        self.refresh()

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Open a day's directory, the one with the `manifest.json`.

        Raises JournalError naming what is missing, damaged or of another format. Only a damaged record is none: it is
        left out and told in `damage`.
        """
        directory = Path(path)
        return cls(directory, Manifest.read(directory))

    def __repr__(self) -> str:
        return f"Recording({self.feed.name!r}, {self.date}, {str(self.path)!r})"

    def refresh(self) -> None:
        """Take in what was recorded since. Chunks and batches that are being read go on as they were."""
        try:
            names = {path.name: sorted(child.name for child in path.iterdir()) for path in self.path.glob("slice-*")}
        except OSError as error:
            raise as_journal_error(error, f"recording {self.path} cannot be read") from error
        for name in sorted(names):
            match = _SLICE.fullmatch(name)
            if match is None or int(match[1]) >= len(self.feed.slices):
                self.note(Damage(self.path / name, 0, 0, "the manifest has no such slice"))
                continue
            found = sorted(int(file[1]) for file in map(_SEGMENT.fullmatch, names[name]) if file)
            indexes = [int(file[1]) for file in map(_INDEX.fullmatch, names[name]) if file]
            if behind := [number for number in indexes if number > max(found, default=-1)]:
                missing = segment_path(self.path, int(match[1]), behind[0])
                self.note(Damage(missing, 0, 0, f"missing, of {len(behind)} segments only the indexes are there"))
            self._refresh_slice(int(match[1]), self.path / name, found)
        for slice_id in range(len(self.feed.slices)):
            if (directory := slice_directory(self.path, slice_id)).name not in names:
                self.note(Damage(directory, 0, 0, "missing: the manifest has such a slice"))

    def chunks(
        self,
        prefix: bytes = b"",
        start: Time | None = None,
        stop: Time | None = None,
        slices: Iterable[int] | None = None,
        by: Clock = "ts_event",
        *,
        epoch: int | None = None,
        first_sequence: int | None = None,
    ) -> Iterator[Chunk]:
        """The records that may hold such messages (see `batches`), as they are stored, many at a time.

        In merge order (see `blackbox.journal.merge`). What index and heads show not to match is passed over; bodies are
        not looked at. Memory behind a chunk is given back when the next is asked for.
        """
        query = self._query(prefix, start, stop, by, epoch, first_sequence)
        return read_chunks(self.streams(prefix, slices), query, self.note)

    def batches(
        self,
        prefix: bytes = b"",
        start: Time | None = None,
        stop: Time | None = None,
        slices: Iterable[int] | None = None,
        by: Clock = "ts_event",
        *,
        epoch: int | None = None,
        first_sequence: int | None = None,
    ) -> Iterator[Batch]:
        """The messages whose topic starts with `prefix` and whose time is in `[start, stop)`, block by block.

        Args:
            prefix: of the topics.
            start: the first time; see `time` for what may be given. Not given: from the beginning.
            stop: the end of the times, not wanted itself. Not given: to the end.
            slices: ids of the slices to look into; not given: all.
            by: which time: `ts_event` is each message's own, `ts_out` and `ts_recv` are its block's.
            epoch: only messages of this run of the publisher.
            first_sequence: only messages with this sequence number or a larger one.

        Yields batches without the rows that are not wanted; columns of uncompressed blocks are views on the file. Every
        block is checked before it is used. A damaged one is left out and told in `damage`, with its messages.

        Raises ConfigError for a reserved prefix, ValueError for a time, slice or clock that is none, JournalError when
        the library that unpacks a body is not installed.
        """
        query = self._query(prefix, start, stop, by, epoch, first_sequence)
        return self._batches(query, self.streams(prefix, slices))

    def lower_bound(self, slice_id: int, key: bytes, epoch: int, sequence: int) -> Iterator[Batch]:
        """The messages of one key and one run of the publisher, from the first one at or after a sequence number on."""
        query = self._query(key, None, None, "ts_event", epoch, sequence)._replace(key=key)
        return self._batches(query, self.streams(key, [slice_id]))

    def topics(self) -> list[bytes]:
        """All topics, sorted. Reads everything, as `counts`."""
        return sorted(self.counts())

    def counts(self) -> dict[bytes, int]:
        """Messages by topic. Reads everything; damaged blocks are left out."""
        total: Counter[bytes] = Counter()
        for slice_id in self._slices:
            total.update(topic_counts(self._blocks_of(slice_id)))
        return dict(total)

    def gaps(self) -> list[Gap]:
        """What is missing between the messages of each (epoch, slice, key). Reads everything.

        What was published before the first block of a key that is here is not known, and no gap.
        """
        return [gap for slice_id in self._slices for gap in find_gaps(self._blocks_of(slice_id))]

    def summary(self) -> Summary:
        """How much is here, and from when to when. Walks the heads of all records, but not their bodies."""
        return summarise(self._slices, self._all, self.damage, self.note)

    def rate(self, bins: int = 60) -> Rate:
        """Messages over time: from the first to the last `ts_out`, in `bins` parts of equal length."""
        if bins < 1:
            raise ValueError(f"bins were {bins}, expected at least 1")
        return message_rate(self._slices, self._all, bins, self.note)

    def verify(self, progress: Callable[[int], object] | None = None) -> list[Damage]:
        """Read everything, check every checksum, and return all that is unreadable, by file and place.

        Bytes behind the last whole record of a slice are among it; while it is recorded, that may be one just written.
        `progress` is called with the bytes read so far, of `file_bytes`.
        """
        return self.examine(progress)[0]

    def examine(self, progress: Callable[[int], object] | None = None) -> tuple[list[Damage], list[Gap]]:
        """As `verify` and `gaps`, in one pass."""
        gaps: list[Gap] = []
        before = 0
        for slice_id, segments in self._slices.items():
            gaps += find_gaps(self._told_blocks(slice_id, before, progress))
            before += sum(len(segment.memory) for segment in segments)
            for last in open_end(segments):
                if last.torn_bytes:
                    self.note(Damage(last.path, last.whole_bytes, last.torn_bytes, "torn tail: no whole record"))
        if progress is not None:
            progress(before)
        return sorted(self.damage), gaps

    @property
    def file_bytes(self) -> int:
        """Bytes of all segments, without their indexes."""
        return sum(len(segment.memory) for segments in self._slices.values() for segment in segments)

    def to_arrow(
        self,
        prefix: bytes = b"",
        start: Time | None = None,
        stop: Time | None = None,
        slices: Iterable[int] | None = None,
        by: Clock = "ts_event",
        *,
        kind: str | None = None,
    ) -> pyarrow.Table:
        """The messages that `batches` would give, as one table, in memory.

        Columns: `slice`, `topic` (dictionary of binary), `ts_event`, `ts_out`, `ts_recv` (int64 ns), `epoch`,
        `sequence`, and `payload` (binary); or, with `kind`, only the messages of that type of the feed's schema, and
        instead of the payload its fields as `Schema.arrow` has them, texts without padding. A field that is called as
        one of the first seven has `record_` before its name.

        Raises as `batches`; ConfigError when the schema has no such type; ImportError naming what to install.
        """
        table_of = _needs("pyarrow", "arrow", "blackbox.journal.table").table_of
        return table_of(self.batches(prefix, start, stop, slices, by), self.schema, kind)

    def to_pandas(
        self,
        prefix: bytes = b"",
        start: Time | None = None,
        stop: Time | None = None,
        slices: Iterable[int] | None = None,
        by: Clock = "ts_event",
        *,
        kind: str | None = None,
    ) -> pandas.DataFrame:
        """As `to_arrow`, as a data frame of pandas; `topic` is categorical."""
        _needs("pandas", "pandas")
        frame: pandas.DataFrame = self.to_arrow(prefix, start, stop, slices, by, kind=kind).to_pandas()
        return frame

    def to_polars(
        self,
        prefix: bytes = b"",
        start: Time | None = None,
        stop: Time | None = None,
        slices: Iterable[int] | None = None,
        by: Clock = "ts_event",
        *,
        kind: str | None = None,
    ) -> polars.DataFrame:
        """As `to_arrow`, as a data frame of polars; `topic` is binary, for polars has no categories of bytes."""
        library = _needs("polars", "polars")
        table = self.to_arrow(prefix, start, stop, slices, by, kind=kind)
        place = table.schema.get_field_index("topic")
        plain = table.column(place).cast("binary")
        frame: polars.DataFrame = library.from_arrow(table.set_column(place, "topic", plain))
        return frame

    def to_parquet(
        self,
        path: str | os.PathLike[str],
        prefix: bytes = b"",
        start: Time | None = None,
        stop: Time | None = None,
        slices: Iterable[int] | None = None,
        by: Clock = "ts_event",
        *,
        kind: str | None = None,
        prices: Prices = "decimal",
        order: Order = "capture",
        progress: Callable[[int], object] | None = None,
    ) -> ParquetDay:
        """Write the messages that `batches` would give as Parquet: a file for each slice, packed with zstd.

        The day is `path/date=<date>/slice=<slice>/part-00000.parquet`: other days of the feed go beside it. It is there
        only once it is whole. Memory does not grow with the recording.

        Columns: those of the Spark data source, `date` and `slice` as directories. `feed`, `topic`, `symbol`, `type`
        (texts; bytes that are no UTF-8 escaped); `ts_event`, `ts_out`, `ts_recv` (int64 ns); the same in microseconds
        as timestamps `event_time` (null where the venue gave none), `out_time`, `recv_time`; `epoch` (the 64 bits,
        signed), `sequence`; and `payload`, or with `kind` the fields of that message type as `Schema.arrow` has them,
        but: prices are decimals, null from 10^18 units on; uint64 is int64 of the same bits, and a time in ns is int64
        ns, as Spark reads nothing else; a name that stands above has `record_` before it.

        Args:
            path: the directory; made if it is not there.
            prefix: and the following: as of `batches`.
            start: the first time.
            stop: the end of the times.
            slices: ids; a slice without messages gets a file without rows.
            by: which time.
            kind: the message type; not given: all messages, with their payloads.
            prices: "long" for the integers that the venue sent; the file's metadata then tells the decimals.
            order: "capture", as recorded: row groups of a million messages that cover a short time each. "topic":
                each such million sorted by topic, in row groups an eighth as large: they cover few topics, too.
            progress: called with the number of messages so far.

        Raises as `to_arrow`; ConfigError when prices or order are none of these; JournalError when the day is there
        already, when it cannot be written, or when a message of `kind` has another length than that.
        """
        parquet = _needs("pyarrow", "arrow", "blackbox.journal.parquet")
        content = parquet.Content(self.feed.name, str(self.date), self.schema, kind, prices, order)
        query = self._query(prefix, start, stop, by, None, None)
        wanted = self._wanted_slices(prefix, slices)
        batches = {slice_id: self._batches(query, self.streams(prefix, [slice_id])) for slice_id in wanted}
        day: ParquetDay = parquet.write_day(Path(path), content, batches, progress)
        return day

    def time(self, value: Time, by: Clock = "ts_event") -> int:
        """A time in ns since the epoch, int64.

        Text is an ISO date-time, in the feed's time zone if it names none, or `HH:MM[:SS[.fraction]]`: that time of the
        session, in the feed's time zone, that the first message is of by this clock: a file of an earlier year that was
        recorded today has its own date. Fractions have up to nine digits.

        Raises ValueError for other text or a datetime without a time zone, TypeError for anything else.
        """
        if isinstance(value, int | numpy.integer) and not isinstance(value, bool):
            return max(-(1 << 63) + 1, min(int(value), (1 << 63) - 1))
        if isinstance(value, datetime.datetime):
            if value.tzinfo is None:
                raise ValueError(f"time was {value!r}, expected a datetime with a time zone")
            return _ns_of(value)
        if isinstance(value, str):
            return self._time_of_text(value, by)
        raise TypeError(f"time was {value!r}, expected ns since the epoch, a datetime or text")

    def _time_of_text(self, text: str, by: Clock) -> int:
        parts = _TIME.fullmatch(text.strip())
        zone = ZoneInfo(self.feed.time_zone)
        try:
            if parts is None:
                raise ValueError(text)
            fraction = int((parts["fraction"] or "").ljust(9, "0"))
            if parts["date"] is not None:
                moment = datetime.datetime.fromisoformat(parts["date"] + parts["time"] + (parts["zone"] or ""))
                return _ns_of(moment if moment.tzinfo else moment.replace(tzinfo=zone)) + fraction
            clock = datetime.time.fromisoformat(parts["time"] + (parts["zone"] or ""))
            if clock.tzinfo is not None:
                raise ValueError(text)
        except ValueError:
            raise ValueError(
                f"time was {text!r}, expected an ISO date-time such as '2026-11-21T14:30', or HH:MM[:SS[.fraction]]"
            ) from None
        low, high = self.time_range(by)
        date = session_date(self.feed, low) if high >= low else self.date
        end = day_end_ns(self.feed, date)
        begin = day_end_ns(self.feed, date - datetime.timedelta(1))
        for day in (date, date - datetime.timedelta(1), date + datetime.timedelta(1)):
            at = _ns_of(datetime.datetime.combine(day, clock, zone)) + fraction
            if begin <= at < end:
                return at
        return _ns_of(datetime.datetime.combine(date, clock, zone)) + fraction

    @property
    def _all(self) -> Query:
        return Query(self.feed.key_bytes)

    def _blocks_of(self, slice_id: int) -> Iterator[Recorded]:
        chunks = read_chunks([self._slices[slice_id]], self._all, self.note)
        return read_blocks(chunks, self.feed.key_bytes, self.note)

    def _told_blocks(self, slice_id: int, before: int, progress: Callable[[int], object] | None) -> Iterator[Recorded]:
        for chunk in read_chunks([self._slices[slice_id]], self._all, self.note):
            yield from read_blocks([chunk], self.feed.key_bytes, self.note)
            before += int(chunk.heads["stored_bytes"].sum(dtype=numpy.int64)) + chunk.heads.nbytes
            if progress is not None:
                progress(before)

    def _batches(self, query: Query, slices: list[list[Segment]]) -> Iterator[Batch]:
        schema = self.schema if self.schema.records else None
        select = RowFilter(query)
        for recorded in read_blocks(read_chunks(slices, query, self.note), query.key_bytes, self.note):
            block = recorded.block
            if query.key is not None and block.key != query.key:
                continue
            rows = select.rows(recorded)
            if rows is None or len(rows):
                yield Batch(block, rows, Opened.of_block(block, schema, recorded.ts_recv))

    def _opened(self, path: Path, slice_id: int, number: int, known: Segment | None) -> Segment | None:
        """A segment as it is now; None when it was made ahead, held nothing, and went with its recorder."""
        try:
            return known.refreshed() if known else Segment(path, slice_id, number, self.feed.key_bytes)
        except JournalError as error:
            if isinstance(error.__cause__, FileNotFoundError) and not (known and len(known.entries)):
                return None
            raise

    def _refresh_slice(self, slice_id: int, directory: Path, numbers: list[int]) -> None:
        before = {segment.number: segment for segment in self._slices.get(slice_id, [])}
        may_grow = {segment.number for segment in open_end(list(before.values()))}
        expected = 0
        for number in numbers:
            if number > expected:
                what = f"{number - expected} segment{'s' * (number > expected + 1)} missing, from this one on"
                self.note(Damage(directory / f"{expected:06d}.journal", 0, 0, what))
            expected = number + 1
        segments: list[Segment] = []
        # The last one first: when it has records, the one before it has all of its own.
        for number in reversed(numbers):
            known = before.get(number)
            if known is None or number in may_grow:
                known = self._opened(directory / f"{number:06d}.journal", slice_id, number, known)
            if known is not None:
                segments.insert(0, known)
        if gone := [number for number, known in before.items() if len(known.entries) and number not in numbers]:
            raise JournalError(f"{directory} has lost segment {gone[0]:06d} since it was opened")
        for segment in segments:
            for damage in segment.damage:
                self.note(damage)
        for segment in segments[: len(segments) - len(open_end(segments))]:
            if segment.torn_bytes or not segment.whole_bytes:
                what = NO_GOOD_RECORD if segment.whole_bytes else "the segment has no head"
                self.note(Damage(segment.path, segment.whole_bytes, segment.torn_bytes, what))
        self._slices[slice_id] = segments
        self._slices = dict(sorted(self._slices.items()))

    def _query(
        self,
        prefix: bytes,
        start: Time | None,
        stop: Time | None,
        by: Clock,
        epoch: int | None,
        first_sequence: int | None,
    ) -> Query:
        if by not in _CLOCKS:
            raise ValueError(f"by was {by!r}, expected one of: {', '.join(_CLOCKS)}")
        if epoch is not None and not 0 <= epoch < 1 << 64:
            raise ValueError(f"epoch was {epoch}, expected 0 to 2^64 - 1")
        return Query(
            self.feed.key_bytes,
            prefix,
            None,
            None if start is None else self.time(start, by),
            None if stop is None else self.time(stop, by),
            by,
            epoch,
            first_sequence,
        )

    def streams(self, prefix: bytes, slices: Iterable[int] | None) -> list[list[Segment]]:
        """The segments of each slice that may hold such topics."""
        return [self._slices[i] for i in self._wanted_slices(prefix, slices) if i in self._slices]

    def _wanted_slices(self, prefix: bytes, slices: Iterable[int] | None) -> list[int]:
        wanted = set(range(len(self.feed.slices)) if slices is None else slices)
        if unknown := sorted(wanted.difference(range(len(self.feed.slices)))):
            raise ValueError(f"slices had {unknown[0]}, expected 0 to {len(self.feed.slices) - 1}")
        return [i for i in self.feed.slices_for(prefix) if i in wanted]

    def segments(self, slices: Iterable[int] | None = None) -> list[tuple[int, list[Segment]]]:
        """(slice, its segments in order) of those slices, or of all, that have any."""
        wanted = self._slices if slices is None else slices
        return [(slice_id, self._slices[slice_id]) for slice_id in wanted if slice_id in self._slices]

    def time_range(self, by: Clock = "ts_event") -> tuple[int, int]:
        """The least time above 0 and the largest one of all messages, by the indexes, ns; (0, -1): there is none."""
        low, high = 1 << 62, -1
        for segment in (segment for segments in self._slices.values() for segment in segments):
            known = segment.entries[segment.entries[f"max_{by}"] > 0]
            if len(known):
                starts = known[f"min_{by}"]
                low = min(low, int(numpy.where(starts > 0, starts, known[f"max_{by}"]).min()))
                high = max(high, int(known[f"max_{by}"].max()))
        return (low, high) if high >= low else (0, -1)

    def note(self, damage: Damage) -> None:
        """Keep and tell that something cannot be read."""
        if damage not in self._told:
            self._told.add(damage)
            self.damage.append(damage)
            _log.warning("%s", damage)


def chunks_of(
    recordings: Iterable[Recording],
    prefix: bytes = b"",
    start: int | None = None,
    stop: int | None = None,
    slices: Iterable[int] | None = None,
    by: Clock = "ts_event",
    kept: int = 0,
) -> Iterator[Chunk]:
    """As `Recording.chunks`, of several recordings in one order; times are ns since the epoch, `kept` as `read_chunks`.

    Raises ConfigError when their feeds have different `key_bytes`.
    """
    recordings = tuple(recordings)
    sizes = {recording.feed.key_bytes for recording in recordings}
    if len(sizes) > 1:
        raise ConfigError(f"recordings had feeds of key_bytes {sorted(sizes)}, expected the same in all")
    wanted = None if slices is None else tuple(slices)
    streams = [stream for recording in recordings for stream in recording.streams(prefix, wanted)]

    def tell(damage: Damage) -> None:
        next(r for r in recordings if damage.path.is_relative_to(r.path)).note(damage)

    return read_chunks(streams, Query(sizes.pop(), prefix, None, start, stop, by), tell, kept)


def _needs(library: str, extra: str, module: str = "") -> Any:
    """Import a module that needs a library which may be missing."""
    try:
        return import_module(module or library)
    except ImportError as error:
        raise ImportError(f"this needs {library}: pip install 'blackbox-md[{extra}]' ({error})") from error


_TIME: Final = re.compile(
    r"(?P<date>\d{4}-\d\d-\d\d[T ])?(?P<time>\d\d:\d\d(:\d\d)?)"
    r"((?<=:\d\d:\d\d)[.,](?P<fraction>\d{1,9}))?(?P<zone>Z|[+-]\d\d:?\d\d)?"
)
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def _ns_of(moment: datetime.datetime) -> int:
    since = moment.astimezone(datetime.UTC) - _EPOCH  # exact: a float of seconds would not be
    return (since.days * 86_400 + since.seconds) * 10**9 + since.microseconds * 1_000
