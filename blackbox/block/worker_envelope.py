"""What travels from a slice thread to its workers beside the body: the block's header, and who wants which topic.

An envelope is one frame::

    header | Envelope | numbers, int32 | match sets, int32 | ROW_GROUP * groups | rows, int32

Each distinct topic of the block has a number and a match set. Row groups are there when the topics have more than one
match set; their rows are ascending within each.
"""

from __future__ import annotations

from typing import Any, Final

import numpy

from blackbox.block.format import HEADER_BYTES
from blackbox.native.jit import njit
from blackbox.native.records import Field, SharedRecord, record_at, structure_at


class Envelope(SharedRecord):
    """What stands behind the header."""

    version = Field()
    """Of the match table to which the match sets belong."""
    first_row = Field()
    """Rows before this one were delivered already."""
    ts_recv = Field()
    conflated = Field()
    """1: the newest message of each topic of several blocks, with its own sequence number."""
    recorded = Field()
    """1: an archive has brought the block, as it was missed."""
    image = Field()
    """1: the block is of an image: the newest message of each topic, from before the slice begins."""
    late = Field()
    """1: messages of the key were published in this epoch before the first one that came; they are no gap."""
    groups = Field()
    """How many match sets the rows are grouped by; 0: all topics have the same."""


ROW_GROUP: Final = numpy.dtype([("match_set", "<i4"), ("start", "<i4"), ("stop", "<i4")])
"""The rows of one match set: from `start` to `stop` of the rows at the envelope's end."""
TOPICS_AT: Final = HEADER_BYTES + Envelope.dtype.itemsize
GROUP_BYTES: Final = ROW_GROUP.itemsize

_record_at = record_at(Envelope)
_group_at = structure_at(ROW_GROUP)


@njit(inline="always")
def envelope_at(frame: int) -> Envelope:
    """Return the record in the envelope at address `frame`."""
    return _record_at(frame + HEADER_BYTES)


@njit(inline="always")
def row_group(frame: int, topics: int, group: int) -> Any:
    """Return a row group, as ROW_GROUP, of an envelope for a block with that many distinct topics."""
    return _group_at(frame + TOPICS_AT + 8 * topics + GROUP_BYTES * group)


@njit(inline="always")
def rows_at(topics: int, groups: int) -> int:
    """Return where the rows start, after that many row groups."""
    return TOPICS_AT + 8 * topics + GROUP_BYTES * groups


@njit(inline="always")
def envelope_bytes(topics: int, rows: int) -> int:
    """Return the most bytes that the envelope of a block needs, with that many distinct topics and rows."""
    return TOPICS_AT + (8 + GROUP_BYTES) * topics + 4 * rows
