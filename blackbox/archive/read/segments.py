"""Find and open the segments of a day's slices, reopen those that grow, and report missing ones."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy

from blackbox.archive.files.closed import CLOSED, ClosedSlice, read_closed
from blackbox.archive.files.day import (
    as_journal_error,
    segment_path,
    slice_directories,
    slice_directory,
    slice_files,
    slice_name,
    slice_of,
)
from blackbox.archive.files.segment import NO_GOOD_RECORD, NO_TIME, Damage, Segment, open_end
from blackbox.archive.read.filter import Clock, Filter
from blackbox.archive.read.reader import Recorded, Span, blocks_of, read_blocks, read_spans
from blackbox.errors import JournalError
from blackbox.feed.feed import Feed

_log = logging.getLogger(__name__)

NO_TIMES: Final = (0, -1)
"""Range of times without any time."""


class Segments:
    """A day's segments as of the last `refresh`, and the damage found in them.

    Attributes: `day`, its directory; `feed`; `of_slice`, the segments of each slice that has a directory, in order;
    `damage` without repetitions; `closed`, the entries of `closed.json`, and `closed_damage` if that cannot be read.
    """

    def __init__(self, day: Path, feed: Feed) -> None:
        """Open no file; call `refresh` next."""
        self.of_slice: dict[int, list[Segment]] = {}
        self.damage: list[Damage] = []
        self.closed: dict[int, ClosedSlice] = {}
        self.closed_damage: Damage | None = None
        self.day, self.feed = day, feed
        self._noted: set[Damage] = set()

    def of(self, slices: Iterable[int] | None = None) -> list[tuple[int, list[Segment]]]:
        """Return (slice, its segments in order) for each of those slices, or all, that has segments."""
        known = self.of_slice
        return [(slice_id, known[slice_id]) for slice_id in (known if slices is None else slices) if slice_id in known]

    def filled(self, slice_id: int) -> list[Segment]:
        """Return the segments of a slice that have entries."""
        return [each for each in self.of_slice.get(slice_id, ()) if len(each.entries)]

    def streams(self, prefix: bytes, slices: Iterable[int] | None = None) -> list[list[Segment]]:
        """Return the segments of each slice that may hold such topics. Raises ValueError as `wanted`."""
        return [segments for _, segments in self.of(self.wanted(prefix, slices))]

    def wanted(self, prefix: bytes, slices: Iterable[int] | None = None) -> list[int]:
        """Return those of the slices that may hold such topics. Raises ValueError for a slice that the feed lacks."""
        count = len(self.feed.slices)
        wanted = set(range(count) if slices is None else slices)
        if unknown := sorted(wanted.difference(range(count))):
            raise ValueError(f"slices had {unknown[0]}, expected 0 to {count - 1}")
        return [slice_id for slice_id in self.feed.slices_for(prefix) if slice_id in wanted]

    def blocks(self, slice_id: int) -> Iterator[Recorded]:
        """Yield all valid blocks of a slice."""
        return read_blocks(self.of_slice[slice_id], self.feed.key_rule, self.note)

    def note(self, damage: Damage) -> None:
        """Store and log damage, once."""
        if damage not in self._noted:
            self._noted.add(damage)
            self.damage.append(damage)
            _log.warning("%s", damage)

    def __iter__(self) -> Iterator[Segment]:
        return (segment for segments in self.of_slice.values() for segment in segments)

    @property
    def file_bytes(self) -> int:
        """Size of all segments, without their indexes."""
        return sum(len(segment.memory) for segment in self)

    def time_range(self, by: Clock) -> tuple[int, int]:
        """Return the lowest time above 0 and the highest one, from the indexes, ns since 1970; (0, -1) if none."""
        found = [each for _, mine in self.of() if (each := time_range_of(mine, by)) != NO_TIMES]
        return (min(low for low, _ in found), max(high for _, high in found)) if found else NO_TIMES

    def refresh(self, only: int | None = None) -> None:
        """Add data recorded since, of all slices or of one.

        Raises JournalError if the day cannot be read or a segment is missing.
        """
        self.closed, self.closed_damage = {}, None
        try:
            self.closed = read_closed(self.day)  # first, because a segment may be recorded in between
        except JournalError as error:
            self.closed_damage = Damage(self.day / CLOSED, 0, 0, str(error))
        slices = range(len(self.feed.slices))
        try:
            names = {path.name for path in slice_directories(self.day)}
            for name in sorted(names):
                slice_id = slice_of(name)
                if slice_id not in slices:
                    self.note(Damage(self.day / name, 0, 0, "the manifest has no such slice"))
                elif slice_id is not None and only in (None, slice_id):
                    self._refresh_slice(slice_id)
        except OSError as error:
            raise as_journal_error(error, f"recording {self.day} cannot be read") from error
        for slice_id in slices:
            if slice_name(slice_id) not in names:
                self.note(Damage(self.day / slice_name(slice_id), 0, 0, "missing: the manifest has such a slice"))
        self.of_slice = dict(sorted(self.of_slice.items()))

    def _refresh_slice(self, slice_id: int) -> None:
        directory = slice_directory(self.day, slice_id)
        numbers, indexes = slice_files(directory)
        self._report_missing(slice_id, numbers, indexes)
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
                self.note(damage)
        for segment in segments[: len(segments) - len(open_end(segments))]:
            if segment.torn_bytes or not segment.whole_bytes:
                what = NO_GOOD_RECORD if segment.whole_bytes else "the segment has no head"
                self.note(Damage(segment.path, segment.whole_bytes, segment.torn_bytes, what))
        self.of_slice[slice_id] = segments

    def _report_missing(self, slice_id: int, numbers: list[int], indexes: list[int]) -> None:
        begun = self.closed.get(slice_id, ClosedSlice()).segments
        last = max(numbers, default=-1)
        if behind := [number for number in indexes if number > last]:
            what = f"missing: only the indexes of {len(behind)} segments are left"
            self.note(Damage(segment_path(self.day, slice_id, behind[0]), 0, 0, what))
        elif begun > last + 1:
            what = f"missing: {begun} segments had been begun"
            self.note(Damage(segment_path(self.day, slice_id, last + 1), 0, 0, what))
        expected = 0
        for number in numbers:
            if number > expected:
                what = f"{number - expected} segment{'s' * (number > expected + 1)} missing, from this one on"
                self.note(Damage(segment_path(self.day, slice_id, expected), 0, 0, what))
            expected = number + 1

    def _opened(self, slice_id: int, number: int, known: Segment | None) -> Segment | None:
        """Return the current state of a segment; None for an empty one that its recorder has removed."""
        path = segment_path(self.day, slice_id, number)
        try:
            return known.refreshed() if known else Segment(path, slice_id, number, self.feed.key_rule)
        except JournalError as error:
            if isinstance(error.__cause__, FileNotFoundError) and not (known and len(known.entries)):
                return None
            raise


def time_range_of(segments: Iterable[Segment], by: Clock) -> tuple[int, int]:
    """Return `Segments.time_range` of one slice."""
    low, high = NO_TIME, -1
    for segment in segments:
        entries = segment.entries[segment.entries[f"max_{by}"] > 0]
        lows, highs = entries[f"min_{by}"].copy(), entries[f"max_{by}"].copy()
        if by == "ts_event":
            is_unknown = lows == -NO_TIME  # it has an unreadable record
            if high < 0:  # later entries rarely have earlier times, so only the first one is read for them
                is_unknown[:1] |= lows[:1] <= 0
            for index in numpy.flatnonzero(is_unknown).tolist():
                lows[index], highs[index] = _times_in(segment, entries[index])
        is_timed = highs > 0
        if is_timed.any():
            low = min(low, int(numpy.where(lows > 0, lows, highs)[is_timed].min()))
            high = max(high, int(highs[is_timed].max()))
    return (low, high) if high > 0 else NO_TIMES


def _times_in(segment: Segment, entry: Any) -> tuple[int, int]:
    """Return the lowest venue time above 0 and the highest one of an entry's readable messages."""
    spans, wanted = [Span(segment, int(entry["start"]), int(entry["stop"]))], Filter(segment.key_rule).records
    low, high = NO_TIME, -1
    try:
        for run in read_spans([spans], wanted, segment.key_rule, lambda _: None):
            for recorded in blocks_of(run, segment.key_rule):
                times = recorded.block.ts_event[recorded.first_row :]
                low = min(low, int(times[times > 0].min(initial=NO_TIME)))
                high = max(high, int(times.max()))
    except JournalError:  # the compression library is not installed
        return int(entry["max_ts_event"]), int(entry["max_ts_event"])
    return low, high
