"""A slow subscriber makes the publisher wait, or misses messages and reports how many."""

from __future__ import annotations

import threading

import numpy
import pytest

from blackbox import Publisher
from blackbox.errors import PublisherError
from blackbox.testing import wait_until
from tests.publish.subscribers import collected, held_up, one_slice


def test_when_full_wait_loses_nothing_with_a_slow_subscriber() -> None:
    feed = one_slice(block_bytes=4_096)
    subscriber, gate = held_up(feed, queue_blocks=2, hwm_blocks=2)
    many = 60_000
    with Publisher(feed, when_full="wait", hwm_blocks=2) as publisher:
        subscriber.start()
        done = threading.Event()

        def publish() -> None:
            publisher.publish_many((b"T",), numpy.zeros(many, int), numpy.zeros((many, 1_000), numpy.uint8))
            for _ in range(many // 10):
                publisher.publish(b"T", bytes(1_000))
            done.set()

        thread = threading.Thread(target=publish)
        thread.start()
        gate.entered.wait(60)
        wait_until(lambda: publisher.statistics().waits > 0)
        assert not done.is_set()
        with pytest.raises(PublisherError, match="flush timed out: a subscriber did not keep up"):
            publisher.flush(timeout=0.1)
        gate.open.set()
        thread.join()
        publisher.flush()
    subscriber.run(until_end=True)
    assert gate.messages == many + many // 10
    assert subscriber.statistics().received.gaps == 0
    assert publisher.statistics().discarded == 0


def test_when_full_drop_causes_gaps_only_at_the_slow_subscriber() -> None:
    feed = one_slice(block_bytes=65_536, heartbeat_ns=20_000_000)
    slow, gate = held_up(feed)
    quick, got = collected(feed)
    messages = 0
    with Publisher(feed, when_full="drop", hwm_blocks=200) as publisher:
        slow.start()
        quick.start()
        payloads = numpy.zeros((65, 1_000), numpy.uint8)
        while messages < 65 * 1_000:  # 65 MB: more than the sockets' buffers and the slow subscriber's queue hold
            messages += publisher.publish_many((b"T",), numpy.zeros(65, int), payloads)
            publisher.flush()
            got.wait(messages)
        gate.open.set()
        wait_until(lambda: gate.messages + slow.statistics().received.gaps == messages, timeout=60)
        quick.stop()
        slow.stop()
    assert quick.statistics().received.gaps == 0
    assert slow.statistics().received.gaps > 0
    assert len(got) == messages
    assert publisher.statistics().messages == messages
