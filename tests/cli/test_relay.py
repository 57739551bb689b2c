"""`blackbox relay`: it forwards a feed, prints totals, and ends on signals."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import zmq
from msgspec.structs import replace

from blackbox import Feed, Publisher, Subscriber
from blackbox.feed.endpoint import free_endpoints
from blackbox.testing import Collector, wait_until
from tests.cli.commands import Command, Place, write_feed


def test_ctrl_c_ends_it_with_totals(place: Place, tmp_path: Path) -> None:
    feed = replace(place.feed, slices=Feed.local("cli").slices)
    below = write_feed(feed, tmp_path / "below.toml")
    subscriber, got = Subscriber(feed), Collector()
    subscriber.on_batch(b"")(got.batch)
    with (
        Command("relay", place.path, below, "--name", "site", "--hold", 1) as relay,
        Publisher(place.feed) as publisher,
    ):
        relay.read_error("relay site: relays feed")
        subscriber.start(timeout=200)
        publisher.publish(b"A.t", b"1")
        got.wait(1, timeout=200)
        ended = relay.interrupt()
        subscriber.stop()
    assert ended.status == 130
    assert "relay site" in ended.out
    assert place.feed.slices[0].endpoints[0] in ended.out


def test_sigterm_ends_a_plain_relay_with_totals(place: Place) -> None:
    endpoint = free_endpoints("tcp", "plain", 1, 1)[0][0]
    with Command("relay", place.path, endpoint, "--plain", "--json") as relay:
        relay.read_error("plain relay: waits for the publishers of")
        with Publisher(place.feed) as publisher, zmq.Context() as context, context.socket(zmq.SUB) as sub:
            relay.read_error(f"at {endpoint}")
            sub.linger = 0
            sub.subscribe(b"A.")
            sub.connect(endpoint)

            def has_come() -> bool:
                publisher.publish(b"A.t", b"1", 7)
                return bool(sub.poll(0))

            wait_until(has_come)
            assert sub.recv_multipart() == [b"A.t", (7).to_bytes(8, "little"), b"1"]
            ended = relay.interrupt(signal.SIGTERM)
    assert ended.status == 143
    assert json.loads(ended.out)["messages"] > 0
