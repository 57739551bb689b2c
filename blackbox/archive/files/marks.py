"""Marks: entries between a journal's records that describe what was recorded.

Each mark has the totals of its slice's day so far: records, messages, marks, and the chain of checksums of all of them.
A missing, repeated or foreign record is therefore detected at the next mark. Readers of messages skip marks;
`marks_of` reads them. Each record may have a note; `blackbox.services.hub.server.notes` reads those of a hub.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, Final, NamedTuple

import msgspec
import numpy
from numpy.typing import NDArray

from blackbox.archive.files.format import (
    FILE_HEAD_BYTES,
    MARK,
    MARK_HEAD_BYTES,
    MARK_MAGIC,
    OFFSET_CHECKED,
    MarkKind,
    mark_at,
    mark_bytes,
    record_head_at,
)
from blackbox.archive.files.journal_record import CHAIN_BYTES, chain_after, next_record, size_at
from blackbox.archive.files.segment import Segment, SegmentFile
from blackbox.block.form.format import END_BYTES, FLAG_FIXED, body_layout
from blackbox.block.position import End
from blackbox.native.compile.jit import njit
from blackbox.native.memory.intrinsics import inner, uint32_at
from blackbox.native.tables.xxh3 import checksum_32, xxh3

AFTER_KILL: Final = 1
"""Flag of RECORDER_BEGIN: the previous recorder was killed."""
NAMES_LEFT_OUT: Final = 2
"""Flag of EPOCH_END and HEARD: some keys are left out, because the next mark names them or there was no room."""
_TALLY_BYTES: Final = 8 << 20


class Totals(NamedTuple):
    """Totals of a slice's day up to a position."""

    records: int = 0
    messages: int = 0
    marks: int = 0
    chain: int = 0
    """Checksum chain, int64; see `blackbox.archive.files.journal_record.chain_after`."""


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """A decoded mark."""

    slice_id: int
    segment: int
    offset: int
    """Offset in its segment, bytes."""
    size: int
    """Size in its segment, bytes."""
    body_bytes: int
    kind: MarkKind
    flags: int
    """AFTER_KILL, NAMES_LEFT_OUT."""
    ts: int
    """Time of the mark by the recorder's clock, ns since 1970."""
    epoch: int
    """The publisher's epoch, or the latest before it; 0: none."""
    ts_out: int
    """`ts_out` of the control block, ns since 1970; 0: the mark is not about one."""
    ts_event: int
    """Latest venue time before messages that the source lacked; 0: the mark is not about any."""
    sequence: int
    """Next sequence of the publisher in the slice, for HEARD, EPOCH_END and NOTE; else 0."""
    totals: Totals
    """Totals before this mark."""
    keys: dict[bytes, End]
    """End of each key, if the records do not reach `sequence`. An outbox also names them once per day and epoch."""
    note: bytes
    """Body of a NOTE."""


class MarkHead(NamedTuple):
    """Fields of a mark's head that the journal's state does not have; see `Mark`."""

    kind: int
    flags: int
    ts: int
    ts_out: int = 0
    ts_event: int = 0
    sequence: int = 0
    names: int = 0
    """Number of keys in the body."""
    body_bytes: int = 0


@njit(nogil=True, cache=True)
def write_mark(target: int, head: MarkHead, epoch: int, totals: Totals) -> None:
    """Write a mark's head over the zeros at `target`. Its body is already there."""
    mark = mark_at(target)
    mark.magic = MARK_MAGIC
    mark.ts = head.ts
    mark.stored_bytes = head.body_bytes
    mark.kind = head.kind
    mark.flags = head.flags
    mark.names = head.names
    mark.stored_checksum = checksum_32(target + MARK_HEAD_BYTES, head.body_bytes)
    mark.epoch = epoch
    mark.ts_out = head.ts_out
    mark.ts_event = head.ts_event
    mark.sequence = head.sequence
    mark.records = totals.records
    mark.messages = totals.messages
    mark.marks = totals.marks
    mark.chain = numpy.uint64(totals.chain)
    mark.checksum = checksum_32(target + OFFSET_CHECKED, MARK_HEAD_BYTES - OFFSET_CHECKED)


def chain_start(created_ns: int, slice_id: int) -> int:
    """Return the start of the chain of a slice's day, int64: XXH3 of the manifest's `created_ns` and the slice."""
    words = numpy.array([created_ns, slice_id], numpy.int64)
    return int(numpy.uint64(xxh3(words.ctypes.data, CHAIN_BYTES)).astype(numpy.int64))


@inner
def _counted(record: int) -> int:
    """Return the number of messages of a record, from its first row on."""
    head = record_head_at(record)
    return numpy.int64(head.count) - numpy.int64(head.first_row)


