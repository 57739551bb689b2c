"""A slow and obvious second implementation of the journal format. It shares only the layout table with the core."""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import IO, Any, NamedTuple

import lz4.block
import msgspec
import xxhash
import zstandard

from blackbox import ConfigError, Feed, Schema
from blackbox.block.form import layout
from blackbox.block.form.layout import ENTRY, FILE_HEAD, MARK, RECORD, VERSION, Structure
from blackbox.feed.schema.document import SchemaDocument
from blackbox.feed.schema.schema import load_schema
from blackbox.feed.slice import Slice
from tests import wire

CHECKED = 8
"""Offset of the first byte covered by the checksum of a record's or mark's head."""
SPAN = 64 << 10


class Row(NamedTuple):
    """A message as written to a journal and as read back. A payload of None means no value."""

    topic: bytes
    payload: bytes | None
    ts_event: int = 0


class Told(NamedTuple):
    """A message of a recording with all its fields."""

    slice_id: int
    epoch: int
    sequence: int
    ts_out: int
    ts_recv: int
    topic: bytes
    payload: Any
    """bytes, or None for no value."""
    ts_event: int


@dataclass(frozen=True)
class Put:
    """A block to record."""

    rows: tuple[Row, ...]
    sequence: int = 0
    ts_out: int = 0
    ts_recv: int = 0
    epoch: int = 1
    first_row: int = 0
    codec: int = 0
    schema: int = 0
    flags: int = wire.CHECKSUM
    sequences: tuple[int, ...] | None = None
    """Sequence numbers of the messages, if not consecutive."""
    same: tuple[int, ...] | None = None
    """Number of rows since the first one of the same message."""
    previous: int | None = None
    key_sequence: int | None = None
    """Header fields; None: values for a single key."""

    def block(self, slice_id: int) -> tuple[bytes, bytes]:
        """Return header and body as sent."""
        checksummed = bool(self.flags & wire.CHECKSUM)
        return wire.data(
            [(row.topic, row.payload, row.ts_event) for row in self.rows],
            sequences=None if self.sequences is None else list(self.sequences),
            same=None if self.same is None else list(self.same),
            flags=self.flags,
            schema=self.schema,
            slice_id=slice_id,
            epoch=self.epoch,
            sequence=self.numbers[0],
            ts_out=self.ts_out,
            **({} if checksummed else {"body_checksum": 0}),
            **({} if self.previous is None else {"previous": self.previous}),
            **({} if self.key_sequence is None else {"key_sequence": self.key_sequence}),
        )

    @property
    def numbers(self) -> tuple[int, ...]:
        """Return the sequence numbers of its messages."""
        return self.sequences or tuple(range(self.sequence, self.sequence + len(self.rows)))

    def told(self, slice_id: int) -> list[Told]:
        """Return its messages from the first row on."""
        return [
            Told(slice_id, self.epoch, self.numbers[i], self.ts_out, self.ts_recv, *row)
            for i, row in enumerate(self.rows)
            if i >= self.first_row
        ]


def record_of(put: Put, slice_id: int) -> bytes:
    """Return a record, padded to a multiple of 32 bytes."""
    header, body = put.block(slice_id)
    return stored_record(header, packed(put.codec, body), ts_recv=put.ts_recv, first_row=put.first_row, codec=put.codec)


def stored_record(header: bytes, stored: bytes, **fields: int) -> bytes:
    """Return a record of a header and a stored body, padded to a multiple of 32 bytes."""
    checksum = wire.checksum(stored)
    head = sealed(RECORD, stored_bytes=len(stored), stored_checksum=checksum, block=header, **fields)
    return head + stored + bytes(-len(head + stored) % 32)


def with_fields(structure: Structure, **fields: Any) -> bytes:
    """Return the bytes of a structure with these fields; the others are 0."""
    return struct.pack(structure.format, *(fields.get(name, 0) for name in structure.offsets))


def sealed(structure: Structure, **fields: Any) -> bytes:
    """Return the head of a record or mark with these fields, magic and checksum; the others are 0."""
    magic = {"record": layout.RECORD_MAGIC, "mark": layout.MARK_MAGIC}[structure.name]
    head = with_fields(structure, **fields)[CHECKED:]
    return magic + struct.pack("<I", wire.checksum(head)) + head


