"""Idle slices sleep at once, or spin first."""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy
import pytest

from blackbox import Feed, Publisher
from blackbox.testing import wait_until
from blackbox.transport.shared_memory.layout import Slot
from tests.process_state import linux_only
from tests.receive.shared import sender_of
from tests.receive.subscribers import _PATIENT_NS, numbers_of, subscribed


def spinning(transport: Literal["tcp", "shm"]) -> Feed:
    feed = Feed.local("idle", slices=1, transport=transport)
    part = msgspec.structs.replace(feed.slices[0], idle="spin")
    return msgspec.structs.replace(feed, slices=(part,), max_lag_ns=_PATIENT_NS, linger_ns=0)


@pytest.mark.parametrize("transport", ["tcp", pytest.param("shm", marks=linux_only)])
def test_spinning_slices_deliver_everything_and_sleep_without_messages(transport: Literal["tcp", "shm"]) -> None:
    feed = Feed.local("idle", slices=1, transport=transport)
    part = msgspec.structs.replace(feed.slices[0], idle="spin")
    feed = msgspec.structs.replace(feed, slices=(part,), max_lag_ns=_PATIENT_NS, linger_ns=0)
    subscriber, got = subscribed(feed, workers=0)
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        for number in range(200):
            publisher.publish(b"T", b"%d" % number)
            if number % 10 == 0:
                got.wait(number + 1)
        got.wait(200)
        sender = sender_of(publisher)
        if (shared := sender.sockets.shared) is not None:
            start = shared.at.layout.slots
            slot = Slot(numpy.frombuffer(shared._memory, numpy.uint8, Slot.dtype.itemsize, start))
            wait_until(lambda: slot.sleeping and sender.ring.state.sleeping, what="both sides sleep")
            publisher.publish(b"T", b"200")
    subscriber.run(until_end=True)
    assert numbers_of(got) == list(range(200 + (transport == "shm")))
    assert subscriber.statistics().received.transport == transport