def tally(segment: Segment, start: int, totals: Totals) -> tuple[int, bool, Totals]:
    """Add the records and notes from `start` on to `totals`, up to the next other mark or invalid bytes.

    Returns where it stopped, True if a mark is there, and the totals. Releases the memory that it has read.
    """
    while True:
        until = start + _TALLY_BYTES
        offset, is_here, totals = _tally(segment.address, segment.whole_bytes, start, until, totals)
        segment.release(start, offset)
        if is_here or offset < until:
            return offset, is_here, totals
        start = offset


@njit(nogil=True, cache=True)
def _tally(memory: int, size: int, start: int, until: int, totals: Totals) -> tuple[int, bool, Totals]:
    """Do `tally` up to the first record at or after `until`."""
    scratch = numpy.empty(2, numpy.int64)
    scratch_address: Any = scratch.ctypes.data
    records, messages, marks, chain = totals.records, totals.messages, totals.marks, totals.chain
    offset = start
    while True:
        place = memory + offset
        step = size_at(place, size - offset)
        is_mark = step != 0 and uint32_at(place) == MARK_MAGIC
        is_here = is_mark and mark_at(place).kind != MarkKind.NOTE.value
        if step == 0 or is_here or offset >= until:
            return offset, is_here, Totals(records, messages, marks, chain)
        if is_mark:
            marks += 1
        else:
            records += 1
            messages += _counted(place)
        chain = chain_after(chain, place, scratch_address)
        offset += step


@njit(nogil=True, cache=True)
def behind(address: int, totals: Totals) -> Totals:
    """Return the totals after the record or mark at an address, from those before it."""
    scratch = numpy.empty(2, numpy.int64)
    scratch_address: Any = scratch.ctypes.data
    records, messages, marks = totals.records, totals.messages, totals.marks
    if uint32_at(address) == MARK_MAGIC:
        marks += 1
    else:
        records += 1
        messages += _counted(address)
    return Totals(records, messages, marks, chain_after(totals.chain, address, scratch_address))


@njit(nogil=True, cache=True)
def next_mark(memory: int, stop: int, start: int, is_note: bool) -> int:
    """Return the offset of the next note, or of the next other mark, in `[start, stop)`; -1 if not found."""
    offset = start
    while offset < stop:
        step = size_at(memory + offset, stop - offset)
        if step == 0:
            offset = next_record(memory, stop, offset + 1)
            if offset < 0:
                return -1
        elif (
            uint32_at(memory + offset) == MARK_MAGIC
            and (mark_at(memory + offset).kind == MarkKind.NOTE.value) == is_note
        ):
            return offset
        else:
            offset += step
    return -1


def read_mark(segment: SegmentFile, offset: int) -> Mark | None:
    """Return the mark at an offset of a segment; None if its body does not match its checksum."""
    head = segment.memory[offset : offset + MARK_HEAD_BYTES].view(MARK)[0]
    body = segment.memory[offset + MARK_HEAD_BYTES :][: int(head["stored_bytes"])]
    if head["stored_checksum"] != checksum_32(body.ctypes.data, len(body)):
        return None
    keys = _keys(body, int(head["names"]))
    try:
        kind = MarkKind(int(head["kind"]))
    except ValueError:
        return None
    if keys is None:
        return None
    records, messages, marks = (int(head[name]) for name in ("records", "messages", "marks"))
    return Mark(
        slice_id=segment.slice_id,
        segment=segment.number,
        offset=offset,
        size=int(mark_bytes(len(body))),
        body_bytes=len(body),
        kind=kind,
        flags=int(head["flags"]),
        ts=int(head["ts"]),
        epoch=int(head["epoch"]),
        ts_out=int(head["ts_out"]),
        ts_event=int(head["ts_event"]),
        sequence=int(head["sequence"]),
        totals=Totals(records, messages, marks, int(head["chain"].astype(numpy.int64))),
        keys=keys,
        note=body.tobytes() if kind is MarkKind.NOTE else b"",
    )


def _keys(body: NDArray[numpy.uint8], names: int) -> dict[bytes, End] | None:
    """Return the end of each key in a mark's body; None if the body is malformed."""
    if names == 0:
        return {}
    layout = body_layout(names, names, 0, 0, FLAG_FIXED)
    if layout.topics > len(body):
        return None
    offsets = body[layout.topic_offsets :][: 4 * (names + 1)].view(numpy.int32).tolist()
    payloads = body_layout(names, names, max(0, offsets[-1]), 0, FLAG_FIXED).payloads
    if len(body) < payloads + END_BYTES * names or offsets != sorted(offsets) or offsets[0] != 0:
        return None
    text = body[layout.topics : payloads].tobytes()
    ends = body[payloads:][: END_BYTES * names].view(numpy.int64).tolist()
    spans = zip(pairwise(offsets), ends[::2], ends[1::2], strict=True)
    return {text[start:stop]: End(end, count) for (start, stop), end, count in spans}


