"""Read the journal: records of one or several slices, in one order, filtered, decompressed and checked.

This is the only reader of segments. It returns recorded blocks as *runs* of records::

    for run in recording.runs(b"AAPL.", start, stop):       # checked and decompressed
        kernel(run.headers, run.bodies, ...)                 # compiled code: many records at a time
        for recorded in blocks_of(run, key_rule): ...       # or Python: once per block

`read_runs` reads segments through their indexes; `read_spans` reads given byte ranges.

- Order: for one slice, that of its journal; for several, see `blackbox.archive.read.merge_slices`. It is deterministic.
- Filter: index entries and record heads that cannot match are skipped. `blackbox.archive.read.filter.RowFilter` and
  `blackbox.archive.read.rows` filter rows.
- Damage: bytes that are no record are reported and skipped. A record that cannot be decompressed or does not match its
  checksums is reported and left out (`bodies="checked"`), or stays in the run with its fault (`bodies="unpacked"`, for
  callers that check or report it later).
- If a file shrinks while it is read, the lost bytes are read as zeros, fail the checksum and are reported.
- Memory: a run has at most 1,024 records or about 32 MiB (8 MiB with checked bodies, so that they are still in the
  cache). Pages of a run are released when the next run but `kept` is made. Its addresses stay valid while the run or an
  array of it is kept.
- Threads: with `ahead`, runs are made in advance by a separate thread, which also calls `report`. Checking and
  decompressing do not hold the GIL.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import numpy
from numpy.typing import NDArray

from blackbox.archive.files.codec import decompress
from blackbox.archive.files.day import as_journal_error, segment_path
from blackbox.archive.files.format import (
    CODEC_NONE,
    FILE_HEAD_BYTES,
    OFFSET_BLOCK_HEADER,
    RECORD,
    RECORD_HEAD_BYTES,
    record_bytes,
)
from blackbox.archive.files.journal_record import is_whole, next_record, walk
from blackbox.archive.files.segment import NO_GOOD_RECORD, Damage, Segment, SegmentFile
from blackbox.archive.read.filter import Filter
from blackbox.archive.read.merge_slices import Target, merge, streams_of
from blackbox.archive.read.read_ahead import read_ahead
from blackbox.archive.read.rows import check_records
from blackbox.block.form.block import Block
from blackbox.block.form.format import HEADER_BYTES
from blackbox.block.form.validate import FAULT_TEXT, Fault
from blackbox.errors import JournalError
from blackbox.feed.routing.key_rule import key_of

Report = Callable[[Damage], None]
"""Called with all damage found; may raise."""
Bodies = Literal["stored", "unpacked", "checked"]
"""Processing of the bodies of a run."""

RUN_RECORDS: Final = 1_024
"""Maximum number of records in a run."""
RUN_BYTES: Final = 32 << 20
"""Size at which a run is closed."""
CHECKED_RUN_BYTES: Final = 8 << 20
"""The same for checked bodies, which should still be in the cache when they are used."""
UNCHECKED: Final = -1
"""The fault of a record that was not checked."""
_LOOKAHEAD_BYTES: Final = 32 << 20
_LEAST_LOOKAHEAD_BYTES: Final = 1 << 20
"""Memory for one slice; the other two are for all slices."""
_LOOKAHEAD_RECORDS: Final = 65_536
_COLUMNS: Final = ("ts_recv", "first_row", "codec", "body_bytes")


class RecordRun(NamedTuple):
    """Some records of a recording, in order. Addresses are valid while this is kept."""

    heads: NDArray[Any]
    """RECORD[n]."""
    addresses: NDArray[numpy.int64]
    """int64[n]: address of each record's head; its stored body follows."""
    bodies: NDArray[numpy.int64]
    """int64[n]: address of each decompressed body, or of the stored body for "stored" and faulty records."""
    faults: NDArray[numpy.int64]
    """int64[n]: `Fault.NONE` in a checked run, otherwise the fault or UNCHECKED."""
    segments: list[SegmentFile]
    """Segments of the records."""
    segment_of: NDArray[numpy.int32]
    """int32[n]: index of each record's segment in `segments`."""
    unpacked: dict[int, NDArray[numpy.uint8]]
    """Decompressed bodies, by the address of their records. Other bodies are in the segments."""
    reasons: dict[int, str]
    """Reasons why bodies could not be decompressed, by the address of their records."""

    @property
    def headers(self) -> NDArray[numpy.int64]:
        """int64[n]: address of each block's header."""
        return self.addresses + OFFSET_BLOCK_HEADER

    @property
    def stored_bytes(self) -> int:
        """Size of the records, without padding."""
        return int(self.heads["stored_bytes"].sum(dtype=numpy.int64)) + RECORD_HEAD_BYTES * len(self.heads)

    def chosen(self, wanted: NDArray[Any]) -> RecordRun:
        """Return a run of some of the records: bool[n], or their indexes."""
        # As raw bytes, because numpy would copy only the fields of RECORD, not the whole header.
        heads = self.heads.view(f"V{RECORD_HEAD_BYTES}")[wanted].view(RECORD)
        return self._replace(
            heads=heads,
            addresses=self.addresses[wanted],
            bodies=self.bodies[wanted],
            faults=self.faults[wanted],
            segment_of=self.segment_of[wanted],
        )

    def segment(self, index: int) -> SegmentFile:
        """Return the segment of a record."""
        return self.segments[int(self.segment_of[index])]

    def body(self, index: int) -> NDArray[numpy.uint8]:
        """Return a body as uint8[n], read-only: a view of the segment or of decompressed memory."""
        address = int(self.addresses[index])
        if (body := self.unpacked.get(address)) is not None:
            return body
        segment = self.segment(index)
        start = address - segment.address + RECORD_HEAD_BYTES
        return segment.memory[start : start + int(self.heads["stored_bytes"][index])]

    def damage(self, index: int, what: str = "", messages: int | None = None) -> Damage:
        """Return the damage of a record: `what`, or else its fault; with `messages`, or all of the record's."""
        address, segment, head = int(self.addresses[index]), self.segment(index), self.heads[index]
        if not what:
            what = self.reasons.get(address) or FAULT_TEXT[Fault(int(self.faults[index]))]
        if messages is None:
            messages = int(head["count"]) - int(head["first_row"])
        size = record_bytes(int(head["stored_bytes"]))
        return Damage(segment.path, address - segment.address, size, what, messages)

    def ranges(self) -> Iterator[tuple[SegmentFile, int, int]]:
        """Yield (segment, start, stop) of the bytes that the records occupy, segments by number."""
        sizes: Any = self.heads["stored_bytes"].astype(numpy.int64)
        ends = self.addresses + record_bytes(sizes)
        for number in sorted(range(len(self.segments)), key=lambda number: self.segments[number].number):
            segment, mine = self.segments[number], self.segment_of == number
            if mine.any():
                yield (
                    segment,
                    int(self.addresses[mine].min()) - segment.address,
                    int(ends[mine].max()) - segment.address,
                )


