"""Rebuild a day's manifest from its segments, and from the feed's file or another day."""

from __future__ import annotations

import datetime
import re
from pathlib import Path
from typing import Final

import msgspec
import numpy

from blackbox import __version__
from blackbox.archive.files.day import (
    MANIFEST,
    MOST_JSON_BYTES,
    Lock,
    Manifest,
    as_journal_error,
    recorded_days,
    segment_numbers,
    segment_path,
    slice_directories,
    slice_directory,
    slice_of,
)
from blackbox.archive.files.format import FILE_HEAD, FILE_HEAD_BYTES, MARK, MARK_HEAD_BYTES, MARK_MAGIC
from blackbox.archive.files.journal_record import CHAIN_BYTES
from blackbox.archive.files.marks import chain_start
from blackbox.archive.files.segment import Segment
from blackbox.archive.read.filter import Filter
from blackbox.archive.read.reader import blocks_of, read_spans, whole_spans
from blackbox.archive.read.summary import topic_counts
from blackbox.archive.recording import Recording
from blackbox.block.form.layout import VERSION
from blackbox.errors import ConfigError, JournalError
from blackbox.feed.feed import Feed, as_recorded
from blackbox.feed.routing.key_rule import setting_of
from blackbox.feed.schema.document import SchemaDocument
from blackbox.feed.schema.schema import RAW, load_schema, schema_of
from blackbox.native.compile.jit import njit
from blackbox.native.tables.xxh3 import xxh3
from blackbox.regular_file import read_regular

_LONGEST_NS: Final = 2 * 10**9
"""Maximum time between the start of a day and its first segment. Beyond it the repair does not find the start."""
_NUMBER: Final = re.compile(rb"\b\d{15,19}\b")


