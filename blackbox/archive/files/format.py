"""Structures of a journal, from the table in `blackbox.block.form.layout`. See `journal-format` in the docs."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final

from numba.extending import register_jitable

from blackbox.block.form import layout
from blackbox.native.memory.records import structure_at

SEGMENT_MAGIC: Final = layout.SEGMENT_MAGIC
INDEX_MAGIC: Final = layout.INDEX_MAGIC
RECORD_MAGIC: Final = int.from_bytes(layout.RECORD_MAGIC, "little")
MARK_MAGIC: Final = int.from_bytes(layout.MARK_MAGIC, "little")

FILE_HEAD: Final = layout.dtype_of(layout.FILE_HEAD)
"""Head of a segment or index."""
RECORD: Final = layout.dtype_of(layout.RECORD, layout.HEADER)
"""Head of a record, with the fields of the block's header."""
MARK: Final = layout.dtype_of(layout.MARK)
"""Head of a mark."""
ENTRY: Final = layout.dtype_of(layout.ENTRY)
"""Entry of an index. In an entry without records every minimum is above its maximum."""
FILE_HEAD_BYTES: Final = FILE_HEAD.itemsize
RECORD_HEAD_BYTES: Final = RECORD.itemsize
MARK_HEAD_BYTES: Final = MARK.itemsize
ENTRY_BYTES: Final = ENTRY.itemsize
RECORD_ALIGNMENT: Final = 32

OFFSET_CHECKED: Final = 8
"""The checksum of a record's or mark's head covers the bytes from here to its end."""
OFFSET_BLOCK_HEADER: Final = layout.RECORD.offsets["block"]

SEGMENT_BYTES: Final = 256 << 20
"""Default size at which the next segment is begun."""

CODEC_NONE: Final = 0
CODEC_LZ4: Final = 1
"""One LZ4 block without a size prefix: the block header has the size."""
CODEC_ZSTD: Final = 2
"""One Zstandard frame."""


ENTRY_SPAN_BYTES: Final = 64 << 10
"""An entry is closed once its records have this size."""

record_head_at: Final = structure_at(RECORD)
mark_at: Final = structure_at(MARK)
entry_at: Final = structure_at(ENTRY)
"""For compiled code: the structure at an address."""


class MarkKind(IntEnum):
    """Kind of a mark."""

    SEGMENT_BEGIN = 1
    """Beginning of a segment: its first mark, before all records."""
    SEGMENT_END = 2
    """End of a segment: its last mark, after all records. Missing if the recorder was killed or is still writing."""
    RECORDER_BEGIN = 3
    """Start of a recorder. With flag AFTER_KILL, the previous one had not closed the journal."""
    RECORDER_END = 4
    """A recorder stopped and closed the journal."""
    EPOCH_BEGIN = 5
    """The publisher's epoch begins here, as far as this recorder knows."""
    EPOCH_END = 6
    """The publisher has closed: no messages follow in this epoch."""
    HEARD = 7
    """A heartbeat: the publisher's next sequence is `sequence`. Earlier messages without a record are missing."""
    NOTE = 8
    """The publisher's note about the messages after it. Only the publisher knows the format of its body."""


@register_jitable
def record_bytes(stored_bytes: Any) -> Any:
    """Return the size of a record from that of its stored body: a number or an array."""
    return (RECORD_HEAD_BYTES + stored_bytes + RECORD_ALIGNMENT - 1) & -RECORD_ALIGNMENT


@register_jitable
def mark_bytes(stored_bytes: Any) -> Any:
    """Return the size of a mark from that of its body."""
    return (MARK_HEAD_BYTES + stored_bytes + RECORD_ALIGNMENT - 1) & -RECORD_ALIGNMENT
