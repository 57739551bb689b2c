"""Find gaps in recordings, and the messages before which they are reported.

A gap is reported at the earliest time that its messages may have: before the first message, of any slice, that is later
than the last message before the gap, and at the latest before the message that follows it. If the source lacked
messages, the publisher has reported the time of that last message. Otherwise the last message of the same slice counts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from ctypes import string_at
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy
from numpy.typing import NDArray

from blackbox.archive.files.segment import Damage, Segment
from blackbox.archive.read.filter import Filter
from blackbox.archive.read.reader import UNCHECKED, read_runs
from blackbox.archive.read.summary import Reported, Since, gaps_and_late
from blackbox.archive.recording import Recording
from blackbox.block.form.block import Block
from blackbox.block.form.format import HEADER_BYTES
from blackbox.block.form.validate import Fault
from blackbox.block.gap import Gap
from blackbox.block.position import Position, is_restart
from blackbox.native.memory.arrays import foreign_array
from blackbox.replay.slice_numbering import ReplayedFeeds
from blackbox.replay.tables.block_table import BlockTable
from blackbox.replay.tables.measure_blocks import due_rows

_SLICE_COLUMN: Final = 3
_EPOCH_COLUMN: Final = 4


class Run(NamedTuple):
    """An epoch of a slice."""

    slice_id: int
    epoch: int


class Part(NamedTuple):
    """Some rows of a table, and the gaps and new epochs to report after they are played."""

    table: BlockTable
    start: int
    stop: int
    told: Sequence[Gap | Run]


class _Row(NamedTuple):
    """Sequences of the messages of one slice in a row, in order."""

    slice_id: int
    rows: NDArray[numpy.int64]
    """Their rows in the block."""
    epochs: NDArray[numpy.int64]
    sequences: NDArray[numpy.int64]


class RecordedGaps:
    """The gaps and epochs of some recordings, given by date.

    Messages missing before the first played message, or before the first one after a jump, are not a gap. Before the
    first recorded message they are, if the publisher's sequences show that messages are missing.
    """

    def __init__(
        self,
        recordings: Iterable[Recording],
        feeds: ReplayedFeeds,
        prefix: bytes = b"",
        slices: Iterable[int] | None = None,
    ) -> None:
        """Find the gaps in the played slices: all, or some, that may have topics with the prefix.

        Slices are read unless their indexes show that they are complete.
        """
        self._gaps: dict[int, list[Gap]] = {}
        """Gaps by slice."""
        self._ends: dict[int, list[Position]] = {}
        """Times of the gaps."""
        self._played: dict[int, Position] = {}
        self._late: set[Run] = set()
        """Epochs whose first published messages are known to be missing."""
        self._runs: dict[int, list[int]] = {}
        """Epochs of each slice, in order."""
        self._run: dict[int, int] = {}
        """Index of the current epoch by slice; missing: the first."""
        self._heads: set[tuple[int, Position]] = set()
        """Ends of the gaps before the first message of an epoch."""
        self._read: set[Path] = set()
        """Directories of the slices that were read. Their damaged blocks are among the gaps."""
        self._silent: list[Gap] = []
        """Gaps of slices without a message."""
        self._since: dict[Gap, Since] = {}
        self._due: deque[tuple[int, Gap]] | None = None
        """Gaps to report once messages are later than these times, ns, in order; None: nothing was played yet."""
        found: dict[int, set[Gap]] = {}
        following: defaultdict[int, dict[int, int]] = defaultdict(dict)
        for recording in recordings:
            first = feeds.first_slice(recording)
            asked = range(len(recording.feed.slices)) if slices is None else slices
            played_slices = recording.segments.of(sorted(set(recording.feed.slices_for(prefix)).intersection(asked)))
            expected = {slice_id: following[slice_id + first] for slice_id, _ in played_slices}
            reported = {slice_id: Reported.of(segments) for slice_id, segments in played_slices}
            incomplete = [
                slice_id
                for slice_id, segments in played_slices
                if not _is_complete(segments, reported[slice_id], expected[slice_id])
                or not _has_good_heads(segments, recording.feed.key_rule)
            ]
            gaps, late = gaps_and_late(recording.segments, incomplete, expected)
            self._read |= {
                segment.path.parent for _, of_slice in recording.segments.of(incomplete) for segment in of_slice
            }
            for slice_id, segments in played_slices:
                spans = _spans(segments)
                runs = self._runs.setdefault(slice_id + first, [])
                runs += [epoch for epoch in spans if epoch not in runs]
                restarts = {epoch for before, epoch in pairwise(spans) if is_restart(before, epoch)}
                late |= {(slice_id, epoch) for epoch in restarts}
                for epoch, (begin, end) in spans.items() if slice_id not in incomplete else ():
                    if begin > expected[slice_id].get(epoch, 0):
                        late.add((slice_id, epoch))
                    expected[slice_id][epoch] = max(end, expected[slice_id].get(epoch, 0))
            self._late |= {Run(slice_id + first, epoch) for slice_id, epoch in late}
            for gap, since in gaps.items():
                played, of_slice = msgspec.structs.replace(gap, slice_id=gap.slice_id + first), reported[gap.slice_id]
                found.setdefault(played.slice_id, set()).add(played)
                self._since[played] = since
                if gap.sequence == of_slice.first.get(gap.epoch):
                    self._heads.add((played.slice_id, _end_of(gap)))
                    if gap.sequence + gap.count == of_slice.last[gap.epoch][0]:
                        self._silent.append(played)
        for slice_id, mine in found.items():
            self._gaps[slice_id] = sorted(mine, key=_end_of)
            self._ends[slice_id] = [_end_of(gap) for gap in self._gaps[slice_id]]

    def jump(self, *, is_back: bool) -> None:
        """Take the next message as the first one played. With `is_back`, the first epoch may come again."""
        self._played.clear()
        self._due = None
        if is_back:
            self._run.clear()

    def current_runs(self) -> list[Run]:
        """Return the current epoch of each slice, or its first."""
        return [Run(slice_id, epochs[self._run.get(slice_id, 0)]) for slice_id, epochs in self._runs.items() if epochs]

    def is_late(self, run: Run) -> bool:
        """Return True if messages before an epoch's first one are missing: it began late, or after a restart."""
        return run in self._late

    def due_before(self, stop_ns: int) -> list[Gap]:
        """Return the gaps before a time that no message has shown, once all messages before it are played."""
        found = []
        while self._due and self._due[0][0] < stop_ns:
            _, gap = self._due.popleft()
            if not self._is_told(gap):
                found.append(gap)
                self._note_told(gap)
        return found

    def rest(self) -> list[Gap]:
        """Return the gaps after the last messages, once all are played."""
        found = [gap for gap in self._silent if gap.slice_id not in self._played]
        for slice_id, before in self._played.items():
            gaps = self._gaps.get(slice_id, [])
            found += gaps[bisect_right(self._ends.get(slice_id, []), before) :]
            if gaps:
                self._played[slice_id] = max(before, self._ends[slice_id][-1])
        return found

    def of_damage(self, table: BlockTable, number: int) -> Gap | None:
        """Return a damaged block as a gap; None if the gaps include it already."""
        row, head = table.rows[number], table.heads[number]
        place, first = int(row["place"]), int(row["first_row"])
        count = int(head["count"]) - first
        if count < 1 or table.run.segment(place).path.parent in self._read:
            return None
        return Gap(
            int(row["slice_id"]), int(head["epoch"]), b"", int(head["sequence"]) + first, count, int(head["ts_out"])
        )

    def parts(self, table: BlockTable, start: int, stop: int) -> Iterator[Part]:
        """Split rows `[start, stop)` of a table at gaps and at new epochs."""
        if not self._gaps and not self._may_begin_run(table, start, stop):
            yield Part(table, start, stop, ())
            return
        begin = start
        for number in range(start, stop):
            cuts = list(self._cuts(table, number))
            if not cuts:
                continue
            if table.rows["fault"][number] == UNCHECKED:
                table.measure(number, number + 1)  # parts are measured separately; their counts differ from the row's
            if begin < number:
                yield Part(table, begin, number, ())
            first, last = (int(table.rows[name][number]) for name in ("first_row", "stop_row"))
            for place, told in cuts:
                yield Part(*_rows(table, number, first, place), told)
                first = place
            yield Part(*_rows(table, number, first, last), ())
            begin = number + 1
        if begin < stop:
            yield Part(table, begin, stop, ())

    def _coming(self, slice_id: int) -> list[int]:
        """Return the epochs of a slice after the current one."""
        return self._runs.get(slice_id, [])[self._run.get(slice_id, 0) + 1 :]

    def _may_begin_run(self, table: BlockTable, start: int, stop: int) -> bool:
        """Return True if rows may have the first message of an epoch. For gathered blocks this is unknown."""
        coming = [epoch for slice_id in self._runs for epoch in self._coming(slice_id)]
        if not coming:
            return False
        is_gathered = table.rows["origins"][start:stop] != 0
        return bool((is_gathered | numpy.isin(table.heads["epoch"][start:stop], coming)).any())

    def _begun(self, table: BlockTable, number: int) -> Iterator[tuple[int, Run]]:
        """Yield the epochs that begin in a block, and the row of the first message of each."""
        row, count = table.rows[number], int(table.heads["count"][number])
        if row["fault"] > Fault.NONE:
            return
        rows = numpy.arange(int(row["first_row"]), int(row["stop_row"]))
        if origins := int(row["origins"]):
            slices, epochs = (_column(table, origins, count, column)[rows] for column in (_SLICE_COLUMN, _EPOCH_COLUMN))
        else:
            slices = numpy.full(len(rows), row["slice_id"])
            epochs = numpy.full(len(rows), table.heads["epoch"][number])
        for slice_id in self._runs:
            for epoch in self._coming(slice_id):
                mine = (slices == slice_id) & (epochs == epoch)
                if mine.any():
                    self._run[slice_id] = self._runs[slice_id].index(epoch)
                    yield int(rows[mine.argmax()]), Run(slice_id, epoch)

    def _cuts(self, table: BlockTable, number: int) -> Iterator[tuple[int, list[Gap | Run]]]:
        """Yield, in order, rows of a block and the gaps and epochs to report before each of them."""
        place_of = dict(self._due_in(table, number))
        for row in self._slices(table, number):
            ends = self._ends[row.slice_id]
            before = self._played.get(row.slice_id)
            if before is None:
                before = Position(int(row.epochs[0]), int(row.sequences[0]))
                if (row.slice_id, before) in self._heads:
                    before = Position(before.epoch, before.sequence - 1)
            at = bisect_right(ends, before)
            while at < len(ends):
                epoch, end = ends[at]
                behind = (row.epochs > epoch) | ((row.epochs == epoch) & (row.sequences >= end))
                if not behind.any():
                    break
                gap, place = self._gaps[row.slice_id][at], int(row.rows[behind.argmax()])
                place_of[gap] = min(place, place_of.get(gap, place))
                at += 1
            last = max(zip(row.epochs.tolist(), row.sequences.tolist(), strict=True))
            self._played[row.slice_id] = max(before, Position(*last))
        found: dict[int, list[Gap | Run]] = {}
        for gap, place in place_of.items():
            found.setdefault(place, []).append(gap)
            self._note_told(gap)
        for place, run in self._begun(table, number):
            told = found.setdefault(place, [])
            of_run = [n for n, each in enumerate(told) if (each.slice_id, each.epoch) == run]
            told.insert(of_run[0] if of_run else len(told), run)  # a gap before its first message belongs to this epoch
        yield from sorted(found.items())

    def _due_in(self, table: BlockTable, number: int) -> Iterator[tuple[Gap, int]]:
        """Yield the gaps that become due in a block by the times of its messages, each with the row after it."""
        if not self._gaps or (self._due is not None and not self._due):
            return
        if table.rows["fault"][number] == UNCHECKED:
            table.measure(number, number + 1)
        row, by = table.rows[number], table.selection.by
        if row["fault"] != Fault.NONE or not row["count"]:
            return
        if self._due is None:
            begin_ns = int(row["low_ns"])
            due = ((int(getattr(self._since[gap], by)), gap) for gap in self._timed())
            self._due = deque(sorted(each for each in due if each[0] >= begin_ns))
        while self._due and self._due[0][0] < row["high_ns"]:
            due_ns, gap = self._due.popleft()
            if not self._is_told(gap):
                is_split = by == "ts_event"
                block = table.at(number, number + 1)
                yield gap, int(due_rows(block, due_ns, int(row["count"])) if is_split else row["first_row"])

    def _timed(self) -> Iterator[Gap]:
        """Yield the gaps that are reported by time. Gaps at the start of a later epoch are not."""
        for slice_id, gaps in self._gaps.items():
            runs = self._runs.get(slice_id)
            yield from (
                gap for gap in gaps if not runs or gap.epoch == runs[0] or (slice_id, _end_of(gap)) not in self._heads
            )

    def _is_told(self, gap: Gap) -> bool:
        played = self._played.get(gap.slice_id)
        return played is not None and played >= _end_of(gap)

    def _note_told(self, gap: Gap) -> None:
        self._played[gap.slice_id] = max(_end_of(gap), self._played.get(gap.slice_id, _end_of(gap)))

    def _slices(self, table: BlockTable, number: int) -> Iterator[_Row]:
        """Yield the messages of a row for each slice with gaps."""
        row = table.rows[number]
        count, origins = int(table.heads["count"][number]), int(row["origins"])
        if not self._gaps or (not origins and int(row["slice_id"]) not in self._gaps):
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
        if not origins:
            yield _Row(int(row["slice_id"]), rows, numpy.full(len(rows), block.epoch), sequences)
            return
        slices, epochs = (_column(table, origins, count, column)[rows] for column in (_SLICE_COLUMN, _EPOCH_COLUMN))
        for slice_id in numpy.unique(slices).tolist():
            if slice_id in self._gaps:
                mine = slices == slice_id
                yield _Row(slice_id, rows[mine], epochs[mine], sequences[mine])


