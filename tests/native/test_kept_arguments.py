"""Stored arguments have the same values in compiled code as in Python."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import njit, typeof
from numpy.typing import NDArray

from blackbox import Feed
from blackbox.native.compile.kept_arguments import Kept, _kind_of, kept_at
from blackbox.publish.listeners.demand import Demand
from blackbox.publish.listeners.queue_policy import QueuePolicy
from blackbox.publish.send.send_loop import StandIn
from blackbox.publish.send.slice_sender import SliceSender


class Inner(NamedTuple):
    many: int
    bytes_: NDArray[numpy.uint8]
    counts: NDArray[numpy.int64]


class Outer(NamedTuple):
    first: int
    is_on: bool
    inner: Inner
    is_last: bool
    halves: NDArray[numpy.int32]
    last: int


outer_at = kept_at(Outer)


@njit
def read(kept: int) -> Any:
    outer = outer_at(kept)
    inner = outer.inner
    inner.counts[0] += 1
    return (
        outer.first,
        numpy.int64(outer.is_on),
        inner.many,
        numpy.int64(inner.bytes_.sum()),
        len(inner.bytes_),
        numpy.int64(outer.is_last),
        numpy.int64(outer.halves[-1]),
        outer.last,
    )


_words = st.integers(-(2**63), 2**63 - 1)


@given(_words, st.booleans(), _words, st.binary(min_size=1, max_size=9), st.booleans(), st.integers(-9, 9), _words)
def test_compiled_code_reads_what_python_stored(
    first: int, is_on: bool, many: int, text: bytes, is_last: bool, half: int, last: int
) -> None:
    counts = numpy.zeros(2, numpy.int64)
    inner = Inner(many, numpy.frombuffer(text, numpy.uint8), counts)
    kept = Kept(Outer(first, is_on, inner, is_last, numpy.array([0, half], numpy.int32), last))
    for _ in range(2):
        found = read(kept.address)
    assert found == (first, is_on, many, sum(text), len(text), is_last, half, last)
    assert counts.tolist() == [2, 0]


def test_arrays_live_as_long_as_the_stored_arguments() -> None:
    kept = Kept(
        Outer(
            1,
            True,
            Inner(2, numpy.full(5, 3, numpy.uint8), numpy.zeros(1, numpy.int64)),
            False,
            numpy.arange(4, dtype=numpy.int32),
            5,
        )
    )
    numpy.full(5, 255, numpy.uint8)  # would reuse freed memory
    assert read(kept.address) == (1, 1, 2, 15, 5, 0, 3, 5)


def test_an_array_with_gaps_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"shape \(2,\), strides \(16,\), expected a column"):
        Kept(Inner(0, numpy.zeros(1, numpy.uint8), numpy.zeros(4, numpy.int64)[::2]))


def test_types_equal_those_that_numba_infers_for_the_tuples() -> None:
    sender = SliceSender(Feed.local("kept", slices=1), 0, QueuePolicy(waits=False, hwm_blocks=8), 1, Demand())
    value = StandIn(sender.make_sender(), sender.ring.at, sender.make_encoder(4))
    assert _kind_of(StandIn) == typeof(value)


@pytest.mark.parametrize("declared", [NDArray[numpy.int32], numpy.ndarray[tuple[int, ...], numpy.dtype[numpy.int32]]])
def test_both_annotations_of_arrays_that_numpy_has_had_are_read(declared: Any) -> None:
    assert _kind_of(declared) == typeof(numpy.zeros(1, numpy.int32))