def opened(structure: Structure, data: bytes) -> dict[str, Any]:
    """Return the fields of a structure by name."""
    return dict(zip(structure.offsets, struct.unpack(structure.format, data), strict=True))


SEGMENT_BEGIN, SEGMENT_END = 1, 2


@dataclass
class Totals:
    """Running totals of a slice's day."""

    records: int = 0
    messages: int = 0
    marks: int = 0
    chain: int = 0

    @classmethod
    def of_slice(cls, slice_id: int, created_ns: int = 0) -> Totals:
        """Return the totals of an empty slice."""
        return cls(chain=xxhash.xxh3_64_intdigest(struct.pack("<qq", created_ns, slice_id)))

    def add(self, head: bytes, messages: int | None = None) -> None:
        """Add a record with `messages` messages, or a mark, by its first eight bytes."""
        self.records += messages is not None
        self.messages += messages or 0
        self.marks += messages is None
        self.chain = xxhash.xxh3_64_intdigest(struct.pack("<Q", self.chain) + head[:8])


def mark_of(kind: int, totals: Totals, ts: int = 0, epoch: int = 0) -> bytes:
    """Return a mark without keys."""
    return sealed(MARK, ts=ts, kind=kind, epoch=epoch, stored_checksum=wire.checksum(b""), **asdict(totals))


def packed(codec: int, body: bytes) -> bytes:
    if codec == 1:
        data: bytes = lz4.block.compress(body, store_size=False)
        return data
    return zstandard.compress(body) if codec == 2 else body


def file_head(magic: bytes, slice_id: int, number: int, created: int = 0) -> bytes:
    fields = {"version": VERSION, "slice": slice_id, "segment": number, "created": created}
    head = with_fields(FILE_HEAD, magic=magic, **fields)[:-4]
    return head + struct.pack("<I", wire.checksum(head))


def key_bit(key: bytes) -> int:
    return 1 << (xxhash.xxh3_64_intdigest(key) % 64)


