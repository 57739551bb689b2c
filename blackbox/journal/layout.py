"""Where every byte of a journal is. The prose is in `docs/journal-format.md`.

A segment is a 64-byte head and then records, each at a multiple of 32; a record::

    0      4      8               16       20       24  25    28       32              96
    +------+------+---------------+--------+--------+---+-----+--------+---------------+-- - -
    | BREC | head | ts_recv       | stored | first  |co-| 0   | stored | block header  | body
    |      | xxh3 |               | bytes  | row    |dec|     | xxh3   | (64 bytes)    |
    +------+------+---------------+--------+--------+---+-----+--------+---------------+-- - -

An index is a 64-byte head and then entries of 128 bytes, each for a run of records of one epoch.
"""

from __future__ import annotations

from typing import Final

import numpy

FORMAT_VERSION: Final = 1

SEGMENT_MAGIC: Final = b"BBOXJRNL"
INDEX_MAGIC: Final = b"BBOXINDX"
FILE_HEAD_BYTES: Final = 64

RECORD_MAGIC: Final = int.from_bytes(b"BREC", "little")
RECORD_HEAD_BYTES: Final = 96
RECORD_ALIGNMENT: Final = 32
ENTRY_BYTES: Final = 128

OFFSET_RECORD_MAGIC: Final = 0
OFFSET_RECORD_CHECKSUM: Final = 4
OFFSET_TS_RECV: Final = 8
OFFSET_STORED_BYTES: Final = 16
OFFSET_FIRST_ROW: Final = 20
OFFSET_CODEC: Final = 24
OFFSET_STORED_CHECKSUM: Final = 28
OFFSET_BLOCK_HEADER: Final = 32

CODEC_NONE: Final = 0
CODEC_LZ4: Final = 1
"""One LZ4 block, without a size in front: the block header has it."""
CODEC_ZSTD: Final = 2
"""One Zstandard frame."""

FILE_HEAD: Final = numpy.dtype(
    {
        "names": ["magic", "version", "slice", "segment", "created", "checksum"],
        "formats": ["S8", "<u2", "<u2", "<u4", "<i8", "<u4"],
        "offsets": [0, 8, 10, 12, 16, 60],
        "itemsize": FILE_HEAD_BYTES,
    }
)
"""Of segments and of indexes. `checksum`: the low 32 bits of XXH3 of the 60 bytes before it."""

RECORD: Final = numpy.dtype(
    {
        "names": [
            "magic",
            "checksum",
            "ts_recv",
            "stored_bytes",
            "first_row",
            "codec",
            "stored_checksum",
            "flags",
            "schema",
            "slice",
            "count",
            "epoch",
            "sequence",
            "ts_out",
            "topics",
            "topic_bytes",
            "body_bytes",
            "stride",
        ],
        "formats": [
            "<u4",
            "<u4",
            "<i8",
            "<u4",
            "<u4",
            "u1",
            "<u4",
            "u1",
            "<u2",
            "<u2",
            "<u4",
            "<u8",
            "<i8",
            "<i8",
            "<u4",
            "<u4",
            "<u4",
            "<u4",
        ],
        "offsets": [0, 4, 8, 16, 20, 24, 28, 37, 38, 40, 44, 48, 56, 64, 72, 76, 80, 84],
        "itemsize": RECORD_HEAD_BYTES,
    }
)
"""A record's head. `checksum` covers the 88 bytes behind it; the fields from `flags` on are the block header's."""

ENTRY: Final = numpy.dtype(
    [
        ("start", "<i8"),
        ("stop", "<i8"),
        ("records", "<i8"),
        ("messages", "<i8"),
        ("min_ts_out", "<i8"),
        ("max_ts_out", "<i8"),
        ("min_ts_recv", "<i8"),
        ("max_ts_recv", "<i8"),
        ("min_ts_event", "<i8"),
        ("max_ts_event", "<i8"),
        ("epoch", "<u8"),
        ("keys", "<u8"),
        ("min_sequence", "<i8"),
        ("max_sequence", "<i8"),
        ("reserved", "<i8"),
        ("zero", "<u4"),
        ("checksum", "<u4"),
    ]
)
"""An index entry: records in bytes `[start, stop)` of the segment. `messages` counts from each record's `first_row`
on, and so do the times. `keys`: bit `xxh3(key) & 63` is set for every key. `max_sequence`: the largest sequence
number. `checksum`: of the 124 bytes before it."""

assert ENTRY.itemsize == ENTRY_BYTES

ENTRY_SPAN_BYTES: Final = 64 << 10
"""An entry is closed once its records have that many bytes."""


def record_bytes(stored_bytes: int) -> int:
    """How far the next record is from this one."""
    return (RECORD_HEAD_BYTES + stored_bytes + RECORD_ALIGNMENT - 1) & -RECORD_ALIGNMENT
