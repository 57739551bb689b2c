"""Damage at a chosen place of a recording."""

from __future__ import annotations

from pathlib import Path

from blackbox.block.form.layout import RECORD
from tests.journals import Segment


def flip(path: Path, *places: int | bytes, bit: int = 0) -> None:
    """Flip a bit of the bytes of a file at these offsets, or where these bytes are found last."""
    data = bytearray(path.read_bytes())
    for place in places:
        data[data.rindex(place) if isinstance(place, bytes) else place] ^= 1 << bit
    path.write_bytes(data)


def damage_body(segment: Segment, block: int) -> None:
    """Flip a bit of a block's body, in its first time if it is not compressed."""
    flip(segment.path, segment.places[block][0] + RECORD.size + 6, bit=5)


def damage_head(segment: Segment, block: int) -> None:
    """Flip a bit in the head of a block's record, so that the record cannot be found."""
    flip(segment.path, segment.places[block][0] + 6, bit=5)
