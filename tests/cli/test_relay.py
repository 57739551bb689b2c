"""`blackbox relay`: it passes a feed on, prints what it passed, and how it ends."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from blackbox import Feed, Publisher, Subscriber
from blackbox.cli.ui.status import Status
from blackbox.testing import Collector
from tests.cli.commands import Command, Place, assert_one_line, invoke, write_feed


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, Status.INTERRUPTED), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_with_what_it_passed(
    place: Place, tmp_path: Path, number: signal.Signals, status: int
) -> None:
    feed = Feed.local(place.feed.name, slices=len(place.feed.slices))
    below = write_feed(feed, tmp_path / "below.toml")
    subscriber, got = Subscriber(feed), Collector()
    subscriber.on_batch(b"")(got.batch)
    with (
        Command("relay", place.path, below, "--name", "site", "--hold", 1) as relay,
        Publisher(place.feed) as publisher,
    ):
        relay.read_error("relay site: passes feed")
        subscriber.start(timeout=60)
        publisher.publish(b"A.t", b"1")
        got.wait(1, timeout=30)
        ended = relay.interrupt(number)
        subscriber.stop()
    assert ended.status == status
    assert "relay site" in ended.out
    assert place.feed.slices[0].endpoints[0] in ended.out
    assert "Traceback" not in ended.errors


def test_a_feed_that_does_not_fit_is_one_line(place: Place, tmp_path: Path) -> None:
    other = write_feed(Feed.local(place.feed.name, slices=5), tmp_path / "other.toml")
    ended = invoke("relay", place.path, other)
    assert ended.status == Status.ERROR
    assert_one_line(ended, "below the relay had 5 slices, expected 2")
