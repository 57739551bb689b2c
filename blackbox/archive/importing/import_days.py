"""Import sources into dated recordings: without sockets, several days at once, each in its own threads.

    source with a date, `date=`   all its messages are of that day
    any other source              each message is of the session that contains its time

Sources without a date may share days, such as sources that run over midnight. They are read one after the other, and
their days are renamed into place when all have been read. Few days are open for writing at a time. Each day of a source
begins with its head (`Source.head`).

For each day one thread decodes while another encodes and writes. Both run compiled code without the GIL, except for
sources written in Python, whose days take turns.
"""

from __future__ import annotations

import datetime
import os
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import numpy

from blackbox.archive.files.codec import BLOCK_BYTES, Compression, check_packing
from blackbox.archive.files.day import Date, as_date, day_end_ns, recorded_files, session_date, session_ns
from blackbox.archive.importing.column_writer import ColumnWriter, Written
from blackbox.archive.importing.fresh_day import FreshDays, check_is_new, check_whole, fresh_day
from blackbox.archive.read.read_ahead import read_ahead
from blackbox.archive.record.append import compile_append
from blackbox.archive.recording import Recording
from blackbox.errors import ConfigError, SourceError
from blackbox.feed.feed import Feed, check_is_feed
from blackbox.feed.first_time import by_first_time
from blackbox.feed.schema.schema import RAW
from blackbox.feed.source import Chunk, Source
from blackbox.native.system.waits import as_done
from blackbox.timestamps import time_text

_CHUNKS_AHEAD: Final = 2
_OPEN_DAYS: Final = 4
"""Maximum number of days open for writing at a time."""
_MOST_DAYS: Final = 4_000
"""Messages of more days than this are assumed to be corrupt."""


class ImportedDay(msgspec.Struct, frozen=True, kw_only=True):
    """An imported day."""

    date: datetime.date
    path: Path
    messages: int
    file_bytes: int
    """Size of segments and indexes."""
    outside: int
    """Messages with a time outside the session date, if the source itself has a date."""
    missing: int
    """Messages that are missing in the sources after their first ones. The recording's gaps may add up to more: they
    include those before the first message, and `Publisher.skip` divides them among slices."""
    truncated: tuple[str, ...]
    """For each incomplete source whose last message is of this day: where and why it ends."""
    notes: tuple[str, ...]
    """Warnings of these sources, such as how many messages were sent before the first one."""
    seconds: float


class _Empty(msgspec.Struct, frozen=True, order=True):
    """Sources without messages."""

    what: str
    """The day or source, and the reason."""


class _Job(msgspec.Struct, frozen=True, kw_only=True):
    """Sources to import one after the other."""

    feed: Feed
    directory: Path
    date: datetime.date | None
    """The day of all messages; None: each message's time decides."""
    is_strict: bool
    """True if times outside the date are errors."""
    sources: list[Source]
    compression: Compression
    block_bytes: int
    replace: bool
    reserved: frozenset[datetime.date]
    """Dates of the other jobs."""


