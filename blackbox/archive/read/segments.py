"""Find and open the segments of a day's slices, reopen those that grow, and report missing ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy

from blackbox.archive.files.day import (
    as_journal_error,
    segment_path,
    slice_directories,
    slice_directory,
    slice_files,
    slice_name,
    slice_of,
)
from blackbox.archive.files.segment import NO_GOOD_RECORD, Damage, Segment, open_end
from blackbox.archive.read.filter import Clock
from blackbox.errors import JournalError


class Segments:
    """A day's segments as of the last `refresh`.

    Attributes: `of_slice`, the segments of each slice that has a directory, in order.
    """

    def __init__(self, day: Path, slices: int, key_rule: int, report: Callable[[Damage], None]) -> None:
        """Open no file; call `refresh` next. `report` is called with each missing or damaged part."""
        self.of_slice: dict[int, list[Segment]] = {}
        self._day, self._slices, self._key_rule = day, slices, key_rule
        self._report = report

    def __iter__(self) -> Iterator[Segment]:
        return (segment for segments in self.of_slice.values() for segment in segments)

    @property
    def file_bytes(self) -> int:
        """Size of all segments, without their indexes."""
        return sum(len(segment.memory) for segment in self)

    def time_range(self, by: Clock) -> tuple[int, int]:
        """Return the lowest time above 0 and the highest one, from the indexes, ns since 1970; (0, -1) if none."""
        low, high = 1 << 62, -1
        for segment in self:
            known = segment.entries[segment.entries[f"max_{by}"] > 0]
            if len(known):
                starts = known[f"min_{by}"]
                low = min(low, int(numpy.where(starts > 0, starts, known[f"max_{by}"]).min()))
                high = max(high, int(known[f"max_{by}"].max()))
        return (low, high) if high >= low else (0, -1)

    def refresh(self, begun: dict[int, int], only: int | None = None) -> None:
        """Add data recorded since, of all slices or of one. `begun`: minimum number of segments of each slice.

        Raises JournalError if the day cannot be read or a segment is missing.
        """
        try:
            names = {path.name for path in slice_directories(self._day)}
            for name in sorted(names):
                slice_id = slice_of(name)
                if slice_id is None or slice_id >= self._slices:
                    self._report(Damage(self._day / name, 0, 0, "the manifest has no such slice"))
                elif only in (None, slice_id):
                    self._refresh_slice(slice_id, begun.get(slice_id, 0))
        except OSError as error:
            raise as_journal_error(error, f"recording {self._day} cannot be read") from error
        for slice_id in range(self._slices):
            if slice_name(slice_id) not in names:
                self._report(Damage(self._day / slice_name(slice_id), 0, 0, "missing: the manifest has such a slice"))
        self.of_slice = dict(sorted(self.of_slice.items()))

    def _refresh_slice(self, slice_id: int, begun: int) -> None:
        directory = slice_directory(self._day, slice_id)
        numbers, indexes = slice_files(directory)
        self._report_missing(slice_id, numbers, indexes, begun)
        before = {segment.number: segment for segment in self.of_slice.get(slice_id, [])}
        may_grow = {segment.number for segment in open_end(list(before.values()))}
        segments: list[Segment] = []
        # Newest first: once a segment has records, the one before it is complete.
        for number in reversed(numbers):
            known = before.get(number)
            if known is None or number in may_grow:
                known = self._opened(slice_id, number, known)
            if known is not None:
                segments.insert(0, known)
        if gone := [number for number, known in before.items() if len(known.entries) and number not in numbers]:
            raise JournalError(f"{directory} has lost segment {gone[0]:06d} since it was opened")
        for segment in segments:
            for damage in segment.damage:
                self._report(damage)
        for segment in segments[: len(segments) - len(open_end(segments))]:
            if segment.torn_bytes or not segment.whole_bytes:
                what = NO_GOOD_RECORD if segment.whole_bytes else "the segment has no head"
                self._report(Damage(segment.path, segment.whole_bytes, segment.torn_bytes, what))
        self.of_slice[slice_id] = segments

    def _report_missing(self, slice_id: int, numbers: list[int], indexes: list[int], begun: int) -> None:
        last = max(numbers, default=-1)
        if behind := [number for number in indexes if number > last]:
            what = f"missing: only the indexes of {len(behind)} segments are left"
            self._report(Damage(segment_path(self._day, slice_id, behind[0]), 0, 0, what))
        elif begun > last + 1:
            what = f"missing: {begun} segments had been begun"
            self._report(Damage(segment_path(self._day, slice_id, last + 1), 0, 0, what))
        expected = 0
        for number in numbers:
            if number > expected:
                what = f"{number - expected} segment{'s' * (number > expected + 1)} missing, from this one on"
                self._report(Damage(segment_path(self._day, slice_id, expected), 0, 0, what))
            expected = number + 1

    def _opened(self, slice_id: int, number: int, known: Segment | None) -> Segment | None:
        """Return the current state of a segment; None for an empty one that its recorder has removed."""
        path = segment_path(self._day, slice_id, number)
        try:
            return known.refreshed() if known else Segment(path, slice_id, number, self._key_rule)
        except JournalError as error:
            if isinstance(error.__cause__, FileNotFoundError) and not (known and len(known.entries)):
                return None
            raise
