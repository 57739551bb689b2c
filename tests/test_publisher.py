"""A publisher: batching, order, bounds, what happens when nobody listens or somebody is slow, and misuse."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
import numpy
import pytest

from blackbox import (
    Batch,
    ConfigError,
    EndpointError,
    Feed,
    NoSubscriberError,
    Publisher,
    PublisherError,
    Subscriber,
)
from blackbox.line import RING_BYTES
from blackbox.publisher import WINDOW_ROWS
from blackbox.ring import MAX_PAYLOAD_BYTES
from blackbox.source import open_source
from blackbox.testing import Collector, wait_until

EMPTY = numpy.zeros((0, 1), numpy.uint8)


def one_slice(**settings: Any) -> Feed:
    return msgspec.structs.replace(Feed.local("publisher", slices=1), **settings)


def collected(feed: Feed, prefix: bytes = b"", **settings: Any) -> tuple[Subscriber, Collector]:
    subscriber = Subscriber(feed, max_lag_ns=3_600 * 10**9, **settings)
    got = Collector()
    subscriber.on_batch(prefix)(got.batch)
    return subscriber, got


class Gate:
    """A callback that lets nothing pass until it is opened."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.open = threading.Event()
        self.messages = 0
        self.first_numbers: list[int] = []

    def __call__(self, batch: Batch) -> None:
        self.entered.set()
        self.open.wait(30)
        self.messages += len(batch)


# Order and content.


def test_each_message_arrives_as_it_was_published() -> None:
    feed = one_slice()
    subscriber, got = collected(feed)
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        publisher.publish(b"A", b"")
        publisher.publish(b"A.b", b"payload", ts_event=-(2**63))
        publisher.publish(b"\xff\0", bytes(range(256)), ts_event=2**63 - 1)
        publisher.publish(b"A", bytearray(b"array"), 5)  # type: ignore[arg-type]
        publisher.publish(b"A", memoryview(b"view"), 6)  # type: ignore[arg-type]
    subscriber.run(until_end=True)
    assert [(m.topic, m.payload, m.ts_event) for m in got.messages] == [
        (b"A", b"", 0),
        (b"A.b", b"payload", -(2**63)),
        (b"\xff\0", bytes(range(256)), 2**63 - 1),
        (b"A", b"array", 5),
        (b"A", b"view", 6),
    ]


def test_columns_of_every_shape_arrive_as_rows() -> None:
    feed = one_slice()
    subscriber, got = collected(feed)
    topics = (b"A", b"B", b"never", b"C")
    index = numpy.array([0, 1, 3, 1])
    text = b"xabcdefgh"
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        assert publisher.publish_many(topics, index, numpy.arange(12, dtype=numpy.uint8).reshape(4, 3)) == 4
        publisher.publish_many(topics, index, text, ts_event=[1, 2, 3, 4], offsets=[1, 1, 4, 6, 9])
        publisher.publish_many(topics, index, text, offsets=[8, 0, 2, 2], lengths=[1, 3, 0, 5])
        publisher.publish_many(list(topics), index.tolist(), bytearray(text), offsets=(0, 1, 2, 3, 9))
        publisher.publish_many(topics, index[::-1], numpy.zeros((4, 0), numpy.uint8))
        assert publisher.publish_many(topics, [], EMPTY) == 0
    subscriber.run(until_end=True)
    rows = [(m.topic, m.payload, m.ts_event) for m in got.messages]
    names = [b"A", b"B", b"C", b"B"]
    expected = [(name, bytes([3 * i, 3 * i + 1, 3 * i + 2]), 0) for i, name in enumerate(names)]
    expected += list(zip(names, [b"", b"abc", b"de", b"fgh"], [1, 2, 3, 4], strict=True))
    expected += list(zip(names, [b"h", b"xab", b"", b"bcdef"], [0] * 4, strict=True))
    expected += list(zip(names, [b"x", b"a", b"b", b"cdefgh"], [0] * 4, strict=True))
    expected += [(name, b"", 0) for name in reversed(names)]
    assert rows == expected


