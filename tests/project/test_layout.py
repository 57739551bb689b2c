"""The layout table is consistent, and the generated files are up to date."""

from __future__ import annotations

import struct

import pytest

from blackbox.archive.files.format import OFFSET_CHECKED
from blackbox.block.form import layout
from blackbox.block.form.layout import ENTRY, FILE_HEAD, HEADER, MARK, RECORD, Structure
from tests import golden, wire
from tests.write_layout import COMMAND, ROOT, content, written


def test_generated_files_are_up_to_date() -> None:
    files = written()
    stale = [name for name, data in files.items() if content(name) != data]
    assert not stale, f"run `{COMMAND}`: {', '.join(stale)} differ from the layout"
    for place in golden.BLOCKS, golden.RECORDING:
        found = {str(path.relative_to(ROOT)) for path in place.rglob("*") if path.is_file()}
        assert found <= files.keys()


@pytest.mark.parametrize("structure", [HEADER, RECORD, MARK, ENTRY, FILE_HEAD], ids=lambda each: str(each.name))
def test_fields_are_aligned_and_have_one_name(structure: Structure) -> None:
    """Compiled code reads aligned words."""
    names = [field.name for field in structure.fields if field.name]
    assert len(set(names)) == len(names)
    assert structure.size % 8 == 0
    at = 0
    for field in structure.fields:
        assert field.code[-1] in "sx" or at % field.size == 0, field.name
        at += field.size


def test_common_fields_have_fixed_offsets() -> None:
    """Readers of unknown kinds need a block's version, and the head and size of a record or mark."""
    for name in ("magic", "checksum", "stored_bytes"):
        assert RECORD.offsets[name] == MARK.offsets[name]
    assert RECORD.offsets["checksum"] == OFFSET_CHECKED - 4
    assert (HEADER.offsets["magic"], HEADER.offsets["version"]) == (0, 4)
    assert (FILE_HEAD.offsets["magic"], FILE_HEAD.offsets["version"]) == (0, 8)
    for structure, name in (HEADER, "header_checksum"), (FILE_HEAD, "checksum"), (ENTRY, "checksum"):
        assert structure.offsets[name] == structure.size - 4


def test_each_flag_has_its_own_bit() -> None:
    values = [flag.value for flag in layout.FLAGS]
    assert sum(values) == sum({1 << value.bit_length() - 1 for value in values})
    assert {column.flag for column in layout.COLUMNS if column.flag} <= {flag.name for flag in layout.FLAGS}


def test_a_format_of_selected_fields_skips_the_others() -> None:
    values = struct.unpack(HEADER.format_of("version", "count", "stride"), wire.pack(wire.Fields(count=7, stride=9)))
    assert values == (layout.VERSION, 7, 9)
    with pytest.raises(ValueError, match="fields were stride, count, expected their order in header"):
        HEADER.format_of("stride", "count")
