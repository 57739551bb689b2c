"""Messages of several topics keep together in blocks, also if only some of their rows are encoded."""

from __future__ import annotations

from itertools import groupby
from typing import NamedTuple

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blackbox.block.form.block import Block, distinct_scratch, topic_table
from blackbox.block.form.encode import Origin, plan_block, plan_bytes, write_body, write_template
from blackbox.block.form.format import HEADER_BYTES, is_same, layout_of, read_header
from blackbox.block.form.rows import PayloadColumns, as_rows
from blackbox.errors import BlockError
from tests import wire


class Row(NamedTuple):
    """A row of a message."""

    message: int
    topic: bytes
    payload: bytes


MESSAGES = st.lists(st.tuples(st.integers(1, 6), st.binary(max_size=40)), min_size=1, max_size=12)
TOPICS = [b"T%d" % number for number in range(6)]


def rows_of(messages: list[tuple[int, bytes]]) -> list[Row]:
    """Return the rows of messages, each with a number of topics and a payload."""
    return [
        Row(number, topic, payload) for number, (topics, payload) in enumerate(messages) for topic in TOPICS[:topics]
    ]


def distances(numbers: list[int], rows: list[Row]) -> list[int]:
    """Return the distance of each row's number to that of the first row of its message."""
    first: dict[int, int] = {}
    return [number - first.setdefault(row.message, number) for number, row in zip(numbers, rows, strict=True)]


def told(blocks: list[Block]) -> list[list[list[Row]]]:
    """Return the rows of each message of each block, as a reader joins them. The number of the message is not known."""
    found = []
    for block in blocks:
        head, body = numpy.frombuffer(block.header, numpy.uint8), block.body
        header = read_header(head.ctypes.data)
        joined: list[list[Row]] = []
        for row in range(block.count):
            if not (row and is_same(header, layout_of(header), body.ctypes.data, row)):
                joined.append([])
            joined[-1].append(Row(0, block.topics[block.topic_index[row]], block.payload(row)))
        found.append(joined)
        decoded = wire.decode(*map(bytes, block.frames))
        assert [list(each) for _, each in groupby(decoded.firsts)] == [
            [each] * len(rows) for each, rows in zip(dict.fromkeys(decoded.firsts), joined, strict=True)
        ]
    return found


def encoded(rows: list[Row], chosen: list[int], numbers: list[int] | None, block_bytes: int) -> list[Block]:
    """Encode some rows as blocks. `numbers`: sequence of every row; None: those of the blocks follow each other."""
    source = list(range(len(rows))) if numbers is None else numbers
    columns, _alive = as_rows(
        PayloadColumns(
            numpy.frombuffer(b"".join(row.payload for row in rows) or b"\0", numpy.uint8),
            offsets=numpy.cumsum([0, *(len(row.payload) for row in rows)])[:-1],
            lengths=[len(row.payload) for row in rows],
            sequences=numbers,
            same=distances(source, rows),
        ),
        len(rows),
    )
    order = numpy.array(chosen, numpy.int32)
    topics = numpy.array([TOPICS.index(rows[row].topic) for row in chosen], numpy.int32)
    table, distinct = topic_table(TOPICS), distinct_scratch(len(TOPICS))
    blocks, at = [], 0
    while at < len(chosen):
        plan = plan_block(columns, order, topics, at, len(chosen), block_bytes, table, distinct, 0)
        body, header = numpy.zeros(plan_bytes(plan), numpy.uint8), numpy.zeros(HEADER_BYTES, numpy.uint8)
        write_body(body.ctypes.data, plan, columns, order, topics, table, distinct)
        write_template(header.ctypes.data, plan, body.ctypes.data, True, Origin(0, 0, 0, 1), 0)
        made = Block(b"", header.tobytes(), body)
        first = at if numbers is None else numbers[chosen[at]]
        blocks.append(Block.decode(b"", wire.pack(wire.unpack(made.header)._replace(sequence=first)), body))
        at = plan.stop
    return blocks


@given(MESSAGES, st.booleans(), st.sampled_from([1, 100, 300, 1 << 20]), st.data())
def test_rows_of_a_message_are_joined_after_a_choice_of_rows(
    messages: list[tuple[int, bytes]], numbered: bool, block_bytes: int, data: st.DataObject
) -> None:
    rows = rows_of(messages)
    chosen = data.draw(st.lists(st.sampled_from(range(len(rows))), min_size=1, unique=True).map(sorted))
    numbers = None
    if numbered:
        starts = sorted(data.draw(st.sets(st.integers(0, 99), min_size=len(messages), max_size=len(messages))))
        numbers = [10 * starts[row.message] + TOPICS.index(row.topic) for row in rows]
    blocks = told(encoded(rows, chosen, numbers, block_bytes))
    expected = [
        [row._replace(message=0) for row in each]
        for _, each in groupby([rows[i] for i in chosen], lambda row: row.message)
    ]
    assert [message for block in blocks for message in block] == expected
    if block_bytes == 1:
        assert all(len(block) == 1 for block in blocks)


def test_blocks_are_cut_as_without_messages_of_several_topics() -> None:
    rows = [Row(number, b"T1", bytes(50)) for number in range(10)]
    blocks = encoded(rows, list(range(10)), None, 300)
    assert [block.count for block in blocks] == [4, 4, 2]
    assert {block.same for block in blocks} == {None}


@pytest.mark.parametrize(
    ("same", "sequences", "is_valid"),
    [
        ([0, 0, 0], None, True),
        ([0, 1, 2], None, True),
        ([5, 6, 7], None, True),  # earlier rows of the message are in no block
        ([255, 0, 0], None, True),
        ([0, 2, 0], None, False),
        ([0, 1, 1], None, False),
        ([1, 1, 0], None, False),
        ([0, 0, 2], None, False),
        ([9, 9, 9], None, False),
        ([0, 4, 0], [7, 10, 11], False),
        ([0, 3, 4], [7, 10, 11], True),
        ([0, 2, 3], [7, 10, 11], True),
        ([0, 2, 4], [7, 10, 11], False),
    ],
)
def test_rows_must_agree_on_the_first_row(same: list[int], sequences: list[int] | None, is_valid: bool) -> None:
    rows = [(b"A", b"x", 0), (b"B", b"x", 0), (b"C", b"x", 0)]
    frames = b"", *wire.data(rows, same=same, sequences=sequences, sequence=7)
    assert wire.is_valid(*frames) == is_valid
    if is_valid:
        assert Block.decode(*frames).same.tolist() == same  # type: ignore[union-attr]
    else:
        with pytest.raises(BlockError, match="several topics did not agree on its first row"):
            Block.decode(*frames)
