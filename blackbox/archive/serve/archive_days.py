"""The recorded days of a feed in an archive, kept open, with the ends and marks of their slices."""

from __future__ import annotations

import os
import secrets
from bisect import bisect
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

import numpy

from blackbox.archive.files.day import MANIFEST, segment_numbers, slice_directory
from blackbox.archive.files.format import FILE_HEAD_BYTES
from blackbox.archive.maintain.deleter import Deleted
from blackbox.archive.recording import Recording
from blackbox.archive.serve.piece_reading import EVERYTHING
from blackbox.archive.serve.protocol import Cursor
from blackbox.archive.serve.run_marks import RunMarks
from blackbox.block.position import Position
from blackbox.errors import ArchiveError

DAYS_OPEN: Final = 16
_MARKS_KEPT: Final = 256
"""Number of (day, slice) pairs to cache the marks of."""


class SliceEnd(NamedTuple):
    """End of a slice in one day."""

    last_ns: int
    """Largest `ts_recv`, ns since 1970."""
    position: Position
    """Position after the last message of the last epoch."""


class ArchiveDays:
    """The days of one feed. Not thread-safe. Keeps the files of the days read last mapped.

    Attributes: `archive`, a random number; `names` of the days in order, and `deleted`, as of the last `reload`.
    """

    def __init__(self, directory: Path) -> None:
        """`directory`: directory of the feed, with one subdirectory for each day."""
        self.directory = directory
        self.archive = secrets.randbits(63)
        self.names: list[str] = []
        self.deleted = Deleted()
        self._open: dict[str, tuple[int, Recording]] = {}
        self._ends: dict[tuple[str, int], tuple[int, SliceEnd | None]] = {}
        self._marks: dict[tuple[str, int], tuple[int, RunMarks]] = {}

    @property
    def opened(self) -> int:
        """Number of ends that are known."""
        return len(self._ends)

    def reload(self) -> list[str]:
        """Return the names of all days, in order."""
        there = sorted(each.name for each in os.scandir(self.directory)) if self.directory.is_dir() else []
        known = set(self.names)  # looking for all manifests would take ms where there are many days
        self.names = [each for each in there if each in known or (self.directory / each / MANIFEST).exists()]
        self.deleted = Deleted.read(self.directory)  # read last: a day is noted there before it is removed
        return self.names

    def check_slice(self, slice_id: int) -> None:
        """Raise ArchiveError if the newest day has no such slice. Earlier days may have fewer slices."""
        if self.names and slice_id >= (slices := len(self.known(self.names[-1]).feed.slices)):
            raise ArchiveError(f"slice was {slice_id}, expected 0 to {slices - 1}")

    def back(self, slice_id: int, last: str) -> Iterator[str]:
        """Yield the last `DAYS_OPEN` days up to `last` that have segments of a slice, backwards. Raises OSError."""
        names = reversed(self.names[: bisect(self.names, last)])
        return islice((each for each in names if self.has(each, slice_id)), DAYS_OPEN)

    def has(self, name: str, slice_id: int) -> bool:
        """Return True if a day has segments of a slice. Raises OSError."""
        return bool(segment_numbers(slice_directory(self.directory / name, slice_id)))

    def marks_back(self, slice_id: int, last: str, read: str) -> Iterator[RunMarks]:
        """Yield the marks of each day that has marks of an epoch, from day `last` backwards.

        Days from `read` on are taken as they were read last, earlier ones are read again.
        """
        for name in self.back(slice_id, last):
            if self.made(name):  # 0: deleted in the meantime
                day = self.known(name) if name >= read else self.fresh(name, slice_id)
                marks = self.marks_of(name, day, slice_id)
                if marks.epochs:
                    yield marks

    def marks_of(self, name: str, day: Recording, slice_id: int) -> RunMarks:
        """Return the marks of a slice in one day. Evicts those used longest ago."""
        made, was = self.made(name), self._marks.pop((name, slice_id), None)
        marks = was[1] if was and was[0] == made else RunMarks()
        self._marks[name, slice_id] = made, marks.grow(day.segments.filled(slice_id))
        if len(self._marks) > _MARKS_KEPT:
            del self._marks[next(iter(self._marks))]
        return marks

    def end_of(self, name: str, slice_id: int) -> SliceEnd | None:
        """Return the end of a slice in a day that is no longer written; None: unknown because of damage."""
        made = self.made(name)
        known = self._ends.get((name, slice_id))
        if known is None or known[0] != made:
            day = self.fresh(name, slice_id)
            self._ends[name, slice_id] = known = made, _end_of(day, slice_id)
        return known[1]

    def begin(self, name: str) -> Cursor:
        """Return a cursor at the beginning of a day."""
        return Cursor(self.made(name), name, 0, FILE_HEAD_BYTES)

    def made(self, name: str) -> int:
        """Return an identifier of a day in this archive, which changes if the day is replaced; 0: it was deleted."""
        try:
            manifest = (self.directory / name / MANIFEST).stat()
        except FileNotFoundError:
            return 0
        return (self.archive + manifest.st_ino + manifest.st_mtime_ns) % (1 << 63)

    def known(self, name: str) -> Recording:
        """Return a day from the cache, or open it. Evicts the one used longest ago."""
        made, was = self.made(name), self._open.pop(name, None)
        day = was[1] if was and was[0] == made else Recording.open(self.directory / name)
        self._open[name] = made, day
        if len(self._open) > DAYS_OPEN:
            del self._open[next(iter(self._open))]
        return day

    def fresh(self, name: str, slice_id: int | None = None) -> Recording:
        """Return a day, or one slice of it, as it is on disk now."""
        day = self.known(name)
        day.refresh(slice_id)
        return day


def _end_of(day: Recording, slice_id: int) -> SliceEnd | None:
    if day.damage:
        return None
    found = [each.entries[each.entries["records"] > 0] for each in day.segments.filled(slice_id)]
    if not sum(map(len, found)):
        return SliceEnd(-EVERYTHING, Position(0, 0))
    entries = numpy.concatenate(found)
    epoch = int(entries["epoch"].max())
    return SliceEnd(
        int(entries["max_ts_recv"].max()),
        Position(epoch, int(entries["max_sequence"][entries["epoch"] == epoch].max()) + 1),
    )
