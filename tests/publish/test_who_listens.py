"""A publisher can wait for subscribers, and sends only keys that are wanted."""

from __future__ import annotations

import threading

import numpy
import pytest

from blackbox import Feed, Publisher
from blackbox.errors import NoSubscriberError
from blackbox.publish import publisher as publisher_module
from blackbox.testing import wait_until
from tests.publish.subscribers import collected, one_slice


def test_an_unwanted_key_is_not_sent() -> None:
    feed = one_slice(key_bytes=2)
    subscriber, got = collected(feed, b"AA")
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        for number in range(100):
            publisher.publish(b"AAPL" if number % 4 == 0 else b"MSFT", b"%d" % number)
        publisher.publish_many((b"AAPL", b"MSFT"), [0, 1, 1, 1], numpy.zeros((4, 3), numpy.uint8))
        publisher.flush()
        statistics = publisher.statistics()
    subscriber.run(until_end=True)
    assert (statistics.messages, statistics.unwanted) == (26, 78)
    assert len(got) == 26
    assert subscriber.statistics().received.messages == 26


def test_without_subscribers_everything_is_unwanted_and_nothing_piles_up() -> None:
    for when_full in ("drop", "wait"):
        feed = one_slice()
        with Publisher(feed, when_full=when_full) as publisher:
            for _ in range(20_000):
                publisher.publish(b"T", bytes(500))
            publisher.publish_many((b"T",), numpy.zeros(20_000, int), numpy.zeros((20_000, 500), numpy.uint8))
            publisher.flush()
            assert publisher.statistics().unwanted == 40_000
            assert publisher.statistics().blocks == 0


def test_wait_for_subscribers_returns_when_the_prefix_is_wanted() -> None:
    feed = Feed.local("publisher", slices=2, key_bytes=4)
    with Publisher(feed) as publisher:
        with pytest.raises(NoSubscriberError, match=r"slice \d: 0 subscribers to b'AAPL.x' after 0.05 s, expected 1"):
            publisher.wait_for_subscribers(b"AAPL.x", timeout=0.05)
        first, _ = collected(feed, b"AAPL.")
        with first:
            publisher.wait_for_subscribers(b"AAPL.x", timeout=60)
            with pytest.raises(NoSubscriberError, match="0 subscribers to b'MSFT.'"):
                publisher.wait_for_subscribers(b"MSFT.", timeout=0.05)
            with pytest.raises(NoSubscriberError, match="1 subscribers to b'AAPL.', after 0.05 s, expected 2|1 subscr"):
                publisher.wait_for_subscribers(b"AAPL.", timeout=0.05, count=2)
            second, _ = collected(feed, b"AAPL.")
            with second:
                publisher.wait_for_subscribers(b"AAPL.", timeout=60, count=2)
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


def test_subscribers_of_each_symbol_are_waited_for() -> None:
    feed = Feed.local("publisher", slices=2, key_bytes=8)
    with Publisher(feed) as publisher:
        first, _ = collected(feed, b"AAPL.")
        with first:
            publisher.wait_for_subscribers(symbols=["AAPL"], timeout=60)
            with pytest.raises(NoSubscriberError, match="0 subscribers to b'MSFT.'"):
                publisher.wait_for_subscribers(symbols=["AAPL", "MSFT"], timeout=0.05)


def test_subscribers_are_waited_for_from_another_thread() -> None:
    feed = one_slice()
    with Publisher(feed) as publisher:
        seen = threading.Event()

        def wait() -> None:
            publisher.wait_for_subscribers(b"T", timeout=60)
            seen.set()

        waiter = threading.Thread(target=wait)
        waiter.start()
        assert not seen.is_set()
        subscriber, _ = collected(feed)
        with subscriber:
            assert seen.wait(10)
        waiter.join()


def test_heartbeats_distinguish_a_quiet_publisher_from_a_dead_one() -> None:
    feed = one_slice(heartbeat_ns=20_000_000)
    subscriber, _ = collected(feed)
    with Publisher(feed) as publisher:
        subscriber.start()
        first = subscriber.statistics().received.last_ns
        wait_until(lambda: subscriber.statistics().received.last_ns > first + 100_000_000)
        assert publisher.statistics().blocks == 0
    subscriber.run(until_end=True)
