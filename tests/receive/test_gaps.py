"""Missing sequences are counted per key, also at the tail; a restart and filters are not gaps.

`tests/simulation` checks the decisions with random faults, and `tests/torture` kills publishers and lines.
"""

from __future__ import annotations

import logging
import time
from itertools import pairwise

import msgspec
import numpy
import pytest

from blackbox import Feed, Message, Publisher, SlowPolicy, Subscriber
from blackbox.block.form.block import Block, HeaderFields
from blackbox.block.form.rows import PayloadColumns
from blackbox.testing import Received, wait_until
from tests.receive.subscribers import PATIENT, numbers_of, publishing, subscribed


def test_losses_of_a_new_key_in_the_middle_and_at_the_tail_are_counted_once() -> None:
    feed = Feed.local("gaps", slices=1, key_bytes=1)
    subscriber, got = subscribed(feed, b"A", b"B", b"D")
    with publishing(feed, subscriber) as publisher:

        def is_counted(gaps: int) -> bool:
            return subscriber.statistics().received.gaps == gaps

        for number in range(10):
            for key in (b"A", b"B"):
                block = publisher.encode([(key, b"%d" % number)])
                if key == b"A" or number % 2:
                    publisher.send(block)
                    publisher.send(block)
        got.wait(15)
        wait_until(lambda: is_counted(5), what="the first message of B and four others")
        for key in (b"A", b"B", b"C", b"D"):  # C is not wanted, and nothing of D has arrived
            publisher.encode([(key, b"at the tail")] * 2)
        publisher.heartbeat()
        wait_until(lambda: is_counted(11), what="the heartbeat shows the losses at the tail")
        publisher.heartbeat()
        publisher.send(publisher.encode([(b"A", b"10")]))
        got.wait(16)
    assert is_counted(11)
    assert subscriber.statistics().received.duplicates == 15
    assert [int(m.payload) for m in got.messages if m.topic == b"A"] == list(range(11))
    assert [int(m.payload) for m in got.messages if m.topic == b"B"] == [1, 3, 5, 7, 9]


def test_a_key_beyond_the_table_is_delivered_counted_as_untracked_and_keeps_its_line_alive() -> None:
    feed = Feed.local("gaps", slices=1, key_bytes=2)
    feed = msgspec.structs.replace(feed, max_topics=4, heartbeat_ns=60 * 10**9)
    subscriber, got = subscribed(feed)
    with publishing(feed, subscriber) as publisher:
        for number in range(100):
            publisher.send(publisher.encode([(b"%02d.t" % (number % 10), b"%d" % number)]))
        got.wait(100)
        epochs = subscriber._supervisor.slices.running[0].status.order.epochs
        before = epochs.heard_ns[0]
        publisher.send(publisher.encode([(b"09.t", b"100")]))
        got.wait(101)
        assert epochs.heard_ns[0] > before
    assert sorted(numbers_of(got)) == list(range(101))
    assert subscriber.statistics().received.untracked == 61


# Restarts of a publisher.


def epochs_of(messages: list[Received]) -> list[list[int]]:
    """Sequences, split where they start again."""
    parts: list[list[int]] = [[]]
    for message in messages:
        if parts[-1] and message.sequence < parts[-1][-1]:
            parts.append([])
        parts[-1].append(message.sequence)
    return parts


@pytest.mark.parametrize("key_bytes", [0, 4])
def test_a_restarted_publisher_is_a_new_epoch_and_not_a_gap(key_bytes: int, caplog: pytest.LogCaptureFixture) -> None:
    feed = Feed.local("gaps", slices=1, key_bytes=key_bytes)
    subscriber, got = subscribed(feed, b"TTTT")
    total = 0
    for run in range(3):
        with caplog.at_level(logging.INFO, "blackbox"), Publisher(feed, when_full="wait") as publisher:
            if run == 0:
                subscriber.start()
            publisher.wait_for_subscribers(b"TTTT")
            for _ in range(100 + run):
                publisher.publish(b"TTTT.t", b"x")
            total += 100 + run
            got.wait(total)
        assert f"slice 0: publisher epoch {publisher.epoch} began" in caplog.text
    subscriber.run(until_end=True)
    received = subscriber.statistics().received
    assert (received.epochs, received.gaps, received.stale) == (3, 0, 0)
    assert epochs_of(got.messages) == [list(range(100 + run)) for run in range(3)]


def test_messages_of_a_restarted_publisher_before_filters_are_active_are_a_gap() -> None:
    """libzmq sends filters again in any order, so keys become active at different times."""
    feed = Feed.local("gaps", slices=1, key_bytes=4)
    keys = [b"%04d" % number for number in range(300)]
    subscriber = Subscriber(feed, slow=PATIENT)
    seen: dict[tuple[int, bytes], list[int]] = {}

    def note(message: Message) -> None:
        seen.setdefault((message.batch.block.epoch, message.topic), []).append(int(message.payload))

    for key in keys:
        subscriber.on(key)(note)
    topics = tuple(key + b".t" for key in keys)
    for run in range(3):
        with Publisher(feed, when_full="wait") as publisher:
            if run == 0:
                subscriber.start()
            for number in range(4):
                for topic in topics:
                    publisher.publish(topic, b"%d" % number)
            publisher.wait_for_subscribers(keys[0])
            while {topic for epoch, topic in list(seen) if epoch == publisher.epoch} != set(topics):
                number += 1
                for topic in topics:
                    publisher.publish(topic, b"%d" % number)
                publisher.flush()
            if run == 0:
                began_late = sum(numbers[0] for numbers in seen.values())
    subscriber.run(until_end=True)
    assert subscriber.statistics().received.gaps == sum(numbers[0] for numbers in seen.values()) - began_late
    for numbers in seen.values():
        assert all(b == a + 1 for a, b in pairwise(numbers))


def of_numbers(numbers: list[int]) -> Block:
    """Return a block whose messages have these sequences, which are also their payloads."""
    payloads = [b"%d" % number for number in numbers]
    return Block.encode(
        [b"T"],
        [0] * len(numbers),
        PayloadColumns(b"".join(payloads), offsets=numpy.cumsum([0, *map(len, payloads)]), sequences=numbers),
        HeaderFields(epoch=1, sequence=numbers[0], ts_out=time.time_ns()),
    )


@pytest.mark.parametrize("lines", [1, 2])
def test_sequences_left_out_of_a_block_are_neither_lost_nor_delivered_twice(lines: int) -> None:
    feed = Feed.local("gaps", slices=1, lines=lines)
    subscriber, got = subscribed(feed, slow=SlowPolicy("warn"), line_wait=1_000)
    held = [[50, 60]] if lines == 2 else []
    with publishing(feed, subscriber) as publisher:
        blocks = [[0, 10, 20], [21, 30], [25, 30, 40], [5, 30], *held, [41, 49], [61, 70]]
        for line in range(lines):
            for numbers in blocks:
                publisher.send(of_numbers(numbers), [line])
            # One line after the other: sequences passed by both lines are lost.
            many = len(blocks) * (line + 1)
            wait_until(lambda many=many: subscriber.statistics().received.blocks == many)  # type: ignore[misc]
        publisher.sequences[0] = 75
    expected = [0, 10, 20, 21, 30, 40, *([41, 49, 50, 60] if lines == 2 else [41, 49]), 61, 70]
    assert [message.sequence for message in got.messages] == numbers_of(got) == expected
    received = subscriber.statistics().received
    assert received.messages - received.duplicates == len(expected)
    assert received.gaps == (75 - 71) + (0 if lines == 2 else 61 - 50)