def import_days(
    feed: Feed,
    directory: str | os.PathLike[str],
    sources: Iterable[Source],
    *,
    date: Date | None = None,
    compression: Compression = "none",
    block_bytes: int = BLOCK_BYTES,
    replace: bool = False,
    threads: int = 1,
    imported: Callable[[ImportedDay], object] | None = None,
) -> list[ImportedDay]:
    """Write sources into `directory/<feed>/<session date>/`, the same messages as a recorder would have written.

    Each day is read and checked before it is renamed into place. Sources of one date are appended to one day, those
    without a date in the order of their first messages. Each import removes the unfinished days of killed ones.

    Args:
        feed: its slices, keys and schema; schema "raw" accepts any payload.
        directory: directory of the recordings. Created if missing.
        sources: files, captures and the like. A source without a date becomes one or more days, according to its
            messages' times; messages without a time go with the message before.
        date: of all sources. A message with a time outside its session is an error, unless the source itself has this
            date. Default: each source's own date, otherwise the times of its messages.
        compression: as in `compact`.
        block_bytes: as in `compact`.
        replace: True to replace existing days.
        threads: days that are imported at a time. Each uses up to two cores and about 100 MiB. Sources without a date
            are always read one after the other.
        imported: called with each finished day.

    Raises JournalError if a day exists or cannot be written; ConfigError if a source has another schema or its first
    messages have no time; SourceError if a source cannot be read, has times outside `date`, or jumps between more than
    a few days. Days that were finished before remain. Finally raises SourceError naming the days and sources without
    messages, if any.
    """
    check_is_feed(feed)
    check_packing(compression, block_bytes)
    if threads < 1:
        raise ValueError(f"threads were {threads}, expected at least 1")
    place = Path(directory) / feed.name
    given = None if date is None else as_date(date)
    groups = _by_date(feed, sources, given)
    dates = {day for day in groups if day is not None}
    jobs = [
        _Job(
            feed=feed,
            directory=place,
            date=day,
            is_strict=given is not None,
            sources=each,
            compression=compression,
            block_bytes=block_bytes,
            replace=replace,
            reserved=frozenset(dates - {day}),
        )
        for day, each in groups.items()
    ]
    for each_date in sorted(dates):
        check_is_new(place, each_date, replace=replace)
    done: list[ImportedDay] = []
    empty: list[_Empty] = []
    with FreshDays(place, replace=replace), closing(_run(jobs, min(threads, len(jobs)))) as results:
        for result in results:
            if isinstance(result, _Empty):
                empty.append(result)
                continue
            done.append(result)
            if imported is not None:
                imported(result)
    if empty:
        raise SourceError("; ".join(each.what for each in sorted(empty)))
    return sorted(done, key=lambda day: day.date)


def _run(jobs: list[_Job], threads: int) -> Generator[ImportedDay | _Empty, None, None]:
    """Yield the days as they are finished. An error of one day cancels the unfinished ones."""
    end = threading.Event()
    compile_append()  # compiled once, before threads: LLVM drops what two threads compile at the same time
    with ThreadPoolExecutor(threads, "blackbox-import") as pool:
        try:
            for future in as_done([pool.submit(_import, job, end) for job in jobs]):
                yield from future.result()
        finally:
            end.set()
            pool.shutdown(cancel_futures=True)


def _by_date(
    feed: Feed, sources: Iterable[Source], date: datetime.date | None
) -> dict[datetime.date | None, list[Source]]:
    """Return the sources by date; those without a date under None."""
    found: dict[datetime.date | None, list[Source]] = {}
    for source in chain.from_iterable([source] if date else source.by_day() for source in sources):
        schema = source.schema.name
        if feed.schema_name not in (schema, RAW.name):
            raise ConfigError(f"{source!r} has schema {schema!r}, expected {feed.schema_name!r} of feed {feed.name!r}")
        found.setdefault(date or source.date, []).append(source)
    if not found:
        raise ConfigError("no source was given, expected at least one")
    return found


class _NoMessageError(Exception):
    """Raised with the reason if a day has no message."""


class _EndedError(Exception):
    """Raised in the other days when the import ends early."""


def _import(job: _Job, end: threading.Event) -> list[ImportedDay | _Empty]:
    """Import the sources of a job. Return its days, and the sources without messages."""

    def go_on(_: object = None) -> None:
        if end.is_set():
            raise _EndedError

    try:
        with ExitStack() as stack:
            days = _Days(job, stack)
            empty = [_Empty(what) for begun in _in_order(job) if (what := days.read(begun, go_on))]
            return [*empty, *days.close(go_on)]
    except _NoMessageError as error:
        return [_Empty(f"{job.date} has no message: {error}")]


class _Begun(NamedTuple):
    """A source with its first messages."""

    source: Source
    first: datetime.date | None
    """The day of its first message; None: it has no message."""
    chunks: Iterator[Chunk] | None = None
    """Its chunks, if it is still open; otherwise it is opened when it is read."""


def _in_order(job: _Job) -> list[_Begun]:
    """Return the sources of a job in the order of their first messages."""
    if job.date is not None:
        return [_Begun(source, job.date) for source in job.sources]
    begun: list[_Begun] = []
    for source, first_ns, chunks in by_first_time(job.sources, _earliest_ns(job.feed)):
        if first_ns == 0:
            raise SourceError(f"{source!r} has no date, and its first messages have no time: give the date (--date)")
        first = None if first_ns is None else session_date(job.feed, first_ns)
        if first is not None:
            _check_is_free(job, first)
            check_is_new(job.directory, first, replace=job.replace)
        begun.append(_Begun(source, first, chunks))
    return begun


