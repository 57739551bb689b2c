"""A publisher can wait for subscribers, and sends only keys that are wanted."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

from blackbox import Feed, Publisher
from blackbox.errors import NoSubscriberError
from blackbox.publish import publisher as publisher_module
from blackbox.testing import wait_until
from tests.publish.subscribers import collected, delivered, one_slice


def test_an_unwanted_key_is_not_sent() -> None:
    with delivered(one_slice(key_bytes=2), b"AA") as (publisher, got):
        for number in range(100):
            publisher.publish(b"AAPL" if number % 4 == 0 else b"MSFT", b"%d" % number)
        publisher.publish_many((b"AAPL", b"MSFT"), [0, 1, 1, 1], numpy.zeros((4, 3), numpy.uint8))
        publisher.flush()
        statistics = publisher.statistics()
    assert (statistics.messages, statistics.unwanted, len(got)) == (26, 78, 26)


@pytest.mark.parametrize("when_full", ["drop", "wait"])
def test_without_subscribers_everything_is_unwanted_and_nothing_piles_up(when_full: Any) -> None:
    with Publisher(one_slice(), when_full=when_full) as publisher:
        for _ in range(5_000):
            publisher.publish(b"T", bytes(5_000))
        publisher.publish_many((b"T",), numpy.zeros(5_000, int), numpy.zeros((5_000, 5_000), numpy.uint8))
        publisher.flush()
        assert (publisher.statistics().unwanted, publisher.statistics().blocks) == (10_000, 0)


def test_wait_for_subscribers_returns_when_the_prefix_is_wanted() -> None:
    feed = Feed.local("publisher", slices=2, key_bytes=8)
    with Publisher(feed) as publisher:
        with pytest.raises(NoSubscriberError, match=r"slice \d: 0 subscribers to b'AAPL.x' after 0.05 s, expected 1"):
            publisher.wait_for_subscribers(b"AAPL.x", timeout=0.05)
        first, _ = collected(feed, b"AAPL.")
        with first:
            publisher.wait_for_subscribers(b"AAPL.x")
            with pytest.raises(NoSubscriberError, match="0 subscribers to b'MSFT.'"):
                publisher.wait_for_subscribers(b"MSFT.", timeout=0.05)
            other = next(b"S%d." % n for n in range(99) if feed.slices_for(b"S%d." % n) == feed.slices_for(b"AAPL."))
            with collected(feed, other)[0], pytest.raises(NoSubscriberError, match=r"1 subscribers to b'AAPL\.'"):
                publisher.wait_for_subscribers(b"AAPL.", timeout=0.05, count=2)
            publisher.wait_for_subscribers(symbols=["AAPL"])
            with pytest.raises(NoSubscriberError, match="0 subscribers to b'MSFT.'"):
                publisher.wait_for_subscribers(symbols=["AAPL", "MSFT"], timeout=0.05)
            second, _ = collected(feed, b"AAPL.")
            with second:
                publisher.wait_for_subscribers(b"AAPL.", count=2)
                assert publisher.statistics().subscribers == 2
        wait_until(lambda: publisher.statistics().subscribers == 0)


def test_waiting_for_subscribers_names_the_slice_without_them(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(publisher_module, "_WARN_S", 0.0)
    with Publisher(one_slice()) as publisher, pytest.raises(NoSubscriberError):
        publisher.wait_for_subscribers(b"AAPL.", timeout=0.2, count=2)
    said = "feed 'publisher' slice 0: waiting: 0 subscribers to b'AAPL.', expected 2 (only this process knows the "
    assert [record.getMessage()[: len(said)] for record in caplog.records] == [said]
