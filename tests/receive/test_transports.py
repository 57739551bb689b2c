"""Every transport carries everything; idle slices sleep at once, or spin first."""

from __future__ import annotations

import errno
import socket
from typing import Literal

import msgspec
import numpy
import pytest

from blackbox import Feed, Subscriber
from blackbox.feed.endpoint import _free_ports
from blackbox.feed.slice import Slice
from blackbox.services.monitor.heartbeats import Heartbeats
from blackbox.testing import Collector, wait_until
from blackbox.transport.shared_memory.layout import Slot
from tests.process_state import linux_only
from tests.receive.shared import sender_of
from tests.receive.subscribers import PATIENT, numbers_of, one_slice, published, sliced, subscribed


@pytest.mark.parametrize("transport", ["tcp", "ipc", "inproc", pytest.param("shm", marks=linux_only)])
def test_every_transport_carries_everything_on_two_lines(transport: Literal["tcp", "ipc", "inproc", "shm"]) -> None:
    feed = sliced(2, transport=transport, lines=2, key_bytes=2)
    subscriber, got = Subscriber(feed, slow=PATIENT), Collector()
    subscriber.on_batch(b"S1")(got.batch)
    with published(feed, subscriber) as publisher:
        topics = tuple(b"S%d" % number for number in range(30))
        payloads = numpy.arange(6_000).reshape(-1, 1).view(numpy.uint8)
        publisher.publish_many(topics, numpy.arange(6_000) % 30, payloads)
        for number in range(1_000):
            publisher.publish(topics[number % 30], (6_000 + number).to_bytes(8, "little"))
    numbers = sorted(int.from_bytes(payload, "little") for payload in got.payloads)
    wanted = [n for n in range(6_000) if str(n % 30).startswith("1")]
    wanted += [6_000 + n for n in range(1_000) if str(n % 30).startswith("1")]
    assert numbers == wanted
    received = subscriber.statistics().received
    assert (received.gaps, received.transport) == (0, transport)
    # In memory both lines share one copy.
    assert received.duplicates == (0 if transport == "shm" else len(wanted))


def test_an_ipv6_address_carries_everything() -> None:
    (port,) = _free_ports(1)
    try:
        with socket.create_server(("::1", port), family=socket.AF_INET6):
            pass
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise
        pytest.skip("this machine has no IPv6")
    feed = Feed(name="six", slices=(Slice(endpoints=(f"tcp://[::1]:{port}",)),), heartbeat_ns=20_000_000)
    subscriber, got = subscribed(feed)
    with published(feed, subscriber) as publisher, Heartbeats(feed) as heartbeats:
        for number in range(1_000):
            publisher.publish(b"T", b"%d" % number)

        def heard() -> bool:
            heartbeats.listen(0.01)
            return heartbeats.heard_all

        wait_until(heard, what="heartbeats over IPv6")
    assert numbers_of(got) == list(range(1_000))


@pytest.mark.parametrize("transport", ["tcp", pytest.param("shm", marks=linux_only)])
def test_spinning_slices_deliver_everything_and_sleep_without_messages(transport: Literal["tcp", "shm"]) -> None:
    feed = one_slice(transport=transport, linger_ns=0)
    feed = msgspec.structs.replace(feed, slices=(msgspec.structs.replace(feed.slices[0], idle="spin"),))
    subscriber, got = subscribed(feed, workers=0)
    with published(feed, subscriber) as publisher:
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
    assert numbers_of(got) == list(range(200 + (transport == "shm")))
    assert subscriber.statistics().received.transport == transport
