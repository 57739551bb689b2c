"""Flush and close: published messages are sent, or discarded and counted."""

from __future__ import annotations

import logging
import threading
from typing import Any

import numpy
import pytest

from blackbox import Publisher, SlowPolicy, Subscriber
from blackbox.errors import PublisherError
from blackbox.testing import wait_until
from tests.gate import Gate
from tests.publish.subscribers import collected, held_up, one_slice


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

    thread = threading.Thread(target=publish)
    thread.start()
    wait_until(lambda: publisher.statistics().waits > 5)
    with caplog.at_level(logging.WARNING, "blackbox"):
        publisher.close(timeout=0.2)
    thread.join()
    statistics = publisher.statistics()
    assert 0 < statistics.discarded < published
    assert f"closed with {statistics.discarded} messages not sent" in caplog.text
    assert statistics.messages + statistics.discarded == published
    gate.open.set()
    subscriber.terminate()


def test_close_sends_what_was_published_and_announces_the_end() -> None:
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


def test_close_announces_the_end_to_a_subscriber_with_a_full_queue() -> None:
    feed = one_slice(block_bytes=65_536)
    slow, gate = held_up(feed)
    messages = 0
    with Publisher(feed, when_full="drop", hwm_blocks=2) as publisher:
        slow.start()
        while messages < 65 * 1_000:  # more than the sockets' buffers hold
            messages += publisher.publish_many((b"T",), numpy.zeros(65, int), numpy.zeros((65, 1_000), numpy.uint8))
            publisher.flush()
        threading.Timer(0.2, gate.open.set).start()
    slow.run(until_end=True)
    assert slow.statistics().received.gaps > 0
    assert gate.messages + slow.statistics().received.gaps == messages


def test_close_warns_if_a_subscriber_had_not_read_everything(caplog: pytest.LogCaptureFixture) -> None:
    feed = one_slice(block_bytes=4_096)
    gate = Gate()
    subscriber = Subscriber(feed, workers=1, queue_blocks=1, slow=SlowPolicy(max_lag=3_600))
    subscriber.on_batch(b"")(gate.batch)
    publisher = Publisher(feed, when_full="wait", hwm_blocks=1_000).start()
    subscriber.start()
    rows = numpy.zeros((40, 80), numpy.uint8)
    publisher.publish_many((b"T",), numpy.zeros(40, int), rows)
    assert gate.entered.wait(60)  # a worker that starts later takes everything that waits
    for _ in range(20):
        publisher.publish_many((b"T",), numpy.zeros(40, int), rows)
    with caplog.at_level(logging.WARNING, "blackbox"):
        publisher.close(timeout=0.2)
        wait_until(
            lambda: "slice 0: closed before 1 subscribers had received everything" in caplog.text, what="it said so"
        )
    gate.open.set()
    subscriber.stop()


def test_close_loses_nothing_while_a_subscriber_keeps_changing_subscriptions() -> None:
    feed = one_slice(key_bytes=2)
    subscriber, got = collected(feed)
    asking = threading.Event()
    asking.set()

    def ask() -> None:
        while asking.is_set():
            subscriber.on(b"X")(ignore)
            subscriber.remove(ignore)

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


def test_close_ends_a_publishing_thread_that_waits_for_room() -> None:
    feed = one_slice(block_bytes=65_536)
    subscriber, gate = held_up(feed)
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
    thread.join(60)
    assert not thread.is_alive()
    assert "closed" in str(errors[0])
    gate.open.set()
    subscriber.terminate()
