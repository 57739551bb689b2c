"""Split recorded days into partitions: the parts of each slice's segments that may match a query."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy
from numpy.typing import NDArray
from pyspark.sql.datasource import InputPartition

from blackbox.analysis.spark.filters import Pushed
from blackbox.archive.files.day import Manifest
from blackbox.archive.files.segment import Damage, Segment
from blackbox.archive.recording import Recording
from blackbox.errors import JournalError
from blackbox.feed.feed import Feed

_LEAST_BYTES: Final = 4 << 20
_LEAST_PARTITIONS: Final = 8
"""Minimum number of partitions if each has at least 4 MiB, so that several cores read a small day."""


class Span(NamedTuple):
    """Bytes `[start, stop)` of a segment, by number: whole records."""

    segment: int
    start: int
    stop: int


class Partition(InputPartition):
    """The spans of one slice that one task reads."""

    def __init__(self, recording: Recording, slice_id: int, spans: tuple[Span, ...]) -> None:
        """Create a partition of these spans of a recording's slice."""
        feed = recording.feed
        self.day = str(recording.path)
        """The day's directory."""
        self.feed, self.date, self.slice_id = feed.name, recording.date, slice_id
        self.key_rule, self.symbol_rule = feed.key_rule, feed.symbol_rule
        self.spans = spans


class Plan(NamedTuple):
    """The partitions and the counters of the plan."""

    partitions: list[Partition]
    entries: int
    """Index entries seen."""
    chosen: int
    """Index entries that may cover wanted messages."""
    damage: list[Damage]


class Piece(NamedTuple):
    """Index entries of one slice, in columns."""

    segment: NDArray[numpy.int64]
    """int64[n]: number of the segment."""
    start: NDArray[numpy.int64]
    stop: NDArray[numpy.int64]


def plan(days: Iterable[Path], pushed: Pushed, most_bytes: int, skip_damage: bool) -> Plan:
    """Plan the partitions of these days, each of at most `most_bytes` stored bytes or one larger index entry.

    Raises JournalError if a day cannot be read or, unless `skip_damage`, if part of a wanted slice is missing or
    damaged.
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
        entries += sum(len(each.entries) for _, segments in recording.segments.of() for each in segments)
        for slice_id, segments in recording.segments.of(wanted):
            found.append((recording, slice_id, _wanted(segments, pushed, recording.feed)))
    sizes = sum(int((piece.stop - piece.start).sum()) for _, _, piece in found)
    size = min(most_bytes, max(_LEAST_BYTES, sizes // _LEAST_PARTITIONS))
    partitions = [
        Partition(recording, slice_id, spans) for recording, slice_id, piece in found for spans in cut(piece, size)
    ]
    return Plan(partitions, entries, sum(len(piece.start) for _, _, piece in found), damage)


def damage_of(recording: Recording, slices: list[int], skip: bool) -> list[Damage]:
    """Return the known damage of these slices. Raises JournalError if there is damage and `skip` is False.

    A damaged index is ignored, because the journal is scanned instead.
    """
    names = {f"slice-{slice_id:05d}" for slice_id in slices}
    lost = [
        damage
        for damage in recording.damage
        if damage.path.suffix != ".index" and names & {damage.path.name, damage.path.parent.name}
    ]
    if lost and not skip:
        raise JournalError(f"{lost[0]}; onDamage=skip reads the rest")
    return lost


def cut(piece: Piece, size: int) -> Iterator[tuple[Span, ...]]:
    """Yield parts of at most `size` bytes, or of one larger entry, with adjacent entries joined."""
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
