"""Where every byte of a journal is. The prose is in `docs/journal-format.md`.

A segment is a 64-byte head, then records and, between them, marks, each at a multiple of 32. A record::

    0      4      8               16       20       24  25    28       32              104
    +------+------+---------------+--------+--------+---+-----+--------+---------------+-- - -
    | BREC | head | ts_recv       | stored | first  |co-| 0   | stored | block header  | body
    |      | xxh3 |               | bytes  | row    |dec|     | xxh3   | (72 bytes)    |
    +------+------+---------------+--------+--------+---+-----+--------+---------------+-- - -

A mark::

    0      4      8               16       20   22   24       28       32              40
    +------+------+---------------+--------+----+----+--------+--------+---------------+
    | BMRK | head | ts            | stored |kind|fla-| names  | stored | epoch         |
    |      | xxh3 |               | bytes  |    |gs  |        | xxh3   |               |
    +------+------+---------------+--------+----+----+--------+--------+---------------+
    40              48              56              64              72              80       96
    +---------------+---------------+---------------+---------------+---------------+--------+-- - -
    | ts_out        | records       | messages      | marks         | chain         | 0      | body
    +---------------+---------------+---------------+---------------+---------------+--------+-- - -

The head of a segment, and of an index::

    0               8    10   12       16              24                              60       64
    +---------------+----+----+--------+---------------+-------------- - - ------------+--------+
    | BBOXJRNL      | ver|sli-| number | created_ns    | 0                             | head   |
    |   or BBOXINDX |    |ce  |        |               |                               | xxh3   |
    +---------------+----+----+--------+---------------+-------------- - - ------------+--------+

An index is such a head and then entries of 128 bytes, each for a run of records of one epoch::

    0       8       16       24        32           40           48            56            64
    +-------+-------+--------+---------+------------+------------+-------------+-------------+--- - -
    | start | stop  | records| messages| min_ts_out | max_ts_out | min_ts_recv | max_ts_recv |
    +-------+-------+--------+---------+------------+------------+-------------+-------------+--- - -
    64             72             80      88     96             104            112     120  124      128
    +--------------+--------------+-------+------+--------------+--------------+-------+----+--------+
    | min_ts_event | max_ts_event | epoch | keys | min_sequence | max_sequence | marks |late| entry  |
    |              |              |       |      |              |              |       |    | xxh3   |
    +--------------+--------------+-------+------+--------------+--------------+-------+----+--------+
"""

from __future__ import annotations

from typing import Any, Final

import numpy
from numba.extending import register_jitable

from blackbox.block.format import HEADER_BYTES
from blackbox.native.records import structure_at

FORMAT_VERSION: Final = 2

SEGMENT_MAGIC: Final = b"BBOXJRNL"
INDEX_MAGIC: Final = b"BBOXINDX"
FILE_HEAD_BYTES: Final = 64

RECORD_MAGIC: Final = int.from_bytes(b"BREC", "little")
MARK_MAGIC: Final = int.from_bytes(b"BMRK", "little")
RECORD_ALIGNMENT: Final = 32
ENTRY_BYTES: Final = 128

OFFSET_CHECKED: Final = 8
"""The checksum of a record's or mark's head covers what stands from here on to the end of the head."""
OFFSET_TS_RECV: Final = 8
OFFSET_STORED_BYTES: Final = 16
OFFSET_FIRST_ROW: Final = 20
OFFSET_CODEC: Final = 24
OFFSET_STORED_CHECKSUM: Final = 28
OFFSET_BLOCK_HEADER: Final = 32
RECORD_HEAD_BYTES: Final = OFFSET_BLOCK_HEADER + HEADER_BYTES
MARK_HEAD_BYTES: Final = 96

SEGMENT_BYTES: Final = 256 << 20
"""The next segment is begun at this size, unless it is said otherwise."""

CODEC_NONE: Final = 0
CODEC_LZ4: Final = 1
"""One LZ4 block, without a size in front: the block header has it."""
CODEC_ZSTD: Final = 2
"""One Zstandard frame."""


