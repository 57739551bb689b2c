"""Numbering of topics, compared with a dict."""

from __future__ import annotations

from itertools import product

import numpy
from hypothesis import given
from hypothesis import strategies as st

from blackbox.native.tables.name_table import FULL, HINT_WORDS, NO_HINT, Numbering, number_by_hint, number_of


def number(numbering: Numbering, name: bytes) -> int:
    text = numpy.frombuffer(name, numpy.uint8)
    return int(number_of(numbering.at, text.ctypes.data, len(name)))


ALIKE = st.sampled_from([b"AAAAAAAA%sBBBBBBBB" % middle for middle in (b"", b"x", b"xy", b"yx", b"xyzxyzxy")])


@given(st.lists(st.binary(min_size=1, max_size=20) | ALIKE, max_size=60), st.integers(1, 50), st.integers(1, 8))
def test_names_get_the_same_numbers_as_from_a_dict(names: list[bytes], capacity: int, mean_bytes: int) -> None:
    numbering = Numbering(capacity, mean_bytes)
    known: dict[bytes, int] = {}
    for name in names:
        room = len(known) < capacity and sum(map(len, known)) + len(name) <= capacity * mean_bytes + 8
        expected = known.setdefault(name, len(known)) if name in known or room else FULL
        assert number(numbering, name) == expected
    assert numbering.names() == list(known)


def test_a_full_numbering_still_finds_every_name() -> None:
    names = [b"%d" % n for n in range(10_000)]
    numbering = Numbering(len(names), 8)
    for _ in range(2):
        assert [number(numbering, name) for name in names] == list(range(len(names)))
        assert number(numbering, b"one more") == FULL
    numbering.clear()
    assert (len(numbering), number(numbering, b"9999"), number(numbering, b"0")) == (0, 0, 1)


@given(
    st.lists(
        st.tuples(
            st.sampled_from([b"A", b"AB", b"ABCDEFG", b"ABCDEFGH"]) | st.binary(min_size=1, max_size=40) | ALIKE,
            st.sampled_from([NO_HINT, 0, 0, 1, 2, 1 << 30, (1 << 31) - 1, -(1 << 31)]),
        ),
        max_size=80,
    ),
    st.integers(1, 50),
)
def test_a_wrong_hint_never_gives_a_wrong_number(calls: list[tuple[bytes, int]], capacity: int) -> None:
    numbering, plain = Numbering(capacity, 16), Numbering(capacity, 16)
    hints = numpy.zeros((capacity, HINT_WORDS), numpy.uint64)
    for name, hint in calls:
        text = numpy.frombuffer(name, numpy.uint8)
        found = number_by_hint(numbering.at, hints.ctypes.data, hint, text.ctypes.data, len(name))
        assert found == number(plain, name)
    assert numbering.names() == plain.names()


def test_a_correct_hint_needs_no_search() -> None:
    numbering, hints = Numbering(4, 16), numpy.zeros((4, HINT_WORDS), numpy.uint64)
    for name in (b"AAPL", b"AAPL.trade", b"a topic that is longer than that"):
        text = numpy.frombuffer(name, numpy.uint8)
        first = number_by_hint(numbering.at, hints.ctypes.data, 3, text.ctypes.data, len(name))
        before = numbering._slots.copy()
        numbering._slots[:] = 0  # a search would find nothing
        assert number_by_hint(numbering.at, hints.ctypes.data, 3, text.ctypes.data, len(name)) == first
        numbering._slots[:] = before


_MIX = 0x9E3779B97F4A7C15
_WORD = (1 << 64) - 1


def plain_hash(name: bytes) -> int:
    """A hash without a key: (previous xor word) times a constant. Its collisions can be chosen."""
    total = len(name) * _MIX & _WORD
    for at in range(0, len(name), 8):
        total = (total ^ int.from_bytes(name[at : at + 8], "little")) * _MIX & _WORD
        total ^= total >> 29
    return total


def chosen_names(pairs: int) -> list[bytes]:
    """Names that collide in a table hashed without a key, and in one whose hash only starts with a key.

    A word with its highest bit flipped, twice: it flips bit 63 and, after the shift, bit 34 of the next input.
    """
    plain, turned = bytes(16), (1 << 63).to_bytes(8, "little") + (1 << 63 | 1 << 34).to_bytes(8, "little")
    return [b"".join(parts) for parts in product((plain, turned), repeat=pairs)]


def longest_run(numbering: Numbering) -> int:
    """Return the longest run of occupied slots: the worst cost of looking up an unknown name."""
    slots = numbering._slots[: numbering._used[1] + 1]
    free = numpy.flatnonzero(slots == 0)
    return int(numpy.diff(free, append=free[0] + len(slots)).max()) - 1


def test_names_chosen_to_collide_are_spread_evenly_and_differently_by_each_table() -> None:
    names = chosen_names(12)
    assert len({plain_hash(name) for name in names}) == 1
    for size in (len(names[0]), len(names[0]) + 3):
        numbering = Numbering(len(names), size)
        assert [number(numbering, name.ljust(size, b"x")) for name in names] == list(range(4096))
        assert longest_run(numbering) < 200
        other = Numbering(len(names), size)
        assert [number(other, name.ljust(size, b"x")) for name in names] == list(range(4096))
        assert not numpy.array_equal(numbering._slots, other._slots), "each table has its own hash"
