"""Feeds of one slice, subscribers with what they received, and a callback that does nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from blackbox import Feed, SlowPolicy, Subscriber
from blackbox.errors import NotConfirmedError, SubscriberError
from blackbox.testing import Collector, RawPublisher

_PATIENT_NS = 60_000_000_000
PATIENT = SlowPolicy(max_lag=_PATIENT_NS / 1e9)
"""A stalled busy machine must not end a subscriber in tests that are not about lag."""


in_both_places = pytest.mark.parametrize("worker", [False, True], ids=["in the slice thread", "on a worker"])
"""Thread of a compiled callback."""


def one_slice(**settings: Any) -> Feed:
    return msgspec.structs.replace(Feed.local("subscriber", slices=1), **{"max_lag_ns": _PATIENT_NS} | settings)


def subscribed(feed: Feed, *prefixes: bytes, **settings: Any) -> tuple[Subscriber, Collector]:
    """Return a patient subscriber that collects the messages of some prefixes, by default all messages."""
    subscriber, got = Subscriber(feed, **{"slow": PATIENT} | settings), Collector()
    for prefix in prefixes or (b"",):
        subscriber.on(prefix)(got.message)
    return subscriber, got


@contextmanager
def publishing(feed: Feed, subscriber: Subscriber, epoch: int = 1) -> Iterator[RawPublisher]:
    """Start a subscriber with a raw publisher. After the block both end, and everything is delivered."""
    with RawPublisher(feed, epoch) as publisher:
        subscriber.start()
        yield publisher
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)


def error_of_start(make: Callable[[], Any], expected: str) -> Any:
    """Start new subscribers until the error has the `expected` text; return the last one.

    Each gets more time: on a busy machine the reason may arrive late.
    """
    for seconds in (0.5, 5.0, 60.0):
        made = make()
        with pytest.raises(NotConfirmedError) as caught:
            made.start(timeout=seconds)
        if re.search(expected, str(caught.value)):
            return made
    raise AssertionError(f"the last error was {caught.value}, expected {expected}")


def deliver(subscriber: Subscriber, feed: Feed, *blocks: Sequence[tuple[bytes, bytes]]) -> None:
    """Run a subscriber to the end of a publisher that sends these blocks to slice 0."""
    with RawPublisher(feed) as publisher:
        subscriber.start()
        for rows in blocks:
            publisher.send(publisher.encode(rows))
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)


def start_in_vain(subscriber: Subscriber) -> None:
    """Start a subscriber that another thread ends."""
    with pytest.raises(SubscriberError, match="ended before its subscriptions were confirmed"):
        subscriber.start(150)


def numbers_of(got: Collector) -> list[int]:
    return [int(payload) for payload in got.payloads]


def nothing(_: Any) -> None:
    pass