def test_single_messages_and_columns_keep_the_order_in_which_they_were_published() -> None:
    choice = random.Random(1)
    feed = one_slice(block_bytes=4_096)
    subscriber, got = collected(feed)
    topics = tuple(b"T%d" % number for number in range(20))
    number = 0
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        for _ in range(400):
            if choice.random() < 0.5:
                publisher.publish(choice.choice(topics), b"%d" % number)
                number += 1
            else:
                count = choice.choice([0, 1, 3, 50, 700])
                payloads = [b"%d" % n for n in range(number, number + count)]
                offsets = numpy.cumsum([0, *map(len, payloads)])
                index = [choice.randrange(20) for _ in payloads]
                publisher.publish_many(topics, index, b"".join(payloads), offsets=offsets)
                number += count
    subscriber.run(until_end=True)
    assert [int(p) for p in got.payloads] == list(range(number))
    assert [m.sequence for m in got.messages] == list(range(number))


def test_columns_larger_than_a_window_keep_their_order() -> None:
    rows = 2 * WINDOW_ROWS + 17
    feed = msgspec.structs.replace(Feed.local("publisher", slices=2, key_bytes=2), block_bytes=65_536)
    topics = tuple(b"S%d" % number for number in range(100))
    index = numpy.random.default_rng(1).integers(0, 100, rows)
    payloads = numpy.arange(rows, dtype=numpy.int64).view(numpy.uint8).reshape(rows, 8)
    subscriber = Subscriber(feed, max_lag_ns=3_600 * 10**9)
    parts: dict[tuple[int, bytes], list[Any]] = {}

    @subscriber.on_batch(b"")
    def note(batch: Batch) -> None:
        numbers = batch.block.payloads.view(numpy.int64).copy()
        parts.setdefault((batch.block.slice_id, feed.key_of(batch.topics[0])), []).append(numbers)

    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        publisher.publish_many(topics, index, payloads)
    subscriber.run(until_end=True)
    of_key = [numpy.concatenate(some) for some in parts.values()]
    assert numpy.array_equal(numpy.sort(numpy.concatenate(of_key)), numpy.arange(rows))
    for numbers in of_key:
        assert (numpy.diff(numbers) > 0).all()


def test_the_ring_wraps_around_with_payloads_of_every_size() -> None:
    choice = random.Random(2)
    sizes = [
        0,
        1,
        7,
        8,
        9,
        100,
        4_000,
        30_000,
        MAX_PAYLOAD_BYTES - 1,
        MAX_PAYLOAD_BYTES,
        MAX_PAYLOAD_BYTES + 1,
        200_000,
    ]
    text = choice.randbytes(max(sizes))
    feed = one_slice()
    subscriber, got = collected(feed)
    expected = []
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        total = 0
        while total < 6 * RING_BYTES:
            size = choice.choice(sizes)
            payload = text[:size]
            expected.append(payload)
            publisher.publish(b"T%d" % (size % 3), payload, ts_event=len(expected))
            total += size
    subscriber.run(until_end=True)
    assert len(got) == len(expected)
    assert got.payloads == expected
    assert [m.ts_event for m in got.messages] == list(range(1, len(expected) + 1))


def test_a_payload_larger_than_a_block_travels_alone() -> None:
    feed = one_slice(block_bytes=4_096)
    subscriber, got = collected(feed)
    large = numpy.random.default_rng(1).integers(0, 256, 5_000_000, numpy.uint8).tobytes()
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        for payload in (b"before", large, b"after"):
            publisher.publish(b"T", payload)
        publisher.publish_many((b"T",), [0, 0], large, offsets=[0, 10, len(large)])
    subscriber.run(until_end=True)
    assert got.payloads == [b"before", large, b"after", large[:10], large[10:]]


