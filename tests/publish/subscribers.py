"""Feeds of one slice, and subscribers that collect or block what arrives."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from blackbox import Feed, Publisher, SlowPolicy, Subscriber
from blackbox.testing import Collector
from tests.gate import Gate


def one_slice(**settings: Any) -> Feed:
    return msgspec.structs.replace(Feed.local("publisher", slices=1), **settings)


def collected(feed: Feed, prefix: bytes = b"", **settings: Any) -> tuple[Subscriber, Collector]:
    subscriber = Subscriber(feed, slow=SlowPolicy(max_lag=3_600), **settings)
    got = Collector()
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


def held_up(feed: Feed, queue_blocks: int = 1, hwm_blocks: int = 1) -> tuple[Subscriber, Gate]:
    """Return a subscriber with short queues and a callback that blocks at a gate."""
    subscriber = Subscriber(feed, slow=SlowPolicy(max_lag=3_600), queue_blocks=queue_blocks, hwm_blocks=hwm_blocks)
    gate = Gate()
    subscriber.on_batch(b"")(gate.batch)
    return subscriber, gate
