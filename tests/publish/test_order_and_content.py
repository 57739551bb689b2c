"""Messages of every size, topic and thread arrive complete, in published order, and in few blocks."""

from __future__ import annotations

import random
import signal
import time
from functools import partial
from typing import Any

import msgspec
import numpy

from blackbox import Batch, Feed, Publisher
from blackbox.publish.send.packers import MAX_PAYLOAD_BYTES
from blackbox.publish.send.slice_sender import RING_BYTES
from tests.publish.subscribers import collected, delivered, one_slice
from tests.receive.shared import sender_of
from tests.support import in_child
from tests.threads import in_threads


def test_each_message_arrives_as_it_was_published() -> None:
    arrays = [numpy.array(values, numpy.uint8) for values in ([], [0], [1, 2, 3])]
    buffers: list[Any] = [bytearray(b"abc"), memoryview(b"abc"), memoryview(b""), *arrays]
    buffers += [numpy.arange(2), numpy.arange(20_000), numpy.arange(6)[::2]]
    with delivered(one_slice()) as (publisher, got):
        publisher.publish(b"A", b"", ts_event=0)
        publisher.publish(b"A.b", b"payload", ts_event=-(2**63))
        publisher.publish(b"\xff\0", bytes(range(256)), ts_event=2**63 - 1)
        for number, buffer in enumerate(buffers):
            publisher.publish(b"A", buffer, number)
    assert [(m.topic, m.payload, m.ts_event) for m in got.messages] == [
        (b"A", b"", 0),
        (b"A.b", b"payload", -(2**63)),
        (b"\xff\0", bytes(range(256)), 2**63 - 1),
        *((b"A", bytes(buffer), number) for number, buffer in enumerate(buffers)),
    ]


def test_single_messages_and_columns_keep_the_order_in_which_they_were_published() -> None:
    choice = random.Random(1)
    topics = tuple(b"T%d" % number for number in range(20))
    number = 0
    with delivered(one_slice(block_bytes=4_096)) as (publisher, got):
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
    assert [int(p) for p in got.payloads] == list(range(number))
    assert [m.sequence for m in got.messages] == list(range(number))


def test_the_ring_wraps_around_with_payloads_of_every_size() -> None:
    choice = random.Random(2)
    sizes = [0, 1, 7, 8, 9, 100, 4_000, 30_000, 200_000, *(MAX_PAYLOAD_BYTES + n for n in (-1, 0, 1))]
    text = choice.randbytes(max(sizes))
    expected = []
    with delivered(one_slice()) as (publisher, got):
        total = 0
        while total < 3 * RING_BYTES:
            size = choice.choice(sizes)
            expected.append(text[:size])
            publisher.publish(b"T%d" % (size % 3), text[:size], ts_event=len(expected))
            total += size
    assert got.payloads == expected
    assert [m.ts_event for m in got.messages] == list(range(1, len(expected) + 1))


def test_a_payload_larger_than_a_block_gets_its_own_block() -> None:
    large = numpy.random.default_rng(1).integers(0, 256, 5_000_000, numpy.uint8).tobytes()
    with delivered(one_slice(block_bytes=4_096)) as (publisher, got):
        for payload in (b"before", large, b"after"):
            publisher.publish(b"T", payload)
        publisher.publish_many((b"T",), [0, 0], large, offsets=[0, 10, len(large)])
    assert got.payloads == [b"before", large, b"after", large[:10], large[10:]]


# Blocks


