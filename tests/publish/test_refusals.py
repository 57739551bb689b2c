"""Errors of a publisher: ports, calls, messages, topics, settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy
import pytest

from blackbox import ConfigError, Feed, Publisher
from blackbox.errors import EndpointError, PublisherError
from blackbox.publish.publisher import PublisherLife
from blackbox.publish.slice_sender import SenderLife
from tests.publish.subscribers import collected, one_slice


def test_a_port_in_use_is_named() -> None:
    feed = Feed.local("publisher", slices=2)
    with Publisher(feed):
        with pytest.raises(EndpointError) as caught, Publisher(feed):
            pass
        assert f"slice 0: endpoint {feed.slices[0].endpoints[0]} is in use" in str(caught.value)
    with Publisher(feed):  # and free again
        pass


def test_a_failed_start_releases_its_endpoints() -> None:
    feed = Feed.local("publisher", slices=2)
    second = msgspec.structs.replace(feed.slices[1], share=None)
    with Publisher(msgspec.structs.replace(feed, slices=(second,))), pytest.raises(EndpointError, match="slice 1"):
        Publisher(feed).start()
    with Publisher(feed):
        pass


def test_invalid_state_transitions_are_refused() -> None:
    publisher = Publisher(one_slice())
    with publisher:
        with pytest.raises(PublisherError, match="start was called when running; a publisher is used once"):
            publisher.start()
        sender = publisher._senders[0]
        with pytest.raises(RuntimeError, match="slice 0 sender was to be new when it was running, expected closing or"):
            sender._enter(SenderLife.NEW)
    assert sender.life is SenderLife.ENDED
    with pytest.raises(RuntimeError, match="publisher of feed .* to be running when it was closed, expected nothing"):
        publisher._enter(PublisherLife.RUNNING)
    assert publisher.state is PublisherLife.CLOSED


CALLS: dict[str, Callable[[Publisher], object]] = {
    "publish": lambda publisher: publisher.publish(b"T", b"x"),
    "publish a known topic": lambda publisher: publisher.publish(b"known", b"x"),
    "publish_many": lambda publisher: publisher.publish_many((b"T",), [0], numpy.zeros((1, 1), numpy.uint8)),
    "flush": lambda publisher: publisher.flush(),
    "wait_for_subscribers": lambda publisher: publisher.wait_for_subscribers(b""),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_publisher_that_was_not_started_refuses(call: str) -> None:
    publisher = Publisher(one_slice())
    with pytest.raises(PublisherError, match="not running|closed|not started"):
        CALLS[call](publisher)
    assert publisher.statistics().messages == 0
    publisher.close()


@pytest.mark.parametrize("call", CALLS)
def test_a_publisher_that_was_closed_refuses(call: str) -> None:
    publisher = Publisher(one_slice()).start()
    publisher.publish(b"known", b"")
    publisher.close()
    with pytest.raises(PublisherError, match="not running|closed"):
        CALLS[call](publisher)
    with pytest.raises(PublisherError, match="used once"):
        publisher.start()


WRONG_MESSAGES: dict[str, tuple[tuple[Any, ...], Any, str]] = {
    "a topic that is a number": ((5, b""), TypeError, r"topic was 5 \(int\), expected str or bytes"),
    "a topic that UTF-8 cannot encode": (("\ud800", b""), ValueError, "expected text that UTF-8 can encode"),
    "no topic": ((b"", b""), ConfigError, "topic was empty"),
    "a reserved topic": ((b"\0T", b""), ConfigError, "reserved"),
    "a topic too long": ((b"T" * 65_536, b""), ConfigError, "65536 bytes long"),
    "a payload of text": ((b"T", "text"), TypeError, "payload was 'text', expected bytes"),
    "a payload of a number": ((b"T", 5), TypeError, "payload was 5, expected bytes"),
    "a time beyond int64": ((b"T", b"", 2**63), ValueError, "ts_event was 9223372036854775808, expected an int64"),
    "a time of a large payload": ((b"T", bytes(70_000), 2**63), (ValueError, OverflowError), "int64|too large|C long"),
    "a time of text": ((b"T", b"", "now"), (ValueError, TypeError), "ts_event was 'now', expected an int64"),
}


@pytest.mark.parametrize("case", WRONG_MESSAGES)
def test_a_message_that_cannot_be_published_is_refused(case: str) -> None:
    arguments, error, text = WRONG_MESSAGES[case]
    feed = one_slice()
    subscriber, got = collected(feed)
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        with pytest.raises(error, match=text):
            publisher.publish(*arguments)
        publisher.publish(b"T", b"fine")
    subscriber.run(until_end=True)
    assert got.payloads == [b"fine"]


def test_a_topic_that_no_slice_covers_is_refused() -> None:
    local = Feed.local("publisher", slices=1)
    feed_slice = msgspec.structs.replace(local.slices[0], share=None, prefixes=("A.", "B."))
    with Publisher(msgspec.structs.replace(local, slices=(feed_slice,))) as publisher:
        publisher.publish(b"A.x", b"")
        with pytest.raises(ConfigError, match="topic b'C.x' is covered by no slice, known prefixes: 'A.' .*'B.'"):
            publisher.publish(b"C.x", b"")


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"when_full": "block"}, "when_full was 'block', expected 'drop' or 'wait'"),
        ({"hwm_blocks": 0}, "hwm_blocks was 0, expected at least 1"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Publisher(one_slice(), **settings)
