"""Columns of a compiled callback, also with sequence gaps and absent values."""

from __future__ import annotations

import time
from typing import Any

import numpy
import pytest

from blackbox import Feed, SlowPolicy, Subscriber
from blackbox.block.block import Block
from blackbox.subscribe.compiled_callback import CompiledBatch, has_value, payload, sequence_of
from blackbox.testing import RawPublisher

ROWS = 11


def note(batch: CompiledBatch, state: Any) -> None:
    for row in batch.rows:
        state[row, 0] = sequence_of(batch, row)
        state[row, 1] = has_value(batch, row)
        state[row, 2] = len(payload(batch, row))


@pytest.mark.parametrize("is_numbered", [False, True])
@pytest.mark.parametrize("absent", [pytest.param((), marks=pytest.mark.long), (0, 9), tuple(range(ROWS))])
def test_each_row_has_its_sequence_and_an_absent_value_is_not_an_empty_one(
    is_numbered: bool, absent: tuple[int, ...]
) -> None:
    feed = Feed.local("compiled", slices=1)
    subscriber = Subscriber(feed, slow=SlowPolicy("warn"))
    noted = subscriber.on_compiled(b"", state=numpy.zeros((ROWS, 3), numpy.int64))(note)
    numbers = [7 + (row * row if is_numbered else row) for row in range(ROWS)]
    sizes = [0 if row in absent else row % 3 for row in range(ROWS)]
    block = Block.encode(
        [b"T"],
        [0] * ROWS,
        bytes(sum(sizes)),
        offsets=numpy.cumsum([0, *sizes]),
        valid=[row not in absent for row in range(ROWS)],
        epoch=1,
        sequence=numbers[0],
        sequences=numbers if is_numbered else None,
        ts_out=time.time_ns(),
    )
    with RawPublisher(feed) as publisher:
        subscriber.start()
        publisher.send(block)
        publisher.sequences[0] = numbers[-1] + 1
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    rows = [[number, row not in absent, sizes[row]] for row, number in enumerate(numbers)]
    assert noted.total().tolist() == rows
