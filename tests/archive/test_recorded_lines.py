"""Two lines are recorded as one: each message once, from either line."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from blackbox.archive.recorder import Recorder
from blackbox.testing import RawPublisher
from tests.archive.recorders import A, B, check_sum, feed_of, payloads, records, segments, wait_recorded
from tests.journals import check_index


@pytest.mark.parametrize("seed", range(3))
def test_two_lines_with_random_loss_are_recorded_once(tmp_path: Path, seed: int) -> None:
    choice = random.Random(seed)
    feed = feed_of(lines=2, heartbeat_ns=60 * 10**9)
    with RawPublisher(feed) as publisher, Recorder(feed, tmp_path, line_wait=1_000) as recorder:
        ways: list[list[Any]] = [[], []]
        expected: list[int] = []
        at = 0
        for _ in range(300):
            numbers = range(at, at := at + choice.randint(1, 7))
            block = publisher.encode([(b"T", b"%d" % number) for number in numbers])
            if lines := [line for line in (A, B) if choice.random() < 0.7]:
                expected += numbers
            for line in lines:
                ways[line].append(block)
        while ways[A] or ways[B]:
            line = choice.choice([line for line in (A, B) if ways[line]])
            for _ in range(choice.randint(1, 40)):
                if ways[line]:
                    publisher.send(ways[line].pop(0), [line])
        publisher.heartbeat(end=True)
        recorder.run(until_end=True)
    assert [int(payload) for payload in payloads(tmp_path, feed)] == expected
    statistics = recorder.statistics()
    assert statistics.received.gaps == at - len(expected)
    check_sum(statistics)


def test_rows_received_on_the_other_line_are_left_out(tmp_path: Path) -> None:
    feed = feed_of(lines=2)
    with RawPublisher(feed) as publisher, Recorder(feed, tmp_path) as recorder:
        publisher.send(publisher.encode([(b"T", b"%d" % number) for number in range(3)]), [A])
        wait_recorded(recorder, 3)
        publisher.send(publisher.encode([(b"T", b"%d" % number) for number in range(5)], sequence=0), [B])
        wait_recorded(recorder, 5)
    assert [record.first_row for record in records(tmp_path, feed)] == [0, 3]
    assert payloads(tmp_path, feed) == [b"%d" % number for number in range(5)]
    check_index(segments(tmp_path, feed)[0])


@pytest.mark.parametrize("dead", [A, B])
def test_a_dead_line_loses_nothing(tmp_path: Path, dead: int) -> None:
    feed = feed_of(lines=2)
    with RawPublisher(feed) as publisher, Recorder(feed, tmp_path) as recorder:
        for number in range(100):
            if number == 50:
                publisher.close_line(dead)
            lines = [A, B] if number < 50 else [1 - dead]
            publisher.send(publisher.encode([(b"T", b"%d" % number)]), lines)
        wait_recorded(recorder, 100)
    assert payloads(tmp_path, feed) == [b"%d" % number for number in range(100)]
    assert recorder.statistics().received.gaps == 0
