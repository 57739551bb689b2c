"""The page on shared memory says where every field is."""

import re
from pathlib import Path

import pytest

from blackbox.native.records import SharedRecord
from blackbox.transport import shared_memory

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "shared-memory.md").read_text()


@pytest.mark.parametrize("record", [shared_memory.Head, shared_memory.Descriptor, shared_memory.Slot])
def test_the_page_has_every_field_in_its_place(record: type[SharedRecord]) -> None:
    (table,) = re.findall(rf"\| offset \| {record.__name__.lower()} \|.*\n\|[-:|]+\n((?:\|.*\n)+)", PAGE)
    told = [(name, int(offset)) for offset, name in re.findall(r"\| (\d+) \| (\w+) \|", table)]
    assert record.dtype.names is not None
    assert record.dtype.fields is not None
    assert told == [(name, record.dtype.fields[name][1]) for name in record.dtype.names]


def test_the_page_has_the_numbers_of_the_code() -> None:
    assert (shared_memory.DESCRIPTORS, shared_memory.DESCRIPTOR_BYTES) == (1_024, 128)
    assert (shared_memory.SMALL_PLACES, shared_memory.LARGE_PLACES) == (1_020, 4)
    assert (shared_memory.READERS, shared_memory.MOST_WAITING, shared_memory.MOST_PINNED_BY_ONE) == (64, 512, 64)
    assert shared_memory.MAGIC.to_bytes(8, "little").hex(" ") in PAGE
