"""Data sent with a block from a slice thread to its workers: its header, and the match sets of its topics.

An envelope is one frame::

    header | Envelope | numbers, int32 | match sets, int32 | ROW_GROUP * groups | rows, int32

Each distinct topic of the block has a number and a match set. Row groups are present if the topics have more than one
match set; their rows are ascending within each.
"""

from __future__ import annotations

from typing import Any, Final

import numpy

from blackbox.block.form.format import HEADER_BYTES
from blackbox.native.compile.jit import njit
from blackbox.native.memory.records import Field, SharedRecord, record_at, structure_at


class Envelope(SharedRecord):
    """Fields after the header."""

    version = Field()
    """Version of the match table to which the match sets belong."""
    first_row = Field()
    """Rows before this one were delivered earlier."""
    ts_recv = Field()
    conflated = Field()
    """1: the newest message of each topic of several blocks, with its own sequence."""
    recorded = Field()
    """1: the block was missed and comes from an archive."""
    image = Field()
    """1: part of an image: the newest message of each topic before the start."""
    late = Field()
    """1: earlier messages of the key in this epoch were not received and are not a gap."""
    ts_match = Field()
    """Time when the match sets were found, if the block is traced; else 0."""
    groups = Field()
    """Match sets that the rows are grouped by; 0: all topics have the same."""


ROW_GROUP: Final = numpy.dtype([("match_set", "<i4"), ("start", "<i4"), ("stop", "<i4")])
"""Rows of one match set: from `start` to `stop` of the rows at the envelope's end."""
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
    """Return a row group, as ROW_GROUP, of an envelope for a block with `topics` distinct topics."""
    return _group_at(frame + TOPICS_AT + 8 * topics + GROUP_BYTES * group)


@njit(inline="always")
def rows_at(topics: int, groups: int) -> int:
    """Return the offset of the rows, after `groups` row groups."""
    return TOPICS_AT + 8 * topics + GROUP_BYTES * groups


@njit(inline="always")
def envelope_bytes(topics: int, rows: int) -> int:
    """Return the largest size in bytes of the envelope of a block with `topics` distinct topics and `rows` rows."""
    return TOPICS_AT + (8 + GROUP_BYTES) * topics + 4 * rows