def test_a_burst_takes_few_blocks_and_a_lone_message_is_sent_at_once() -> None:
    feed = one_slice()
    with delivered(feed) as (publisher, got):
        publisher.publish(b"T", b"alone")
        got.wait(1)
        publisher.flush()  # messages are counted after they are sent
        assert publisher.statistics().blocks == 1
        publisher.publish_many((b"T",), numpy.zeros(10_000, int), numpy.zeros((10_000, 84), numpy.uint8))
        publisher.flush()
        assert publisher.statistics().blocks - 1 == -(-10_000 * 100 // feed.block_bytes)
        assert publisher.statistics().body_bytes < 10_001 * 100


def test_linger_gathers_single_messages_into_one_block() -> None:
    with delivered(one_slice(linger_ns=1_000_000_000)) as (publisher, got):
        began = time.monotonic()
        for number in range(50):
            publisher.publish(b"T", b"%d" % number)
        took_s = time.monotonic() - began
        got.wait(50)
        assert publisher.statistics().blocks <= 2 + int(took_s)  # one at once, then one a second


def test_a_full_block_does_not_linger() -> None:
    with delivered(one_slice(linger_ns=1_000_000_000, block_bytes=4_096)) as (publisher, got):
        late = 0
        for block in range(1, 81):
            began = time.monotonic()
            for number in range(50):
                publisher.publish(b"T", bytes(100), number)
            got.wait(35 * block)  # less than a block may wait for more
            late += time.monotonic() - began > 0.8
        assert late < 40, "it would linger for a second each time"


# Threads and processes


def test_publish_and_publish_many_from_threads_keep_each_thread_s_order() -> None:
    each, threads = 10_000, 4

    def one_by_one(number: int) -> None:
        for i in range(each):
            publisher.publish(b"%d" % number, b"%d" % i)

    def together() -> None:
        for start in range(0, each, 100):
            payloads = b"".join(b"%6d" % i for i in range(start, start + 100))
            rows = numpy.frombuffer(payloads, numpy.uint8).reshape(100, 6)
            publisher.publish_many((b"many",), numpy.zeros(100, numpy.int32), rows)

    with (
        delivered(Feed.local("publisher", slices=2)) as (publisher, got),
        in_threads(together, *(partial(one_by_one, number) for number in range(threads))),
    ):
        pass
    found: dict[bytes, list[int]] = {}
    for message in got.messages:
        found.setdefault(message.topic, []).append(int(message.payload))
    assert found == {name: list(range(each)) for name in (b"0", b"1", b"2", b"3", b"many")}
    assert publisher.statistics().messages == 5 * each


def test_a_writer_waits_while_another_has_its_turn() -> None:
    with delivered(one_slice()) as (publisher, got):
        ring = sender_of(publisher).ring
        del ring.turn
        with in_threads(lambda: publisher.publish(b"T", b"x")) as (thread,):
            thread.join(0.05)
            assert thread.is_alive()
            ring.turn = None
    assert got.payloads == [b"x"]


class InterruptError(Exception):
    """Raised instead of Ctrl-C."""


def test_the_turn_is_released_after_interrupts_anywhere_in_publish() -> None:
    """A signal handler raises at hundreds of moments: messages put are sent, and the next call can publish."""

    def interrupt(*_: object) -> None:
        raise InterruptError

    before = signal.signal(signal.SIGALRM, interrupt)
    put, interrupts = 0, 0
    try:
        with Publisher(one_slice(), when_full="wait") as publisher:
            publisher.publish(b"T", b"x")
            put = 1
            ring = sender_of(publisher).ring
            for number in range(400):
                try:
                    signal.setitimer(signal.ITIMER_REAL, 0.0002 + number * 1e-6)
                    while True:
                        publisher.publish(b"T", b"x")
                        put += 1
                except InterruptError:
                    interrupts += 1
                assert ring.turn is None
            publisher.publish(b"T", b"x")
            publisher.flush()
            statistics = publisher.statistics()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    # An interrupt after the message was put, or before it was counted here, may leave it uncounted but never loses it.
    assert put + 1 <= statistics.unwanted <= put + 1 + interrupts
    assert interrupts == 400


def test_publish_in_a_forked_process_is_an_error_and_the_parent_goes_on() -> None:
    rows = numpy.full((1, 1), ord("2"), numpy.uint8)
    with delivered(one_slice(), when_full="drop") as (publisher, got):
        publisher.publish(b"T", b"1")
        publisher.publish_many((b"T",), numpy.zeros(1, int), rows)
        for work in (
            lambda: publisher.publish(b"T", b"lost"),
            lambda: publisher.publish_many((b"T",), numpy.zeros(1, int), rows),
            publisher.flush,
            publisher.wait_for_subscribers,
        ):
            assert in_child(work).startswith("PublisherError: feed 'publisher': the publisher is of process ")
        assert in_child(publisher.close) == ""
        publisher.publish(b"T", b"3")
    assert got.payloads == [b"1", b"2", b"3"]


def test_a_publisher_made_before_a_fork_can_be_started_in_the_child() -> None:
    feed = one_slice()
    publisher = Publisher(feed)

    def work() -> None:
        subscriber, got = collected(feed)
        with publisher, subscriber:
            publisher.publish(b"T", b"1")
            got.wait(1)

    assert in_child(work) == ""


# Topics


def test_a_subscriber_with_a_full_topic_table_still_delivers() -> None:
    feed = one_slice(max_topics=100)
    subscriber, got = collected(msgspec.structs.replace(feed, max_topics=5))
    numbers: list[int] = []

    @subscriber.on_batch(b"T")
    def _(batch: Batch) -> None:
        numbers.extend(batch.topic_numbers.tolist())

    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        for number in range(40):
            publisher.publish(b"T%d" % (number % 20), b"%d" % number)
    subscriber.run(until_end=True)
    assert [int(p) for p in got.payloads] == list(range(40))
    assert set(numbers) == {-1, 0, 1, 2, 3, 4}
    statistics = subscriber.statistics()
    assert 0 < statistics.delivery.unnumbered <= statistics.received.blocks
