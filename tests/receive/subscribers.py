"""Feeds, subscribers with what they received, late messages, and a callback that does nothing."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from blackbox import Batch, Feed, Message, Publisher, SlowPolicy, Subscriber
from blackbox.errors import NotConfirmedError, SubscriberError
from blackbox.receive.supervise.supervisor import SubscriberLife
from blackbox.testing import Collector, RawPublisher, wait_until
from tests.gate import Gate

SECOND_NS = 10**9
_PATIENT_NS = 100 * SECOND_NS
"""Lag limit in these tests: more than a busy machine ever takes."""
LATE_NS = 5 * _PATIENT_NS
PATIENT = SlowPolicy(max_lag=_PATIENT_NS / 1e9)
"""A stalled busy machine must not end a subscriber in tests that are not about lag."""


in_both_places = pytest.mark.parametrize("worker", [False, True], ids=["in the slice thread", "on a worker"])
"""Thread of a compiled callback."""


def sliced(slices: int, **settings: Any) -> Feed:
    """Return a feed on this machine that is patient about lag."""
    made = {name: settings.pop(name) for name in ("lines", "transport") if name in settings}
    local = Feed.local("subscriber", slices=slices, **made)
    return msgspec.structs.replace(local, **{"max_lag_ns": _PATIENT_NS} | settings)


def one_slice(**settings: Any) -> Feed:
    return sliced(1, **settings)


def two_line_feed(**settings: Any) -> Feed:
    """Return a feed whose lines never count as dead."""
    return one_slice(**{"lines": 2, "heartbeat_ns": 60 * SECOND_NS} | settings)


def topic_of_each(feed: Feed) -> list[bytes]:
    """Return a topic of each slice."""
    topics = [b"S%d.t" % number for number in range(100)]
    return [next(topic for topic in topics if feed.slice_of(topic) == each) for each in range(len(feed.slices))]


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


@contextmanager
def published(feed: Feed, *subscribers: Subscriber, **settings: Any) -> Iterator[Publisher]:
    """Start subscribers with a publisher that waits for them. After the block all end, and everything is delivered."""
    with Publisher(feed, **{"when_full": "wait"} | settings) as publisher:
        for each in subscribers:
            each.start()
        yield publisher
    for each in subscribers:
        each.run(until_end=True)


class CollectingGate(Gate):
    """A gate that also collects the messages."""

    def __init__(self) -> None:
        super().__init__()
        self.got = Collector()

    def message(self, message: Message) -> None:
        super().message(message)
        self.got.message(message)

    def batch(self, batch: Batch) -> None:
        super().batch(batch)
        self.got.batch(batch)


def end_at(gate: Gate, subscriber: Subscriber, end: Callable[[Subscriber], None]) -> None:
    """End a subscriber whose callback waits at a gate, which opens once the end has begun."""
    with ThreadPoolExecutor(1) as pool:
        ending = pool.submit(end, subscriber)
        wait_until(lambda: subscriber.state is SubscriberLife.STOPPING)
        gate.open.set()
        ending.result(200)


def late(publisher: RawPublisher, text: bytes, lag_ns: int = LATE_NS, topic: bytes = b"T") -> None:
    """Send a message stamped as sent `lag_ns` ago."""
    publisher.send(publisher.encode([(topic, text)], ts_out=time.time_ns() - lag_ns))


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
    with publishing(feed, subscriber) as publisher:
        for rows in blocks:
            publisher.send(publisher.encode(rows))


def start_in_vain(subscriber: Subscriber) -> None:
    """Start a subscriber that another thread ends."""
    with pytest.raises(SubscriberError, match="ended before its subscriptions were confirmed"):
        subscriber.start(150)


def numbers_of(got: Collector) -> list[int]:
    return [int(payload) for payload in got.payloads]


def nothing(_: Any) -> None:
    pass
