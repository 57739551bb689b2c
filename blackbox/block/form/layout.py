"""The byte layout of blocks and recordings: one table for Python, Java, C, Node and the docs.

Change the table, then run `make layout`. It writes `Layout.java`, the reference clients' `layout.h` and `layout.mjs`,
the tables of `docs/`, the generated parts of `blackbox.block.form.format` and `tests.wire`, and the golden files.
Python takes offsets from here at import. No other file states an offset, a size or an order of fields.

Fields are contiguous; integers are little-endian. An unnamed field holds zeros.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy

VERSION: Final = 3
"""Version of blocks, recordings, archive requests and positions files."""

BLOCK_MAGIC: Final = b"BBOX"
RECORD_MAGIC: Final = b"BREC"
MARK_MAGIC: Final = b"BMRK"
SEGMENT_MAGIC: Final = b"BBOXJRNL"
INDEX_MAGIC: Final = b"BBOXINDX"
DATAGRAM_MAGIC: Final = b"BBUD"

_TYPES: Final = {"u8": "B", "u16": "H", "u32": "I", "i32": "i", "u64": "Q", "i64": "q"}
"""Codes of module `struct`."""


class Field(NamedTuple):
    """One field of a structure."""

    name: str
    type: str
    """u8, u16, u32, u64, i64, or a number of bytes such as `bytes[8]`."""
    unit: str
    meaning: str

    @property
    def code(self) -> str:
        """Format of the field in module `struct`."""
        if self.type in _TYPES:
            return _TYPES[self.type]
        return f"{self.type.removeprefix('bytes[').removesuffix(']')}{'s' if self.name else 'x'}"

    @property
    def size(self) -> int:
        """Size in bytes."""
        return int(self.type.removeprefix("bytes[").removesuffix("]")) if self.code[-1] in "sx" else self.bits // 8

    @property
    def bits(self) -> int:
        """Bits of an integer."""
        return int(self.type[1:])


class Structure(NamedTuple):
    """Contiguous fields."""

    name: str
    fields: tuple[Field, ...]

    @property
    def size(self) -> int:
        """Size in bytes."""
        return sum(field.size for field in self.fields)

    @property
    def format(self) -> str:
        """Format of all fields in module `struct`."""
        return "<" + "".join(field.code for field in self.fields)

    def format_of(self, *names: str) -> str:
        """Format of these fields only. Raises ValueError unless they are in the order of the table."""
        if [field.name for field in self.fields if field.name in names] != list(names):
            raise ValueError(f"fields were {', '.join(names)}, expected their order in {self.name}")
        return "<" + "".join(field.code if field.name in names else f"{field.size}x" for field in self.fields)

    @property
    def offsets(self) -> dict[str, int]:
        """Offset of each named field, in bytes."""
        return {name: offset for name, _, offset in self.places}

    @property
    def places(self) -> list[tuple[str, str, int]]:
        """Name, numpy format and offset of each named field."""
        found, at = [], 0
        for field in self.fields:
            if field.name:
                found.append((field.name, f"S{field.size}" if field.code[-1] == "s" else f"<{field.code}", at))
            at += field.size
        return found


def dtype_of(structure: Structure, inner: Structure | None = None) -> numpy.dtype[Any]:
    """Return a structure as numpy's. `inner` is the structure in its last field.

    If both have a field of the same name, the outer structure's is used.
    """
    places = structure.places
    if inner is not None:
        *places, (_, _, start) = places
        known = {name for name, _, _ in places}
        places += [(name, kind, start + at) for name, kind, at in inner.places if name not in known]
    names, formats, offsets = zip(*places, strict=True)
    return numpy.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": structure.size})


class Flag(NamedTuple):
    """One bit of a header's `flags`."""

    name: str
    value: int
    meaning: str
    travels: bool = True
    """False if only a subscriber sets it, in its copy of a header."""


class Column(NamedTuple):
    """One column of a body. Columns start at multiples of 8; zeros fill the bytes between them."""

    name: str
    type: str
    """i64, i32, u32, bit, or byte."""
    items: str
    """Number of items, computed from fields of the header."""
    only: str = ""
    """The flag with which the column is present, or `not FLAG`; empty: always."""

    @property
    def size(self) -> str:
        """Size in bytes, computed from fields of the header."""
        if self.type == "bit":
            return f"(({self.items} + 7) >> 3)"
        if self.type == "byte":
            return self.items
        items = f"({self.items})" if "+" in self.items else self.items
        return f"{int(self.type[1:]) // 8} * {items}"

    @property
    def flag(self) -> str:
        """Name of the flag on which the column depends; empty: none."""
        return self.only.removeprefix("not ")