def test_many_threads_publish_without_loss_and_each_keeps_its_order() -> None:
    feed = Feed.local("publisher", slices=2)
    subscriber, got = collected(feed)
    count = 3_000

    def publish(publisher: Publisher, thread: int) -> None:
        topic = b"T%d" % thread
        for number in range(count):
            if number % 10:
                publisher.publish(topic, b"%d" % number)
            else:
                publisher.publish_many((topic,), [0], b"%d" % number, offsets=[0, len(b"%d" % number)])

    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        threads = [threading.Thread(target=publish, args=(publisher, n)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    subscriber.run(until_end=True)
    for thread_number in range(8):
        numbers = [int(m.payload) for m in got.messages if m.topic == b"T%d" % thread_number]
        assert numbers == list(range(count))
    assert publisher.statistics().messages == 8 * count


# Batching.


def test_a_burst_travels_in_few_blocks_and_a_lone_message_at_once() -> None:
    feed = one_slice()
    subscriber, got = collected(feed)
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        publisher.publish(b"T", b"alone")
        got.wait(1)
        assert publisher.statistics().blocks == 1
        publisher.publish_many((b"T",), numpy.zeros(10_000, int), numpy.zeros((10_000, 84), numpy.uint8))
        publisher.flush()
        blocks = publisher.statistics().blocks - 1
        assert blocks == -(-10_000 * 100 // feed.block_bytes)
        assert publisher.statistics().body_bytes < 10_001 * 100
        subscriber.stop()


def test_linger_gathers_single_messages_into_one_block() -> None:
    feed = one_slice(linger_ns=200_000_000)
    subscriber, got = collected(feed)
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        for number in range(50):
            publisher.publish(b"T", b"%d" % number)
        got.wait(50)
        assert publisher.statistics().blocks <= 2  # the thread may have looked between two of them
        subscriber.stop()


def test_a_full_block_does_not_linger() -> None:
    feed = one_slice(linger_ns=1_000_000_000, block_bytes=4_096)
    subscriber, got = collected(feed)
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        started = time.monotonic()
        for number in range(100):
            publisher.publish(b"T", bytes(100), number)
        got.wait(35)  # the rest, less than a block, may wait for more
        assert time.monotonic() - started < 0.9
        subscriber.stop()


# Who listens.


def test_a_key_that_nobody_wants_is_not_sent() -> None:
    feed = one_slice(key_bytes=2)
    subscriber, got = collected(feed, b"AA")
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        for number in range(100):
            publisher.publish(b"AAPL" if number % 4 == 0 else b"MSFT", b"%d" % number)
        publisher.publish_many((b"AAPL", b"MSFT"), [0, 1, 1, 1], numpy.zeros((4, 3), numpy.uint8))
        publisher.flush()
        statistics = publisher.statistics()
    subscriber.run(until_end=True)
    assert (statistics.messages, statistics.unwanted) == (26, 78)
    assert len(got) == 26
    assert subscriber.statistics().received == 26


def test_without_subscribers_everything_is_unwanted_and_nothing_piles_up() -> None:
    for when_full in ("drop", "wait"):
        feed = one_slice()
        with Publisher(feed, when_full=when_full) as publisher:
            for _ in range(20_000):
                publisher.publish(b"T", bytes(500))
            publisher.publish_many((b"T",), numpy.zeros(20_000, int), numpy.zeros((20_000, 500), numpy.uint8))
            publisher.flush()
            assert publisher.statistics().unwanted == 40_000
            assert publisher.statistics().blocks == 0


def test_wait_for_subscribers_returns_when_the_prefix_is_wanted() -> None:
    feed = Feed.local("publisher", slices=2, key_bytes=4)
    with Publisher(feed) as publisher:
        with pytest.raises(NoSubscriberError, match=r"slice \d: 0 subscribers to b'AAPL.x' after 0.05 s, expected 1"):
            publisher.wait_for_subscribers(b"AAPL.x", timeout=0.05)
        first, _ = collected(feed, b"AAPL.")
        with first:
            publisher.wait_for_subscribers(b"AAPL.x", timeout=5)
            with pytest.raises(NoSubscriberError, match="0 subscribers to b'MSFT.'"):
                publisher.wait_for_subscribers(b"MSFT.", timeout=0.05)
            with pytest.raises(NoSubscriberError, match="1 subscribers to b'AAPL.', after 0.05 s, expected 2|1 subscr"):
                publisher.wait_for_subscribers(b"AAPL.", timeout=0.05, count=2)
            second, _ = collected(feed, b"AAPL.")
            with second:
                publisher.wait_for_subscribers(b"AAPL.", timeout=5, count=2)
                assert publisher.statistics().subscribers == 2
        wait_until(lambda: publisher.statistics().subscribers == 0)


def test_subscribers_are_waited_for_from_another_thread() -> None:
    feed = one_slice()
    with Publisher(feed) as publisher:
        seen = threading.Event()

        def wait() -> None:
            publisher.wait_for_subscribers(b"T", timeout=20)
            seen.set()

        waiter = threading.Thread(target=wait)
        waiter.start()
        assert not seen.is_set()
        subscriber, _ = collected(feed)
        with subscriber:
            assert seen.wait(10)
        waiter.join()


# Slow subscribers.


def test_when_full_wait_loses_nothing_with_a_slow_subscriber() -> None:
    feed = one_slice(block_bytes=4_096)
    subscriber = Subscriber(feed, max_lag_ns=3_600 * 10**9, queue_blocks=2, hwm_blocks=2)
    gate = Gate()
    subscriber.on_batch(b"")(gate)
    count = 60_000
    with Publisher(feed, when_full="wait", hwm_blocks=2) as publisher:
        subscriber.start()
        done = threading.Event()

        def publish() -> None:
            publisher.publish_many((b"T",), numpy.zeros(count, int), numpy.zeros((count, 1_000), numpy.uint8))
            for _ in range(count // 10):
                publisher.publish(b"T", bytes(1_000))
            done.set()

        thread = threading.Thread(target=publish)
        thread.start()
        gate.entered.wait(10)
        wait_until(lambda: publisher.statistics().waits > 0)
        assert not done.is_set()
        with pytest.raises(PublisherError, match="flush was not done in time: a subscriber did not keep up"):
            publisher.flush(timeout=0.1)
        gate.open.set()
        thread.join()
        publisher.flush()
    subscriber.run(until_end=True)
    assert gate.messages == count + count // 10
    assert subscriber.statistics().gaps == 0
    assert publisher.statistics().discarded == 0


def test_when_full_drop_shows_as_gaps_at_the_slow_subscriber_alone() -> None:
    feed = one_slice(block_bytes=65_536, heartbeat_ns=20_000_000)
    slow = Subscriber(feed, max_lag_ns=3_600 * 10**9, queue_blocks=1, hwm_blocks=1)
    gate = Gate()
    slow.on_batch(b"")(gate)
    quick, got = collected(feed)
    messages = 0
    with Publisher(feed, when_full="drop", hwm_blocks=200) as publisher:
        slow.start()
        quick.start()
        payloads = numpy.zeros((65, 1_000), numpy.uint8)
        while messages < 65 * 1_000:  # 65 MB: more than the sockets' buffers and the slow one's queue hold
            messages += publisher.publish_many((b"T",), numpy.zeros(65, int), payloads)
            publisher.flush()
            got.wait(messages)
        gate.open.set()
        wait_until(lambda: gate.messages + slow.statistics().gaps == messages, timeout=30)
        quick.stop()
        slow.stop()
    assert quick.statistics().gaps == 0
    assert slow.statistics().gaps > 0
    assert len(got) == messages
    assert publisher.statistics().messages == messages


@pytest.mark.parametrize("in_columns", [False, True])
def test_close_gives_up_after_its_timeout_and_counts_what_it_discards(
    in_columns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    feed = one_slice(block_bytes=65_536)
    subscriber = Subscriber(feed, max_lag_ns=3_600 * 10**9, queue_blocks=1, hwm_blocks=1)
    gate = Gate()
    subscriber.on_batch(b"")(gate)
    publisher = Publisher(feed, when_full="wait", hwm_blocks=1).start()
    subscriber.start()
    published = 0
    rows = numpy.zeros((60, 1_000), numpy.uint8)

    def publish() -> None:
        nonlocal published
        with pytest.raises(PublisherError, match="closed"):
            while True:
                if in_columns:
                    published += publisher.publish_many((b"T",), numpy.zeros(60, int), rows)
                else:
                    publisher.publish(b"T", rows[0].tobytes())
                    published += 1

    thread = threading.Thread(target=publish)
    thread.start()
    wait_until(lambda: publisher.statistics().waits > 5)
    started = time.monotonic()
    with caplog.at_level(logging.WARNING, "blackbox"):
        publisher.close(timeout=0.2)
    assert time.monotonic() - started < 3
    thread.join()
    statistics = publisher.statistics()
    assert 0 < statistics.discarded < published
    assert f"closed with {statistics.discarded} messages not sent" in caplog.text
    assert statistics.messages + statistics.discarded == published
    gate.open.set()
    subscriber.terminate()


def test_close_sends_what_was_published_and_says_goodbye() -> None:
    feed = one_slice()
    subscriber, got = collected(feed)
    publisher = Publisher(feed, when_full="wait").start()
    subscriber.start()
    for number in range(20_000):
        publisher.publish(b"T", b"%d" % number)
    publisher.close()
    publisher.close()
    subscriber.run(until_end=True)
    assert subscriber.is_finished
    assert [int(p) for p in got.payloads] == list(range(20_000))


def test_close_tells_a_subscriber_whose_queue_was_full_that_it_was_the_end() -> None:
    feed = one_slice(block_bytes=65_536)
    slow = Subscriber(feed, max_lag_ns=3_600 * 10**9, queue_blocks=1, hwm_blocks=1)
    gate = Gate()
    slow.on_batch(b"")(gate)
    messages = 0
    with Publisher(feed, when_full="drop", hwm_blocks=2) as publisher:
        slow.start()
        while messages < 65 * 1_000:  # more than the sockets' buffers hold
            messages += publisher.publish_many((b"T",), numpy.zeros(65, int), numpy.zeros((65, 1_000), numpy.uint8))
            publisher.flush()
        threading.Timer(0.2, gate.open.set).start()
    slow.run(until_end=True)
    assert slow.statistics().gaps > 0
    assert gate.messages + slow.statistics().gaps == messages


def test_close_says_when_a_subscriber_had_not_read_everything(caplog: pytest.LogCaptureFixture) -> None:
    feed = one_slice(block_bytes=4_096)
    gate = Gate()
    subscriber = Subscriber(feed, workers=1, queue_blocks=1, max_lag_ns=3_600 * 10**9)
    subscriber.on_batch(b"")(gate)
    publisher = Publisher(feed, when_full="wait", hwm_blocks=1_000).start()
    subscriber.start()
    for _ in range(20):
        publisher.publish_many((b"T",), numpy.zeros(40, int), numpy.zeros((40, 80), numpy.uint8))
    assert gate.entered.wait(30)
    with caplog.at_level(logging.WARNING, "blackbox"):
        publisher.close(timeout=0.2)
        wait_until(lambda: "slice 0: closed before 1 subscribers had everything" in caplog.text, what="it said so")
    gate.open.set()
    subscriber.stop()


def test_close_loses_nothing_to_a_subscriber_that_never_stops_asking() -> None:
    feed = one_slice(key_bytes=2)
    subscriber, got = collected(feed)
    asking = threading.Event()
    asking.set()

    def ask() -> None:
        while asking.is_set():
            subscriber.on(b"X")(ignore)
            subscriber.off(ignore)

    def ignore(message: Any) -> None:
        raise AssertionError

    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        thread = threading.Thread(target=ask)
        thread.start()
        publisher.publish_many((b"T",), numpy.zeros(100_000, int), numpy.zeros((100_000, 100), numpy.uint8))
    asking.clear()
    thread.join()
    subscriber.run(until_end=True)
    assert len(got) == 100_000


def test_flush_returns_when_everything_is_with_zeromq() -> None:
    feed = one_slice()
    subscriber, got = collected(feed)
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        for number in range(1, 30):
            for _ in range(100):
                publisher.publish(b"T", bytes(50))
            publisher.flush()
            assert publisher.statistics().messages == 100 * number
        got.wait(2_900)
        subscriber.stop()


# Many topics.


def test_a_hundred_thousand_topics() -> None:
    feed = Feed.local("publisher", slices=2)
    subscriber = Subscriber(feed, max_lag_ns=3_600 * 10**9)
    count = 100_000
    topics = tuple(b"SYMBOL%d.trade" % number for number in range(count))
    seen: dict[bytes, int] = {}

    @subscriber.on_batch(b"")
    def note(batch: Batch) -> None:
        for row, topic in enumerate(batch.topics_per_message()):
            seen[topic] = int.from_bytes(batch.payload(row), "little")

    payloads = numpy.arange(count, dtype=numpy.int64).view(numpy.uint8).reshape(count, 8)
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        publisher.publish_many(topics, numpy.arange(count), payloads)
        assert publisher.statistics().topics == count
    subscriber.run(until_end=True)
    assert seen == {topic: number for number, topic in enumerate(topics)}
    assert subscriber.statistics().topics == count
    assert sorted(subscriber.topics(0) + subscriber.topics(1)) == sorted(topics)


def test_more_topics_than_the_limit_are_refused_and_the_rest_goes_on() -> None:
    feed = one_slice(max_topics=10)
    subscriber, got = collected(feed)
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        for number in range(10):
            publisher.publish(b"T%d" % number, b"")
        with pytest.raises(PublisherError, match="topic b'T10' did not fit: 10 topics .* max_topics = 10"):
            publisher.publish(b"T10", b"")
        with pytest.raises(PublisherError, match="max_topics = 10"):
            publisher.publish_many((b"T1", b"T11"), [0, 1], numpy.zeros((2, 1), numpy.uint8))
        publisher.publish(b"T9", b"")
    subscriber.run(until_end=True)
    assert [m.topic for m in got.messages] == [b"T%d" % number for number in [*range(10), 9]]


def test_a_subscriber_with_a_full_topic_table_still_delivers() -> None:
    feed = one_slice(max_topics=100)
    subscriber = Subscriber(msgspec.structs.replace(feed, max_topics=5))
    got = Collector()
    numbers: list[int] = []
    subscriber.on_batch(b"T")(got.batch)
    subscriber.on_batch(b"T")(lambda batch: numbers.extend(batch.topic_numbers.tolist()))
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        for number in range(40):
            publisher.publish(b"T%d" % (number % 20), b"%d" % number)
    subscriber.run(until_end=True)
    assert [int(p) for p in got.payloads] == list(range(40))
    assert set(numbers) == {-1, 0, 1, 2, 3, 4}
    statistics = subscriber.statistics()
    assert 0 < statistics.unnumbered <= statistics.blocks


# Misuse.


def test_a_port_in_use_is_named() -> None:
    feed = Feed.local("publisher", slices=2)
    with Publisher(feed):
        with pytest.raises(EndpointError) as caught, Publisher(feed):
            pass
        assert f"slice 0: endpoint {feed.slices[0].endpoints[0]} is in use" in str(caught.value)
    with Publisher(feed):  # and free again
        pass


def test_a_failed_start_frees_what_it_had_bound() -> None:
    feed = Feed.local("publisher", slices=2)
    second = msgspec.structs.replace(feed.slices[1], share=None)
    with Publisher(msgspec.structs.replace(feed, slices=(second,))), pytest.raises(EndpointError, match="slice 1"):
        Publisher(feed).start()
    with Publisher(feed):
        pass


CALLS: dict[str, Callable[[Publisher], object]] = {
    "publish": lambda publisher: publisher.publish(b"T", b"x"),
    "publish a known topic": lambda publisher: publisher.publish(b"known", b"x"),
    "publish_many": lambda publisher: publisher.publish_many((b"T",), [0], numpy.zeros((1, 1), numpy.uint8)),
    "flush": lambda publisher: publisher.flush(),
    "wait_for_subscribers": lambda publisher: publisher.wait_for_subscribers(b""),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_publisher_that_was_not_started_refuses(call: str) -> None:
    publisher = Publisher(one_slice())
    with pytest.raises(PublisherError, match="not running|closed|not started"):
        CALLS[call](publisher)
    assert publisher.statistics().messages == 0
    publisher.close()


@pytest.mark.parametrize("call", CALLS)
def test_a_publisher_that_was_closed_refuses(call: str) -> None:
    publisher = Publisher(one_slice()).start()
    publisher.publish(b"known", b"")
    publisher.close()
    with pytest.raises(PublisherError, match="not running|closed"):
        CALLS[call](publisher)
    with pytest.raises(PublisherError, match="used once"):
        publisher.start()


def test_close_ends_a_thread_that_waits_for_room() -> None:
    feed = one_slice(block_bytes=65_536)
    subscriber = Subscriber(feed, max_lag_ns=3_600 * 10**9, queue_blocks=1, hwm_blocks=1)
    gate = Gate()
    subscriber.on_batch(b"")(gate)
    publisher = Publisher(feed, when_full="wait", hwm_blocks=1).start()
    subscriber.start()
    errors: list[PublisherError] = []

    def publish() -> None:
        try:
            while True:
                publisher.publish(b"T", bytes(10_000))
        except PublisherError as error:
            errors.append(error)

    thread = threading.Thread(target=publish)
    thread.start()
    wait_until(lambda: publisher.statistics().waits > 2)
    publisher.close(timeout=0.1)
    thread.join(10)
    assert not thread.is_alive()
    assert "closed" in str(errors[0])
    gate.open.set()
    subscriber.terminate()


ROWS_2 = numpy.zeros((2, 4), numpy.uint8)
WRONG_COLUMNS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "index too large": ({"topic_index": [0, 2]}, ValueError, "topic_index ran from 0 to 2, expected 0 to 1"),
    "index below zero": ({"topic_index": [0, -1]}, ValueError, "topic_index ran from -1 to 0, expected 0 to 1"),
    "index beyond int32": ({"topic_index": numpy.array([0, 1 << 32])}, ValueError, "topic_index"),
    "index of floats": ({"topic_index": [0.0, 0.9]}, (ValueError, TypeError), "topic_index"),  # type: ignore[dict-item]
    "index in two dimensions": ({"topic_index": [[0, 1]]}, ValueError, r"topic_index had shape \(1, 2\)"),
    "too few payloads": ({"payloads": ROWS_2[:1]}, ValueError, r"payloads without offsets had shape \(1, 4\)"),
    "payloads of numbers": ({"payloads": ROWS_2.astype(int)}, ValueError, r"expected \(2, size\) of bytes"),
    "payloads in one dimension": ({"payloads": b"abcd"}, ValueError, r"expected \(2, size\) of bytes"),
    "too few offsets": (
        {"payloads": b"abcd", "offsets": [0, 4]},
        ValueError,
        r"offsets had shape \(2,\), expected \(3,\)",
    ),
    "offsets past the end": ({"payloads": b"abcd", "offsets": [0, 2, 5]}, ValueError, "outside the 4 bytes"),
    "offsets that run back": ({"payloads": b"abcd", "offsets": [0, 3, 2]}, ValueError, "outside|backwards"),
    "offsets below zero": ({"payloads": b"abcd", "offsets": [-1, 2, 3]}, ValueError, "outside|backwards"),
    "a start past the end": ({"payloads": b"ab", "offsets": [0, 2**63 - 1], "lengths": [1, 1]}, ValueError, "outside"),
    "a length without end": ({"payloads": b"ab", "offsets": [0, 1], "lengths": [1, 2**63 - 1]}, ValueError, "outside"),
    "a length below zero": (
        {"payloads": b"ab", "offsets": [0, 1], "lengths": [1, -1]},
        ValueError,
        "outside|backwards",
    ),
    "too few lengths": (
        {"payloads": b"ab", "offsets": [0, 1], "lengths": [1]},
        ValueError,
        r"lengths had shape \(1,\)",
    ),
    "too few times": ({"ts_event": [1]}, ValueError, r"ts_event had shape \(1,\), expected \(2,\)"),
    "a topic of text": ({"topics": ("A", "B")}, (TypeError, ConfigError), "topic was"),  # type: ignore[dict-item]
    "an empty topic": ({"topics": (b"A", b"")}, ConfigError, "topic was empty"),
    "a reserved topic": ({"topics": (b"A", b"\0x")}, ConfigError, "reserved"),
    "a payload of 40 MB": (
        {"payloads": numpy.zeros((2, 40 << 20), numpy.uint8)},
        ValueError,
        "a payload had 41943040 bytes",
    ),
}


@pytest.mark.parametrize("case", WRONG_COLUMNS)
def test_columns_that_do_not_fit_are_refused_and_nothing_is_published(case: str) -> None:
    changed, error, text = WRONG_COLUMNS[case]
    columns: dict[str, Any] = {"topics": (b"A", b"B"), "topic_index": [0, 1], "payloads": ROWS_2} | changed
    feed = one_slice()
    subscriber, got = collected(feed)
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        with pytest.raises(error, match=text):
            publisher.publish_many(**columns)
        publisher.publish(b"A", b"fine")
    subscriber.run(until_end=True)
    assert got.payloads == [b"fine"]


WRONG_MESSAGES: dict[str, tuple[tuple[Any, ...], Any, str]] = {
    "a topic of text": (("T", b""), TypeError, "topic was str, expected bytes"),
    "no topic": ((b"", b""), ConfigError, "topic was empty"),
    "a reserved topic": ((b"\0T", b""), ConfigError, "reserved"),
    "a topic too long": ((b"T" * 65_536, b""), ConfigError, "65536 bytes long"),
    "a payload of text": ((b"T", "text"), TypeError, "encoding|bytes"),
    "a payload of nothing": ((b"T", None), TypeError, "NoneType"),
    "a time beyond int64": ((b"T", b"", 2**63), ValueError, "ts_event was 9223372036854775808, expected an int64"),
    "a time of a large payload": ((b"T", bytes(70_000), 2**63), (ValueError, OverflowError), "int64|too large|C long"),
    "a time of text": ((b"T", b"", "now"), (ValueError, TypeError), "ts_event was 'now', expected an int64"),
}


@pytest.mark.parametrize("case", WRONG_MESSAGES)
def test_a_message_that_cannot_be_published_is_refused(case: str) -> None:
    arguments, error, text = WRONG_MESSAGES[case]
    feed = one_slice()
    subscriber, got = collected(feed)
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        with pytest.raises(error, match=text):
            publisher.publish(*arguments)
        publisher.publish(b"T", b"fine")
    subscriber.run(until_end=True)
    assert got.payloads == [b"fine"]


def test_a_topic_that_no_slice_covers_is_refused() -> None:
    local = Feed.local("publisher", slices=1)
    part = msgspec.structs.replace(local.slices[0], share=None, prefixes=("A.", "B."))
    with Publisher(msgspec.structs.replace(local, slices=(part,))) as publisher:
        publisher.publish(b"A.x", b"")
        with pytest.raises(ConfigError, match="topic b'C.x' is covered by no slice, known prefixes: 'A.' .*'B.'"):
            publisher.publish(b"C.x", b"")


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"when_full": "block"}, "when_full was 'block', expected 'drop' or 'wait'"),
        ({"hwm_blocks": 0}, "hwm_blocks was 0, expected at least 1"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Publisher(one_slice(), **settings)


def test_a_heartbeat_tells_a_quiet_publisher_from_a_dead_one() -> None:
    feed = one_slice(heartbeat_ns=20_000_000)
    subscriber, _ = collected(feed)
    with Publisher(feed) as publisher:
        subscriber.start()
        first = subscriber.statistics().last_received_ns
        wait_until(lambda: subscriber.statistics().last_received_ns > first + 100_000_000)
        assert publisher.statistics().blocks == 0
    subscriber.run(until_end=True)


def test_a_source_is_published_chunk_by_chunk() -> None:
    feed = Feed.local("publisher", slices=2, schema="itch50")
    subscriber, got = collected(feed)
    source = open_source("synthetic:30000")
    told: list[int] = []
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        assert source.publish(publisher, told.append) == 30_000
    subscriber.run(until_end=True)
    assert told[-1] == 30_000
    published = []
    for chunk in source.chunks():
        places = zip(chunk.starts.tolist(), chunk.lengths.tolist(), strict=True)
        payloads = [chunk.payloads[start : start + length].tobytes() for start, length in places]
        topics = [chunk.topics[number] for number in chunk.topic_index.tolist()]
        published += list(zip(topics, payloads, chunk.ts_event.tolist(), strict=True))
    for slice_id in (0, 1):
        arrived = [m[:3] for m in got.messages if feed.slice_of(m.topic) == slice_id]
        assert arrived == [m for m in published if feed.slice_of(m[0]) == slice_id]
