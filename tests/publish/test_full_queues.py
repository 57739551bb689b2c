"""Effects of a peer with a full queue that has stopped reading, on others and itself, with `when_full="wait"`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count

import numpy
import pytest
import zmq

from blackbox import Feed, Publisher
from blackbox.block.form.format import CONFIRM_KEY
from blackbox.errors import NotConfirmedError, PublisherError
from blackbox.publish.send.confirm_subscribers import SURELY_S
from blackbox.testing import wait_until
from tests.publish.subscribers import collected, one_slice, serves
from tests.receive.shared import sender_of

TOPIC = b"AAAA.x"
PAYLOADS = numpy.zeros((50, 1_000), numpy.uint8)


def put_block(publisher: Publisher) -> None:
    publisher.publish_many((TOPIC,), numpy.zeros(len(PAYLOADS), int), PAYLOADS)


@contextmanager
def peer(feed: Feed, publisher: Publisher) -> Iterator[zmq.Socket[bytes]]:
    with zmq.Context() as context, context.socket(zmq.SUB) as sub:
        sub.rcvhwm, sub.linger = 1, 0
        sub.subscribe(TOPIC[: feed.key_bytes])
        sub.connect(feed.slices[0].endpoints[0])
        publisher.wait_for_subscribers(TOPIC)
        yield sub


def feed_of(key_bytes: int = 0) -> Feed:
    """Return a feed over ipc, whose buffers do not grow: the number of blocks that fit is constant."""
    return one_slice(transport="ipc", key_bytes=key_bytes, block_bytes=65_536, heartbeat_ns=60_000_000_000)


@contextmanager
def publishing(feed: Feed) -> Iterator[Publisher]:
    publisher = Publisher(feed, when_full="wait", hwm_blocks=2).start()
    try:
        yield publisher
    finally:
        publisher.close(timeout=0.1)


@cache
def blocks_that_fit(key_bytes: int) -> int:
    feed = feed_of(key_bytes)
    with publishing(feed) as publisher, peer(feed, publisher):
        for blocks in count():
            put_block(publisher)
            try:
                publisher.flush(timeout=4.0)
            except PublisherError:
                return blocks
    raise AssertionError


@contextmanager
def beside_a_full_queue(key_bytes: int = 0) -> Iterator[tuple[Feed, Publisher, zmq.Socket[bytes], int]]:
    """Yield a feed, its publisher, a peer with a full queue, and the number of blocks in that queue."""
    many, feed = blocks_that_fit(key_bytes), feed_of(key_bytes)
    with publishing(feed) as publisher, peer(feed, publisher) as sub:
        for _ in range(many):
            put_block(publisher)
        publisher.flush()
        yield feed, publisher, sub, many


def test_a_new_subscriber_costs_it_no_message() -> None:
    """libzmq skips a queue that has dropped anything until it has room again, so a confirmation waits too."""
    with beside_a_full_queue() as (feed, publisher, sub, many):
        subscriber, _ = collected(feed)
        with pytest.raises(NotConfirmedError):
            subscriber.start(timeout=2.0)
        sub.rcvtimeo = 60_000
        publisher.publish(TOPIC, b"last")
        bodies = [sub.recv_multipart()[2] for _ in range(many + 1)]
        assert b"last" in bodies[-1]


def test_it_blocks_neither_new_subscribers_nor_other_keys() -> None:
    with beside_a_full_queue(key_bytes=4) as (feed, publisher, sub, _):
        sub.subscribe(CONFIRM_KEY + bytes(8))  # it requests a confirmation without having room for it
        asked = sender_of(publisher).subscriptions.confirmations.asked
        late_s = SURELY_S + 0.2
        wait_until(lambda: any(time.monotonic() - ask.since > late_s for ask in [*asked.values()]), what="a late ask")
        for _ in range(3):
            serves(publisher, feed, b"BBBB.x", [b""])
            publisher.flush()


def test_a_new_epoch_begins_without_it_after_the_timeout() -> None:
    with beside_a_full_queue() as (_, publisher, _, _):
        first, waits = publisher.epoch, publisher.statistics().waits
        publisher.new_epoch(timeout=0.5)
        assert publisher.epoch == first + 1
        assert publisher.statistics().waits > waits


def test_skipped_messages_wait_for_it_as_blocks_do() -> None:
    with beside_a_full_queue() as (_, publisher, _, _):
        waits = publisher.statistics().waits
        publisher.skip(1)
        wait_until(lambda: publisher.statistics().waits > waits, what="a wait is counted")
