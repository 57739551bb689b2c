"""Follow a growing recording. Offsets are exact to the byte, so that a restart continues where the last batch ended.

An offset has the place up to which each day and slice was read. Days up to `done` were read completely:

    {"done": "2026-11-19", "days": {"2026-11-20": {"0": "3:1048640", "1": "2:96064"}}}

Places are `segment:byte`. A recorder writes to its two newest days at most, so an older day that was read is done.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy
import pyarrow
from numpy.typing import NDArray
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow

from blackbox.analysis.spark.days import local_path
from blackbox.analysis.spark.options import Options
from blackbox.analysis.spark.plan import Partition, Piece, cut, damage_of
from blackbox.analysis.spark.read import Reading
from blackbox.archive.files.day import MANIFEST, recorded_days, segment_path
from blackbox.archive.files.segment import Segment
from blackbox.archive.recording import Recording
from blackbox.errors import ConfigError, JournalError

_NEWEST: Final = 2
"""The newest days of a feed, which may still grow."""
_ALL: Final = (1 << 62, 0)


class Place(NamedTuple):
    """Place up to which a slice was read. The greater of two places is further on."""

    segment: int
    offset: int

    @classmethod
    def parse(cls, text: str) -> Place:
        """Parse a place of an offset."""
        segment, _, offset = text.partition(":")
        return cls(int(segment), int(offset))

    def __str__(self) -> str:
        return f"{self.segment}:{self.offset}"


_BEGIN: Final = Place(0, 0)
_END: Final = Place(*_ALL)
Day = dict[int, Place]
"""Places by slice."""


class Progress:
    """Progress of a stream. Attributes: `done`, name of the last day read to its end; `days`, places since."""

    def __init__(self, offset: dict[str, Any] | None = None) -> None:
        told = offset or {"done": "", "days": {}}
        self.done: str = told["done"]
        self.days: dict[str, Day] = {
            name: {int(slice_id): Place.parse(text) for slice_id, text in places.items()}
            for name, places in told["days"].items()
        }

    def offset(self) -> dict[str, Any]:
        """Return the offset for Spark. Equal progress makes equal text."""
        days = {
            name: {str(slice_id): str(place) for slice_id, place in sorted(places.items())}
            for name, places in sorted(self.days.items())
        }
        return {"done": self.done, "days": days}

    def place(self, day: str, slice_id: int) -> Place:
        """Return the place up to which a slice was read."""
        return _END if day <= self.done else self.days.get(day, {}).get(slice_id, _BEGIN)

    def move(self, day: str, slice_id: int, place: Place) -> None:
        """Set the place up to which a slice was read."""
        self.days.setdefault(day, {})[slice_id] = place

    def finish(self, day: str) -> None:
        """Mark a day and all earlier ones as read to their end."""
        self.done = day
        self.days = {name: places for name, places in self.days.items() if name > day}


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plan the batches of a stream, and read their partitions."""

    def __init__(self, options: Options, reading: Reading) -> None:
        """Follow the day or feed in the options. Raises ConfigError for other paths."""
        if len(options.paths) != 1:
            raise ConfigError(f"a stream had {len(options.paths)} paths, expected one day or feed")
        self._path = local_path(options.paths[0])
        if not recorded_days(self._path) and not (self._path / MANIFEST).is_file():
            raise ConfigError(f"a stream had path {options.paths[0]!r}, expected a recorded day or a feed with days")
        self._options, self._reading = options, reading
        self._recordings: dict[Path, Recording] = {}
        self._until: Progress | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the start of a stream without a checkpoint."""
        latest = self._options.starting == "latest"
        return self._latest().offset() if latest else Progress().offset()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit that option `maxBytesPerTrigger` sets."""
        most = self._options.max_bytes
        return ReadAllAvailable() if most is None else ReadMaxBytes(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Stop at the current end of the recording."""
        self._until = self._latest()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next batch: everything recorded, or the earliest by `ts_out` up to the limit."""
        progress = Progress(start)
        self._advance(progress, limit.max_bytes if isinstance(limit, ReadMaxBytes) else None)
        return progress.offset()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the partitions between two offsets."""
        before, after = Progress(start), Progress(end)
        days = {day.name: day for day in self._days()}
        for name, places in after.days.items():
            if name not in days and places != before.days.get(name):
                raise JournalError(f"{self._path} has lost the day {name!r}, which a stream is reading")
        found: list[InputPartition] = []
        for name, day in days.items():
            if before.done < name and (name <= after.done or name in after.days):
                found += self._partitions_of(day, before, after)
            if name <= after.done:
                self._recordings.pop(day, None)
        return found

    def _partitions_of(self, day: Path, before: Progress, after: Progress) -> Iterator[Partition]:
        recording = self._recording(day)
        segments = dict(recording.segments.of())
        for slice_id in sorted({*segments, *after.days.get(day.name, ())}):
            first, last = before.place(day.name, slice_id), after.place(day.name, slice_id)
            there = segments.get(slice_id, [])
            _check(recording, slice_id, there, last)
            for spans in cut(_between(there, first, last).piece, self._options.partition_bytes):
                yield Partition(recording, slice_id, spans)

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        """Yield the messages of a partition."""
        return self._reading.batches(partition) if isinstance(partition, Partition) else iter(())

    def _days(self) -> list[Path]:
        return [self._path] if (self._path / MANIFEST).is_file() else recorded_days(self._path)

    def _recording(self, day: Path) -> Recording:
        """Return a day, refreshed."""
        recording = self._recordings.get(day)
        if recording is None:
            recording = self._recordings[day] = Recording.open(day)
        else:
            recording.refresh()
        damage_of(recording, list(range(len(recording.feed.slices))), self._reading.skip_damage)
        return recording

    def _latest(self) -> Progress:
        progress = Progress()
        self._advance(progress, None)
        return progress

    def _advance(self, progress: Progress, most_bytes: int | None) -> None:
        days = [day for day in self._days() if day.name > progress.done]
        closed = {day.name for day in days[:-_NEWEST]}
        left = most_bytes
        for day in days:
            recording = self._recording(day)
            parts = []
            for slice_id, segments in recording.segments.of():
                until = _END if self._until is None else self._until.place(day.name, slice_id)
                part = _between(segments, progress.place(day.name, slice_id), until)
                if len(part.latest):
                    parts.append((slice_id, part))
            size = sum(int((part.piece.stop - part.piece.start).sum()) for _, part in parts)
            whole = left is None or size <= left
            ends = [len(part.latest) for _, part in parts] if whole else _shares(parts, left or 0, left == most_bytes)
            for (slice_id, part), end in zip(parts, ends, strict=True):
                if end:
                    place = Place(int(part.piece.segment[end - 1]), int(part.piece.stop[end - 1]))
                    progress.move(day.name, slice_id, place)
            if not whole:
                return
            if left is not None:
                left -= size
            if day.name in closed and (self._until is None or day.name <= self._until.done):
                progress.finish(day.name)
                self._recordings.pop(day, None)


class _Part(NamedTuple):
    """Index entries of one slice between two places."""

    piece: Piece
    latest: NDArray[numpy.int64]
    """int64[n]: largest `ts_out` up to each entry."""


def _between(segments: list[Segment], first: Place, last: Place) -> _Part:
    """Return the index entries between two places of a slice."""
    numbers, starts, stops, latest = [_NONE], [_NONE], [_NONE], [_NONE]
    for segment in segments:
        if not first.segment <= segment.number <= last.segment or not len(segment.entries):
            continue
        begin = first.offset if segment.number == first.segment else 0
        end = last.offset if segment.number == last.segment else len(segment.memory)
        start = numpy.maximum(segment.entries["start"], begin)
        stop = numpy.minimum(segment.entries["stop"], end)
        there = start < stop
        numbers.append(numpy.full(int(there.sum()), segment.number))
        starts.append(start[there])
        stops.append(stop[there])
        latest.append(segment.entries["max_ts_out"][there])
    piece = Piece(numpy.concatenate(numbers), numpy.concatenate(starts), numpy.concatenate(stops))
    return _Part(piece, numpy.maximum.accumulate(numpy.concatenate(latest)))


_NONE: Final = numpy.empty(0, numpy.int64)


def _shares(parts: list[tuple[int, _Part]], most_bytes: int, at_least_one: bool) -> list[int]:
    """Return how many entries of each slice fit into `most_bytes` in total, the earliest by `ts_out` first."""
    owner = numpy.repeat(numpy.arange(len(parts)), [len(part.latest) for _, part in parts])
    latest = numpy.concatenate([part.latest for _, part in parts])
    sizes = numpy.concatenate([part.piece.stop - part.piece.start for _, part in parts])
    order = numpy.argsort(latest, kind="stable")
    many = int(numpy.searchsorted(numpy.cumsum(sizes[order]), most_bytes, "right"))
    if at_least_one:
        many = max(many, 1)
    counts: list[int] = numpy.bincount(owner[order[:many]], minlength=len(parts)).tolist()
    return counts


def _check(recording: Recording, slice_id: int, segments: list[Segment], last: Place) -> None:
    """Raise JournalError if a slice ends before a place up to which it was read."""
    if last in (_BEGIN, _END):
        return
    for segment in segments:
        if segment.number == last.segment and len(segment.memory) >= last.offset:
            return
    path = segment_path(recording.path, slice_id, last.segment)
    raise JournalError(f"{path} ends before byte {last.offset}, up to which a stream had read: it has lost records")
