"""Records shared by compiled code and Python: a field has the same offset in both."""

import multiprocessing

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import njit
from numba.core.errors import TypingError

from blackbox.native.memory.records import Field, Fields, SharedRecord, load_shared, record_at, store_shared


class Told(SharedRecord):
    count = Field()
    heard = Fields(3)
    stopping = Field(own_line=True)
    done = Field()


told_at = record_at(Told)


@njit
def add(address: int, amount: int) -> int:
    told = told_at(address)
    told.count += amount
    told.heard[2] = told.count
    store_shared(told, "stopping", load_shared(told, "stopping") + 1)
    return told.done


def test_compiled_code_and_python_see_the_same_fields() -> None:
    told = Told()
    told.done = -7
    told.count = 2**62
    assert add(told.address, 5) == -7
    assert (told.count, list(told.heard), told.stopping) == (2**62 + 5, [0, 0, 2**62 + 5], 1)


def test_records_in_an_array_do_not_overlap_and_a_field_with_its_own_line_begins_a_cache_line() -> None:
    assert [Told.dtype.fields[name][1] for name in Told.dtype.names or ()] == [0, 8, 64, 72]  # type: ignore[index]
    many = numpy.zeros(3, Told.dtype)
    add(Told(many[1:2]).address, 4)
    assert many["count"].tolist() == [0, 4, 0]
    assert many["heard"].tolist() == [[0, 0, 0], [0, 0, 4], [0, 0, 0]]
    with pytest.raises(ValueError, match="memory of a Told was 64 bytes, expected 128"):
        Told(numpy.zeros(8, numpy.int64))


@given(st.lists(st.integers(-(2**40), 2**40), max_size=5))
def test_sum_of_records_is_the_sum_of_each_field(values: list[int]) -> None:
    records = [Told() for _ in values]
    for record, value in zip(records, values, strict=True):
        record.count, record.heard[1], record.done = value, 2 * value, 1
    total = Told.sum_of(records)
    assert (total.count, total.heard[1], total.done) == (sum(values), 2 * sum(values), len(values))


def test_an_unknown_field_does_not_compile() -> None:
    @njit
    def misspelt(address: int) -> int:
        return int(load_shared(told_at(address), "stoping"))

    with pytest.raises((TypingError, KeyError), match="stoping"):
        misspelt(Told().address)


def test_a_parent_reads_what_a_forked_process_writes() -> None:
    told = Told()
    child = multiprocessing.get_context("fork").Process(target=lambda: setattr(told, "done", 3))
    child.start()
    child.join()
    assert told.done == 3