@njit(nogil=True, cache=True)
def _places_of_marks(
    memory: int,
    starts: NDArray[numpy.int64],
    stops: NDArray[numpy.int64],
    to_places: NDArray[numpy.int64],
    are_notes: bool,
) -> int:
    """List the offsets of marks in parts of a segment, as far as there is room. Return their number."""
    count = 0
    for part in range(len(starts)):
        offset = next_mark(memory, stops[part], starts[part], are_notes)
        while offset >= 0 and count < len(to_places):
            to_places[count] = offset
            count += 1
            offset = next_mark(memory, stops[part], offset + size_at(memory + offset, stops[part] - offset), are_notes)
    return count


@njit(nogil=True, cache=True)
def _names(memory: int, places: NDArray[numpy.int64]) -> NDArray[numpy.int64]:
    """Return the number of keys in each mark."""
    names = numpy.empty(len(places), numpy.int64)
    for number in range(len(places)):
        names[number] = mark_at(memory + places[number]).names
    return names


def places_of_marks(segment: Segment, start: int = 0, *, are_notes: bool = False) -> NDArray[numpy.int64]:
    """Return the offsets of a segment's marks except notes, or of its notes, from a record or mark on.

    Reads only parts of the segment that have any according to the index.
    """
    counts = segment.entries["notes" if are_notes else "marks"]
    is_here = (counts > 0) & (segment.entries["stop"] > start)
    places = numpy.empty(int(counts[is_here].sum()), numpy.int64)
    starts = numpy.maximum(segment.entries["start"][is_here], start)
    return places[: _places_of_marks(segment.address, starts, segment.entries["stop"][is_here], places, are_notes)]


_NOTES_AT_ONCE: Final = 4_096


def notes_of(segment: Segment, start: int) -> tuple[NDArray[numpy.int64], NDArray[numpy.bool_]]:
    """Return the offsets of the next notes from a record or mark on, and True for each valid one. Uses no index."""
    places = numpy.empty(_NOTES_AT_ONCE, numpy.int64)
    part = numpy.array([start]), numpy.array([segment.whole_bytes])
    places = places[: _places_of_marks(segment.address, *part, places, True)]
    return places, _are_whole(segment.address, places)


@njit(nogil=True, cache=True)
def _are_whole(memory: int, places: NDArray[numpy.int64]) -> NDArray[numpy.bool_]:
    """Return True for each mark whose body matches its checksum."""
    are_whole = numpy.empty(len(places), numpy.bool_)
    for number in range(len(places)):
        mark = mark_at(memory + places[number])
        body = memory + places[number] + MARK_HEAD_BYTES
        are_whole[number] = mark.stored_checksum == checksum_32(body, numpy.int64(mark.stored_bytes))
    return are_whole


def marks_of(segments: Iterable[Segment], *, with_keys: bool = False) -> Iterator[Mark]:
    """Yield the valid marks of some segments except notes, in order. Reads only parts with marks in the index.

    `with_keys`: only those that name keys.
    """
    for segment in segments:
        places = places_of_marks(segment)
        if with_keys:
            places = places[_names(segment.address, places) > 0]
        for offset in places.tolist():
            mark = read_mark(segment, offset)
            if mark is not None:
                yield mark


class SegmentEnd(NamedTuple):
    """State at the end of a segment."""

    totals: Totals
    """Totals of the segment and those before."""
    epoch: int
    """The publisher's last epoch known to the recorder; 0 if unknown or its marks are damaged."""


def end_of(segment: Segment, start: Totals) -> SegmentEnd:
    """Return the state at the end of a segment.

    Totals are counted from the last mark in the index; without any, from `start`.
    """
    marked = segment.entries[segment.entries["marks"] > 0]
    offset = int(marked["start"][-1]) if len(marked) else FILE_HEAD_BYTES
    totals, epoch = start, 0
    while True:
        offset, is_here, totals = tally(segment, offset, totals)
        mark = read_mark(segment, offset) if is_here else None
        if mark is not None:
            totals, offset = behind(segment.address + offset, mark.totals), offset + mark.size
            epoch = mark.epoch
        else:
            offset = (
                next_record(segment.address, segment.whole_bytes, offset + 1) if offset < segment.whole_bytes else -1
            )
            if offset < 0:
                return SegmentEnd(totals, epoch)


def is_closed(segment: Segment) -> bool:
    """Return True if the recorder closed the journal at the end of a segment, and nothing follows."""
    last_two = segment.entries[-2:]  # an entry may end between the two marks
    if not last_two["marks"][-1:].any():
        return False
    places = places_of_marks(segment, int(last_two["start"][0]))[-2:].tolist()
    marks = [mark for each in places if (mark := read_mark(segment, each)) is not None]
    kinds = [mark.kind for mark in marks]
    are_last = bool(marks) and marks[-1].offset + marks[-1].size == int(segment.entries["stop"][-1])
    return are_last and kinds == [MarkKind.RECORDER_END, MarkKind.SEGMENT_END]
