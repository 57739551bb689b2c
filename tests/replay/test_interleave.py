"""The order of messages of many blocks, and the long runs of one block, compared with plain sorting and counting."""

from __future__ import annotations

from itertools import groupby
from random import Random

import numpy
import pytest

from blackbox.replay.tables.block_table import END
from blackbox.replay.tables.held_messages import HeldMessages
from blackbox.replay.tables.interleave import Heap, Listed, interleave, next_long_run

Messages = list[tuple[int, int, int]]
"""The block, row and time of each message."""


def listed_in_turn(times: list[list[int]], ranks: list[int], until_ns: int, room: int) -> tuple[Messages, int]:
    """Return the messages that `interleave` lists, at most `room` per call, and the number that it finds misplaced."""
    held = numpy.zeros(len(times), HeldMessages.dtype)
    columns = [numpy.array(column, numpy.int64) for column in times]
    chosen = [numpy.arange(len(column), dtype=numpy.int32)[::-1].copy() for column in times]
    for number, column in enumerate(columns):
        held[number]["times"], held[number]["stop"] = column.ctypes.data, len(column)
        held[number]["due_ns"], held[number]["place"] = column[0], ranks[number]
        if number % 2:
            held[number]["rows"] = chosen[number].ctypes.data
        held[number]["first_row"] = number
    places = numpy.empty((2, len(times) + 1), numpy.int64)
    heap = Heap(places[0].ctypes.data, places[1].ctypes.data, len(times) + 1)
    to = Listed(numpy.empty(room, numpy.int32), numpy.empty(room, numpy.int32), numpy.empty(room, numpy.int64))
    found: Messages = []
    latest_ns = misplaced = 0
    while True:
        count, more, latest_ns = interleave(held.ctypes.data, len(held), until_ns, latest_ns, heap, to)
        if not count:
            return found, misplaced
        misplaced += more
        found += zip(*(column[:count].tolist() for column in to), strict=True)


@pytest.mark.parametrize(("many", "spread"), [(1, 3), (2, 300), (5, 1_000_000), (8, 1_000_000), (9, 300), (40, 3)])
@pytest.mark.parametrize("room", [50, 7_000])
def test_messages_of_many_blocks_are_ordered_by_time_then_rank(many: int, spread: int, room: int) -> None:
    random = Random(many * spread + room)
    times = [sorted(random.randint(1, spread) for _ in range(random.choice([1, 20, 900]))) for _ in range(many)]
    if many > 8:  # the later half begins as the others end
        times = [[time + spread * (block % 2) for time in column] for block, column in enumerate(times)]
    ranks = random.sample(range(many), many)
    until_ns = random.choice([END, spread, spread // 2 + 1])
    found, misplaced = listed_in_turn(times, ranks, until_ns, room)
    due = [
        (time, ranks[block], place, block)
        for block, column in enumerate(times)
        for place, time in enumerate(column)
        if time < until_ns
    ]
    assert found == [
        (block, len(times[block]) - 1 - place if block % 2 else block + place, time)
        for time, _, place, block in sorted(due)
    ]
    assert misplaced == 0


def test_long_enough_runs_of_one_block_are_found() -> None:
    random = Random(1)
    for _ in range(200):
        lengths = [random.choice([1, 2, 7, 8, 9, 30]) for _ in range(random.randint(1, 9))]
        jumps = [random.randint(0, 1) for _ in lengths]
        blocks: list[int] = []
        rows: list[int] = []
        next_row = [0, 0, 0]
        for length, jump in zip(lengths, jumps, strict=True):
            block = random.randint(0, 2)
            next_row[block] += jump  # as if a message before it was filtered out
            blocks += [block] * length
            rows += range(next_row[block], next_row[block] + length)
            next_row[block] += length
        expected, at = [], 0
        offsets = [(block, row - at) for at, (block, row) in enumerate(zip(blocks, rows, strict=True))]
        for _, group in groupby(offsets):
            length = len(list(group))
            expected += [(at, at + length)] if length >= 8 else []
            at += length
        found, start = [], 0
        while start < len(rows):
            begin, start = next_long_run(numpy.array(blocks, numpy.int32), numpy.array(rows, numpy.int32), start, 8)
            found += [(begin, start)] if begin < start else []
        assert found == expected