HEADER: Final = Structure(
    "header",
    (
        Field("magic", "u32", "", f"bytes `{BLOCK_MAGIC.hex(' ')}`, `{BLOCK_MAGIC.decode()}`"),
        Field("version", "u8", "", str(VERSION)),
        Field("key_rule", "u8", "", "`key_bytes` of the feed, or 8 + `channels`"),
        Field("flags", "u16", "", "see below"),
        Field("schema", "u16", "", "id of the payloads' schema; 0: plain bytes"),
        Field("slice", "u16", "", "slice id, from 0"),
        Field("count", "u32", "messages", "messages in the block; data: at least 1"),
        Field("epoch", "i64", "ns", "start time of the publisher's run; above 0"),
        Field("sequence", "i64", "messages", "messages of the slice before this one, in this epoch"),
        Field("previous", "i64", "messages", "the end of the earlier message of the same key; none: 0"),
        Field("key_sequence", "i64", "messages", "messages of the same key before this one, in this epoch"),
        Field("ts_out", "i64", "ns", "when the block was sent"),
        Field("ts_in", "i64", "ns", "when its oldest message was published; control, unknown: 0"),
        Field("topics", "u32", "topics", "distinct topics; data: 1 to count"),
        Field("topic_bytes", "u32", "bytes", "all distinct topics together"),
        Field("body_bytes", "u32", "bytes", "the body"),
        Field("stride", "u32", "bytes", "every payload with FIXED; else 0"),
        Field("body_checksum", "u32", "", "checksum of the body with CHECKSUM; else 0"),
        Field("header_checksum", "u32", "", "checksum of the header bytes before it; always set"),
    ),
)

FLAGS: Final = (
    Flag("CHECKSUM", 1, "`body_checksum` is valid"),
    Flag("FIXED", 2, "payloads have `stride` bytes; no column `payload_offsets`"),
    Flag("CONTROL", 4, "control block: the key starts with a zero byte"),
    Flag("LINE_B", 8, "sent on the second line of the slice"),
    Flag("END", 16, "control: the publisher closes; the epoch ends"),
    Flag("SEQUENCES", 32, "data: column `sequences` present"),
    Flag("NULLS", 64, "data: some messages have no value; column `validity` present"),
    Flag("NUMBERS", 256, "data: column `topic_numbers` present"),
    Flag("SAME", 4096, "data: column `same` present"),
    Flag("REFUSED", 512, "control: refused prefixes instead of a confirmation"),
    Flag("RECORDED", 128, "an archive has sent the block", travels=False),
    Flag("IMAGE", 1024, "the block is part of an image", travels=False),
    Flag("LATE", 2048, "earlier messages of the key were not received and are no gap", travels=False),
)

COLUMNS: Final = (
    Column("ts_event", "i64", "count"),
    Column("topic_index", "i32", "count"),
    Column("payload_offsets", "i32", "count + 1", "not FIXED"),
    Column("sequences", "i64", "count", "SEQUENCES"),
    Column("validity", "bit", "count", "NULLS"),
    Column("same", "byte", "count", "SAME"),
    Column("topic_offsets", "i32", "topics + 1"),
    Column("topic_numbers", "u32", "topics", "NUMBERS"),
    Column("topics", "byte", "topic_bytes"),
    Column("payloads", "byte", "the rest"),
)

ACKNOWLEDGEMENT: Final = Structure(
    "acknowledgement",
    (
        Field("prefix", "bytes[2]", "", "`00 52`"),
        Field("nonce", "bytes[8]", "", "nonce of a slice in a run of the recorder"),
        Field("epoch", "i64", "ns", "epoch of the sequences"),
        Field("begin", "i64", "", "sequence of the first recorded message"),
        Field("recorded", "i64", "messages", "end in the page cache: survives a killed recorder"),
        Field("synced", "i64", "messages", "end on disk; -1: left to the system"),
        Field("missing", "i64", "", "sequence of the first missing message after `begin`; -1: none is missing"),
    ),
)

DATAGRAM: Final = Structure(
    "datagram",
    (
        Field("tag", "u64", "", "XXH3_64 of the bytes after `more_tag`; with a group key see below"),
        Field("more_tag", "u64", "", "0; with a group key see below"),
        Field("magic", "u32", "", f"bytes `{DATAGRAM_MAGIC.hex(' ')}`, `{DATAGRAM_MAGIC.decode()}`"),
        Field("version", "u8", "", str(VERSION)),
        Field("key_bytes", "u8", "bytes", "the block's key; at most 8"),
        Field("slice", "u16", "", "slice id"),
        Field("stream", "i64", "ns", "start time of the sender; above 0"),
        Field("block", "i64", "blocks", "number of the block in its stream and line, from 0"),
        Field("block_bytes", "u32", "bytes", "key, header and body of the block together"),
        Field("part_bytes", "u32", "bytes", "each part but the last; 512 to 65,507"),
        Field("part", "u32", "parts", "number of this part, from 0"),
        Field("zero", "u32", "", "0"),
    ),
)