def _check_is_free(job: _Job, date: datetime.date) -> None:
    """Raise SourceError if another job writes this day."""
    if date in job.reserved:
        raise SourceError(
            f"messages of {date} are in sources with and without a date, expected one kind: import them apart, or give "
            "the date (--date)"
        )


def _earliest_ns(feed: Feed) -> int:
    """Return the start of the first session that can be recorded. Earlier times count as missing."""
    return day_end_ns(feed, datetime.date(1970, 1, 1))


def _no_message(source: Source) -> str:
    """Return a sentence for a source without messages."""
    reasons = "; ".join([*([source.truncated] if source.truncated else []), *source.notes])
    return f"{source!r} has no message" + (f": {reasons}" if reasons else "")


class _OpenDay:
    """A day open for writing. It is renamed into place when `stack` exits without an error."""

    def __init__(self, job: _Job, date: datetime.date, stack: ExitStack) -> None:
        self.date = date
        self.written = Written()
        self.missing = 0
        self.truncated: list[str] = []
        self.notes: list[str] = []
        self.is_open = True
        self._began = time.perf_counter()
        self._place = stack.enter_context(fresh_day(job.directory, date, replace=job.replace))
        self._path = job.directory / date.isoformat()
        self._closed = stack.enter_context(ExitStack())
        self._writer: ColumnWriter | None = self._closed.enter_context(
            ColumnWriter(self._place, job.feed, date, compression=job.compression, block_bytes=job.block_bytes)
        )

    def put(self, chunk: Chunk) -> None:
        """Write messages. Raises as `ColumnWriter.put`."""
        assert self._writer is not None
        self._writer.put(chunk.topics, chunk.topic_index, chunk.payloads, chunk.ts_event, chunk.starts, chunk.lengths)
        self.written = self._writer.written

    def skip(self, count: int) -> None:
        """Skip sequence numbers of messages that are missing in the source."""
        assert self._writer is not None
        self._writer.skip(count)
        self.written = self._writer.written

    def close(self) -> None:
        """Write buffered messages. Raises JournalError."""
        self.is_open = False
        self._closed.close()
        self._writer = None  # releases its memory

    def check(self, go_on: Callable[[object], None]) -> ImportedDay:
        """Read the day and check it. Raises JournalError if it is not complete."""
        check_whole(Recording.open(self._place), self.written, go_on)
        return ImportedDay(
            date=self.date,
            path=self._path,
            messages=self.written.messages,
            file_bytes=sum(file.stat().st_size for file in recorded_files(self._place)),
            outside=self.written.outside,
            missing=self.missing,
            truncated=tuple(self.truncated),
            notes=tuple(self.notes),
            seconds=time.perf_counter() - self._began,
        )


