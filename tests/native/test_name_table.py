"""Topics get numbers, against a dict."""

from __future__ import annotations

import numpy
from hypothesis import given
from hypothesis import strategies as st

from blackbox.native.name_table import FULL, Numbering, number_of


def number(numbering: Numbering, name: bytes) -> int:
    text = numpy.frombuffer(name, numpy.uint8)
    return int(number_of(numbering.at, text.ctypes.data, len(name)))


@given(st.lists(st.binary(min_size=1, max_size=20), max_size=60), st.integers(1, 50), st.integers(1, 8))
def test_names_are_numbered_as_by_a_dict(names: list[bytes], capacity: int, mean_bytes: int) -> None:
    numbering = Numbering(capacity, mean_bytes)
    known: dict[bytes, int] = {}
    for name in names:
        room = len(known) < capacity and sum(map(len, known)) + len(name) <= capacity * mean_bytes + 8
        expected = known.setdefault(name, len(known)) if name in known or room else FULL
        assert number(numbering, name) == expected
    assert numbering.names() == list(known)


def test_a_full_numbering_still_knows_every_name() -> None:
    names = [b"%d" % n for n in range(10_000)]
    numbering = Numbering(len(names), 8)
    for _ in range(2):
        assert [number(numbering, name) for name in names] == list(range(len(names)))
        assert number(numbering, b"one more") == FULL
    numbering.clear()
    assert (len(numbering), number(numbering, b"9999"), number(numbering, b"0")) == (0, 0, 1)


def test_names_that_share_their_beginnings_and_ends_are_told_apart() -> None:
    names = [b"AAAAAAAA%sBBBBBBBB" % middle for middle in (b"", b"x", b"xy", b"yx", b"xyz", b"xyzxyzxy")]
    numbering = Numbering(100, 32)
    assert [number(numbering, name) for name in names * 2] == [*range(len(names))] * 2