def _rows(table: BlockTable, number: int, first: int, stop: int) -> tuple[BlockTable, int, int]:
    """Return some rows of a block as a table."""
    part = table._replace(rows=table.rows[number : number + 1].copy())
    if first >= stop:
        return part, 0, 0
    part.rows["first_row"], part.rows["stop_row"] = first, stop
    return part, 0, 1


def _end_of(gap: Gap) -> Position:
    return Position(gap.epoch, gap.sequence + gap.count)


def _spans(segments: list[Segment]) -> dict[int, tuple[int, int]]:
    """Return by epoch the first sequence of a slice, and the one after the last."""
    found: dict[int, tuple[int, int]] = {}
    for segment in segments:
        entries = segment.entries[segment.entries["records"] > 0]
        for epoch, low, high in entries[["epoch", "min_sequence", "max_sequence"]].tolist():
            begin, end = found.get(epoch, (low, high + 1))
            found[epoch] = min(begin, low), max(end, high + 1)
    return found


def _is_complete(segments: list[Segment], reported: Reported, expected: dict[int, int]) -> bool:
    """Return True if the index of a slice shows that no reported sequence is missing.

    `expected`: by epoch, the sequence after the last message of earlier recordings.
    """
    if not segments:
        return True
    entries = numpy.concatenate([segment.entries[segment.entries["records"] > 0] for segment in segments])
    low, high, epochs = (entries[name] for name in ("min_sequence", "max_sequence", "epoch"))
    is_whole = high - low + 1 == entries["messages"]
    follows = (epochs[1:] != epochs[:-1]) | (low[1:] == high[:-1] + 1)
    spans = _spans(segments)
    for epoch, first in reported.first.items():
        known = expected.get(epoch, first)
        begin, end = spans.get(epoch, (known, known))
        if begin > known or end < reported.last[epoch][0]:
            return False
    if any(begin > expected.get(epoch, begin) for epoch, (begin, _) in spans.items()):
        return False
    return bool(is_whole.all() and follows.all())


def _column(owner: object, origins: int, count: int, column: int) -> NDArray[Any]:
    """Return a column of the origins of a gathered block's messages."""
    return foreign_array(owner, origins + 8 * count * column, count, "<i8")


def _has_good_heads(segments: list[Segment], key_rule: int) -> bool:
    """Return True if every record of a slice can be found. Reads the heads of records, but not their bodies."""
    found: list[Damage] = []
    deque(read_runs([segments], Filter(key_rule), found.append, bodies="stored"), maxlen=0)
    return not found
