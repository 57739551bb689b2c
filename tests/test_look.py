"""Looking at blocks before they are played, against the same messages in plain Python."""

from __future__ import annotations

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blackbox.check import Fault
from blackbox.journal.layout import OFFSET_BLOCK_HEADER, RECORD, RECORD_HEAD_BYTES
from blackbox.replay.look import (
    BODY,
    BODY_BYTES,
    COLUMNS,
    COUNT,
    FAULT,
    FIRST,
    HEAD,
    HIGH,
    LOW,
    NEXT,
    UNSEEN,
    Reel,
    Wish,
    look,
)
from tests.journals import Put, Row, record_of

ROWS = st.lists(
    st.builds(
        Row, st.sampled_from([b"A.x", b"AB.trade", b"ABC", b"Z.quote"]), st.binary(max_size=9), st.integers(1, 9)
    ),
    min_size=1,
    max_size=30,
)
PREFIXES = st.sampled_from([b"", b"A", b"AB", b"ABC", b"Z.quote", b"Z.quotes", b"x"])


class Looked:
    """One recorded block in the columns of a reel."""

    def __init__(self, record: bytes, first: int = 0, prefix: bytes = b"", *, by_event: bool = True) -> None:
        self.memory = numpy.frombuffer(bytearray(record), numpy.uint8)
        self.text = numpy.frombuffer(prefix + b"\0", numpy.uint8)
        address = self.memory.ctypes.data
        body_bytes = int(self.memory[:RECORD_HEAD_BYTES].view(RECORD)["stored_bytes"][0])
        self.columns = numpy.zeros((COLUMNS, 1), numpy.int64)
        self.columns[[HEAD, BODY, BODY_BYTES, FIRST, FAULT], 0] = [
            address + OFFSET_BLOCK_HEADER,
            address + RECORD_HEAD_BYTES,
            body_bytes,
            first,
            UNSEEN,
        ]
        self.columns[[NEXT, LOW, HIGH], 0] = 77
        self.reel = Reel(self.columns.ctypes.data, 1, 1, Wish(0, self.text.ctypes.data, len(prefix), int(by_event)))
        look(self.reel)

    def __getitem__(self, column: int) -> int:
        return int(self.columns[column, 0])


@given(ROWS, PREFIXES, st.booleans(), st.data())
def test_a_block_is_measured(rows: list[Row], prefix: bytes, by_event: bool, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(rows)))
    looked = Looked(record_of(Put(tuple(rows)), 0), first, prefix, by_event=by_event)
    times = [row.ts_event for row in rows[first:] if row.topic.startswith(prefix)]
    assert (looked[FAULT], looked[COUNT]) == (0, len(times))
    if not by_event:
        assert [looked[NEXT], looked[LOW], looked[HIGH]] == [77] * 3
    elif times:
        assert [looked[NEXT], looked[LOW], looked[HIGH]] == [times[0], min(times), max(times)]
    else:
        assert looked[LOW] > looked[HIGH]


def test_a_damaged_block_has_no_messages() -> None:
    record = bytearray(record_of(Put((Row(b"A.x", b"payload", 5),)), 0))
    record[RECORD_HEAD_BYTES] ^= 1
    looked = Looked(bytes(record))
    assert (looked[FAULT], looked[COUNT]) == (Fault.BODY_CHECKSUM, 0)


def test_a_block_is_checked_once_and_measured_again() -> None:
    looked = Looked(record_of(Put((Row(b"A.x", b"one", 5), Row(b"A.x", b"two", 6))), 0))
    looked.memory[RECORD_HEAD_BYTES + 16 :] ^= 0xFF  # behind the times: no longer what was checked
    looked.columns[FIRST] = 1
    look(looked.reel)
    assert [looked[name] for name in (FAULT, COUNT, NEXT, LOW, HIGH)] == [0, 1, 6, 6, 6]


@pytest.mark.parametrize("fault", [Fault.SLICE, Fault.BODY_CHECKSUM])
def test_what_is_known_to_be_bad_is_not_looked_at(fault: Fault) -> None:
    looked = Looked(record_of(Put((Row(b"A.x", b"one", 5),)), 0))
    looked.columns[FAULT], looked.columns[COUNT] = fault, 0
    look(looked.reel)
    assert (looked[FAULT], looked[COUNT]) == (fault, 0)
