"""Missing sequences are counted per key, also at the tail; a restart, a late start and new filters are not gaps."""

from __future__ import annotations

import signal
import time
from itertools import pairwise

import msgspec
import numpy
import pytest

from blackbox import Feed, Message, Publisher, SlowPolicy, Subscriber
from blackbox.block.block import Block
from blackbox.testing import Collector, RawPublisher, Received, wait_until
from tests.subscribe.subscribers import PATIENT
from tests.support import Script


def subscribed(feed: Feed, *prefixes: bytes) -> tuple[Subscriber, Collector]:
    subscriber = Subscriber(feed, slow=PATIENT)
    got = Collector()
    for prefix in prefixes:
        subscriber.on(prefix)(got.message)
    return subscriber, got


def test_missing_sequences_are_counted_exactly() -> None:
    feed = Feed.local("gaps", slices=1)
    subscriber, got = subscribed(feed, b"")
    with RawPublisher(feed) as publisher:
        subscriber.start()
        for number in range(100):
            block = publisher.encode([(b"T", b"%d" % number)] * (1 + number % 3))
            if number % 5 != 2:
                publisher.send(block)
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    lost = sum(1 + number % 3 for number in range(100) if number % 5 == 2)
    assert subscriber.statistics().received.gaps == lost
    assert len(got) + lost == publisher.sequences[0]


@pytest.mark.parametrize("key_bytes", [2, 8])
def test_filtered_messages_are_not_a_gap(key_bytes: int) -> None:
    feed = Feed.local("gaps", slices=1, key_bytes=key_bytes)
    subscriber, got = subscribed(feed, b"AA", b"BBBB")
    topics = [b"AAPL.t", b"BBBB.t", b"ABCD.t", b"AA", b"ZZ.t"]
    with RawPublisher(feed) as publisher:
        subscriber.start()
        for number in range(200):
            publisher.send(publisher.encode([(topics[number % 5], b"%d" % number)]))
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    assert subscriber.statistics().received.gaps == 0
    assert sorted(map(int, got.payloads)) == [n for n in range(200) if n % 5 in (0, 1, 3)]


def test_a_gap_belongs_to_one_key() -> None:
    feed = Feed.local("gaps", slices=1, key_bytes=2)
    subscriber, got = subscribed(feed, b"")
    with RawPublisher(feed) as publisher:
        subscriber.start()
        for number in range(10):
            for key in (b"AA", b"BB"):
                block = publisher.encode([(key, b"%d" % number)])
                if key == b"AA" or number % 2:
                    publisher.send(block)
        publisher.heartbeat()
        wait_until(lambda: subscriber.statistics().received.gaps == 5)
        got.wait(15)
        subscriber.stop()
    assert [int(m.payload) for m in got.messages if m.topic == b"AA"] == list(range(10))
    assert [int(m.payload) for m in got.messages if m.topic == b"BB"] == [1, 3, 5, 7, 9]


def test_a_loss_at_the_tail_is_detected_by_the_next_heartbeat() -> None:
    feed = Feed.local("gaps", slices=1, key_bytes=1)
    subscriber, got = subscribed(feed, b"A")
    with RawPublisher(feed) as publisher:
        subscriber.start()
        publisher.send(publisher.encode([(b"A", b"0")]))
        publisher.encode([(b"A", b"1"), (b"A", b"2")])
        publisher.encode([(b"B", b"0")])
        publisher.heartbeat()
        wait_until(lambda: subscriber.statistics().received.gaps == 2)
        publisher.heartbeat()
        publisher.send(publisher.encode([(b"A", b"3")]))
        got.wait(2)
        subscriber.stop()
    assert subscriber.statistics().received.gaps == 2  # reported twice, counted once


def test_lost_first_messages_of_a_new_key_are_reported() -> None:
    feed = Feed.local("gaps", slices=1, key_bytes=1)
    subscriber, got = subscribed(feed, b"")
    with RawPublisher(feed) as publisher:
        subscriber.start()
        publisher.encode([(b"A", b"0"), (b"A", b"1")])
        publisher.send(publisher.encode([(b"A", b"2")]))
        publisher.encode([(b"B", b"0")])
        publisher.heartbeat()
        wait_until(lambda: subscriber.statistics().received.gaps == 3)
        got.wait(1)
        subscriber.stop()
    assert got.payloads == [b"2"]


def test_a_late_join_is_not_a_gap() -> None:
    for key_bytes in (0, 3):
        feed = Feed.local("gaps", slices=2, key_bytes=key_bytes)
        early, _ = subscribed(feed, b"")
        with Publisher(feed, when_full="wait") as publisher:
            early.start()
            for number in range(3_000):
                publisher.publish(b"S%d.t" % (number % 40), b"x")
            late, got = subscribed(feed, b"S1")
            late.start()
            for number in range(3_000, 6_000):
                publisher.publish(b"S%d.t" % (number % 40), b"x")
        for subscriber in (early, late):
            subscriber.run(until_end=True)
            assert subscriber.statistics().received.gaps == 0
        assert early.statistics().delivery.delivered == 6_000
        assert len(got) >= 3_000 * 11 // 40


