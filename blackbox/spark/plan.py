"""Cut recorded days into partitions: parts of one slice's segments that may hold what a query wants."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy
from numpy.typing import NDArray
from pyspark.sql.datasource import InputPartition

from blackbox.errors import JournalError
from blackbox.feed import Feed
from blackbox.journal.day import Manifest
from blackbox.journal.parts import Span
from blackbox.journal.segment import Damage, Segment
from blackbox.recording import Recording
from blackbox.spark.filters import Pushed

_LEAST_BYTES: Final = 4 << 20
_LEAST_PARTITIONS: Final = 8
"""So many, if they have at least 4 MiB each: a small day, too, is read by several cores."""


class Partition(InputPartition):
    """What one task reads. Attributes: `day`, its directory; `feed`; `date`; `slice_id`; `key_bytes`; `spans`."""

    def __init__(
        self, day: str, feed: str, date: datetime.date, slice_id: int, key_bytes: int, spans: tuple[Span, ...]
    ) -> None:
        self.day, self.feed, self.date = day, feed, date
        self.slice_id, self.key_bytes, self.spans = slice_id, key_bytes, spans


class Plan(NamedTuple):
    """What was planned."""

    partitions: list[Partition]
    entries: int
    """Index entries of the days that were looked into."""
    chosen: int
    """Those that may tell of wanted messages."""
    damage: list[Damage]


class Piece(NamedTuple):
    """Records of one slice, as its index tells of them: one index entry, or more."""

    segment: NDArray[numpy.int64]
    """int64[n]: the numbers of segments."""
    start: NDArray[numpy.int64]
    stop: NDArray[numpy.int64]


def plan(days: Iterable[Path], pushed: Pushed, most_bytes: int, skip_damage: bool) -> Plan:
    """The partitions of these days, of at most `most_bytes` stored bytes unless one index entry has more.

    Raises JournalError when a day cannot be read; unless `skip_damage`, also for what is missing or damaged in a wanted
    slice.
    """
    found: list[tuple[Recording, int, Piece]] = []
    entries = 0
    damage: list[Damage] = []
    for day in days:
        manifest = Manifest.read(day)
        if manifest.date.toordinal() not in pushed.date:
            continue
        recording = Recording(day, manifest)
        wanted = pushed.slices_of(recording.feed)
        damage += damage_of(recording, wanted, skip_damage)
        entries += sum(len(each.entries) for _, segments in recording.segments() for each in segments)
        for slice_id, segments in recording.segments(wanted):
            found.append((recording, slice_id, _wanted(segments, pushed, recording.feed)))
    sizes = sum(int((piece.stop - piece.start).sum()) for _, _, piece in found)
    size = min(most_bytes, max(_LEAST_BYTES, sizes // _LEAST_PARTITIONS))
    partitions = [
        partition_of(recording, slice_id, spans) for recording, slice_id, piece in found for spans in cut(piece, size)
    ]
    return Plan(partitions, entries, sum(len(piece.start) for _, _, piece in found), damage)


def damage_of(recording: Recording, slices: list[int], skip: bool) -> list[Damage]:
    """What is missing or damaged in these slices, so far as it is known. Raises JournalError unless it is skipped.

    A damaged index is none of it: the journal itself is then read.
    """
    names = {f"slice-{slice_id:05d}" for slice_id in slices}
    lost = [
        damage for damage in recording.damage if damage.path.suffix != ".index" and damage.path.parent.name in names
    ]
    if lost and not skip:
        raise JournalError(f"{lost[0]}; onDamage=skip reads the rest")
    return lost


def partition_of(recording: Recording, slice_id: int, spans: tuple[Span, ...]) -> Partition:
    """A partition of a recording's slice."""
    feed = recording.feed
    return Partition(str(recording.path), feed.name, recording.date, slice_id, feed.key_bytes, spans)


def cut(piece: Piece, size: int) -> Iterator[tuple[Span, ...]]:
    """Parts of at most `size` bytes, but where one entry has more; neighbours are joined."""
    if not len(piece.start):
        return
    lengths = piece.stop - piece.start
    ends = numpy.cumsum(lengths)
    first = 0
    while first < len(ends):
        before = int(ends[first] - lengths[first])
        last = max(first + 1, int(numpy.searchsorted(ends, before + size, "right")))
        yield tuple(_joined(Piece(*(column[first:last] for column in piece))))
        first = last


def _joined(piece: Piece) -> Iterator[Span]:
    apart = (numpy.diff(piece.segment) != 0) | (piece.stop[:-1] != piece.start[1:])
    firsts = numpy.concatenate(([0], numpy.flatnonzero(apart) + 1))
    lasts = numpy.concatenate((firsts[1:] - 1, [len(piece.start) - 1]))
    for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
        yield Span(int(piece.segment[first]), int(piece.start[first]), int(piece.stop[last]))


def _wanted(segments: list[Segment], pushed: Pushed, feed: Feed) -> Piece:
    parts: list[tuple[NDArray[Any], NDArray[Any], NDArray[Any]]] = [(_NONE, _NONE, _NONE)]
    for segment in segments:
        entries = segment.entries[pushed.entries(segment.entries, feed, segment.slice_id)]
        parts.append((numpy.full(len(entries), segment.number), entries["start"], entries["stop"]))
    return Piece(*(numpy.concatenate(column) for column in zip(*parts, strict=True)))


_NONE: Final = numpy.empty(0, numpy.int64)