class Recorded(NamedTuple):
    """A recorded block."""

    block: Block
    """Its body is a view of the mapped segment, or new memory if it was compressed."""
    ts_recv: int
    """Time of receipt, ns since 1970."""
    first_row: int
    """Earlier rows were already recorded."""
    header: int
    """Address of its header."""
    body: int
    """Address of its body."""


class Span(NamedTuple):
    """Bytes `[start, stop)` of a segment: whole records."""

    segment: SegmentFile
    start: int
    stop: int
    latest: int = 0
    """Largest `ts_out` of the slice before them, wanted or not. Only `merge` uses it."""
    mean_bytes: int = 0
    """Number of records; 0: unknown."""


def read_runs(
    slices: Sequence[Sequence[Segment]],
    wanted: Filter,
    report: Report,
    *,
    bodies: Bodies = "checked",
    kept: int = 0,
    ahead: int = 0,
) -> Generator[RecordRun, None, None]:
    """Yield the records that may match, the slices merged into one order.

    Args:
        slices: the segments of each wanted slice, in order, slices by number.
        wanted: filter for index entries and heads.
        report: called with all damage found.
        bodies: "stored": only heads are read. "unpacked": compressed bodies are decompressed, none is checked; bad
            records stay in the run with their fault. "checked": all are valid, bad ones are reported.
        kept: earlier runs that stay mapped.
        ahead: runs that are made in advance, by a separate thread.

    Raises JournalError if a decompression library is not installed.
    """
    spans = [spans_of(segments, wanted) for segments in slices]
    runs = read_spans(spans, wanted.records, wanted.key_rule, report, bodies=bodies, kept=kept + ahead + bool(ahead))
    return read_ahead(runs, ahead) if ahead else runs


def read_spans(
    slices: Sequence[Iterable[Span]],
    may: Callable[[NDArray[Any]], NDArray[numpy.bool_]],
    key_rule: int,
    report: Report,
    *,
    bodies: Bodies = "checked",
    kept: int = 0,
) -> Generator[RecordRun, None, None]:
    """Do `read_runs` for given spans of each slice. `may(heads)` takes RECORD[n] and returns bool[n]."""
    if not slices:
        return
    merged = _Merged(slices, report)
    released: dict[SegmentFile, int] = {}
    mapped: deque[list[tuple[SegmentFile, int, int]]] = deque()
    most_bytes = CHECKED_RUN_BYTES if bodies == "checked" else RUN_BYTES
    while (whole := merged.take(most_bytes)) is not None:
        wanted = may(whole.heads)
        if wanted.any():
            run = whole if wanted.all() else whole.chosen(wanted)
            if bodies != "stored":
                run = _unpack(run)
            if bodies == "checked":
                run = _check(run, key_rule, report)
            if len(run.heads):
                yield run
            del run
        mapped.append(list(whole.ranges()))
        del whole
        if len(mapped) > kept:
            for segment, _, stop in mapped.popleft():
                segment.release(released.get(segment, 0), stop)
                released[segment] = stop
    for segment in merged.segments:
        if lost := segment.lost():
            report(lost)


