"""Compare what a slice's journal holds with what its marks, its index and `closed.json` say that it holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import numpy
from numpy.typing import NDArray

from blackbox.archive.closed import CLOSED
from blackbox.archive.entry import add_to_entries
from blackbox.archive.format import ENTRY, FILE_HEAD_BYTES, RECORD_ALIGNMENT
from blackbox.archive.marks import Mark, MarkKind, Totals, behind, chain_start, read_mark, tally
from blackbox.archive.reader import RecordRun
from blackbox.archive.record import next_record
from blackbox.archive.segment import Damage, Segment, SegmentFile

Report = Callable[[Damage], None]
_CLAIMS: Final = [name for name in ENTRY.names or () if name not in ("start", "stop", "marks", "checksum")]


def audit_marks(
    day: Path, created_ns: int, slice_id: int, segments: Iterable[Segment], closed: Totals | None, report: Report
) -> None:
    """Report where records or segments of a slice are missing, or are not those that were recorded there.

    `created_ns` is the manifest's; `closed` what `closed.json` says of the slice, if anything. Bytes that are no record
    are reported by the reader: the next mark after them says nothing more.
    """
    totals = Totals(chain=chain_start(created_ns, slice_id))
    ends = {totals}
    is_torn = False
    for segment in segments:
        totals, is_torn = _audit_segment(segment, totals, is_torn, ends, report)
    if closed is not None and closed not in ends:
        what = f"slice {slice_id} held {closed.records} records of {closed.messages} messages when it was closed"
        missing = max(0, closed.messages - totals.messages)
        report(Damage(day / CLOSED, 0, 0, f"{what}, and no segment ends with just these", missing))


def _audit_segment(
    segment: Segment, totals: Totals, is_torn: bool, ends: set[Totals], report: Report
) -> tuple[Totals, bool]:
    """Return the totals at its end, and whether bytes behind the last mark were no record: `is_torn` before it."""
    at, is_first = FILE_HEAD_BYTES, True
    while at < segment.whole_bytes:
        start = at
        at, is_here, totals = tally(segment.address, segment.whole_bytes, at, totals)
        mark = read_mark(segment, at) if is_here else None
        if is_first and not (mark is not None and at == start and mark.kind is MarkKind.SEGMENT_BEGIN):
            report(Damage(segment.path, FILE_HEAD_BYTES, 0, "the segment does not begin with a SEGMENT_BEGIN mark"))
        is_first = False
        if mark is not None:
            if mark.totals != totals and not is_torn:
                report(_difference(segment, mark, totals))
            totals, is_torn = behind(segment.address + at, mark.totals), False
            at += mark.size
            if mark.kind is MarkKind.SEGMENT_END:
                ends.add(totals)
        elif is_here:
            report(Damage(segment.path, at, RECORD_ALIGNMENT, "the mark here does not match its checksum"))
            at, is_torn = at + RECORD_ALIGNMENT, True
        elif at < segment.whole_bytes:
            at, is_torn = next_record(segment.address, segment.whole_bytes, at + 1), True
            if at < 0:
                break
    return totals, is_torn or segment.torn_bytes > 0


def _difference(segment: Segment, mark: Mark, found: Totals) -> Damage:
    said = mark.totals
    records, messages = said.records - found.records, said.messages - found.messages
    if records > 0:
        what = f"records are missing before this place: {found.records} were found, {said.records} had been recorded"
    elif records < 0:
        what = f"too many records stand before this place: {found.records}, of {said.records} that had been recorded"
    else:
        what = "other records stand before this place than were recorded there"
    return Damage(segment.path, mark.offset, 0, what, max(0, messages))


class IndexAudit:
    """Compare index entries with the records that they are of, run by run."""

    def __init__(self, key_bytes: int) -> None:
        self._key_bytes = key_bytes
        self._found: dict[SegmentFile, NDArray[Any]] = {}

    def add(self, run: RecordRun) -> None:
        """Take in a checked run of one slice."""
        for number, segment in enumerate(run.segments):
            assert isinstance(segment, Segment)
            if segment not in self._found:
                self._found[segment] = numpy.zeros(len(segment.entries), ENTRY)
            mine = run.segment_of == number
            records = run.addresses[mine]
            entries = numpy.searchsorted(segment.entries["start"], records - segment.address, side="right") - 1
            add_to_entries(records, run.bodies[mine], entries, self._found[segment].ctypes.data, self._key_bytes)

    def report(self, report: Report) -> None:
        """Report the entries that say something else than their records; damaged records are not compared."""
        for segment, found in self._found.items():
            assert isinstance(segment, Segment)
            same = numpy.ones(len(found), bool)
            for name in _CLAIMS:
                same &= found[name] == segment.entries[name]
            same |= found["records"] != segment.entries["records"]  # some are damaged, which is reported elsewhere
            same |= found["records"] == 0
            for place in numpy.flatnonzero(~same).tolist():
                entry = segment.entries[place]
                size = int(entry["stop"] - entry["start"])
                what = "the index says other keys, times, epochs or numbers than these records have"
                report(Damage(segment.path, int(entry["start"]), size, what))
