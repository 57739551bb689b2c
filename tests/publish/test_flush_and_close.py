"""Flush, close and full queues: messages are sent, or discarded, dropped and counted."""

from __future__ import annotations

import errno
import threading
from typing import Any

import numpy
import pytest

from blackbox import Publisher
from blackbox.errors import PublisherError
from blackbox.testing import wait_until
from tests.examples import first_of
from tests.publish.subscribers import collected, delivered, held_up, one_slice
from tests.receive.shared import sender_of
from tests.threads import in_threads


@pytest.mark.parametrize("in_columns", [False, True])
def test_close_gives_up_after_its_timeout_and_counts_what_it_discards(
    in_columns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    feed = one_slice(block_bytes=65_536)
    subscriber, gate = held_up(feed)
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

    with in_threads(publish):
        wait_until(lambda: publisher.statistics().waits > 5)
        publisher.close(timeout=0.2)
    statistics = publisher.statistics()
    assert 0 < statistics.discarded < published
    assert f"closed with {statistics.discarded} messages not sent" in caplog.text
    assert statistics.messages + statistics.discarded == published
    gate.open.set()
    subscriber.terminate()


def test_close_and_flush_send_everything() -> None:
    with delivered(one_slice()) as (publisher, got):
        for number in range(1, 30):
            for _ in range(100):
                publisher.publish(b"T", bytes(50))
            publisher.flush()
            assert publisher.statistics().messages == 100 * number
        publisher.publish(b"T", b"last")
        publisher.close()
        publisher.close()
    assert got.payloads == [bytes(50)] * 2_900 + [b"last"]


def test_close_warns_if_a_subscriber_had_not_read_everything(caplog: pytest.LogCaptureFixture) -> None:
    feed = one_slice(block_bytes=4_096)
    subscriber, gate = held_up(feed, workers=1, hwm_blocks=128)
    publisher = Publisher(feed, when_full="wait", hwm_blocks=1_000).start()
    subscriber.start()
    rows = numpy.zeros((40, 80), numpy.uint8)
    publisher.publish_many((b"T",), numpy.zeros(40, int), rows)
    assert gate.entered.wait(200)  # a worker that starts later takes everything that waits
    for _ in range(20):
        publisher.publish_many((b"T",), numpy.zeros(40, int), rows)
    publisher.close(timeout=0.2)
    wait_until(lambda: "slice 0: closed before 1 subscribers had received everything" in caplog.text)
    gate.open.set()
    subscriber.stop()


def test_close_loses_nothing_while_a_subscriber_keeps_changing_subscriptions() -> None:
    feed = one_slice(key_bytes=2)
    subscriber, got = collected(feed)
    over = threading.Event()

    def ask() -> None:
        while not over.is_set():
            subscriber.on(b"X")(ignore)
            subscriber.remove(ignore)

    def ignore(message: Any) -> None:
        raise AssertionError

    publisher = Publisher(feed, when_full="wait").start()
    subscriber.start()
    with in_threads(ask):
        publisher.publish_many((b"T",), numpy.zeros(20_000, int), numpy.zeros((20_000, 500), numpy.uint8))
        publisher.close()
        over.set()
    subscriber.run(until_end=True)
    assert len(got) == 20_000


def test_when_full_wait_loses_nothing_with_a_slow_subscriber() -> None:
    feed = one_slice(block_bytes=4_096)
    subscriber, gate = held_up(feed, queue_blocks=2, hwm_blocks=2)
    many = 20_000
    with Publisher(feed, when_full="wait", hwm_blocks=2) as publisher:
        subscriber.start()

        def publish() -> None:
            publisher.publish_many((b"T",), numpy.zeros(many, int), numpy.zeros((many, 1_000), numpy.uint8))
            for _ in range(many // 10):
                publisher.publish(b"T", bytes(1_000))

        with in_threads(publish) as (thread,):
            gate.entered.wait(200)
            wait_until(lambda: publisher.statistics().waits > 0)
            assert thread.is_alive()
            with pytest.raises(PublisherError, match="flush timed out: a subscriber did not keep up"):
                publisher.flush(timeout=0.1)
            gate.open.set()
        publisher.flush()
    subscriber.run(until_end=True)
    assert gate.messages == many + many // 10
    assert subscriber.statistics().received.gaps == 0
    assert publisher.statistics().discarded == 0


@pytest.mark.parametrize("is_closed_first", first_of([False, True]))
def test_when_full_drop_causes_gaps_only_at_the_slow_subscriber(is_closed_first: bool) -> None:
    """The slow subscriber also learns of its gaps if the publisher closes while its queue is full."""
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
        if is_closed_first:
            threading.Timer(0.2, gate.open.set).start()
        else:
            gate.open.set()
            wait_until(lambda: gate.messages + slow.statistics().received.gaps == messages, timeout=200)
    slow.run(until_end=True)
    quick.run(until_end=True)
    assert slow.statistics().received.gaps > 0
    assert gate.messages + slow.statistics().received.gaps == messages
    assert (quick.statistics().received.gaps, len(got), publisher.statistics().messages) == (0, messages, messages)


def test_a_flush_raises_the_error_of_a_sender_that_dropped_what_was_published() -> None:
    with Publisher(one_slice()) as publisher:
        sender_of(publisher).sent.errno = errno.EIO
        publisher.publish(b"T", b"")
        wait_until(lambda: publisher.statistics().discarded == 1)
        for call in (publisher.flush, publisher.wait_recorded):
            with pytest.raises(PublisherError, match="libzmq refused a block"):
                call()
