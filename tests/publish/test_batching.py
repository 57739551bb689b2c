"""How many messages share a block, and how long a message waits for others?"""

from __future__ import annotations

import time

import numpy

from blackbox import Publisher
from tests.publish.subscribers import collected, one_slice


def test_a_burst_takes_few_blocks_and_a_lone_message_is_sent_at_once() -> None:
    feed = one_slice()
    subscriber, got = collected(feed)
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        publisher.publish(b"T", b"alone")
        got.wait(1)
        publisher.flush()  # messages are counted after they are sent
        assert publisher.statistics().blocks == 1
        publisher.publish_many((b"T",), numpy.zeros(10_000, int), numpy.zeros((10_000, 84), numpy.uint8))
        publisher.flush()
        blocks = publisher.statistics().blocks - 1
        assert blocks == -(-10_000 * 100 // feed.block_bytes)
        assert publisher.statistics().body_bytes < 10_001 * 100
        subscriber.stop()


def test_linger_gathers_single_messages_into_one_block() -> None:
    feed = one_slice(linger_ns=1_000_000_000)
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
        for block in range(1, 81):
            for number in range(50):
                publisher.publish(b"T", bytes(100), number)
            got.wait(35 * block)  # less than a block may wait for more
        assert time.monotonic() - started < 60, "80 times to linger would take 80 s"
        subscriber.stop()