FILE_HEAD: Final = Structure(
    "head",
    (
        Field("magic", "bytes[8]", "", f"`{SEGMENT_MAGIC.decode()}` (index: `{INDEX_MAGIC.decode()}`)"),
        Field("version", "u16", "", f"format version, {VERSION}"),
        Field("slice", "u16", "", "slice id"),
        Field("segment", "u32", "", "number of the segment"),
        Field("created", "i64", "ns", "creation time"),
        Field("", "bytes[36]", "", "0"),
        Field("checksum", "u32", "", "checksum of the bytes before it"),
    ),
)

RECORD: Final = Structure(
    "record",
    (
        Field("magic", "u32", "", f"bytes `{RECORD_MAGIC.decode()}`"),
        Field("checksum", "u32", "", "checksum of the bytes after it, up to the body"),
        Field("ts_recv", "i64", "ns", "when the block was received"),
        Field("stored_bytes", "u32", "bytes", "the body as stored"),
        Field("first_row", "u32", "rows", "rows recorded earlier"),
        Field("codec", "u8", "", "0 none, 1 LZ4 (one raw block), 2 Zstandard (one frame)"),
        Field("", "bytes[3]", "", "0"),
        Field("stored_checksum", "u32", "", "checksum of the body as stored"),
        Field("block", f"bytes[{HEADER.size}]", "", "the block's header"),
    ),
)

MARK: Final = Structure(
    "mark",
    (
        Field("magic", "u32", "", f"bytes `{MARK_MAGIC.decode()}`"),
        Field("checksum", "u32", "", "checksum of the bytes after it, up to the body"),
        Field("ts", "i64", "ns", "creation time, by the recorder's clock"),
        Field("stored_bytes", "u32", "bytes", "the body"),
        Field("kind", "u16", "", "see below"),
        Field("flags", "u16", "", "see below"),
        Field("names", "u32", "keys", "keys in the body; NOTE: 0"),
        Field("stored_checksum", "u32", "", "checksum of the body"),
        Field("epoch", "i64", "ns", "epoch; 0: none yet"),
        Field("ts_out", "i64", "ns", "`ts_out` of the control block, or 0"),
        Field("records", "i64", "records", "earlier records of this slice and day"),
        Field("messages", "i64", "messages", "messages of these records, each from its first row on"),
        Field("marks", "i64", "marks", "earlier marks of this slice and day"),
        Field("chain", "u64", "", "chain of checksums of all of these"),
        Field("ts_event", "i64", "ns", "HEARD: latest `ts_event` before a loss of the source; else 0"),
        Field("sequence", "i64", "messages", "HEARD, EPOCH_END, NOTE: next sequence of the slice; else 0"),
    ),
)

ENTRY: Final = Structure(
    "entry",
    (
        Field("start", "i64", "bytes", "start of the first record or mark"),
        Field("stop", "i64", "bytes", "end of the last one"),
        Field("records", "i64", "records", "records"),
        Field("messages", "i64", "messages", "messages, from each record's first row on"),
        Field("min_ts_out", "i64", "ns", "least `ts_out`"),
        Field("max_ts_out", "i64", "ns", "largest `ts_out`"),
        Field("min_ts_recv", "i64", "ns", "least `ts_recv`"),
        Field("max_ts_recv", "i64", "ns", "largest `ts_recv`"),
        Field("min_ts_event", "i64", "ns", "least `ts_event`, from each record's first row on"),
        Field("max_ts_event", "i64", "ns", "largest `ts_event`, from each record's first row on"),
        Field("epoch", "i64", "ns", "epoch"),
        Field("keys", "u64", "", "bit (XXH3_64 of the key, low 6 bits) of each key"),
        Field("min_sequence", "i64", "", "least sequence"),
        Field("max_sequence", "i64", "", "largest sequence"),
        Field("marks", "u32", "marks", "marks that are not notes"),
        Field("notes", "u32", "marks", "notes"),
        Field("late", "u32", "messages", "messages with a smaller `ts_event` than an earlier one"),
        Field("checksum", "u32", "", "checksum of the bytes before it"),
    ),
)