class Repaired(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a repair."""

    kept: Path | None
    """Path of the damaged manifest; None if it was missing."""
    messages: int
    """Messages in the segments, all of them in the slices that the feed's rule assigns."""
    source: str
    """Source of the feed's settings."""
    unknown: tuple[str, ...]
    """Settings that could not be restored, in words."""


class _Found(msgspec.Struct, frozen=True, kw_only=True):
    """Values found in a day's segments."""

    slices: int
    key_rule: int
    schema_id: int


def repair(day: Path, feed: Feed | None = None) -> Repaired:
    """Rewrite the damaged or missing manifest of a day. The day's segments are read, not changed.

    The feed's settings come from `feed`, otherwise from the nearest other day of the feed, otherwise, for a feed of one
    slice, from the segments alone. All messages must be in the slices that these settings assign.

    Raises JournalError if the manifest is valid, the day is being recorded or cannot be read, or the settings are
    unknown or do not fit.
    """
    if _sound(day) is not None:
        raise JournalError(f"{day / MANIFEST} is valid, expected a damaged or missing manifest")
    try:
        found = _look(day)
        lock = Lock(day.parent)
        try:
            return _repair(day, feed, found)
        finally:
            lock.close()
    except OSError as error:
        raise as_journal_error(error, f"{day} cannot be repaired") from error


def _repair(day: Path, feed: Feed | None, found: _Found) -> Repaired:
    unknown = []
    near = _nearest(day)
    if feed is not None:
        source = "the given feed"
    elif near is not None:
        feed, source = near.feed, f"the day {near.date}"
    elif found.slices == 1:
        feed = Feed.local(day.parent.name, slices=1, schema=schema_of(found.schema_id).name)
        feed = msgspec.structs.replace(feed, **setting_of(found.key_rule))
        source = "the segments alone"
        unknown.append(
            "the feed's endpoints, time zone and other settings, which were set to those of a new local feed"
        )
    else:
        raise JournalError(
            f"{day} has {found.slices} slices, and its segments do not say how topics are assigned to them: give the "
            "feed's file"
        )
    schema = _described(day, feed, found, near)
    try:
        date = datetime.date.fromisoformat(day.name)
    except ValueError:
        raise JournalError(f"{day}: name was {day.name!r}, expected the session date, YYYY-MM-DD") from None
    created_ns = _created_ns(day)
    if created_ns is None:
        created_ns = 0
        unknown.append("the start of the day, so `verify` reports a difference in the first totals of each slice")
    path, kept = day / MANIFEST, None
    if path.exists():
        kept = path.rename(day / f"{MANIFEST}.damaged")
    made = Manifest(
        format=VERSION,
        feed=as_recorded(feed),
        schema=schema,
        date=date,
        created_ns=created_ns,
        version=__version__,
        encrypted=feed.security is not None or (near is not None and near.encrypted),
    )
    made.write(day)
    try:
        messages = _check_topics(Recording.open(day))
    except BaseException:
        path.unlink()
        if kept is not None:
            kept.rename(path)
        raise
    return Repaired(kept=kept, messages=messages, source=source, unknown=tuple(unknown))


def _sound(day: Path) -> Manifest | None:
    try:
        return Manifest.read(day)
    except JournalError:
        return None


def _nearest(day: Path) -> Manifest | None:
    """Return the valid manifest of the feed's other day with the nearest date; None if not found."""
    others = [each for each in recorded_days(day.parent) if each != day]
    known = [manifest for manifest in map(_sound, others) if manifest is not None]
    return min(known, key=lambda manifest: abs(_days(str(manifest.date)) - _days(day.name)), default=None)


def _days(name: str) -> int:
    try:
        return datetime.date.fromisoformat(name).toordinal()
    except ValueError:
        return 0


def _look(day: Path) -> _Found:
    """Read the heads of all records. Raises JournalError if they disagree or the day is empty."""
    slices = [number for path in slice_directories(day) if (number := slice_of(path.name)) is not None]
    said: set[tuple[int, int]] = set()
    for slice_id in slices:
        numbers = segment_numbers(slice_directory(day, slice_id))
        segments = [Segment(segment_path(day, slice_id, number), slice_id, number, 0) for number in numbers]
        for run in read_spans([whole_spans(segments)], Filter(0).records, 0, lambda _: None, bodies="stored"):
            said |= set(zip(run.heads["key_rule"].tolist(), run.heads["schema"].tolist(), strict=True))
    if not said:
        raise JournalError(f"{day} has no segment with a record, expected one to repair it from")
    if len(said) > 1:
        raise JournalError(f"{day} has blocks of several (key_rule, schema), {sorted(said)}, expected the same in all")
    ((key_rule, schema_id),) = said
    return _Found(slices=max(slices) + 1, key_rule=key_rule, schema_id=schema_id)


def _described(day: Path, feed: Feed, found: _Found, near: Manifest | None) -> SchemaDocument:
    """Return the payloads' schema. Raises JournalError if the feed does not match the segments."""
    for name, here, there in (
        ("slices", found.slices, len(feed.slices)),
        ("key_rule", found.key_rule, feed.key_rule & 0xFF),
    ):
        if here != there:
            raise JournalError(f"{day} has {name} {here} in its segments, and feed {feed.name!r} has {there}")
    try:
        document = SchemaDocument.of(load_schema(feed.schema))
    except ConfigError:
        if near is None or near.schema.name != feed.schema_name:
            raise
        document = near.schema
    if found.schema_id not in (document.id, RAW.schema_id):
        raise JournalError(
            f"{day} has schema {found.schema_id} in its blocks, and {feed.schema_name!r} of feed {feed.name!r} is "
            f"{document.id}"
        )
    return document


def _check_topics(day: Recording) -> int:
    """Return the number of messages. Raises JournalError if one is not in the slice that the feed's rule assigns."""
    feed, messages = day.feed, 0
    for slice_id, _ in day.segments.of():
        blocks = (each for run in day.runs(slices=[slice_id]) for each in blocks_of(run, feed.key_rule))
        for topic, count in topic_counts(blocks).items():
            messages += count
            if feed.slice_of(topic) != slice_id:
                raise JournalError(
                    f"{day.path} has topic {topic!r} in slice {slice_id}, but feed {feed.name!r} assigns it to slice "
                    f"{feed.slice_of(topic)}: give the feed that was recorded"
                )
    return messages


def _created_ns(day: Path) -> int | None:
    """Return the manifest's `created_ns`, with which the chain of a slice's day begins; None if it is not found.

    Tries the numbers in the damaged manifest, then times shortly before the first segment was created.
    """
    for path in slice_directories(day):
        slice_id = slice_of(path.name)
        first = segment_path(day, slice_id or 0, 0)
        if slice_id is None or not first.exists() or first.stat().st_size < FILE_HEAD_BYTES + MARK_HEAD_BYTES:
            continue
        memory = numpy.fromfile(first, numpy.uint8, FILE_HEAD_BYTES + MARK_HEAD_BYTES)
        created_ns = int(memory[:FILE_HEAD_BYTES].view(FILE_HEAD)["created"][0])
        mark = memory[FILE_HEAD_BYTES:].view(MARK)[0]
        if int(mark["magic"]) != MARK_MAGIC or int(mark["records"]):
            continue
        chain = int(mark["chain"].astype(numpy.int64))
        for number in _numbers_in(day / MANIFEST):
            if chain_start(number, slice_id) == chain:
                return number
        found = int(find_start(slice_id, chain, created_ns, _LONGEST_NS))
        return None if found < 0 else found
    return None


def _numbers_in(path: Path) -> list[int]:
    try:
        return [int(number) for number in _NUMBER.findall(read_regular(path, MOST_JSON_BYTES))]
    except OSError:
        return []


@njit(nogil=True, cache=True)
def find_start(slice_id: int, chain: int, latest_ns: int, longest_ns: int) -> int:
    """Return the time at which a slice's chain begins, at most `longest_ns` before `latest_ns`; -1 if not found."""
    words = numpy.empty(2, numpy.int64)
    words[1] = slice_id
    for before in range(longest_ns):
        words[0] = latest_ns - before
        if numpy.int64(xxh3(words.ctypes.data, CHAIN_BYTES)) == chain:
            return int(words[0])
    return -1
