"""Topic numbers of a day match a Python dictionary, with their slices and keys."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blackbox import ConfigError, Feed
from blackbox.archive.files.topic_numbers import TopicNumbers

TOPICS = st.lists(st.text("AB.", min_size=1, max_size=6).map(str.encode), max_size=30)


KEYS = st.sampled_from([{}, {"key_bytes": 1}, {"key_bytes": 3}, {"channels": 3}])


@given(st.lists(TOPICS, max_size=4), KEYS, st.integers(1, 3), st.booleans())
def test_numbers_slices_and_keys_match_a_plain_dictionary(
    parts: list[list[bytes]], keys: dict[str, int], slices: int, grows: bool
) -> None:
    feed = msgspec.structs.replace(Feed.local("numbers", slices), **keys)
    numbers = TopicNumbers(feed)
    known: dict[bytes, int] = {}
    given_topics: tuple[bytes, ...] = ()
    for part in parts:
        given_topics = (*given_topics, *part) if grows else tuple(part)
        expected = [known.setdefault(topic, len(known)) for topic in given_topics]
        assert numbers.numbers_of(given_topics).tolist() == expected
    groups: dict[tuple[int, bytes], int] = {}
    for topic, number in known.items():
        name = feed.slice_of(topic), feed.key_of(topic)
        assert numbers.group_of[number] == groups.setdefault(name, len(groups))
        assert numbers.slice_of[numbers.group_of[number]] == name[0]
    table = numbers.table
    texts = [table.text[table.offsets[i] : table.offsets[i] + table.sizes[i]].tobytes() for i in range(len(known))]
    assert texts == list(known)


def test_the_table_grows_for_more_and_longer_topics() -> None:
    numbers = TopicNumbers(msgspec.structs.replace(Feed.local("numbers", 2), key_bytes=2))
    topics = [b"S%d." % number + b"x" * (number % 300) for number in range(5_000)]
    for stop in (10, 2_000, 5_000):
        assert numpy.array_equal(numbers.numbers_of(topics[:stop]), numpy.arange(stop))
    assert numbers.numbers_of([b"A" * 65_535]).tolist() == [5_000]
    assert len(numbers) == 5_001 <= numbers.room


def test_text_is_as_its_bytes_and_invalid_or_too_many_topics_are_rejected() -> None:
    numbers = TopicNumbers(msgspec.structs.replace(Feed.local("numbers", 2), max_topics=3))
    assert numbers.numbers_of(["A.t", "Aü", b"A.t", "Aü".encode()]).tolist() == [0, 1, 0, 1]
    wrong: list[tuple[Any, str]] = [
        (b"", "empty"),
        (b"\0A", "zero byte"),
        (b"A" * 65_536, "65536"),
        (1, "str or bytes"),
    ]
    for topic, why in wrong:
        with pytest.raises((ConfigError, TypeError), match=why):
            numbers.numbers_of([b"A.t", topic])
    with pytest.raises(ConfigError, match=r"topics were 9 or more, expected at most 3 .max_topics. a slice"):
        numbers.numbers_of([b"A%d" % number for number in range(7)])
