"""Two lines of a slice over sockets: each line replaces the losses of the other."""

from __future__ import annotations

import random
import time
from typing import Any

import msgspec
import numpy
import pytest

from blackbox import Feed, Publisher, SlowPolicy, Subscriber
from blackbox.testing import Collector, RawPublisher, wait_until
from tests.subscribe.subscribers import PATIENT

A, B = 0, 1


def two_line_feed(slices: int = 1, key_bytes: int = 0, heartbeat_ns: int = 10**9) -> Feed:
    feed = Feed.local("lines", slices=slices, lines=2, key_bytes=key_bytes)
    return msgspec.structs.replace(feed, heartbeat_ns=heartbeat_ns)


@pytest.mark.parametrize("seed", range(3))
def test_random_loss_and_skew_of_two_lines_over_sockets(seed: int) -> None:
    choice = random.Random(seed)
    feed = two_line_feed(key_bytes=1, heartbeat_ns=60 * 10**9)  # neither line counts as dead on a busy machine
    subscriber = Subscriber(feed, line_wait=60, slow=SlowPolicy(max_lag=3_600))
    got = Collector()
    subscriber.on(b"")(got.message)
    with RawPublisher(feed, epoch=time.time_ns()) as publisher:
        subscriber.start()
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
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    for key, expected in on_some_line.items():
        assert [int(m.payload) for m in got.messages if m.topic.startswith(key)] == expected
    statistics = subscriber.statistics()
    assert statistics.received.gaps == sum(published.values()) - sum(map(len, on_some_line.values()))
    assert statistics.received.messages == statistics.delivery.delivered + statistics.received.duplicates
    assert statistics.received.epochs == 1


def test_losing_either_line_loses_nothing() -> None:
    for lost in (A, B):
        feed = two_line_feed(heartbeat_ns=20_000_000)
        subscriber = Subscriber(feed, slow=PATIENT)
        got = Collector()
        subscriber.on_batch(b"")(got.batch)
        with RawPublisher(feed) as publisher:
            subscriber.start()
            for number in range(50):
                publisher.send(publisher.encode([(b"T", b"%d" % number)]), [A, B])
            publisher.close_line(lost)
            left = 1 - lost
            for number in range(50, 100):
                publisher.send(publisher.encode([(b"T", b"%d" % number)]), [left])
            got.wait(100)
            publisher.heartbeat(end=True, lines=[left])
            subscriber.run(until_end=True)
        assert got.payloads == [b"%d" % number for number in range(100)]
        assert subscriber.statistics().received.gaps == 0


def test_losses_of_the_live_line_after_the_other_died_are_counted() -> None:
    feed = two_line_feed(heartbeat_ns=20_000_000)
    subscriber = Subscriber(feed, line_wait=0.005)
    got = Collector()
    subscriber.on(b"")(got.message)
    with RawPublisher(feed) as publisher:
        subscriber.start()
        publisher.send(publisher.encode([(b"T", b"0")]), [A, B])
        publisher.close_line(B)
        publisher.encode([(b"T", b"1"), (b"T", b"2")])
        publisher.send(publisher.encode([(b"T", b"3")]), [A])
        got.wait(2)
        subscriber.stop()
    assert got.payloads == [b"0", b"3"]
    assert subscriber.statistics().received.gaps == 2


def test_a_held_block_waits_for_the_other_line() -> None:
    feed = two_line_feed(heartbeat_ns=60 * 10**9)  # neither line counts as dead
    subscriber = Subscriber(feed, line_wait=60, slow=PATIENT)
    got = Collector()
    subscriber.on(b"")(got.message)
    with RawPublisher(feed) as publisher:
        subscriber.start()
        blocks = [publisher.encode([(b"T", b"%d" % number)]) for number in range(4)]
        publisher.send(blocks[0], [A])
        publisher.send(blocks[2], [A])
        wait_until(lambda: subscriber.statistics().received.held == 1)
        assert [m.payload for m in got.wait(1)] == [b"0"]
        publisher.send(blocks[1], [B])
        assert [m.payload for m in got.wait(3)] == [b"0", b"1", b"2"]
        assert subscriber.statistics().received.gaps == 0
        subscriber.stop()


def test_a_held_block_waits_only_for_line_wait() -> None:
    feed = two_line_feed(heartbeat_ns=60 * 10**9)  # neither line counts as dead
    subscriber = Subscriber(feed, line_wait=0.01, slow=PATIENT)
    got = Collector()
    subscriber.on(b"")(got.message)
    with RawPublisher(feed) as publisher:
        subscriber.start()
        publisher.send(publisher.encode([(b"T", b"0")]), [A])
        publisher.encode([(b"T", b"1")])
        publisher.send(publisher.encode([(b"T", b"2")]), [A])
        assert [m.payload for m in got.wait(2)] == [b"0", b"2"]
        subscriber.stop()
    assert subscriber.statistics().received.gaps == 1


def test_a_held_block_does_not_wait_for_a_line_of_an_earlier_epoch() -> None:
    feed = two_line_feed(heartbeat_ns=60 * 10**9)
    subscriber = Subscriber(feed, line_wait=1_000, slow=PATIENT)
    got = Collector()
    subscriber.on(b"")(got.message)
    with RawPublisher(feed, epoch=time.time_ns()) as publisher:
        subscriber.start()
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
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    assert got.payloads == [b"earlier 0", b"0", b"1", b"last"]
    assert subscriber.statistics().received.gaps == 1


def test_a_subscriber_starts_on_one_line_if_the_other_has_no_publisher(caplog: pytest.LogCaptureFixture) -> None:
    feed = two_line_feed()
    subscriber = Subscriber(feed, slow=PATIENT)
    got = Collector()
    subscriber.on(b"")(got.message)
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
    feed = two_line_feed(key_bytes=1, heartbeat_ns=60 * 10**9)  # neither line counts as dead
    subscriber = Subscriber(feed, line_wait=10, slow=PATIENT)
    keep, drop = Collector(), Collector()
    subscriber.on(b"K")(keep.message)
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
    feed = two_line_feed(slices=2)
    subscriber = Subscriber(feed, slow=PATIENT)
    got = Collector()
    subscriber.on_batch(b"")(got.batch)
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        names = tuple(b"S%d.t" % number for number in range(50))
        publisher.publish_many(names, numpy.arange(20_000) % 50, numpy.zeros((20_000, 24), numpy.uint8))
    subscriber.run(until_end=True)
    statistics = subscriber.statistics()
    assert len(got) == statistics.delivery.delivered == 20_000
    assert statistics.received.duplicates == 20_000
    assert statistics.received.gaps == 0
