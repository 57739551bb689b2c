"""Texts without their padding, compared with numpy's functions."""

from __future__ import annotations

import numpy
from hypothesis import given
from hypothesis import strategies as st

from blackbox.block.columns.texts import trimmed

LETTERS = st.sampled_from(b"\0\t\n\v\f\r\x1c\x1f AZ\x7f\x80\x85\xa0\xff")


@given(st.lists(st.lists(LETTERS, max_size=5).map(bytes), max_size=9))
def test_trailing_blanks_are_removed_and_every_byte_is_a_character(texts: list[bytes]) -> None:
    records = numpy.zeros(len(texts), [("before", "u1"), ("text", "S5"), ("after", ">u4")])
    records["text"] = texts
    offsets, data = trimmed(records["text"])
    found = [data[a:b].tobytes().decode() for a, b in zip(offsets[:-1], offsets[1:], strict=True)]
    assert found == numpy.strings.decode(numpy.strings.rstrip(records["text"]), "latin-1").tolist()
