"""Every transport carries everything."""

from __future__ import annotations

import socket
from typing import Literal

import numpy
import pytest

from blackbox import Feed, Publisher, Subscriber
from blackbox.feed.slice import Slice
from blackbox.services.monitor.heartbeats import Heartbeats
from blackbox.testing import Collector, wait_until
from tests.receive.subscribers import PATIENT


@pytest.mark.parametrize("transport", ["tcp", "ipc", "inproc", "shm"])
def test_every_transport_carries_everything_on_two_lines(transport: Literal["tcp", "ipc", "inproc", "shm"]) -> None:
    feed = Feed.local("subscriber", slices=2, transport=transport, lines=2, key_bytes=2)
    subscriber = Subscriber(feed, slow=PATIENT)
    got = Collector()
    subscriber.on_batch(b"S1")(got.batch)
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        topics = tuple(b"S%d" % number for number in range(30))
        payloads = numpy.arange(6_000).reshape(-1, 1).view(numpy.uint8)
        publisher.publish_many(topics, numpy.arange(6_000) % 30, payloads)
        for number in range(1_000):
            publisher.publish(topics[number % 30], (6_000 + number).to_bytes(8, "little"))
    subscriber.run(until_end=True)
    numbers = sorted(int.from_bytes(payload, "little") for payload in got.payloads)
    wanted = [n for n in range(6_000) if str(n % 30).startswith("1")]
    wanted += [6_000 + n for n in range(1_000) if str(n % 30).startswith("1")]
    assert numbers == wanted
    received = subscriber.statistics().received
    assert (received.gaps, received.transport) == (0, transport)
    assert transport != "shm" or received.duplicates == 0, "both lines share one memory"


def test_an_ipv6_address_carries_everything() -> None:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6) as probe:
            port = probe.getsockname()[1]
    except OSError:
        pytest.skip("this machine has no IPv6")
    feed = Feed(name="six", slices=(Slice(endpoints=(f"tcp://[::1]:{port}",)),), heartbeat_ns=20_000_000)
    subscriber, got = Subscriber(feed, slow=PATIENT), Collector()
    subscriber.on(b"")(got.message)
    with Publisher(feed, when_full="wait") as publisher, Heartbeats(feed) as heartbeats:
        subscriber.start()
        for number in range(1_000):
            publisher.publish(b"T", b"%d" % number)

        def heard() -> bool:
            heartbeats.listen(0.01)
            return heartbeats.heard_all

        wait_until(heard, what="heartbeats over IPv6")
    subscriber.run(until_end=True)
    assert [int(payload) for payload in got.payloads] == list(range(1_000))