class _Days:
    """The days of a job. Few are open at a time."""

    def __init__(self, job: _Job, stack: ExitStack) -> None:
        """`stack`: its exit renames the days into place, or removes all of them after an error."""
        self._job, self._stack = job, stack
        self._days: dict[datetime.date, _OpenDay] = {}
        self._recent: dict[datetime.date, _OpenDay] = {}
        self._earliest_ns = _earliest_ns(job.feed)
        self._last: _OpenDay | None = None
        self._headed: set[datetime.date] = set()
        """The days that begin with the head of the current source."""
        self._read: tuple[Source, datetime.date] | None = None
        """The last source, and the day of its first message."""

    def read(self, begun: _Begun, go_on: Callable[[], None]) -> str | None:
        """Write the messages of a source.

        Returns None, or a sentence if the source is empty. Raises SourceError if it cannot be read or a message does
        not fit a day.
        """
        source, first = begun.source, begun.first
        if first is None:
            return _no_message(source)
        messages, date = 0, self._job.date
        self._last = self._day(first)
        self._headed = {first}
        follows = self._read is not None and self._read[1] == first and source.follow(self._read[0])
        self._read = source, first
        outside = self._last.written.outside
        opened = source.chunks() if begun.chunks is None else begun.chunks
        with closing(read_ahead(opened, _CHUNKS_AHEAD)) as chunks:
            for chunk in chunks:
                go_on()
                for missing, run in chunk.runs():
                    if missing and (messages or follows or not self._last.written.messages):
                        # Otherwise an earlier source of the day may have the messages sent before this one.
                        self._last.skip(missing)
                    self._last.missing += missing if messages or follows else 0
                    messages += len(run.ts_event)
                    if date is None:
                        self._put_by_time(run, source.head)
                    else:
                        self._last.put(run)
        outside = self._last.written.outside - outside
        if self._job.is_strict and source.date != date and outside:
            begin, end = (time_text(time_ns, 0) for time_ns in session_ns(self._job.feed, first))
            raise SourceError(
                f"{source!r}: {outside:,} of its {messages:,} messages have times outside of the session {date}, "
                f"{begin} to {end}: leave out the date (--date) to write each message to the day of its time"
            )
        self._last.truncated += [source.truncated] if source.truncated else []
        self._last.notes += source.notes
        return None if messages or follows else _no_message(source)

    def close(self, go_on: Callable[[object], None]) -> list[ImportedDay]:
        """Write buffered messages, read all days and check them. Raises JournalError if one is not complete."""
        for day in self._recent.values():
            day.close()
        days = [day for _, day in sorted(self._days.items())]
        for day in days:
            if not day.written.messages:
                raise _NoMessageError(
                    "; ".join([*day.truncated, *day.notes]) or ", ".join(map(repr, self._job.sources))
                )
        return [day.check(go_on) for day in days]

    def _put_by_time(self, chunk: Chunk, head: Chunk | None) -> None:
        """Write each message to the day of its time; one without a time to that of the message before.

        `head`: the source's head, which begins each day.
        """
        times = chunk.ts_event
        if not len(times):
            return
        has_time = times >= self._earliest_ns
        left = has_time.copy()
        day_of = numpy.zeros(len(times), numpy.int32)
        assert self._last is not None
        days = [self._last.date]
        while True:
            begin, end = session_ns(self._job.feed, days[-1])
            inside = left & (times >= begin) & (times < end)
            day_of[inside] = len(days) - 1
            left &= ~inside
            if not left.any():
                break
            days.append(session_date(self._job.feed, int(times[numpy.argmax(left)])))
        if len(days) == 1:
            self._put(days[0], chunk, head)
            return
        timed = numpy.maximum.accumulate(numpy.where(has_time, numpy.arange(len(times)), -1))
        day_of = numpy.where(timed >= 0, day_of[timed], 0)
        for number, date in enumerate(days):
            rows = numpy.flatnonzero(day_of == number)
            if len(rows):
                index, lengths = chunk.topic_index[rows], chunk.lengths[rows]
                part = Chunk(chunk.topics, index, times[rows], chunk.payloads, chunk.starts[rows], lengths)
                self._put(date, part, head)
        self._last = self._day(days[day_of[-1]])

    def _put(self, date: datetime.date, chunk: Chunk, head: Chunk | None) -> None:
        """Write messages to a day. Its first ones of this source follow the head, which gets their time."""
        day = self._day(date)
        if head is not None and date not in self._headed:
            day.put(head._replace(ts_event=chunk.ts_event[:1]))
        self._headed.add(date)
        day.put(chunk)

    def _day(self, date: datetime.date) -> _OpenDay:
        """Return a day open for writing. Raises SourceError if it cannot be opened."""
        day = self._recent.pop(date, None)
        if day is None:
            day = self._open(date)
        self._recent[date] = day  # the most recently used day is last
        return day

    def _open(self, date: datetime.date) -> _OpenDay:
        if date in self._days:
            raise SourceError(
                f"messages of {date} came after those of {_OPEN_DAYS} other days, expected days in order: sort the "
                "input by time, or give the date (--date)"
            )
        _check_is_free(self._job, date)
        if len(self._days) == _MOST_DAYS:
            raise SourceError(
                f"the messages are of more than {_MOST_DAYS} days, the last one {date}: they are corrupt, or give the "
                "date (--date)"
            )
        if len(self._recent) == _OPEN_DAYS:
            self._recent.pop(next(iter(self._recent))).close()
        self._days[date] = _OpenDay(self._job, date, self._stack)
        return self._days[date]
