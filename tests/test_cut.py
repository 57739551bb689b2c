"""Blocks of some rows of another block, against the same rows in plain Python."""

from __future__ import annotations

import numpy
from hypothesis import given
from hypothesis import strategies as st

from blackbox.block import Block
from blackbox.layout import HEADER_BYTES
from blackbox.replay.cut import cut, next_beyond, next_inside, next_outside

MESSAGES = st.lists(
    st.tuples(st.sampled_from([b"A.x", b"AB.trade", b"ABC", b"Z.quote"]), st.binary(max_size=9), st.integers(0, 9)),
    min_size=1,
    max_size=30,
)


def encoded(messages: list[tuple[bytes, bytes, int]]) -> Block:
    topics = sorted({topic for topic, _, _ in messages})
    payloads = b"".join(payload for _, payload, _ in messages)
    offsets = numpy.cumsum([0, *(len(payload) for _, payload, _ in messages)])
    times = [time for _, _, time in messages]
    index = [topics.index(topic) for topic, _, _ in messages]
    return Block.encode(topics, index, payloads, offsets=offsets, ts_event=times, sequence=100, ts_out=7, epoch=5)


def rows_of(block: Block) -> list[tuple[bytes, bytes, int]]:
    return [
        (block.topics[topic], block.payload(row), int(block.ts_event[row]))
        for row, topic in enumerate(block.topic_index.tolist())
    ]


@given(MESSAGES, st.data())
def test_a_cut_block_holds_just_the_rows(messages: list[tuple[bytes, bytes, int]], data: st.DataObject) -> None:
    block = encoded(messages)
    start = data.draw(st.integers(0, len(messages) - 1))
    stop = data.draw(st.integers(start + 1, len(messages)))
    head = numpy.frombuffer(bytearray(block.header), numpy.uint8)
    new_head = numpy.zeros(HEADER_BYTES, numpy.uint8)
    new_body = numpy.full(block.body.nbytes, 0xEE, numpy.uint8)
    places = numpy.zeros(block.topic_count, numpy.int32)
    size = cut(
        head.ctypes.data,
        block.body.ctypes.data,
        start,
        stop,
        places.ctypes.data,
        new_head.ctypes.data,
        new_body.ctypes.data,
    )
    made = Block.decode(b"", new_head.tobytes(), new_body[:size].tobytes())
    assert rows_of(made) == messages[start:stop]
    assert (made.sequence, made.ts_out, made.epoch) == (100 + start, 7, 5)


@given(MESSAGES, st.integers(0, 29), st.integers(0, 9), st.integers(0, 9))
def test_rows_in_a_time_range(messages: list[tuple[bytes, bytes, int]], row: int, start: int, stop: int) -> None:
    block = encoded(messages)
    head = numpy.frombuffer(bytearray(block.header), numpy.uint8)
    row = min(row, len(messages))
    inside = [start <= time < stop for _, _, time in messages]
    expected_out = next((at for at in range(row, len(messages)) if not inside[at]), len(messages))
    expected_in = next((at for at in range(row, len(messages)) if inside[at]), len(messages))
    assert next_outside(head.ctypes.data, block.body.ctypes.data, row, start, stop) == expected_out
    assert next_inside(head.ctypes.data, block.body.ctypes.data, row, start, stop) == expected_in


PREFIXES = st.sampled_from([b"", b"A", b"AB", b"ABC", b"Z.quote", b"Z.quotes", b"x"])


@given(MESSAGES, PREFIXES, st.integers(0, 29), st.integers(0, 9), st.integers(1, 5))
def test_rows_that_are_due(
    messages: list[tuple[bytes, bytes, int]], prefix: bytes, row: int, until: int, most: int
) -> None:
    block = encoded(messages)
    head = numpy.frombuffer(bytearray(block.header), numpy.uint8)
    text = numpy.frombuffer(prefix + b"\0", numpy.uint8)
    expected = min(row, len(messages))
    left = most
    while expected < len(messages):
        topic, _, time = messages[expected]
        if topic.startswith(prefix):
            if time > until or not left:
                break
            left -= 1
        expected += 1
    found = next_beyond(
        head.ctypes.data,
        block.body.ctypes.data,
        min(row, len(messages)),
        until,
        most,
        text.ctypes.data,
        len(prefix),
    )
    assert found == expected
