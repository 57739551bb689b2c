"""A publisher's refusal of a prefix ends only the callback that was added with it while running."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from blackbox import Feed, Publisher, Subscriber
from blackbox.errors import RightsError
from blackbox.receive.supervise.supervisor import SubscriberLife
from blackbox.testing import Collector, wait_until
from tests.keyring import Keyring
from tests.receive.subscribers import nothing


def feeds(tmp_path: Path, rights: str) -> tuple[Feed, Feed]:
    """A feed as seen by its publisher, which grants `rights`, and by a desk."""
    ring = Keyring(tmp_path, "exchange", "desk")
    ring.allow("exchange", "desk")
    (ring.directory / "allowed-by-exchange" / "rights.toml").write_text(rights)
    feed = msgspec.structs.replace(Feed.local("quotes", slices=1, key_bytes=4), heartbeat_ns=100_000_000)
    return ring.feed(feed, "exchange"), ring.feed(feed, "desk", "exchange")


def test_a_refused_callback_ends_alone_and_its_owner_gets_the_reason(tmp_path: Path) -> None:
    above, below = feeds(tmp_path, 'desk = ["AAPL", "MSFT"]')
    subscriber, got, other = Subscriber(below), Collector(), Collector()
    subscriber.on(b"AAPL")(got.message)
    with Publisher(above) as publisher, subscriber:
        for _ in range(2):  # it may ask again
            stream = subscriber.stream(b"IBM.")
            subscriber.wait_confirmed(60, symbols=["AAPL"])
            with pytest.raises(RightsError, match="refused the topics b'IBM.': our key has no right"):
                subscriber.wait_confirmed(60, symbols=["IBM"])
            with pytest.raises(RightsError, match="no right"):
                stream.get(60)
        assert len(subscriber.callbacks) == 1
        subscriber.wait_confirmed(60, b"IBM.")  # once is enough
        subscriber.on(b"MSFT")(other.message)
        subscriber.wait_confirmed(60)
        for topic in (b"AAPL.x", b"IBM..x", b"MSFT.x"):
            publisher.publish(topic, b"1")
        got.wait(1)
        other.wait(1)
        assert subscriber.state is SubscriberLife.RUNNING
    assert (len(got), len(other)) == (1, 1)


def test_a_refusal_at_the_start_or_of_the_last_callback_ends_the_subscriber(tmp_path: Path) -> None:
    above, below = feeds(tmp_path, 'desk = ["AAPL"]')
    with Publisher(above):
        first = Subscriber(below)
        first.on(b"AAPL")(nothing)
        first.on(b"IBM.")(nothing)
        with pytest.raises(RightsError, match="no right"):
            first.start()
        last = Subscriber(below)
        last.on(b"AAPL")(nothing)
        last.start()
        last.remove(nothing)
        last.on(b"IBM.")(nothing)
        wait_until(lambda: last.is_finished, 60)
        with pytest.raises(RightsError, match="no right"):
            last.stop()


def test_max_subscriptions_ends_only_callbacks_above_it(tmp_path: Path) -> None:
    local = Feed.local("quotes", slices=1, key_bytes=4)
    feed = msgspec.structs.replace(local, heartbeat_ns=100_000_000, max_subscriptions=8)
    subscriber, got = Subscriber(feed), Collector()
    subscriber.on(b"AAPL")(got.message)
    with Publisher(feed) as publisher, subscriber:
        refused = 0
        for number in range(12):
            subscriber.on(b"%04d" % number)(nothing)
            try:
                subscriber.wait_confirmed(60, b"%04d" % number)
            except RightsError as error:
                assert "more subscriptions than its max_subscriptions" in str(error)  # noqa: PT017
                refused += 1
        assert refused > 0
        publisher.publish(b"AAPL.x", b"1")
        got.wait(1)
        assert subscriber.state is SubscriberLife.RUNNING
    assert len(got) == 1
