"""Errors of a publisher: ports, calls, messages, topics, settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy
import pytest

from blackbox import ConfigError, Feed, Publisher
from blackbox.errors import EndpointError, PublisherError
from tests.publish.subscribers import delivered, one_slice


def test_a_port_in_use_is_named_and_a_failed_start_releases_the_others() -> None:
    feed = Feed.local("publisher", slices=2)
    second = msgspec.structs.replace(feed.slices[1], share=None)
    with Publisher(msgspec.structs.replace(feed, slices=(second,))):
        with pytest.raises(EndpointError) as caught:
            Publisher(feed).start()
        assert f"slice 1: endpoint {feed.slices[1].endpoints[0]} is in use by this process: close" in str(caught.value)
    with Publisher(feed):
        pass


CALLS: tuple[Callable[[Publisher], object], ...] = (
    lambda publisher: publisher.publish(b"T", b"x"),
    lambda publisher: publisher.publish(b"known", b"x"),
    lambda publisher: publisher.publish_many((b"T",), [0], numpy.zeros((1, 1), numpy.uint8)),
    lambda publisher: publisher.new_epoch(),
    lambda publisher: publisher.flush(),
    lambda publisher: publisher.wait_for_subscribers(b""),
)


def test_a_publisher_that_does_not_run_refuses_calls() -> None:
    publisher = Publisher(one_slice())
    for call in CALLS:
        with pytest.raises(PublisherError, match="not running|closed|not started"):
            call(publisher)
    assert publisher.statistics().messages == 0
    publisher.close()
    with Publisher(one_slice()) as publisher:
        publisher.publish(b"known", b"")
        with pytest.raises(PublisherError, match="start was called when running; a publisher is used once"):
            publisher.start()
    for call in (*CALLS, Publisher.start):
        with pytest.raises(PublisherError, match="not running|closed"):
            call(publisher)


WRONG_MESSAGES: dict[str, tuple[tuple[Any, ...], Any, str]] = {
    "a topic that is a number": ((5, b""), TypeError, r"topic was 5 \(int\), expected str or bytes"),
    "several topics": (((b"A", b"B"), b""), TypeError, "expected str or bytes"),
    "a topic that UTF-8 cannot encode": (("\ud800", b""), ValueError, "expected text that UTF-8 can encode"),
    "no topic": ((b"", b""), ConfigError, "topic was empty"),
    "a reserved topic": ((b"\0T", b""), ConfigError, "reserved"),
    "a topic too long": ((b"T" * 65_536, b""), ConfigError, "65536 bytes long"),
    "a payload of text": ((b"T", "text"), TypeError, "payload was 'text', expected bytes"),
    "a payload of a number": ((b"T", 5), TypeError, "payload was 5, expected bytes"),
    "a payload of an object": ((b"T", object()), TypeError, "payload was <object"),
    "a payload of a list": ((b"T", [b"x"]), TypeError, r"payload was \[b'x'\], expected bytes"),
    "a payload of a long list": ((b"T", [1] * 70_000), TypeError, "payload was .*, expected bytes or another buffer"),
    "a time beyond int64": ((b"T", b"", 2**63), ValueError, "ts_event was 9223372036854775808, expected an int64"),
    "a time beyond int64 of numpy's bytes": ((b"T", numpy.bytes_(b"x"), 2**63), ValueError, "expected an int64"),
    "a time of a large payload": ((b"T", bytes(70_000), 2**63), (ValueError, OverflowError), "int64|too large|C long"),
    "a time of text": ((b"T", b"", "now"), (ValueError, TypeError), "ts_event was 'now', expected an int64"),
}


def test_a_message_that_cannot_be_published_is_refused() -> None:
    with delivered(one_slice()) as (publisher, got):
        for case, (arguments, error, text) in WRONG_MESSAGES.items():
            with pytest.raises(error, match=text):
                publisher.publish(*arguments)
            publisher.publish(b"T", case.encode())
    assert got.payloads == [case.encode() for case in WRONG_MESSAGES]


def test_a_topic_that_no_slice_covers_is_refused() -> None:
    local = Feed.local("publisher", slices=1)
    feed_slice = msgspec.structs.replace(local.slices[0], share=None, prefixes=("A.", "B."))
    with Publisher(msgspec.structs.replace(local, slices=(feed_slice,))) as publisher:
        publisher.publish(b"A.x", b"")
        with pytest.raises(ConfigError, match="topic b'C.x' is covered by no slice, known prefixes: 'A.' .*'B.'"):
            publisher.publish(b"C.x", b"")


def test_more_topics_than_the_limit_are_refused_and_the_rest_goes_on() -> None:
    with delivered(one_slice(max_topics=10)) as (publisher, got):
        for number in range(10):
            publisher.publish(b"T%d" % number, b"")
        with pytest.raises(PublisherError, match="topic b'T10' did not fit: 10 topics .* max_topics = 10"):
            publisher.publish(b"T10", b"")
        with pytest.raises(PublisherError, match="max_topics = 10"):
            publisher.publish_many((b"T1", b"T11"), [0, 1], numpy.zeros((2, 1), numpy.uint8))
        publisher.publish(b"T9", b"")
    assert [m.topic for m in got.messages] == [b"T%d" % number for number in [*range(10), 9]]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"when_full": "block"}, "when_full was 'block', expected 'drop' or 'wait'"),
        ({"hwm_blocks": 0}, "hwm_blocks was 0, expected at least 1"),
        ({"slow_peer": "end"}, "slow_peer was 'end', expected 'keep' or 'disconnect'"),
        ({"max_peer_age": 3}, "max_peer_age was 3 with slow_peer='keep'"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Publisher(one_slice(), **settings)
