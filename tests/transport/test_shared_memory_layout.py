"""Processes that share memory agree on every offset: a changed layout needs a new version."""

from __future__ import annotations

import pytest

from blackbox.block.form.layout import VERSION
from blackbox.native.memory.records import SharedRecord
from blackbox.transport.shared_memory import layout as shared_memory

OFFSETS = {
    "Head": {"magic": 0, "page_bytes": 8, "small_bytes": 16, "tail": 64, "waiting": 128, "place_positions": 192},
    "Descriptor": {"position": 0, "place": 8, "body_bytes": 16, "key_bytes": 24, "key": 32, "header": 40},
    "Slot": {"cursor": 0, "sleeping": 64, "pins": 128},
}


@pytest.mark.parametrize("record", [shared_memory.Head, shared_memory.Descriptor, shared_memory.Slot])
def test_every_field_keeps_its_offset(record: type[SharedRecord]) -> None:
    fields = record.dtype.fields
    assert fields is not None
    assert {name: field[1] for name, field in fields.items()} == OFFSETS[record.__name__]


def test_numbers_and_magic_of_the_layout() -> None:
    assert (shared_memory.DESCRIPTORS, shared_memory.DESCRIPTOR_BYTES % 64) == (1_024, 0)
    assert (shared_memory.SMALL_PLACES, shared_memory.LARGE_PLACES) == (1_020, 4)
    assert (shared_memory.READERS, shared_memory.MOST_WAITING, shared_memory.MOST_PINNED_BY_ONE) == (64, 512, 64)
    assert shared_memory.MAGIC.to_bytes(8, "little") == b"BBOXSHM" + bytes([VERSION])