@dataclass
class Segment:
    """A segment being written, and its index."""

    path: Path
    slice_id: int
    number: int
    key_bytes: int
    puts: list[Put] = field(default_factory=list)
    places: list[tuple[int, int]] = field(default_factory=list)
    """Start and end offset of each record."""
    totals: Totals = field(default_factory=Totals)
    """Totals of the slice."""
    end: int = 0
    """End offset of its end mark, or 0 before it is written."""

    def __post_init__(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_bytes(file_head(b"BBOXJRNL", self.slice_id, self.number))

    def append(self, *puts: Put) -> None:
        with self.path.open("ab") as file:
            for put in puts:
                if file.tell() == FILE_HEAD.size:
                    self._mark(file, SEGMENT_BEGIN)
                start = file.tell()
                record = record_of(put, self.slice_id)
                file.write(record)
                self.totals.add(record, len(put.rows) - put.first_row)
                self.puts.append(put)
                self.places.append((start, file.tell()))

    def close(self) -> None:
        """Append the end mark. Write the index after that."""
        with self.path.open("ab") as file:
            self._mark(file, SEGMENT_END)
            self.end = file.tell()

    def _mark(self, file: IO[bytes], kind: int) -> None:
        mark = mark_of(kind, self.totals)
        file.write(mark)
        self.totals.add(mark)

    def entries(self) -> list[bytes]:
        """Return all index entries, including the last one."""
        groups: list[list[int]] = []
        for i, put in enumerate(self.puts):
            last = groups[-1] if groups else []
            room = last and self.places[last[-1]][1] - self._start(last) < SPAN
            if room and self.puts[last[0]].epoch == put.epoch:
                last.append(i)
            else:
                groups.append([i])
        return [self._entry(group) for group in groups]

    def write_index(self, entries: int | None = None) -> None:
        """Write the index, or only its first `entries` entries."""
        data = file_head(b"BBOXINDX", self.slice_id, self.number) + b"".join(self.entries()[:entries])
        self.path.with_suffix(".index").write_bytes(data)

    def _start(self, group: list[int]) -> int:
        return self.places[group[0]][0] if group[0] else FILE_HEAD.size  # offset of the first mark

    def _entry(self, group: list[int]) -> bytes:
        puts = [self.puts[i] for i in group]
        events = [row.ts_event for put in puts for row in put.rows[put.first_row :]]
        keys = 0
        for put in puts:
            keys |= key_bit(put.rows[0].topic[: self.key_bytes])
        is_last = self.end > 0 and group[-1] == len(self.puts) - 1
        entry = with_fields(
            ENTRY,
            start=self._start(group),
            stop=self.end if is_last else self.places[group[-1]][1],
            records=len(group),
            messages=len(events),
            min_ts_out=min(put.ts_out for put in puts),
            max_ts_out=max(put.ts_out for put in puts),
            min_ts_recv=min(put.ts_recv for put in puts),
            max_ts_recv=max(put.ts_recv for put in puts),
            min_ts_event=min(events),
            max_ts_event=max(events),
            epoch=puts[0].epoch,
            keys=keys,
            min_sequence=min(put.numbers[put.first_row] for put in puts),
            max_sequence=max(put.numbers[-1] for put in puts),
            marks=(group[0] == 0) + is_last,
            late=sum(time < latest for time, latest in zip(events, accumulate(events, max), strict=True)),
        )[:-4]
        return entry + struct.pack("<I", wire.checksum(entry))


@dataclass
class Day:
    """A day's directory being written."""

    path: Path
    feed: Feed
    segments: list[Segment] = field(default_factory=list)
    totals: dict[int, Totals] = field(default_factory=dict)
    """Totals of each slice."""
    date: str = "2026-11-20"

    def __post_init__(self) -> None:
        for slice_id in range(len(self.feed.slices)):
            (self.path / f"slice-{slice_id:05d}").mkdir(parents=True, exist_ok=True)
        try:
            self.write_manifest(load_schema(self.feed.schema))
        except ConfigError:
            self.write_manifest(Schema(self.feed.schema_name, 0, {}))

    def write_manifest(self, schema: Schema, feed: dict[str, Any] | None = None) -> None:
        """Write the manifest with this schema and `feed`, the settings of the feed, by default all."""
        manifest = {
            "format": VERSION,
            "feed": feed or msgspec.to_builtins(msgspec.structs.replace(self.feed, schema=self.feed.schema_name)),
            "schema": msgspec.to_builtins(SchemaDocument.of(schema)),
            "date": self.date,
            "created_ns": 0,
            "version": "0.1.0",
        }
        text = json.dumps(manifest, separators=(",", ":"), ensure_ascii=False)
        manifest["checksum"] = xxhash.xxh3_64_hexdigest(text.encode())
        (self.path / "manifest.json").write_text(json.dumps(manifest, ensure_ascii=False))

    def segment(self, slice_id: int = 0) -> Segment:
        """Start the next segment of a slice."""
        number = sum(segment.slice_id == slice_id for segment in self.segments)
        path = self.path / f"slice-{slice_id:05d}" / f"{number:06d}.journal"
        totals = self.totals.setdefault(slice_id, Totals.of_slice(slice_id))
        segment = Segment(path, slice_id, number, self.feed.key_bytes, totals=totals)
        self.segments.append(segment)
        return segment

    def put(self, slice_id: int, *puts: Put, index: bool = True) -> Segment:
        """Write a segment of a slice with these blocks."""
        segment = self.segment(slice_id)
        segment.append(*puts)
        if index:
            segment.write_index()
        return segment

    def told(self) -> list[Told]:
        """Return all messages in reading order: by (running maximum of ts_out of the slice, slice, position)."""
        latest: dict[int, int] = {}
        found: list[tuple[int, int, int, list[Told]]] = []
        for segment in self.segments:
            for put in segment.puts:
                slice_id = segment.slice_id
                latest[slice_id] = max(latest.get(slice_id, 0), put.ts_out)
                found.append((latest[slice_id], slice_id, len(found), put.told(slice_id)))
        return [message for *_, messages in sorted(found, key=lambda item: item[:3]) for message in messages]


def feed_of(slices: int = 1, key_bytes: int = 0, **settings: Any) -> Feed:
    """Return a feed without a publisher. With several slices, slice `i` has the topics that start with `A` + i."""
    parts = (
        (Slice(endpoints=("inproc://recorded-0",)),)
        if slices == 1
        else tuple(Slice(endpoints=(f"inproc://recorded-{i}",), prefixes=(chr(65 + i),)) for i in range(slices))
    )
    return Feed(name="recorded", key_bytes=key_bytes, slices=parts, **settings)


class Stored(NamedTuple):
    """A record as stored on disk."""

    start: int
    stop: int
    ts_recv: int
    first_row: int
    codec: int
    header: bytes
    body: bytes
    """Uncompressed body."""

    @property
    def fields(self) -> wire.Fields:
        """Return the fields of its header."""
        return wire.unpack(self.header)

    def messages(self) -> list[tuple[bytes, bytes, int]]:
        """Return (topic, payload, ts_event) from the first row on. Raises ValueError if the block is invalid."""
        return wire.decode(None, self.header, self.body).messages[self.first_row :]


class StoredMark(NamedTuple):
    """A mark as stored on disk."""

    start: int
    stop: int
    kind: int
    flags: int
    ts: int
    epoch: int
    ts_out: int
    sequence: int
    totals: Totals
    names: int
    body: bytes


def stored(segment: Path) -> tuple[list[Stored], int]:
    """Return the complete records of a segment and the number of bytes after the last record or mark."""
    found, _, torn = read_segment(segment)
    return found, torn


def stored_marks(segment: Path) -> list[StoredMark]:
    """Return the marks of a segment."""
    return read_segment(segment)[1]


def read_segment(segment: Path) -> tuple[list[Stored], list[StoredMark], int]:
    """Return the complete records and marks of a segment and the number of bytes after them."""
    data = segment.read_bytes()
    head = data[: FILE_HEAD.size]
    assert head[:8] == b"BBOXJRNL"
    assert head[-4:] == struct.pack("<I", wire.checksum(head[:-4]))
    found, marks, at = list[Stored](), list[StoredMark](), FILE_HEAD.size
    while True:
        structure = {b"BMRK": MARK, b"BREC": RECORD}.get(data[at : at + 4])
        if structure is None or at + structure.size > len(data):
            break
        start = at + structure.size
        fields = opened(structure, data[at:start])
        end = start + fields["stored_bytes"]
        body, stop = data[start:end], end + -(end - at) % 32
        if fields["checksum"] != wire.checksum(data[at + CHECKED : start]) or len(data) < stop:
            break
        assert wire.checksum(body) == fields["stored_checksum"]
        if structure is MARK:
            totals = Totals(*(fields[name] for name in ("records", "messages", "marks", "chain")))
            told = {name: fields[name] for name in ("kind", "flags", "ts", "epoch", "ts_out", "sequence", "names")}
            marks.append(StoredMark(at, stop, totals=totals, body=body, **told))
        else:
            told = {name: fields[name] for name in ("ts_recv", "first_row", "codec")}
            header = fields["block"]
            found.append(Stored(at, stop, header=header, body=unpacked(fields["codec"], header, body), **told))
        at = stop
    return found, marks, len(data) - at


def unpacked(codec: int, header: bytes, body: bytes) -> bytes:
    if codec == 1:
        data: bytes = lz4.block.decompress(body, uncompressed_size=wire.unpack(header).body_bytes)
        return data
    return zstandard.decompress(body) if codec == 2 else body


def check_index(segment: Path) -> None:
    """Assert that a segment's index covers every record and mark once."""
    records, marks, torn = read_segment(segment)
    data = segment.with_suffix(".index").read_bytes()
    assert torn == 0
    assert data[:8] == b"BBOXINDX"
    assert (len(data) - FILE_HEAD.size) % ENTRY.size == 0
    at, left = FILE_HEAD.size, records
    for place in range(FILE_HEAD.size, len(data), ENTRY.size):
        entry = data[place : place + ENTRY.size]
        assert entry[-4:] == struct.pack("<I", wire.checksum(entry[:-4]))
        fields = opened(ENTRY, entry)
        mine, left = left[: fields["records"]], left[fields["records"] :]
        here = [mark for mark in marks if fields["start"] <= mark.start < fields["stop"]]
        assert fields["start"] == at
        assert fields["stop"] == max([each.stop for each in mine] + [each.stop for each in here])
        notes = sum(mark.kind == 8 for mark in here)
        assert (fields["marks"], fields["notes"]) == (len(here) - notes, notes)
        assert fields["messages"] == sum(record.fields.count - record.first_row for record in mine)
        assert not mine or fields["min_sequence"] == min(record.fields.sequence + record.first_row for record in mine)
        at = fields["stop"]
    assert not left
