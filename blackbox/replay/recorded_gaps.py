"""Find where recordings lack messages, and where in what is played to report that."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from ctypes import string_at
from typing import Any, Final, NamedTuple

import msgspec
import numpy
from numpy.typing import NDArray

from blackbox.archive.reader import UNCHECKED
from blackbox.archive.recording import Recording
from blackbox.archive.segment import Segment
from blackbox.archive.summary import Reported
from blackbox.block.block import Block
from blackbox.block.format import HEADER_BYTES
from blackbox.block.gap import Gap
from blackbox.block.position import Position
from blackbox.block.validate import Fault
from blackbox.native.memory import foreign_array
from blackbox.replay.block_table import BlockTable
from blackbox.replay.feeds import ReplayedFeeds

_SLICE_COLUMN: Final = 3
_EPOCH_COLUMN: Final = 4

Stream = tuple[int, bytes]
"""A slice and a key."""


class Part(NamedTuple):
    """Some rows of a table, and what is told once they are played."""

    table: BlockTable
    start: int
    stop: int
    gaps: Sequence[Gap]


class _Row(NamedTuple):
    """The numbers of messages of one stream in a row, in its order."""

    stream: Stream
    rows: NDArray[numpy.int64]
    """Their places in the block."""
    epochs: NDArray[numpy.int64]
    sequences: NDArray[numpy.int64]


class RecordedGaps:
    """The gaps of some recordings: each is reported between the messages of its key before and after it.

    What comes before the first message that is played, or that is played after a jump, is no gap; except before the
    first message of all that was recorded, where the publisher's numbers show one.
    """

    def __init__(self, recordings: Iterable[Recording], feeds: ReplayedFeeds) -> None:
        """Find them. Reads slices whose indexes do not show that they lack nothing."""
        self._key_bytes: dict[int, int] = {}
        """By slice that has gaps."""
        self._ends: dict[Stream, list[Position]] = {}
        self._gaps: dict[Stream, list[Gap]] = {}
        self._played: dict[Stream, Position] = {}
        self.late: set[Stream] = set()
        """Keys whose first recorded message is not the first published one."""
        self._heads: set[tuple[Stream, Position]] = set()
        """Ends of the gaps before the first message of a run."""
        self._silent: list[Gap] = []
        """Gaps of streams without a message."""
        found: dict[Stream, set[Gap]] = {}
        for recording in recordings:
            reported = {slice_id: Reported.of(segments) for slice_id, segments in recording.segments()}
            incomplete = [
                slice_id
                for slice_id, segments in recording.segments()
                if recording.feed.key_bytes or not _is_complete(segments, reported[slice_id])
            ]
            first = feeds.first_slice(recording)
            gaps, late = recording.gaps_and_late(incomplete)
            late |= {(n, b"") for n, segments in recording.segments() if n not in incomplete and _is_late(segments)}
            self.late |= {(slice_id + first, key) for slice_id, key in late}
            for gap in gaps:
                played = msgspec.structs.replace(gap, slice_id=gap.slice_id + first)
                stream, of_slice, name = (played.slice_id, gap.key), reported[gap.slice_id], (gap.epoch, gap.key)
                found.setdefault(stream, set()).add(played)
                self._key_bytes[played.slice_id] = recording.feed.key_bytes
                if gap.sequence == of_slice.first.get(name):
                    self._heads.add((stream, _end_of(gap)))
                    if gap.sequence + gap.count == of_slice.last[name][0]:
                        self._silent.append(played)
        for stream, gaps in found.items():
            self._gaps[stream] = sorted(gaps, key=_end_of)
            self._ends[stream] = [_end_of(gap) for gap in self._gaps[stream]]

    def jump(self) -> None:
        """Take what comes next as the first that is played."""
        self._played.clear()

    def rest(self) -> list[Gap]:
        """Return the gaps after the last messages, once all are played."""
        found = [gap for gap in self._silent if (gap.slice_id, gap.key) not in self._played]
        for stream, before in self._played.items():
            gaps = self._gaps.get(stream, [])
            found += gaps[bisect_right(self._ends.get(stream, []), before) :]
            if gaps:
                self._played[stream] = max(before, self._ends[stream][-1])
        return found

    def parts(self, table: BlockTable, start: int, stop: int) -> Iterator[Part]:
        """Cut rows `[start, stop)` of a table where gaps are to be told."""
        if not self._gaps:
            yield Part(table, start, stop, ())
            return
        begin = start
        for number in range(start, stop):
            cuts = list(self._cuts(table, number))
            if not cuts:
                continue
            if begin < number:
                yield Part(table, begin, number, ())
            first, last = (int(table.rows[name][number]) for name in ("first_row", "stop_row"))
            for place, gaps in cuts:
                yield Part(*_rows(table, number, first, place), gaps)
                first = place
            yield Part(*_rows(table, number, first, last), ())
            begin = number + 1
        if begin < stop:
            yield Part(table, begin, stop, ())

    def _cuts(self, table: BlockTable, number: int) -> Iterator[tuple[int, list[Gap]]]:
        """Yield the rows of a block before which gaps are to be told, in order, and these."""
        found: dict[int, list[Gap]] = {}
        for row in self._streams(table, number):
            ends = self._ends[row.stream]
            before = self._played.get(row.stream)
            if before is None:
                before = Position(int(row.epochs[0]), int(row.sequences[0]))
                if (row.stream, before) in self._heads:
                    before = Position(before.epoch, before.sequence - 1)
            at = bisect_right(ends, before)
            while at < len(ends):
                epoch, end = ends[at]
                behind = (row.epochs > epoch) | ((row.epochs == epoch) & (row.sequences >= end))
                if not behind.any():
                    break
                found.setdefault(int(row.rows[behind.argmax()]), []).append(self._gaps[row.stream][at])
                at += 1
            last = max(zip(row.epochs.tolist(), row.sequences.tolist(), strict=True))
            self._played[row.stream] = max(before, Position(*last))
        yield from sorted(found.items())

    def _streams(self, table: BlockTable, number: int) -> Iterator[_Row]:
        """Yield the messages of a row, those of each key with gaps."""
        row = table.rows[number]
        count, origins = int(table.heads["count"][number]), int(row["origins"])
        if not origins and int(row["slice_id"]) not in self._key_bytes:
            return
        if row["fault"] == UNCHECKED:
            table.measure(number, number + 1)
            row = table.rows[number]
        if row["fault"] != Fault.NONE:
            return
        rows = numpy.arange(int(row["first_row"]), int(row["stop_row"]))
        body = foreign_array(table, int(row["body"]), int(row["body_bytes"]))
        block = Block(b"", string_at(int(row["header"]), HEADER_BYTES), body)
        sequences = block.sequences[rows]
        if origins:
            slices, epochs = (_column(table, origins, count, column)[rows] for column in (_SLICE_COLUMN, _EPOCH_COLUMN))
        else:
            slices, epochs = numpy.full(len(rows), row["slice_id"]), numpy.full(len(rows), block.epoch)
        topics = block.topics if any(self._key_bytes.values()) else []
        of_row = block.topic_index[rows]
        for slice_id, key in self._gaps:
            mine = slices == slice_id
            if size := self._key_bytes[slice_id]:
                mine &= numpy.array([topic[:size] == key for topic in topics])[of_row]
            if mine.any():
                yield _Row((slice_id, key), rows[mine], epochs[mine], sequences[mine])


def _rows(table: BlockTable, number: int, first: int, stop: int) -> tuple[BlockTable, int, int]:
    """Return some rows of a block, as a table of their own."""
    part = table._replace(rows=table.rows[number : number + 1].copy())
    if first >= stop:
        return part, 0, 0
    part.rows["first_row"], part.rows["stop_row"] = first, stop
    return part, 0, 1


def _end_of(gap: Gap) -> Position:
    return Position(gap.epoch, gap.sequence + gap.count)


def _is_complete(segments: list[Segment], reported: Reported) -> bool:
    """Return whether the indexes of a slice without keys show that no number is missing of those reported."""
    if not segments:
        return True
    entries = numpy.concatenate([segment.entries[segment.entries["records"] > 0] for segment in segments])
    low, high, epochs = (entries[name] for name in ("min_sequence", "max_sequence", "epoch"))
    is_whole = high - low + 1 == entries["messages"]
    follows = (epochs[1:] != epochs[:-1]) | (low[1:] == high[:-1] + 1)
    for (epoch, _), first in reported.first.items():
        mine = epochs == epoch
        begin, end = (int(low[mine].min()), int(high[mine].max()) + 1) if mine.any() else (first, first)
        if begin > first or end < reported.last[epoch, b""][0]:
            return False
    return bool(is_whole.all() and follows.all())


def _is_late(segments: list[Segment]) -> bool:
    """Return True if a slice without keys does not begin with its publisher's first message."""
    firsts = (segment.entries["min_sequence"][segment.entries["records"] > 0] for segment in segments)
    return next((bool(first[0] > 0) for first in firsts if len(first)), False)


def _column(owner: object, origins: int, count: int, column: int) -> NDArray[Any]:
    """Return a column of what is told of each message of a gathered block."""
    return foreign_array(owner, origins + 8 * count * column, count, "<i8")
