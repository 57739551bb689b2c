"""A publisher of a feed with a schema refuses payloads that are not records of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy
import pytest

from blackbox import ConfigError, Feed, Publisher, Schema, Subscriber
from tests.book.sessions import gone, order
from tests.subscribe.subscribers import PATIENT

LARGE = Schema("large", 1_077, {"L": numpy.dtype([("kind", "S1"), ("rest", "V2000000")])})
BAD = {
    "short": (b"A" + bytes(5), "payload had 6 bytes, expected 36 of type 'A' (itch50)"),
    "long": (order(1, b"B", 5) + b"x", "payload had 37 bytes, expected 36 of type 'A' (itch50)"),
    "size of another type": (b"D" + bytes(35), "payload had 36 bytes, expected 19 of type 'D' (itch50)"),
    "unknown": (b"z" + bytes(35), "payload had 36 bytes, expected that of a type of the schema, which has no type 'z'"),
    "empty": (b"", "payload had 0 bytes, expected one with a type (itch50)"),
}


def published(publish: Callable[[Publisher], object], why: str) -> list[bytes]:
    """Return the payloads that arrive when a refused call is between two good ones."""
    feed = Feed.local("records", slices=1, schema="itch50")
    subscriber = Subscriber(feed, slow=PATIENT)
    came: list[bytes] = []
    subscriber.on(b"")(lambda message: came.append(message.payload))
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        publisher.publish(b"A.A", order(1, b"B", 5))
        with pytest.raises(ConfigError, match=re.escape(why)):
            publish(publisher)
        publisher.publish(b"A.D", gone(1))
        publisher.publish(b"A.D", None)
    subscriber.run(until_end=True)
    return came


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda data: numpy.frombuffer(data, numpy.uint8)])
def test_a_message_that_is_not_a_record_is_refused(name: str, kind: Any) -> None:
    payload, why = BAD[name]
    came = published(lambda publisher: publisher.publish(b"A.A", kind(payload)), why)
    assert came == [order(1, b"B", 5), gone(1), None]


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("form", ["offsets", "lengths"])
def test_nothing_is_published_if_one_of_many_is_not_a_record(name: str, form: str) -> None:
    payload, why = BAD[name]
    payloads = [order(2, b"B", 5), gone(2), payload, order(3, b"S", 6)]
    ends = numpy.cumsum([0, *map(len, payloads)])
    columns: dict[str, Any] = {"offsets": ends}
    if form == "lengths":
        columns = {"offsets": ends[:-1], "lengths": numpy.diff(ends)}
    came = published(
        lambda publisher: publisher.publish_many((b"A.A",), [0] * 4, b"".join(payloads), **columns), f"message 2: {why}"
    )
    assert came == [order(1, b"B", 5), gone(1), None]


def test_payloads_of_one_size_and_those_without_a_value() -> None:
    rows = numpy.frombuffer(order(2, b"B", 5) + b"D" + bytes(35) + order(3, b"B", 5), numpy.uint8).reshape(3, 36)
    why = "message 1: payload had 36 bytes, expected 19 of type 'D' (itch50); nothing was published"
    assert len(published(lambda publisher: publisher.publish_many((b"A.A",), [0] * 3, rows), why)) == 3
    feed = Feed.local("records", slices=1, schema="itch50")
    with Publisher(feed) as publisher:
        assert publisher.publish_many((b"A.A",), [0] * 3, rows, valid=numpy.array([True, False, True])) == 3
        assert publisher.publish_many((b"A.A",), [], rows[:0]) == 0


def test_large_payloads_are_checked() -> None:
    with Publisher(Feed.local("records", slices=1, schema=LARGE)) as publisher:
        publisher.publish(b"A.L", b"L" + bytes(2_000_000))
        with pytest.raises(ConfigError, match="payload had 3000001 bytes, expected 2000001 of type 'L'"):
            publisher.publish(b"A.L", b"L" + bytes(3_000_000))


def test_payloads_of_a_feed_without_a_schema_are_not_checked() -> None:
    with Publisher(Feed.local("records", slices=1)) as publisher:
        for payload in (b"", b"z", bytes(37)):
            publisher.publish(b"A", payload)
        publisher.publish_many((b"A",), [0, 0], b"abc", offsets=[0, 1, 3])


def test_wrong_arguments_raise_their_own_errors() -> None:
    with Publisher(Feed.local("records", slices=1, schema="itch50")) as publisher:
        with pytest.raises(TypeError, match="payload was 5, expected bytes"):
            publisher.publish(b"A.A", 5)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="payload was 'AAA', expected bytes"):
            publisher.publish(b"A.A", "AAA")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="ts_event was 99999999999999999999, expected an int64"):
            publisher.publish(b"A.A", order(1, b"B", 5), 99999999999999999999)


def test_any_buffer_that_is_a_record_is_published() -> None:
    record = order(1, b"B", 5)
    array = numpy.frombuffer(record, numpy.uint8)
    same = [bytearray(record), memoryview(record), array, array.reshape(2, -1), array.view("V36")]
    feed = Feed.local("records", slices=1, schema="itch50")
    subscriber = Subscriber(feed, slow=PATIENT)
    came: list[bytes] = []
    subscriber.on(b"")(lambda message: came.append(message.payload))
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        for payload in same:
            publisher.publish(b"A.A", payload)  # type: ignore[arg-type]
    subscriber.run(until_end=True)
    assert came == [record] * len(same)


@pytest.mark.parametrize("topic", [b"", b"x" * 70_000])
def test_a_wrong_topic_is_reported_as_such(topic: bytes) -> None:
    with (
        Publisher(Feed.local("records", slices=1, schema="itch50")) as publisher,
        pytest.raises(ConfigError, match="topic .*, expected at "),
    ):
        publisher.publish(topic, order(1, b"B", 5))
