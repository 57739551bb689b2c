"""Compare a slice's journal with its marks, its index and `closed.json`."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import numpy
from numpy.typing import NDArray

from blackbox.archive.files.closed import CLOSED, ClosedSlice
from blackbox.archive.files.format import ENTRY, FILE_HEAD_BYTES, RECORD_ALIGNMENT, MarkKind
from blackbox.archive.files.index_entry import add_to_entries
from blackbox.archive.files.journal_record import next_record
from blackbox.archive.files.marks import Mark, Totals, behind, chain_start, notes_of, read_mark, tally
from blackbox.archive.files.segment import Damage, Segment, open_end
from blackbox.archive.read.filter import Filter
from blackbox.archive.read.reader import Recorded, RecordRun, Report, blocks_of, read_spans, whole_spans
from blackbox.archive.read.segments import Segments
from blackbox.archive.read.summary import Examined, LateBegin, Reported, find_gaps
from blackbox.block.form.format import FLAG_SEQUENCES
from blackbox.block.gap import Gap

_NO_CLAIMS: Final = ("start", "stop", "records", "marks", "notes", "checksum")
_CLAIMS: Final = [name for name in ENTRY.names or () if name not in _NO_CLAIMS]


def examine(segments: Segments, created_ns: int, progress: Callable[[int], object]) -> Examined:
    """Return `Recording.examine`."""
    gaps: list[Gap] = []
    begins: list[LateBegin] = []
    before, key_rule = 0, segments.feed.key_rule
    if segments.closed_damage is not None:
        segments.note(segments.closed_damage)
    for slice_id, mine in segments.of():
        audit, numbers, reported = IndexAudit(key_rule, mine), NumberAudit(), Reported.of(mine)
        blocks = _audited(audit, numbers, segments.note, before, progress)
        gaps += find_gaps(slice_id, blocks, reported, {})
        begins += numbers.begins(slice_id, reported.first)
        closed = segments.closed.get(slice_id, ClosedSlice()).totals
        _audit_marks(segments.day, created_ns, slice_id, audit, closed, segments.note)
        audit.report(segments.damage, segments.note)
        before += sum(len(segment.memory) for segment in mine)
        for last in open_end(mine):
            if last.torn_bytes:
                segments.note(Damage(last.path, last.whole_bytes, last.torn_bytes, "torn tail: no whole record"))
    progress(before)
    return Examined(sorted(segments.damage), gaps, begins)


def _audited(
    audit: IndexAudit, numbers: NumberAudit, report: Report, before: int, progress: Callable[[int], object]
) -> Iterator[Recorded]:
    """Yield all blocks of a slice, without using the indexes. `before`: bytes of earlier slices."""
    key_rule = audit.key_rule
    for run in read_spans([whole_spans(audit.segments)], Filter(key_rule).records, key_rule, report):
        audit.add(run)
        for index, recorded in enumerate(blocks_of(run, key_rule)):
            if many := numbers.add(recorded):
                report(run.damage(index, "these messages are recorded twice", many))
            yield recorded
        before += run.stored_bytes
        progress(before)


def _audit_marks(
    day: Path, created_ns: int, slice_id: int, index: IndexAudit, closed: Totals | None, report: Report
) -> None:
    """Report segments and records of a slice that are missing or differ from those recorded.

    `created_ns` is from the manifest; `closed` is the slice's entry in `closed.json`. Bytes that are no record are
    reported by the reader, so the next mark after them is not compared.
    """
    totals = Totals(chain=chain_start(created_ns, slice_id))
    ends = {totals}
    is_torn = False
    for segment in index.segments:
        totals, is_torn = _audit_segment(segment, totals, is_torn, ends, index, report)
    # If only the end mark is damaged, the reader has reported it.
    is_all_there = is_torn and closed is not None and totals[:2] == closed[:2]
    if closed is not None and closed not in ends and not is_all_there:
        what = f"slice {slice_id} held {closed.records} records of {closed.messages} messages when it was closed"
        missing = max(0, closed.messages - totals.messages)
        report(Damage(day / CLOSED, 0, 0, f"{what}, and no segment ends with these totals", missing))


def _audit_segment(
    segment: Segment, totals: Totals, is_torn: bool, ends: set[Totals], index: IndexAudit, report: Report
) -> tuple[Totals, bool]:
    """Return the totals at the segment's end, and True if bytes after its last mark were no record.

    `is_torn` is the same at its beginning.
    """
    _audit_notes(segment, index, report)
    offset, is_first = FILE_HEAD_BYTES, True
    while offset < segment.whole_bytes:
        start = offset
        offset, is_here, totals = tally(segment, offset, totals)
        mark = read_mark(segment, offset) if is_here else None
        if is_first and not (mark is not None and offset == start and mark.kind is MarkKind.SEGMENT_BEGIN):
            report(Damage(segment.path, FILE_HEAD_BYTES, 0, "the segment does not begin with a SEGMENT_BEGIN mark"))
        is_first = False
        if is_here:
            index.add_marks(segment, numpy.array([offset]), "marks")
        if mark is not None:
            if mark.totals != totals and not is_torn:
                report(_difference(segment, mark, totals))
            totals, is_torn = behind(segment.address + offset, mark.totals), False
            offset += mark.size
            if mark.kind is MarkKind.SEGMENT_END:
                ends.add(totals)
        elif is_here:
            report(Damage(segment.path, offset, RECORD_ALIGNMENT, "the mark here does not match its checksum"))
            offset, is_torn = offset + RECORD_ALIGNMENT, True
        elif offset < segment.whole_bytes:
            offset, is_torn = next_record(segment.address, segment.whole_bytes, offset + 1), True
            if offset < 0:
                break
    return totals, is_torn or segment.torn_bytes > 0


def _audit_notes(segment: Segment, index: IndexAudit, report: Report) -> None:
    start = FILE_HEAD_BYTES
    while True:
        places, are_whole = notes_of(segment, start)
        if not len(places):
            return
        index.add_marks(segment, places, "notes")
        for offset in places[~are_whole].tolist():
            report(Damage(segment.path, offset, RECORD_ALIGNMENT, "the note here does not match its checksum"))
        start = int(places[-1]) + RECORD_ALIGNMENT


def _difference(segment: Segment, mark: Mark, found: Totals) -> Damage:
    said = mark.totals
    records, messages = said.records - found.records, said.messages - found.messages
    if records > 0:
        what = f"records are missing before this offset: {found.records} found, {said.records} recorded"
    elif records < 0:
        what = f"too many records before this offset: {found.records} found, {said.records} recorded"
    else:
        what = "the records before this offset differ from those recorded"
    return Damage(segment.path, mark.offset, 0, what, max(0, messages))


class IndexAudit:
    """Compares the index entries of a slice's segments with the segments' contents."""

    def __init__(self, key_rule: int, segments: list[Segment]) -> None:
        """Start with empty entries for each segment."""
        self.segments = segments
        self.key_rule = key_rule
        self._found = {segment: numpy.zeros(len(segment.entries), ENTRY) for segment in segments}

    def add(self, run: RecordRun) -> None:
        """Add a checked run of records."""
        for number, segment in enumerate(run.segments):
            assert isinstance(segment, Segment)
            mine = run.segment_of == number
            records, bodies = run.addresses[mine], run.bodies[mine]
            entries = self._entries_of(segment, records - segment.address)
            known = entries >= 0
            found = self._found[segment].ctypes.data
            add_to_entries(records[known], bodies[known], entries[known], found, self.key_rule)

    def add_marks(self, segment: Segment, offsets: NDArray[numpy.int64], what: str) -> None:
        """Count marks or notes; `what` is "marks" or "notes"."""
        entries = self._entries_of(segment, offsets)
        numpy.add.at(self._found[segment][what], entries[entries >= 0], 1)

    def report(self, known: list[Damage], report: Report) -> None:
        """Report each entry that differs from the records, except where damage is `known`."""
        for segment, found in self._found.items():
            entries = segment.entries
            wrong = numpy.zeros(len(entries), numpy.bool_)
            for name in ("records", "marks", "notes"):
                wrong |= found[name] != entries[name]
            for name in _CLAIMS:
                wrong |= (found[name] != entries[name]) & (entries["records"] > 0)
            for damage in [each for each in known if each.path == segment.path]:
                wrong &= (entries["stop"] <= damage.offset) | (entries["start"] >= damage.offset + max(1, damage.size))
            for index in numpy.flatnonzero(wrong).tolist():
                start, stop = int(entries["start"][index]), int(entries["stop"][index])
                what = "the index entry does not match its records"
                report(Damage(segment.path, start, stop - start, what))

    @staticmethod
    def _entries_of(segment: Segment, offsets: NDArray[numpy.int64]) -> NDArray[numpy.int64]:
        """Return the index of the entry that contains each offset; -1 if it precedes all entries."""
        return numpy.searchsorted(segment.entries["start"], offsets, side="right") - 1


class NumberAudit:
    """Recorded sequences of each epoch of a slice, used to find messages recorded twice."""

    def __init__(self) -> None:
        self._known: dict[int, list[tuple[int, int]]] = {}
        """Sequences of each epoch as ascending ranges [first, stop). Adjacent ranges are merged."""

    def add(self, recorded: Recorded) -> int:
        """Add a block. Return the number of its messages that had been recorded before."""
        block = recorded.block
        if block.flags & FLAG_SEQUENCES:
            return 0  # other blocks may have the missing sequences
        begin, end = block.sequence + recorded.first_row, block.sequence + block.count
        known = self._known.setdefault(block.epoch, [])
        if known and known[-1][1] == begin:
            known[-1] = known[-1][0], end
            return 0
        first = bisect_left(known, begin, key=lambda each: each[1])
        last = bisect_right(known, end, key=lambda each: each[0])
        touched = known[first:last]
        repeated = sum(max(0, min(end, stop) - max(begin, start)) for start, stop in touched)
        if touched:
            begin, end = min(begin, touched[0][0]), max(end, touched[-1][1])
        known[first:last] = [(begin, end)]
        return int(repeated)

    def begins(self, slice_id: int, reported: dict[int, int]) -> list[LateBegin]:
        """Return the epochs whose first messages were sent before the recorder was connected.

        `reported` is `Reported.first`.
        """
        first = dict(reported)
        for epoch, known in self._known.items():
            first[epoch] = min(known[0][0], reported.get(epoch, known[0][0]))
        return [LateBegin(slice_id, epoch, number) for epoch, number in first.items() if number > 0]
