"""Two lines of a slice over sockets: each line replaces the losses of the other.

See also `tests/simulation/test_lines.py` for random losses, and `killed_lines` of `tests/torture`.
"""

from __future__ import annotations

import random
import time
from typing import Any

import msgspec
import pytest

from blackbox import Feed, Publisher
from blackbox.testing import Collector, RawPublisher, wait_until
from tests.receive.subscribers import publishing, subscribed

A, B = 0, 1


def two_line_feed(key_bytes: int = 0, heartbeat_ns: int = 60 * 10**9) -> Feed:
    """Return a feed whose lines never count as dead."""
    return msgspec.structs.replace(
        Feed.local("lines", slices=1, lines=2, key_bytes=key_bytes), heartbeat_ns=heartbeat_ns
    )


def test_random_loss_and_skew_of_two_lines_over_sockets() -> None:
    choice = random.Random(1)
    feed = two_line_feed(key_bytes=1)
    subscriber, got = subscribed(feed, line_wait=60)
    with publishing(feed, subscriber, time.time_ns()) as publisher:
        ways: dict[int, list[Any]] = {line: [] for line in (A, B)}
        published: dict[bytes, int] = {b"K": 0, b"L": 0}
        on_some_line: dict[bytes, list[int]] = {b"K": [], b"L": []}
        for _ in range(400):
            key = choice.choice([b"K", b"L"])
            count = choice.randint(1, 7)
            numbers = range(published[key], published[key] + count)
            block = publisher.encode([(key + b".t", str(number).encode()) for number in numbers])
            published[key] += count
            lines = [line for line in (A, B) if choice.random() < 0.7]
            for line in lines:
                ways[line].append(block)
            if lines:
                on_some_line[key] += numbers
        while ways[A] or ways[B]:
            line = choice.choice([line for line in (A, B) if ways[line]])
            for _ in range(choice.randint(1, 60)):
                if ways[line]:
                    publisher.send(ways[line].pop(0), [line])
    for key, expected in on_some_line.items():
        assert [int(m.payload) for m in got.messages if m.topic.startswith(key)] == expected
    statistics = subscriber.statistics()
    assert statistics.received.gaps == sum(published.values()) - sum(map(len, on_some_line.values()))
    assert statistics.received.messages == statistics.delivery.delivered + statistics.received.duplicates
    assert statistics.received.epochs == 1


def test_a_held_block_waits_only_for_line_wait() -> None:
    subscriber, got = subscribed(feed := two_line_feed(), line_wait=0.01)
    with RawPublisher(feed) as publisher:
        subscriber.start()
        publisher.send(publisher.encode([(b"T", b"0")]), [A])
        publisher.encode([(b"T", b"1")])
        publisher.send(publisher.encode([(b"T", b"2")]), [A])
        assert [m.payload for m in got.wait(2)] == [b"0", b"2"]
        subscriber.stop()
    assert subscriber.statistics().received.gaps == 1


def test_a_held_block_does_not_wait_for_a_line_of_an_earlier_epoch() -> None:
    subscriber, got = subscribed(feed := two_line_feed(), line_wait=1_000)
    with publishing(feed, subscriber, time.time_ns()) as publisher:
        earlier = [publisher.encode([(b"T", b"earlier %d" % number)]) for number in range(2)]
        publisher.send(earlier[0], [A, B])
        got.wait(1)
        publisher.epoch, publisher.sequences, publisher.ends = publisher.epoch + 1, [0], [{}]
        for number in range(2):  # an epoch is accepted at its second block
            publisher.send(publisher.encode([(b"T", b"%d" % number)]), [A])
        got.wait(3)
        publisher.send(earlier[1], [B])
        wait_until(lambda: subscriber.statistics().received.stale == 1)
        publisher.encode([(b"T", b"lost")])
        publisher.send(publisher.encode([(b"T", b"last")]), [A])
        got.wait(4)
    assert got.payloads == [b"earlier 0", b"0", b"1", b"last"]
    assert subscriber.statistics().received.gaps == 1


def test_a_subscriber_starts_on_one_line_if_the_other_has_no_publisher(caplog: pytest.LogCaptureFixture) -> None:
    subscriber, got = subscribed(feed := two_line_feed(heartbeat_ns=10**9))
    with RawPublisher(feed) as publisher:
        publisher.close_line(B)
        subscriber.start(timeout=3.0)
        assert "only 1 of 2 lines have a publisher" in caplog.text
        publisher.send(publisher.encode([(b"T", b"0"), (b"T", b"1")]), [A])
        got.wait(2)
        publisher.heartbeat(end=True, lines=[A])
        subscriber.run(until_end=True)
    assert got.payloads == [b"0", b"1"]


def test_forgetting_a_key_while_one_of_its_blocks_is_held_counts_no_gap() -> None:
    subscriber, _ = subscribed(feed := two_line_feed(key_bytes=1), b"K", line_wait=10)
    drop = Collector()
    subscriber.on(b"L")(drop.message)
    with RawPublisher(feed) as publisher:
        subscriber.start()
        publisher.send(publisher.encode([(b"L", b"0")]), [A])
        publisher.send(publisher.encode([(b"L", b"500")], sequence=500, previous=499, key_sequence=400), [A])
        wait_until(lambda: subscriber.statistics().received.held == 1)
        subscriber.remove(drop.message)
        subscriber.wait_confirmed()
        wait_until(lambda: subscriber.statistics().received.held == 0)
        subscriber.stop()
    assert subscriber.statistics().received.gaps == 0


def test_a_real_publisher_sends_everything_on_both_lines() -> None:
    subscriber, got = subscribed(feed := Feed.local("lines", slices=2, lines=2))
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        for number in range(1_000):
            publisher.publish(b"S%d.t" % (number % 50), b"")
    subscriber.run(until_end=True)
    received = subscriber.statistics().received
    assert (len(got), received.duplicates, received.gaps) == (1_000, 1_000, 0)
