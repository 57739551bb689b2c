"""Import sources into dated recordings: without sockets, several days at once, each in threads of its own.

Of each day, one thread decodes while another encodes and writes. Both run compiled code, without the GIL, but for what
a source does in Python: days of such sources take turns.
"""

from __future__ import annotations

import datetime
import os
import threading
import time
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing
from itertools import chain, islice
from pathlib import Path
from typing import Final

import msgspec
import numpy

from blackbox.archive.append import compile_append
from blackbox.archive.codec import BLOCK_BYTES, Compression, check_packing
from blackbox.archive.column_writer import ColumnWriter
from blackbox.archive.day import Date, as_date, recorded_files, session_date
from blackbox.archive.fresh_day import FreshDays, check_is_new, check_whole, fresh_day
from blackbox.archive.read_ahead import read_ahead
from blackbox.archive.recording import Recording
from blackbox.errors import ConfigError, SourceError
from blackbox.feed.feed import Feed, check_is_feed
from blackbox.feed.schema import RAW
from blackbox.feed.source import Source

_CHUNKS_WITHOUT_TIME: Final = 16
_CHUNKS_AHEAD: Final = 2


class ImportedDay(msgspec.Struct, frozen=True, kw_only=True):
    """A day that was imported."""

    date: datetime.date
    path: Path
    messages: int
    file_bytes: int
    """Of segments and their indexes."""
    outside: int
    """Messages with a time outside of the session date."""
    truncated: tuple[str, ...]
    """For each source that ended early, where and why."""
    notes: tuple[str, ...]
    """What the sources say that the operator should know."""
    seconds: float


class _EmptyDay(msgspec.Struct, frozen=True, order=True):
    """A day whose sources had no message."""

    date: datetime.date
    why: str


class _Job(msgspec.Struct, frozen=True, kw_only=True):
    """A day to import."""

    feed: Feed
    directory: Path
    date: datetime.date
    sources: list[Source]
    compression: Compression
    block_bytes: int
    replace: bool


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
    """Write sources into `directory/<feed>/<session date>/`, message for message what a recorder would have made.

    Each day is read again and checked before it has its name. Sources of one date go into one day, one behind the
    other. What was unfinished when a process was killed is removed by the next import.

    Args:
        feed: its slices, keys and schema; one of schema "raw" carries any payload.
        directory: where recordings are; made if it is missing.
        sources: a source of several days is taken apart, where it can tell them.
        date: of all sources. Default: what each says itself, or else the session of its first message with a time.
        compression: as `compact` has it.
        block_bytes: as `compact` has them.
        replace: whether days that are there are written anew.
        threads: days that are imported at a time. Each takes up to two cores, and some 100 MiB.
        imported: called with each day that is done.

    Raises JournalError when a day is there already, or cannot be written; ConfigError when a source has another schema
    or no date; SourceError when one cannot be read. Days that were done by then stay. SourceError, once all others are
    done, naming the days without messages.
    """
    check_is_feed(feed)
    check_packing(compression, block_bytes)
    if threads < 1:
        raise ValueError(f"threads were {threads}, expected at least 1")
    place = Path(directory) / feed.name
    jobs = [
        _Job(
            feed=feed,
            directory=place,
            date=day,
            sources=each,
            compression=compression,
            block_bytes=block_bytes,
            replace=replace,
        )
        for day, each in sorted(_by_date(feed, sources, None if date is None else as_date(date)).items())
    ]
    for job in jobs:
        check_is_new(place, job.date, replace=replace)
    done, empty = [], []
    with FreshDays(place, replace=replace), closing(_run(jobs, min(threads, len(jobs)))) as days:
        for day in days:
            if isinstance(day, _EmptyDay):
                empty.append(day)
                continue
            done.append(day)
            if imported is not None:
                imported(day)
    if empty:
        raise SourceError("; ".join(f"{day.date} has no message: {day.why}" for day in sorted(empty)))
    return sorted(done, key=lambda day: day.date)


def _run(jobs: list[_Job], threads: int) -> Generator[ImportedDay | _EmptyDay, None, None]:
    """Yield the days as they are done. What ends this, such as an error of one day, ends those that are not done."""
    end = threading.Event()
    compile_append()  # once, and kept: LLVM lets go of what two threads have compiled twice while others compile
    with ThreadPoolExecutor(threads, "blackbox-import") as pool:
        try:
            for future in as_completed([pool.submit(_import_day, job, end) for job in jobs]):
                yield future.result()
        finally:
            end.set()
            pool.shutdown(cancel_futures=True)


def _by_date(feed: Feed, sources: Iterable[Source], date: datetime.date | None) -> dict[datetime.date, list[Source]]:
    found: dict[datetime.date, list[Source]] = {}
    for source in chain.from_iterable([source] if date else source.by_day() for source in sources):
        schema = source.schema.name
        if feed.schema_name not in (schema, RAW.name):
            raise ConfigError(f"{source!r} has schema {schema!r}, expected {feed.schema_name!r} of feed {feed.name!r}")
        found.setdefault(date or source.date or _date_of_messages(feed, source), []).append(source)
    if not found:
        raise ConfigError("an import was given no source, expected at least one")
    return found


def _date_of_messages(feed: Feed, source: Source) -> datetime.date:
    for chunk in islice(source.chunks(), _CHUNKS_WITHOUT_TIME):
        timed = numpy.flatnonzero(chunk.ts_event > 0)
        if len(timed):
            return session_date(feed, int(chunk.ts_event[timed[0]]))
    text = source.truncated or "its first messages have no time"
    raise SourceError(f"{source!r} tells no date ({text}): give the date (--date)")


def _import_day(job: _Job, end: threading.Event) -> ImportedDay | _EmptyDay:
    try:
        return _import_messages(job, end)
    except _NoMessageError as error:
        return _EmptyDay(job.date, str(error))


class _NoMessageError(Exception):
    """A day has no message; says why."""


class _EndedError(Exception):
    """The import has ended before this day was done."""


def _import_messages(job: _Job, end: threading.Event) -> ImportedDay:
    began = time.perf_counter()
    truncated: list[str] = []
    notes: list[str] = []

    def go_on(_: object = None) -> None:
        if end.is_set():
            raise _EndedError

    with fresh_day(job.directory, job.date, replace=job.replace) as path:
        writer = ColumnWriter(path, job.feed, job.date, compression=job.compression, block_bytes=job.block_bytes)
        with writer:
            for source in job.sources:
                with closing(read_ahead(source.chunks(), _CHUNKS_AHEAD)) as chunks:
                    for topics, index, times, payloads, starts, lengths in chunks:
                        go_on()
                        writer.put(topics, index, payloads, times, starts, lengths)
                truncated += [source.truncated] if source.truncated else []
                notes += source.notes
        if not writer.messages:
            raise _NoMessageError("; ".join(truncated) or ", ".join(map(repr, job.sources)))
        check_whole(Recording.open(path), writer.messages, go_on)
        file_bytes = sum(file.stat().st_size for file in recorded_files(path))
    return ImportedDay(
        date=job.date,
        path=job.directory / job.date.isoformat(),
        messages=writer.messages,
        file_bytes=file_bytes,
        outside=writer.outside,
        truncated=tuple(truncated),
        notes=tuple(notes),
        seconds=time.perf_counter() - began,
    )
