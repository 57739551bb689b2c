"""A publisher of a feed with a schema refuses payloads that are not records of it."""

from __future__ import annotations

import re
from typing import Any

import numpy
import pytest

from blackbox import ConfigError, Feed, Publisher, Schema
from tests.book.sessions import gone, order
from tests.publish.subscribers import delivered, one_slice

LARGE = Schema("large", 1_077, {"L": numpy.dtype([("kind", "S1"), ("rest", "V2000000")])})
BAD = {
    b"A" + bytes(5): "payload had 6 bytes, expected 36 of type 'A' (itch50)",
    order(1, b"B", 5) + b"x": "payload had 37 bytes, expected 36 of type 'A' (itch50)",
    b"D" + bytes(35): "payload had 36 bytes, expected 19 of type 'D' (itch50)",
    b"z" + bytes(35): "payload had 36 bytes, expected that of a type of the schema, which has no type 'z'",
    b"": "payload had 0 bytes, expected one with a type (itch50)",
}
KINDS: tuple[Any, ...] = (bytes, bytearray, memoryview, lambda data: numpy.frombuffer(data, numpy.uint8))


def test_a_message_that_is_not_a_record_is_refused() -> None:
    sent = 0
    with delivered(one_slice(schema="itch50")) as (publisher, got):
        for payload, why in BAD.items():
            for kind in KINDS:
                with pytest.raises(ConfigError, match=re.escape(why)):
                    publisher.publish(b"A.A", kind(payload))
                publisher.publish(b"A.A", gone(sent))
                sent += 1
        with pytest.raises(TypeError, match="payload was 5, expected bytes"):
            publisher.publish(b"A.A", 5)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="ts_event was 99999999999999999999, expected an int64"):
            publisher.publish(b"A.A", gone(1), 99999999999999999999)
        for topic in (b"", b"x" * 70_000):
            with pytest.raises(ConfigError, match="topic .*, expected at "):
                publisher.publish(topic, gone(1))
    assert got.payloads == [gone(number) for number in range(sent)]


def test_nothing_is_published_if_one_of_many_is_not_a_record() -> None:
    with delivered(one_slice(schema="itch50")) as (publisher, got):
        for payload, why in BAD.items():
            payloads = [order(2, b"B", 5), gone(2), payload, order(3, b"S", 6)]
            ends = numpy.cumsum([0, *map(len, payloads)])
            forms: list[dict[str, Any]] = [{"offsets": ends}, {"offsets": ends[:-1], "lengths": numpy.diff(ends)}]
            for columns in forms:
                with pytest.raises(ConfigError, match=re.escape(f"message 2: {why}")):
                    publisher.publish_many((b"A.A",), [0] * 4, b"".join(payloads), **columns)
        publisher.publish(b"A.A", None)
    assert got.payloads == [None]


def test_payloads_of_one_size_and_those_without_a_value() -> None:
    rows = numpy.frombuffer(order(2, b"B", 5) + b"D" + bytes(35) + order(3, b"B", 5), numpy.uint8).reshape(3, 36)
    why = "message 1: payload had 36 bytes, expected 19 of type 'D' (itch50); nothing was published"
    with delivered(one_slice(schema="itch50")) as (publisher, got):
        with pytest.raises(ConfigError, match=re.escape(why)):
            publisher.publish_many((b"A.A",), [0] * 3, rows)
        assert publisher.publish_many((b"A.A",), [0] * 3, rows, valid=numpy.array([True, False, True])) == 3
        assert publisher.publish_many((b"A.A",), [], rows[:0]) == 0
    assert got.payloads == [order(2, b"B", 5), None, order(3, b"B", 5)]


def test_large_payloads_are_checked() -> None:
    with Publisher(Feed.local("records", slices=1, schema=LARGE)) as publisher:
        publisher.publish(b"A.L", b"L" + bytes(2_000_000))
        with pytest.raises(ConfigError, match="payload had 3000001 bytes, expected 2000001 of type 'L'"):
            publisher.publish(b"A.L", b"L" + bytes(3_000_000))


def test_any_buffer_that_is_a_record_is_published() -> None:
    record = order(1, b"B", 5)
    array = numpy.frombuffer(record, numpy.uint8)
    same: list[Any] = [bytearray(record), memoryview(record), array, array.reshape(2, -1), array.view("V36")]
    with delivered(one_slice(schema="itch50")) as (publisher, got):
        for payload in same:
            publisher.publish(b"A.A", payload)
    assert got.payloads == [record] * len(same)