def spans_of(segments: Iterable[Segment], wanted: Filter) -> Iterator[Span]:
    """Yield the spans of one slice's segments that may match according to their indexes. Adjacent spans are joined."""
    latest = 0
    for segment in segments:
        entries = segment.entries
        if not len(entries):
            continue
        before = numpy.maximum.accumulate(numpy.concatenate(([latest], entries["max_ts_out"])))
        chosen = numpy.flatnonzero(wanted.entries(entries))
        segment.expect(read_through=2 * len(chosen) > len(entries))
        apart = (numpy.diff(chosen) > 1) | (entries["stop"][chosen[:-1]] != entries["start"][chosen[1:]])
        for group in numpy.split(chosen, numpy.flatnonzero(apart) + 1):
            if len(group):
                start, stop = int(entries["start"][group[0]]), int(entries["stop"][group[-1]])
                mean = (stop - start) // max(1, int(entries["records"][group].sum()))
                yield Span(segment, start, stop, int(before[group[0]]), mean)
        latest = int(before[-1])


def whole_spans(segments: Iterable[Segment]) -> Iterator[Span]:
    """Yield all of one slice's segments, without their indexes. The spans cannot be merged with other slices."""
    for segment in segments:
        if segment.whole_bytes > FILE_HEAD_BYTES:
            segment.expect(read_through=True)
            records = int(segment.entries["records"].sum())
            yield Span(segment, FILE_HEAD_BYTES, segment.whole_bytes, mean_bytes=segment.whole_bytes // max(1, records))


def open_spans(day: Path, slice_id: int, planned: Iterable[tuple[int, int, int]]) -> Iterator[Span]:
    """Yield the spans of one slice given as (segment number, start, stop), without reading an index.

    Raises JournalError if a segment is missing or shorter than it was.
    """
    segment: SegmentFile | None = None
    for number, start, stop in planned:
        if segment is None or segment.number != number:
            path = segment_path(day, slice_id, number)
            try:
                segment = SegmentFile(path, slice_id, number)
            except OSError as error:
                raise as_journal_error(error, f"segment {path} cannot be read") from error
        if len(segment.memory) < stop:
            raise JournalError(
                f"{segment.path} had {len(segment.memory)} bytes, expected at least {stop}: it has lost records"
            )
        yield Span(segment, start, stop)


def blocks_of(run: RecordRun, key_rule: int) -> Iterator[Recorded]:
    """Yield the blocks of a checked run, for Python code that works block by block."""
    headers = run.heads.view(numpy.uint8).reshape(-1, RECORD_HEAD_BYTES)[:, OFFSET_BLOCK_HEADER:].tobytes()
    rows = zip(
        run.addresses.tolist(),
        run.bodies.tolist(),
        run.segment_of.tolist(),
        *(run.heads[name].tolist() for name in _COLUMNS),
        strict=True,
    )
    start_of_header = 0
    for address, body_at, number, ts_recv, first_row, codec, body_bytes in rows:
        header = headers[start_of_header : start_of_header + HEADER_BYTES]
        start_of_header += HEADER_BYTES
        if codec == CODEC_NONE:
            segment = run.segments[number]
            start = body_at - segment.address
            body = segment.memory[start : start + body_bytes]
        else:
            body = run.unpacked[address]
        block = Block(b"", header, body)
        if key_rule:
            block.key = key_of(key_rule, block.topic_text[: int(block.topic_offsets[1])].tobytes())
        yield Recorded(block, ts_recv, first_row, address + OFFSET_BLOCK_HEADER, body_at)


def read_blocks(segments: Sequence[Segment], key_rule: int, report: Report) -> Iterator[Recorded]:
    """Yield all valid blocks of one slice's segments."""
    for run in read_runs([segments], Filter(key_rule), report):
        yield from blocks_of(run, key_rule)


class _SliceReader:
    """One slice's records, one lookahead at a time. Damage between them is reported and skipped."""

    def __init__(self, spans: Iterable[Span], report: Report, ahead_bytes: int) -> None:
        self._bytes = ahead_bytes
        self._spans = iter(spans)
        self._report = report
        self._span: Span | None = None
        self._offset = 0

    def fill(self, offsets: int, heads: int, room: int) -> tuple[int, Span | None]:
        """List the next records at two addresses, as `walk`. Return their number and span; 0 at the end."""
        while True:
            if self._span is None:
                self._span = next(self._spans, None)
                if self._span is None:
                    return 0, None
                self._offset = self._span.start
            span, segment = self._span, self._span.segment
            ahead = max(1, min(room, self._bytes // max(1, span.mean_bytes)))
            found, offset = walk(segment.address, span.stop, self._offset, offsets, heads, ahead)
            if found < ahead and offset < span.stop:
                following = next_record(segment.address, span.stop, offset + 1)
                following = span.stop if following < 0 else following
                self._report(Damage(segment.path, offset, following - offset, NO_GOOD_RECORD))
                offset = following
            self._offset = offset
            if offset >= span.stop:
                self._span = None
            if found:
                return found, span


class _Merged:
    """The lookahead of all slices, merged."""

    def __init__(self, slices: Sequence[Iterable[Span]], report: Report) -> None:
        self._room = max(16, min(RUN_RECORDS, _LOOKAHEAD_RECORDS // len(slices)))
        self._streams, self._tables = streams_of(len(slices), self._room)
        ahead_bytes = max(_LEAST_LOOKAHEAD_BYTES, _LOOKAHEAD_BYTES // len(slices))
        self._readers = [_SliceReader(spans, report, ahead_bytes) for spans in slices]
        self._numbers: dict[SegmentFile, int] = {}
        for stream in range(len(slices)):
            self._fill(stream)

    @property
    def segments(self) -> list[SegmentFile]:
        """The segments read so far."""
        return list(self._numbers)

    def take(self, most_bytes: int) -> RecordRun | None:
        """Return the next records as stored; None at the end."""
        heads = numpy.empty(RUN_RECORDS, RECORD)
        addresses = numpy.empty(RUN_RECORDS, numpy.int64)
        source = numpy.empty(RUN_RECORDS, numpy.int32)
        target = Target(heads.ctypes.data, addresses.ctypes.data, source.ctypes.data, RUN_RECORDS, most_bytes)
        count = size = dry = 0
        while True:
            count, size, dry = merge(self._streams, target, count, size)
            if dry < 0:
                break
            self._fill(dry)
        if not count:
            return None
        heads, addresses = heads[:count], addresses[:count]
        known = list(self._numbers)
        numbers, places = numpy.unique(source[:count], return_inverse=True)
        segments = [known[number] for number in numbers.tolist()]
        segment_of = places.astype(numpy.int32)
        slices = numpy.array([segment.slice_id for segment in segments])[segment_of]
        faults = numpy.full(count, UNCHECKED, numpy.int64)
        faults[heads["slice"] != slices] = Fault.SLICE
        return RecordRun(heads, addresses, addresses + RECORD_HEAD_BYTES, faults, segments, segment_of, {}, {})

    def _fill(self, stream: int) -> None:
        tables = self._tables
        places = tables["places"][stream]
        found, span = self._readers[stream].fill(places.ctypes.data, tables["heads"][stream].ctypes.data, self._room)
        tables["next"][stream], tables["filled"][stream] = 0, found
        if span is not None:
            places[:found] += span.segment.address
            tables["latest"][stream] = max(int(tables["latest"][stream]), span.latest)
            tables["source"][stream] = self._numbers.setdefault(span.segment, len(self._numbers))


def _unpack(run: RecordRun) -> RecordRun:
    """Decompress the bodies of a new run, in place."""
    for index in numpy.flatnonzero((run.heads["codec"] != CODEC_NONE) & (run.faults == UNCHECKED)).tolist():
        address, head = int(run.addresses[index]), run.heads[index]
        if not is_whole(address):
            run.faults[index] = Fault.BODY_CHECKSUM
            continue
        try:
            body = decompress(int(head["codec"]), run.body(index), int(head["body_bytes"]))
        except JournalError as error:
            if isinstance(error.__cause__, ImportError):
                raise
            run.faults[index], run.reasons[address] = Fault.BODY_CHECKSUM, str(error)
            continue
        run.unpacked[address] = body
        run.bodies[index] = body.ctypes.data
    return run


def _check(run: RecordRun, key_rule: int, report: Report) -> RecordRun:
    """Check a decompressed run. Report and leave out bad records."""
    check_records(run.addresses, run.bodies, run.heads["body_bytes"].astype(numpy.int64), key_rule, run.faults)
    good = run.faults == Fault.NONE
    if good.all():
        return run
    for index in numpy.flatnonzero(~good).tolist():
        report(run.damage(index))
    return run.chosen(good)
