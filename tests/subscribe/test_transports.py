"""Every transport carries everything, on one line and on two."""

from __future__ import annotations

import socket
from typing import Literal

import numpy
import pytest

from blackbox import Feed, Publisher, Subscriber
from blackbox.feed.feed import Slice
from blackbox.monitor.heartbeats import Heartbeats
from blackbox.testing import Collector, wait_until
from tests.subscribe.subscribers import PATIENT


@pytest.mark.parametrize("transport", ["tcp", "ipc", "inproc", "shm"])
@pytest.mark.parametrize("lines", [1, 2])
def test_every_transport_carries_everything(transport: Literal["tcp", "ipc", "inproc", "shm"], lines: int) -> None:
    feed = Feed.local("subscriber", slices=2, transport=transport, lines=lines, key_bytes=2)
    subscriber = Subscriber(feed, slow=PATIENT)
    got = Collector()
    subscriber.on_batch(b"S1")(got.batch)
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        topics = tuple(b"S%d" % number for number in range(30))
        payloads = numpy.arange(30_000).reshape(-1, 1).view(numpy.uint8)
        publisher.publish_many(topics, numpy.arange(30_000) % 30, payloads)
        for number in range(1_000):
            publisher.publish(topics[number % 30], (30_000 + number).to_bytes(8, "little"))
    subscriber.run(until_end=True)
    numbers = sorted(int.from_bytes(payload, "little") for payload in got.payloads)
    wanted = [n for n in range(30_000) if str(n % 30).startswith("1")]
    wanted += [30_000 + n for n in range(1_000) if str(n % 30).startswith("1")]
    assert numbers == wanted
    assert subscriber.statistics().received.gaps == 0
    assert subscriber.statistics().received.transport == transport


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
