"""Checking and measuring blocks before playback, compared with plain Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blackbox.archive.files.format import OFFSET_BLOCK_HEADER, RECORD, RECORD_HEAD_BYTES
from blackbox.archive.read.reader import UNCHECKED
from blackbox.block.form.validate import Fault
from blackbox.feed.symbol_choice import TopicChoice
from blackbox.replay.tables.block_table import BEGINNING, END, Selection
from blackbox.replay.tables.measure_blocks import BlockRow, BlockTableAt, due_rows, measure, next_in_range
from tests.journals import Put, Row, record_of

ROWS = st.lists(
    st.builds(
        Row, st.sampled_from([b"A.x", b"AB.trade", b"ABC", b"Z.quote"]), st.binary(max_size=9), st.integers(1, 9)
    ),
    min_size=1,
    max_size=30,
)
PREFIXES = st.lists(
    st.sampled_from([b"", b"A", b"AB", b"ABC", b"Z.quote", b"Z.quotes", b"x"]), min_size=1, max_size=3, unique=True
).map(tuple)


class Measured:
    """Rows `[first, stop)` of one recorded block, in a table."""

    def __init__(
        self,
        record: bytes,
        first: int = 0,
        stop: int = 1,
        prefixes: Sequence[bytes] = (b"",),
        *,
        by_event: bool = True,
        times: tuple[int, int] = (BEGINNING, END),
    ) -> None:
        self.memory = numpy.frombuffer(bytearray(record), numpy.uint8)
        self.selection = Selection(0, TopicChoice(tuple(prefixes)), "ts_event" if by_event else "ts_out", *times)
        address = self.memory.ctypes.data
        self.table: Any = numpy.zeros(1, BlockRow.dtype)
        self.row = self.table[0]
        self.row["header"] = address + OFFSET_BLOCK_HEADER
        self.row["body"] = address + RECORD_HEAD_BYTES
        self.row["body_bytes"] = self.memory[:RECORD_HEAD_BYTES].view(RECORD)["stored_bytes"][0]
        self.row["first_row"], self.row["stop_row"] = first, stop
        self.row["fault"] = UNCHECKED
        self.row["next_ns"] = self.row["low_ns"] = self.row["high_ns"] = 77
        self.at = BlockTableAt(self.table.ctypes.data, 1, self.selection.wanted)
        measure(self.at)

    @property
    def found(self) -> tuple[int, int]:
        return int(self.row["fault"]), int(self.row["count"])

    @property
    def times(self) -> list[int]:
        return [int(self.row[name]) for name in ("next_ns", "low_ns", "high_ns")]


def bounds_in(rows: list[Row], data: st.DataObject) -> tuple[int, int]:
    first = data.draw(st.integers(0, len(rows)))
    return first, data.draw(st.integers(first, len(rows)))


@given(ROWS, PREFIXES, st.booleans(), st.data())
def test_a_block_is_measured(rows: list[Row], prefixes: tuple[bytes, ...], by_event: bool, data: st.DataObject) -> None:
    first, stop = bounds_in(rows, data)
    measured = Measured(record_of(Put(tuple(rows)), 0), first, stop, prefixes, by_event=by_event)
    times = [row.ts_event for row in rows[first:stop] if row.topic.startswith(prefixes)]
    assert measured.found == (0, len(times))
    if not by_event:
        assert measured.times == [77] * 3
    elif times:
        assert measured.times == [times[0], min(times), max(times)]
    else:
        assert measured.row["low_ns"] > measured.row["high_ns"]


def test_a_damaged_block_has_no_messages() -> None:
    record = bytearray(record_of(Put((Row(b"A.x", b"payload", 5),)), 0))
    record[RECORD_HEAD_BYTES] ^= 1
    assert Measured(bytes(record)).found == (Fault.BODY_CHECKSUM, 0)


def test_a_block_is_checked_once_and_measured_again() -> None:
    measured = Measured(record_of(Put((Row(b"A.x", b"one", 5), Row(b"A.x", b"two", 6))), 0), 0, 2)
    measured.memory[RECORD_HEAD_BYTES + 16 :] ^= 0xFF  # after the times: the body no longer matches its checksum
    measured.row["first_row"] = 1
    measure(measured.at)
    assert (measured.found, measured.times) == ((0, 1), [6, 6, 6])


@pytest.mark.parametrize("fault", [Fault.SLICE, Fault.BODY_CHECKSUM])
def test_a_known_bad_block_is_not_checked(fault: Fault) -> None:
    measured = Measured(record_of(Put((Row(b"A.x", b"one", 5),)), 0))
    measured.row["fault"], measured.row["count"] = fault, 0
    measure(measured.at)
    assert measured.found == (fault, 0)


@given(ROWS, st.integers(0, 9), st.integers(0, 9), st.data())
def test_rows_in_a_time_range(rows: list[Row], start: int, stop: int, data: st.DataObject) -> None:
    first, end = bounds_in(rows, data)
    measured = Measured(record_of(Put(tuple(rows)), 0), first, end, times=(start, stop))
    found = []
    at = first
    while at < end:
        low, at = next_in_range(measured.at, at)
        found += list(range(low, at))
        assert low < at or at == end
        assert at == end or not start <= rows[at].ts_event < stop
    assert found == [row for row in range(first, end) if start <= rows[row].ts_event < stop]


@given(ROWS, PREFIXES, st.integers(0, 9), st.integers(1, 5), st.data())
def test_rows_that_are_due(
    rows: list[Row], prefixes: tuple[bytes, ...], until: int, most: int, data: st.DataObject
) -> None:
    first, stop = bounds_in(rows, data)
    expected, left = first, most
    while expected < stop:
        if rows[expected].topic.startswith(prefixes):
            if rows[expected].ts_event > until or not left:
                break
            left -= 1
        expected += 1
    measured = Measured(record_of(Put(tuple(rows)), 0), first, stop, prefixes)
    assert due_rows(measured.at, until, most) == expected
