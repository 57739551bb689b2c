"""Columns are published as rows; columns that do not fit are refused whole."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import msgspec
import numpy
import pytest

from blackbox import ConfigError, Feed, Publisher
from tests.publish.subscribers import delivered, one_slice
from tests.threads import in_threads


def test_columns_of_every_shape_arrive_as_rows() -> None:
    topics = (b"A", b"B", b"never", b"C")
    index = numpy.array([0, 1, 3, 1])
    text = b"xabcdefgh"
    unknown = numpy.zeros(4, numpy.int64)
    with delivered(one_slice()) as (publisher, got):
        assert publisher.publish_many(topics, index, numpy.arange(12, dtype=numpy.uint8).reshape(4, 3), unknown) == 4
        publisher.publish_many(topics, index, text, ts_event=[1, 2, 3, 4], offsets=[1, 1, 4, 6, 9])
        publisher.publish_many(topics, index, text, unknown, offsets=[8, 0, 2, 2], lengths=[1, 3, 0, 5])
        publisher.publish_many(list(topics), index.tolist(), bytearray(text), [0] * 4, offsets=(0, 1, 2, 3, 9))
        publisher.publish_many(topics, index[::-1], numpy.zeros((4, 0), numpy.uint8), unknown)
        assert publisher.publish_many(topics, [], numpy.zeros((0, 1), numpy.uint8)) == 0
    rows = [(m.topic, m.payload, m.ts_event) for m in got.messages]
    names = [b"A", b"B", b"C", b"B"]
    expected = [(name, bytes([3 * i, 3 * i + 1, 3 * i + 2]), 0) for i, name in enumerate(names)]
    expected += list(zip(names, [b"", b"abc", b"de", b"fgh"], [1, 2, 3, 4], strict=True))
    expected += list(zip(names, [b"h", b"xab", b"", b"bcdef"], [0] * 4, strict=True))
    expected += list(zip(names, [b"x", b"a", b"b", b"cdefgh"], [0] * 4, strict=True))
    expected += [(name, b"", 0) for name in reversed(names)]
    assert rows == expected


def test_columns_larger_than_a_window_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blackbox.publish.publisher.WINDOW_ROWS", 1_000)
    rows = 2_017
    feed = msgspec.structs.replace(Feed.local("publisher", slices=2, key_bytes=2), block_bytes=4_096)
    topics = tuple(b"S%d" % number for number in range(100))
    index = numpy.random.default_rng(1).integers(0, 100, rows)
    payloads = numpy.arange(rows, dtype=numpy.int64).view(numpy.uint8).reshape(rows, 8)
    with delivered(feed) as (publisher, got):
        publisher.publish_many(topics, index, payloads)
    parts: dict[tuple[int, bytes], list[int]] = {}
    for message in got.messages:
        place = feed.slice_of(message.topic), feed.key_of(message.topic)
        parts.setdefault(place, []).append(int.from_bytes(message.payload, "little"))
    assert sorted(itertools.chain(*parts.values())) == list(range(rows))
    assert all(numbers == sorted(numbers) for numbers in parts.values())


def test_a_large_message_keeps_the_routes_of_columns() -> None:
    with Publisher(one_slice()) as publisher:
        publisher.publish_many((b"A", b"B"), [0, 1], numpy.zeros((2, 1), numpy.uint8))
        before = publisher._routes._resolved
        publisher.publish(b"T", bytes(70_000))
        assert publisher._routes._resolved is before


ROWS_2 = numpy.zeros((2, 4), numpy.uint8)

WRONG_COLUMNS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "index too large": ({"topic_index": [0, 2]}, ValueError, "topic_index ran from 0 to 2, expected 0 to 1"),
    "index below zero": ({"topic_index": [0, -1]}, ValueError, "topic_index ran from -1 to 0, expected 0 to 1"),
    "index beyond int32": ({"topic_index": numpy.array([0, 1 << 32])}, ValueError, "topic_index"),
    "index of floats": ({"topic_index": [0.0, 0.9]}, (ValueError, TypeError), "topic_index"),  # type: ignore[dict-item]
    "index in two dimensions": ({"topic_index": [[0, 1]]}, ValueError, r"topic_index had shape \(1, 2\)"),
    "too few payloads": ({"payloads": ROWS_2[:1]}, ValueError, r"payloads without offsets had shape \(1, 4\)"),
    "payloads of numbers": ({"payloads": ROWS_2.astype(int)}, ValueError, r"expected \(2, size\) of bytes"),
    "payloads in one dimension": ({"payloads": b"abcd"}, ValueError, r"expected \(2, size\) of bytes"),
    "too few offsets": (
        {"payloads": b"abcd", "offsets": [0, 4]},
        ValueError,
        r"offsets had shape \(2,\), expected \(3,\)",
    ),
    "offsets past the end": ({"payloads": b"abcd", "offsets": [0, 2, 5]}, ValueError, "outside the 4 bytes"),
    "offsets that run back": ({"payloads": b"abcd", "offsets": [0, 3, 2]}, ValueError, "outside|backwards"),
    "offsets below zero": ({"payloads": b"abcd", "offsets": [-1, 2, 3]}, ValueError, "outside|backwards"),
    "a start past the end": ({"payloads": b"ab", "offsets": [0, 2**63 - 1], "lengths": [1, 1]}, ValueError, "outside"),
    "a length without end": ({"payloads": b"ab", "offsets": [0, 1], "lengths": [1, 2**63 - 1]}, ValueError, "outside"),
    "a length below zero": (
        {"payloads": b"ab", "offsets": [0, 1], "lengths": [1, -1]},
        ValueError,
        "outside|backwards",
    ),
    "too few lengths": (
        {"payloads": b"ab", "offsets": [0, 1], "lengths": [1]},
        ValueError,
        r"lengths had shape \(1,\)",
    ),
    "too few times": ({"ts_event": [1]}, ValueError, r"ts_event had shape \(1,\), expected \(2,\)"),
    "a topic that is a number": ({"topics": ("A", 1)}, TypeError, "expected str or bytes"),  # type: ignore[dict-item]
    "an empty topic": ({"topics": (b"A", b"")}, ConfigError, "topic was empty"),
    "a reserved topic": ({"topics": (b"A", b"\0x")}, ConfigError, "reserved"),
    "a payload of 40 MB": (
        {"payloads": numpy.zeros((2, 40 << 20), numpy.uint8)},
        ValueError,
        "a payload had 41943040 bytes",
    ),
}


def test_columns_that_do_not_fit_are_refused_and_nothing_is_published() -> None:
    good: dict[str, Any] = {"topics": (b"A", b"B"), "topic_index": [0, 1], "payloads": ROWS_2}
    with delivered(one_slice()) as (publisher, got):
        for case, (changed, error, text) in WRONG_COLUMNS.items():
            with pytest.raises(error, match=text):
                publisher.publish_many(**good | changed)
            publisher.publish(b"A", case.encode())
    assert got.payloads == [case.encode() for case in WRONG_COLUMNS]


@pytest.mark.parametrize("with_lengths", [False, True])
def test_columns_changed_during_publishing_leak_no_other_memory(with_lengths: bool) -> None:
    memory = numpy.frombuffer(bytearray(b"A" * 600_000 + b"S" * 6_000_000), numpy.uint8)
    rows = 30_000
    good = numpy.arange(rows + 1, dtype=numpy.int64) * 20
    offsets, index = good.copy(), numpy.zeros(rows, numpy.int32)
    lengths = numpy.full(rows, 20, numpy.int64)
    starts = offsets[:-1] if with_lengths else offsets
    over = threading.Event()

    def change() -> None:
        while not over.is_set():
            offsets[:] = 600_000 + good
            lengths[:] = 40
            offsets[:] = good
            lengths[:] = 20

    published = refused = 0
    given = lengths if with_lengths else None
    with delivered(one_slice()) as (publisher, got), in_threads(change):
        for tried in range(100_000):
            if tried >= 100 and published and refused:
                break
            try:
                published += publisher.publish_many((b"T",), index, memory[:600_000], offsets=starts, lengths=given)
            except ValueError:
                refused += 1
        over.set()
    assert published > 0
    assert refused > 0
    assert set(b"".join(got.payloads)) == set(b"A")
