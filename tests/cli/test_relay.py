"""`blackbox relay`: it forwards a feed, prints totals, and ends on signals."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
import zmq
from msgspec.structs import replace

from blackbox import Feed, Publisher, Subscriber
from blackbox.cli.ui.status import Status
from blackbox.feed.endpoint import free_endpoints
from blackbox.testing import Collector, wait_until
from tests.cli.commands import Command, Place, assert_one_line, invoke, write_feed
from tests.examples import first_of


@pytest.mark.parametrize(
    ("number", "status", "options"),
    first_of([(signal.SIGINT, 130, ()), (signal.SIGTERM, 143, ("--json",)), (signal.SIGHUP, 129, ())]),
)
def test_a_signal_ends_it_with_totals(
    place: Place, tmp_path: Path, number: signal.Signals, status: int, options: tuple[str, ...]
) -> None:
    feed = replace(place.feed, slices=Feed.local("cli").slices)
    below = write_feed(feed, tmp_path / "below.toml")
    subscriber, got = Subscriber(feed), Collector()
    subscriber.on_batch(b"")(got.batch)
    with (
        Command("relay", place.path, below, "--name", "site", "--hold", 1, *options) as relay,
        Publisher(place.feed) as publisher,
    ):
        relay.read_error("relay site: relays feed")
        subscriber.start(timeout=200)
        publisher.publish(b"A.t", b"1")
        got.wait(1, timeout=60)
        ended = relay.interrupt(number)
        subscriber.stop()
    assert ended.status == status
    if options:
        assert len(json.loads(ended.out)["lines"]) == len(feed.slices)
    else:
        assert "relay site" in ended.out
        assert place.feed.slices[0].endpoints[0] in ended.out
    assert "Traceback" not in ended.errors


@pytest.mark.parametrize(
    ("number", "status", "options"),
    first_of([(signal.SIGTERM, 143, ("--json",)), (signal.SIGINT, 130, ()), (signal.SIGHUP, 129, ())]),
)
def test_a_signal_ends_a_plain_relay_with_totals(
    place: Place, number: signal.Signals, status: int, options: tuple[str, ...]
) -> None:
    endpoint = free_endpoints("tcp", "plain", 1, 1)[0][0]
    with Command("relay", place.path, endpoint, "--plain", *options) as relay:
        relay.read_error("plain relay: waits for the publishers of")
        with Publisher(place.feed) as publisher, zmq.Context() as context, context.socket(zmq.SUB) as sub:
            relay.read_error(f"at {endpoint}")
            sub.linger = 0
            sub.subscribe(b"A.")
            sub.connect(endpoint)

            def has_come() -> bool:
                publisher.publish(b"A.t", b"1", 7)
                return bool(sub.poll(0))

            wait_until(has_come, 60)
            assert sub.recv_multipart() == [b"A.t", (7).to_bytes(8, "little"), b"1"]
            ended = relay.interrupt(number)
    assert ended.status == status
    if options:
        assert json.loads(ended.out)["messages"] > 0
    else:
        assert endpoint in ended.out
    assert "Traceback" not in ended.errors


def test_what_cannot_be_relayed_is_one_line(place: Place, tmp_path: Path) -> None:
    endpoint = free_endpoints("tcp", "plain", 1, 1)[0][0]
    other = replace(place.feed, slices=Feed.local("cli", slices=5).slices)
    other_path = write_feed(other, tmp_path / "other.toml")
    with zmq.Context() as context, context.socket(zmq.PUB) as taken:
        taken.bind(endpoint)
        for words, error in (
            ((endpoint, "--plain"), f"endpoint {endpoint} is in use"),
            ((place.path, "--plain"), "expected tcp://"),
            ((other_path,), "below the relay had 5 slices, expected 2"),
        ):
            ended = invoke("relay", place.path, *words)
            assert ended.status == Status.ERROR
            assert_one_line(ended, error)
