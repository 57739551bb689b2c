"""Keys of topics and subscriptions, compiled and in Python, against a plain reference."""

from __future__ import annotations

from zlib import crc32

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blackbox.block.form.block import Block, HeaderFields
from blackbox.block.form.format import HEADER_BYTES
from blackbox.block.form.rows import PayloadColumns
from blackbox.block.form.validate import Fault, check_block
from blackbox.errors import ConfigError
from blackbox.feed.feed import Feed
from blackbox.feed.routing.key_rule import may_have_key, rule_text
from blackbox.feed.symbol_choice import SymbolChoice
from tests.examples import examples

LETTERS = st.sampled_from([b"A", b"B", b".", b"/", b"\xff", b"\0"])
TEXTS = st.lists(LETTERS, max_size=8).map(b"".join).filter(lambda text: text[:1] != b"\0")
TOPICS = TEXTS.filter(bool)
FEEDS = st.builds(
    lambda keys, separator: Feed(name="keys", slices=Feed.local("keys", 1).slices, separator=separator, **keys),
    st.one_of(
        st.integers(0, 8).map(lambda size: {"key_bytes": size}),
        st.sampled_from([1, 2, 3, 64, 128]).map(lambda many: {"channels": many}),
    ),
    st.sampled_from("./A"),
)


def expected_key(feed: Feed, topic: bytes) -> bytes:
    if feed.channels == 1:
        return topic[: feed.key_bytes]
    root = topic.split(feed.separator.encode())[0]
    return bytes([crc32(root) // 65_536 % feed.channels + 1])


@settings(max_examples=examples(500), deadline=None)
@given(FEEDS, TEXTS, TEXTS)
def test_each_topic_has_the_key_of_the_reference_and_its_prefixes_request_it(
    feed: Feed, prefix: bytes, rest: bytes
) -> None:
    topic = prefix + rest or b"A"
    key = feed.key_of(topic)
    assert key == expected_key(feed, topic)
    assert len(key) <= feed.key_rule if feed.key_bytes else len(key) == (feed.channels > 1)
    assert key.startswith(feed.subscription_of(topic[: len(prefix)]))
    assert key == feed.subscription_of(topic, whole=True)
    assert may_have_key(feed.key_rule, topic[: len(prefix)], key)
    assert may_have_key(feed.key_rule, topic, key, whole=True)


@given(FEEDS, TEXTS)
def test_a_prefix_with_a_separator_requests_one_channel_and_a_shorter_one_all(feed: Feed, prefix: bytes) -> None:
    if feed.channels > 1:
        is_fixed = feed.separator.encode() in prefix
        assert feed.subscription_of(prefix) == (expected_key(feed, prefix) if is_fixed else b"")


@given(FEEDS, TOPICS)
def test_a_symbol_requests_one_channel(feed: Feed, symbol: bytes) -> None:
    if feed.channels > 1:
        starts = SymbolChoice.of(feed, [symbol]).starts
        assert {feed.subscription_of(start, whole=whole) for start, whole in starts} == {expected_key(feed, symbol)}


@settings(max_examples=examples(500), deadline=None)
@given(FEEDS, st.lists(TOPICS, min_size=1, max_size=4, unique=True))
def test_a_block_is_valid_exactly_if_all_its_topics_have_its_key(feed: Feed, topics: list[bytes]) -> None:
    key = feed.key_of(topics[0])
    sizes = numpy.zeros(len(topics) + 1, numpy.int64)
    block = Block.encode(
        [topics[0]], [0], PayloadColumns(b"", offsets=sizes[:2]), HeaderFields(key_rule=feed.key_rule, epoch=1), key=key
    )
    if all(feed.key_of(topic) == key for topic in topics):
        block = Block.encode(
            topics,
            range(len(topics)),
            PayloadColumns(b"", offsets=sizes),
            HeaderFields(key_rule=feed.key_rule, epoch=1),
            key=key,
        )
    head = numpy.frombuffer(block.header + key + b"\0", numpy.uint8).copy()
    frames = head.ctypes.data, HEADER_BYTES, block.body.ctypes.data, block.body.nbytes, head.ctypes.data + HEADER_BYTES
    assert check_block(*frames, len(key), feed.key_rule) == Fault.NONE
    if key:
        head[HEADER_BYTES] ^= 1
        assert check_block(*frames, len(key), feed.key_rule) == Fault.TOPIC_KEY


def test_settings_that_exclude_each_other_are_refused() -> None:
    with pytest.raises(ConfigError, match="feed 'keys': key_bytes was 4 and channels 16, expected only one"):
        Feed.local("keys", key_bytes=4, channels=16)
    assert [rule_text(feed.key_rule) for feed in (Feed.local("a", key_bytes=4), Feed.local("b", channels=16))] == [
        "key_bytes = 4",
        "channels = 16",
    ]
