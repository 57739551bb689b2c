"""Messages of every size arrive complete and in published order."""

from __future__ import annotations

import random
import threading
from typing import Any

import numpy

from blackbox import Feed, Message, Publisher, SlowPolicy, Subscriber
from blackbox.publish.ring import MAX_PAYLOAD_BYTES
from blackbox.publish.slice_sender import RING_BYTES
from tests.publish.subscribers import collected, one_slice


def test_each_message_arrives_as_it_was_published() -> None:
    feed = one_slice()
    subscriber, got = collected(feed)
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        publisher.publish(b"A", b"", ts_event=0)
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


def test_a_payload_larger_than_a_block_gets_its_own_block() -> None:
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


def test_any_buffer_can_be_a_payload() -> None:
    feed = Feed.local("buffers", slices=1)
    subscriber = Subscriber(feed, slow=SlowPolicy("warn"))
    messages: list[Message] = []
    subscriber.on(b"")(messages.append)
    arrays = [numpy.array(values, numpy.uint8) for values in ([], [0], [1, 2, 3])]
    buffers: list[Any] = [b"abc", bytearray(b"abc"), memoryview(b"abc"), memoryview(b""), *arrays, numpy.arange(2)]
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        for buffer in buffers:
            publisher.publish(b"A", buffer)
    subscriber.run(until_end=True)
    assert [message.payload for message in messages] == [bytes(buffer) for buffer in buffers]
