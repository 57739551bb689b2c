"""Damage at a chosen place of a recording."""

from __future__ import annotations

from blackbox.block.form.layout import RECORD
from tests.journals import Segment


def damage_body(segment: Segment, block: int) -> None:
    """Flip a bit of a block's body, in its first time if it is not compressed."""
    data = bytearray(segment.path.read_bytes())
    data[segment.places[block][0] + RECORD.size + 6] ^= 0x20
    segment.path.write_bytes(data)


def damage_head(segment: Segment, block: int) -> None:
    """Flip a bit in the head of a block's record, so that the record cannot be found."""
    data = bytearray(segment.path.read_bytes())
    data[segment.places[block][0] + 6] ^= 0x20
    segment.path.write_bytes(data)