def test_messages_without_a_subscriber_are_not_a_gap() -> None:
    feed = Feed.local("gaps", slices=1, key_bytes=2)
    subscriber, got = subscribed(feed, b"KEEP")
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        for round_ in range(5):
            again = Collector()
            subscriber.on(b"COME")(again.message)
            subscriber.wait_confirmed()
            for number in range(100):
                publisher.publish(b"COME.t", b"%d" % number)
                publisher.publish(b"KEEP.t", b"%d" % number)
            assert [int(m.payload) for m in again.wait(100)] == list(range(100))
            subscriber.remove(again.message)
            subscriber.wait_confirmed()
            for _ in range(100):
                publisher.publish(b"COME.t", b"unseen")
            publisher.flush()  # otherwise the next round would receive messages still on their way
            got.wait(100 * (round_ + 1))
    subscriber.run(until_end=True)
    assert subscriber.statistics().received.gaps == 0


def test_a_repeated_block_is_delivered_once() -> None:
    feed = Feed.local("gaps", slices=1)
    subscriber, got = subscribed(feed, b"")
    with RawPublisher(feed) as publisher:
        subscriber.start()
        first = publisher.encode([(b"T", b"0"), (b"T", b"1"), (b"T", b"2")])
        overlapping = publisher.encode([(b"T", b"2"), (b"U", b"3"), (b"T", b"4")], sequence=2)
        for block in (first, first, overlapping, first, overlapping):
            publisher.send(block)
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    assert got.payloads == [b"0", b"1", b"2", b"3", b"4"]
    assert [m.sequence for m in got.messages] == [0, 1, 2, 3, 4]
    assert subscriber.statistics().received.duplicates == 3 + 1 + 3 + 3
    assert subscriber.statistics().received.gaps == 0


def test_a_block_of_an_earlier_epoch_is_stale() -> None:
    feed = Feed.local("gaps", slices=1, lines=2)
    subscriber, got = subscribed(feed, b"")
    with RawPublisher(feed) as publisher:
        subscriber.start()
        publisher.send(publisher.encode([(b"T", b"old 0")]), lines=(0, 1))
        # Line B's copy would also be stale if it arrived after the next epoch had begun on line A.
        wait_until(lambda: subscriber.statistics().received.duplicates == 1, what="both copies")
        old = publisher.encode([(b"T", b"old 1"), (b"T", b"old 2")])
        publisher.epoch, publisher.sequences[0] = 5, 0
        publisher.send(publisher.encode([(b"T", b"new 0")]))
        publisher.send(publisher.encode([(b"T", b"new 1")]))
        got.wait(3)
        publisher.send(old, lines=(1,))
        publisher.send(publisher.encode([(b"T", b"new 2")]))
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    assert got.payloads == [b"old 0", b"new 0", b"new 1", b"new 2"]
    statistics = subscriber.statistics()
    assert (statistics.received.stale, statistics.received.gaps, statistics.received.epochs) == (2, 0, 2)


def test_a_key_beyond_the_table_is_delivered_and_counted_as_untracked() -> None:
    feed = Feed.local("gaps", slices=1, key_bytes=2)
    subscriber, got = subscribed(msgspec.structs.replace(feed, max_topics=4), b"")
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        for number in range(100):
            publisher.publish(b"%02d.t" % (number % 10), b"%d" % number)
    subscriber.run(until_end=True)
    assert sorted(int(p) for p in got.payloads) == list(range(100))
    assert subscriber.statistics().received.untracked == 60


def test_blocks_of_keys_beyond_the_table_keep_a_line_alive() -> None:
    feed = msgspec.structs.replace(Feed.local("gaps", slices=1, key_bytes=2), max_topics=1, heartbeat_ns=60 * 10**9)
    subscriber, got = subscribed(feed, b"")
    with RawPublisher(feed) as publisher:
        subscriber.start()
        publisher.send(publisher.encode([(b"00.t", b"0")]))
        got.wait(1)
        epochs = subscriber._supervisor._slices[0].order.epochs
        before = epochs.heard_ns[0]
        publisher.send(publisher.encode([(b"01.t", b"1")]))
        got.wait(2)
        assert epochs.heard_ns[0] > before
        subscriber.stop()
    assert subscriber.statistics().received.untracked == 1