def _structure(itemsize: int, *fields: tuple[str, str, int]) -> numpy.dtype[Any]:
    """Return a numpy structure of (name, format, offset)."""
    names, formats, offsets = zip(*fields, strict=True)
    return numpy.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": itemsize})


FILE_HEAD: Final = _structure(
    FILE_HEAD_BYTES,
    ("magic", "S8", 0),
    ("version", "<u2", 8),
    ("slice", "<u2", 10),
    ("segment", "<u4", 12),
    ("created", "<i8", 16),
    ("checksum", "<u4", 60),
)
"""Of segments and of indexes. `checksum`: the low 32 bits of XXH3 of the 60 bytes before it."""

RECORD: Final = _structure(
    RECORD_HEAD_BYTES,
    ("magic", "<u4", 0),
    ("checksum", "<u4", 4),
    ("ts_recv", "<i8", 8),
    ("stored_bytes", "<u4", 16),
    ("first_row", "<u4", 20),
    ("codec", "u1", 24),
    ("stored_checksum", "<u4", 28),
    ("key_bytes", "u1", 37),
    ("flags", "<u2", 38),
    ("schema", "<u2", 40),
    ("slice", "<u2", 42),
    ("count", "<u4", 44),
    ("epoch", "<i8", 48),
    ("sequence", "<i8", 56),
    ("ts_out", "<i8", 64),
    ("ts_in", "<i8", 72),
    ("topics", "<u4", 80),
    ("topic_bytes", "<u4", 84),
    ("body_bytes", "<u4", 88),
    ("stride", "<u4", 92),
)
"""A record's head. `checksum` covers the 96 bytes behind it; the fields from `key_bytes` on are the block header's."""

MARK: Final = _structure(
    MARK_HEAD_BYTES,
    ("magic", "<u4", 0),
    ("checksum", "<u4", 4),
    ("ts", "<i8", 8),
    ("stored_bytes", "<u4", 16),
    ("kind", "<u2", 20),
    ("flags", "<u2", 22),
    ("names", "<u4", 24),
    ("stored_checksum", "<u4", 28),
    ("epoch", "<i8", 32),
    ("ts_out", "<i8", 40),
    ("records", "<i8", 48),
    ("messages", "<i8", 56),
    ("marks", "<i8", 64),
    ("chain", "<u8", 72),
    ("ts_event", "<i8", 80),
)
"""A mark's head. `checksum` covers the 88 bytes behind it. `names`: keys that the body names."""

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
        ("epoch", "<i8"),
        ("keys", "<u8"),
        ("min_sequence", "<i8"),
        ("max_sequence", "<i8"),
        ("marks", "<i8"),
        ("late", "<u4"),
        ("checksum", "<u4"),
    ]
)
"""An index entry: records and marks in bytes `[start, stop)` of the segment. `messages` counts from each record's
`first_row` on, and so do the times. `keys`: bit `xxh3(key) & 63` is set for every key. `max_sequence`: the largest
sequence number. `late`: messages whose `ts_event` is less than that of one before them. `checksum`: of the
124 bytes before it. In an entry without records every
min_ is above its max_."""

assert ENTRY.itemsize == ENTRY_BYTES

ENTRY_SPAN_BYTES: Final = 64 << 10
"""An entry is closed once its records have that many bytes."""

record_head_at: Final = structure_at(RECORD)
mark_at: Final = structure_at(MARK)
entry_at: Final = structure_at(ENTRY)
"""For compiled code: what lies at an address."""


@register_jitable
def record_bytes(stored_bytes: Any) -> Any:
    """Return how far what follows is from a record whose body is stored in so many bytes: one number, or an array."""
    return (RECORD_HEAD_BYTES + stored_bytes + RECORD_ALIGNMENT - 1) & -RECORD_ALIGNMENT


@register_jitable
def mark_bytes(stored_bytes: Any) -> Any:
    """Return how far what follows is from a mark whose body has so many bytes."""
    return (MARK_HEAD_BYTES + stored_bytes + RECORD_ALIGNMENT - 1) & -RECORD_ALIGNMENT
