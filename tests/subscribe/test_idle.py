"""Idle slices sleep at once, or spin first."""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy
import pytest

from blackbox import Feed, Publisher, Subscriber
from blackbox.testing import Collector, wait_until
from blackbox.transport.shared_memory import Slot
from tests.process_state import linux_only
from tests.subscribe.shared import sender_of
from tests.subscribe.subscribers import _PATIENT_NS, numbers_of


def spinning(transport: Literal["tcp", "shm"]) -> Feed:
    feed = Feed.local("idle", slices=1, transport=transport)
    part = msgspec.structs.replace(feed.slices[0], idle="spin")
    return msgspec.structs.replace(feed, slices=(part,), max_lag_ns=_PATIENT_NS, linger_ns=0)


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_spinning_slices_deliver_everything_and_end(transport: Literal["tcp", "shm"]) -> None:
    feed = spinning(transport)
    subscriber, got = Subscriber(feed, workers=0), Collector()
    subscriber.on(b"")(got.message)
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        for number in range(1_000):
            publisher.publish(b"T", b"%d" % number)
            if number % 10 == 0:
                got.wait(number + 1)
    subscriber.run(until_end=True)
    assert numbers_of(got) == list(range(1_000))
    assert subscriber.statistics().received.transport == transport


@linux_only
def test_spinning_slices_sleep_without_messages() -> None:
    feed = spinning("shm")
    subscriber, got = Subscriber(feed), Collector()
    subscriber.on(b"")(got.message)
    with Publisher(feed) as publisher:
        subscriber.start()
        publisher.publish(b"T", b"1")
        got.wait(1)
        sender = sender_of(publisher)
        shared = sender.guard.shared
        assert shared is not None
        start = shared.at.layout.slots
        slot = Slot(numpy.frombuffer(shared._memory, numpy.uint8, Slot.dtype.itemsize, start))
        wait_until(lambda: slot.sleeping and sender.ring.state.sleeping, what="both sides sleep")
        publisher.publish(b"T", b"2")
        got.wait(2)
    subscriber.run(until_end=True)
