"""Feeds of one slice, and subscribers that collect or block what arrives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from blackbox import Feed, Publisher, SlowPolicy, Subscriber
from blackbox.publish.listeners.peers import PeerStatistics
from blackbox.testing import Collector
from tests.gate import Gate

NUMBERS = [b"%d" % number for number in range(100)]


def one_slice(**settings: Any) -> Feed:
    local = Feed.local("publisher", slices=1, transport=settings.pop("transport", "tcp"))
    return msgspec.structs.replace(local, **settings)


def collected(feed: Feed, *prefixes: bytes, **settings: Any) -> tuple[Subscriber, Collector]:
    subscriber = Subscriber(feed, slow=SlowPolicy(max_lag=3_600), **settings)
    got = Collector()
    for prefix in prefixes or (b"",):
        subscriber.on_batch(prefix)(got.batch)
    return subscriber, got


@contextmanager
def delivered(feed: Feed, prefix: bytes = b"", **settings: Any) -> Iterator[tuple[Publisher, Collector]]:
    """Yield a publisher, and what its subscriber has received after the `with` block, without a gap."""
    subscriber, got = collected(feed, prefix)
    with Publisher(feed, **{"when_full": "wait"} | settings) as publisher:
        subscriber.start()
        yield publisher, got
    subscriber.run(until_end=True)
    received = subscriber.statistics().received
    assert (received.gaps, received.duplicates, received.stale) == (0, 0, 0)


def serves(publisher: Publisher, feed: Feed, topic: bytes = b"T", payloads: Sequence[bytes] = NUMBERS) -> None:
    """Check that a new subscriber is confirmed and receives what is published next."""
    subscriber, got = collected(feed, topic)
    with subscriber.start(timeout=200):
        for payload in payloads:
            publisher.publish(topic, payload)
        got.wait(len(payloads), 60)
    assert got.payloads == [*payloads]
    assert subscriber.statistics().received.gaps == 0


def of(publisher: Publisher, address: str) -> PeerStatistics:
    """Return the statistics of a connection."""
    (found,) = [each for each in publisher.statistics().peers if each.address == address]
    return found


def held_up(feed: Feed, **settings: Any) -> tuple[Subscriber, Gate]:
    """Return a subscriber with short queues and a callback that blocks at a gate."""
    settings = {"queue_blocks": 1, "hwm_blocks": 1} | settings
    subscriber, gate = Subscriber(feed, slow=SlowPolicy(max_lag=3_600), **settings), Gate()
    subscriber.on_batch(b"")(gate.batch)
    return subscriber, gate