def test_gaps_are_reported_per_slice() -> None:
    feed = Feed.local("gaps", slices=3)
    topics = {feed.slice_of(b"S%d" % number): b"S%d" % number for number in range(50)}
    subscriber, _ = subscribed(feed, b"")
    with RawPublisher(feed) as publisher:
        subscriber.start()
        for slice_id, topic in topics.items():
            publisher.send(publisher.encode([(topic, b"")], slice_id=slice_id))
            for _ in range(slice_id):
                publisher.encode([(topic, b"")], slice_id=slice_id)
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    assert [feed_slice.received.gaps for feed_slice in subscriber.statistics().slices] == [0, 1, 2]
    assert subscriber.statistics().received.gaps == 3


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
def test_a_restarted_publisher_is_a_new_epoch_and_not_a_gap(key_bytes: int) -> None:
    feed = Feed.local("gaps", slices=1, key_bytes=key_bytes)
    subscriber, got = subscribed(feed, b"TTTT")
    total = 0
    for run in range(3):
        with Publisher(feed, when_full="wait") as publisher:
            if run == 0:
                subscriber.start()
            publisher.wait_for_subscribers(b"TTTT")
            for _ in range(100 + run):
                publisher.publish(b"TTTT.t", b"x")
            total += 100 + run
            got.wait(total)
    subscriber.run(until_end=True)
    statistics = subscriber.statistics()
    assert (statistics.received.epochs, statistics.received.gaps, statistics.received.stale) == (3, 0, 0)
    assert epochs_of(got.messages) == [list(range(100 + run)) for run in range(3)]


def test_a_killed_and_restarted_publisher_is_a_new_epoch_and_not_a_gap() -> None:
    feed = Feed.local("gaps", slices=1)
    code = """
        with Publisher(feed, when_full="wait") as publisher:
            publisher.wait_for_subscribers(b"T", timeout=60)
            number = 0
            while True:
                publisher.publish(b"T", b"%d" % number)
                number += 1
                if number % 100 == 0:
                    publisher.flush()
                if number == 5_000:
                    say("busy")
    """
    subscriber, got = subscribed(feed, b"")
    with Script(code, feed) as first:
        subscriber.start(timeout=60)
        first.expect("busy")
        first.process.send_signal(signal.SIGKILL)
        first.process.wait()
    before = len(got)
    with Script(code, feed) as second:
        second.expect("busy")
        got.wait(before + 1_000, timeout=60)
        wait_until(lambda: subscriber.statistics().received.epochs == 2)
    subscriber.stop()
    statistics = subscriber.statistics()
    assert (statistics.received.gaps, statistics.received.duplicates, statistics.received.malformed) == (0, 0, 0)
    parts = epochs_of(got.messages)
    assert len(parts) == 2
    assert parts[0][0] == 0
    for part in parts:
        assert all(b == a + 1 for a, b in pairwise(part))


def test_messages_of_a_restarted_publisher_before_filters_are_active_are_a_gap() -> None:
    """libzmq sends filters again in any order, so keys become active at different times."""
    feed = Feed.local("gaps", slices=1, key_bytes=4)
    keys = [b"%04d" % number for number in range(500)]
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
    """A block whose messages have these sequences, which are also their payloads."""
    payloads = [b"%d" % number for number in numbers]
    return Block.encode(
        [b"T"],
        [0] * len(numbers),
        b"".join(payloads),
        offsets=numpy.cumsum([0, *map(len, payloads)]),
        epoch=1,
        sequence=numbers[0],
        sequences=numbers,
        ts_out=time.time_ns(),
    )


@pytest.mark.parametrize("lines", [1, 2])
def test_sequences_left_out_of_a_block_are_neither_lost_nor_delivered_twice(lines: int) -> None:
    feed = Feed.local("gaps", slices=1, lines=lines)
    subscriber = Subscriber(feed, slow=SlowPolicy("warn"), line_wait=1_000)
    got = Collector()
    subscriber.on(b"")(got.message)
    held = [[50, 60]] if lines == 2 else []
    with RawPublisher(feed) as publisher:
        subscriber.start()
        blocks = [[0, 10, 20], [21, 30], [25, 30, 40], [5, 30], *held, [41, 49], [61, 70]]
        for line in range(lines):
            for numbers in blocks:
                publisher.send(of_numbers(numbers), [line])
            # One line after the other: sequences passed by both lines are lost.
            many = len(blocks) * (line + 1)
            wait_until(lambda many=many: subscriber.statistics().received.blocks == many)  # type: ignore[misc]
        publisher.sequences[0] = 75
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    expected = [0, 10, 20, 21, 30, 40, *([41, 49, 50, 60] if lines == 2 else [41, 49]), 61, 70]
    assert [message.sequence for message in got.messages] == [int(payload) for payload in got.payloads] == expected
    received = subscriber.statistics().received
    assert received.messages - received.duplicates == len(expected)
    assert received.gaps == (75 - 71) + (0 if lines == 2 else 61 - 50)
