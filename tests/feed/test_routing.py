"""Routing, in Python and compiled, compared with a slow plain reference, and slices that do not fit together."""

from typing import Any
from zlib import crc32

import numpy
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from blackbox.block.form import format as layout
from blackbox.errors import ConfigError
from blackbox.feed.feed import Feed
from blackbox.feed.routing.compiled_routing import NO_SLICE, Routes, route, routes_of
from blackbox.feed.routing.slices import MAX_TOPIC_BYTES, PrefixRouting, ShareRouting
from blackbox.feed.routing.symbol import SymbolRule
from blackbox.native.compile.jit import njit
from tests.feed.made import feed_of, feed_of_prefixes, feed_of_shares


@pytest.mark.parametrize(
    ("slices", "message"),
    [
        ([{"prefixes": ("A", "B")}, {"prefixes": ("C", "AA")}], "prefix 'AA' of slice 1 overlaps with prefix 'A' of"),
        ([{"prefixes": ("",)}, {"prefixes": ("A",)}], "prefix 'A' of slice 1 overlaps with prefix '' of slice 0"),
        ([{"prefixes": ("A",)}, {}], "slice 1 has neither prefixes nor a share"),
        ([], "slices were 0, expected 1 to 65536"),
        ([{"share": (0, 3)}, {"share": (2, 3)}], "share 1 of 3 is held by no slice"),
        ([{"share": (1, 2)}, {"share": (1, 2)}], "share 1 of 2 is held by slice 0 and by slice 1, expected one holder"),
        ([{"share": (0, 2)}, {"share": (1, 3)}], "share of slice 1 was one of 3, expected one of 2 as in slice 0"),
        ([{"prefixes": ("A",)}, {"share": (0, 1)}], "slice 1 has a share but others have none"),
    ],
)
def test_slices_that_do_not_cover_each_topic_once_are_refused(slices: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        feed_of(*slices)
    assert str(caught.value).startswith(f"feed 'test': {message}")


def test_uncovered_topic_is_refused_with_the_known_prefixes() -> None:
    feed = feed_of_prefixes(("A",), ("C", "B"))
    with pytest.raises(ConfigError) as caught:
        feed.slice_of(b"X.trade")
    assert str(caught.value) == (
        "topic b'X.trade' is covered by no slice, known prefixes: 'A' (slice 0), 'B' (slice 1), 'C' (slice 1)"
    )
    assert feed.slices_for(b"X") == ()
    feed = feed_of_prefixes(tuple(f"S{number:04}" for number in range(1_000)))
    with pytest.raises(ConfigError, match=r"'S0007' \(slice 0\) and 992 more$"):
        feed.slice_of(b"X")


@pytest.mark.parametrize(
    ("topic", "message"),
    [
        (b"", "topic was empty, expected at least one byte"),
        (b"\0x", "topic b'\\x00x' starts with a zero byte, which is reserved for control"),
        (b"x" * 65_536, "was 65536 bytes long, expected at most 65535"),
    ],
)
@pytest.mark.parametrize("feed", [feed_of_prefixes(()), feed_of_shares((0, 1))], ids=repr)
def test_topic_that_cannot_be_sent_is_refused(feed: Feed, topic: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        feed.slice_of(topic)
    assert message in str(caught.value)
    if topic:
        with pytest.raises(ConfigError):
            feed.slices_for(topic)


def test_a_topic_is_text_or_bytes() -> None:
    feed = feed_of_prefixes(("A",), ("\u00c9",))
    assert feed.slice_of("A.x") == feed.slice_of(b"A.x") == 0
    assert feed.slice_of("\u00c9.x") == feed.slice_of("\u00c9.x".encode()) == 1
    assert feed.slices_for("") == feed.slices_for(b"") == (0, 1)
    for call in (feed.slice_of, feed.slices_for, feed.key_of, feed.subscription_of):
        with pytest.raises(TypeError, match=r"was None \(NoneType\), expected str or bytes"):
            call(None)  # type: ignore[arg-type]


def test_single_slice_without_prefixes_takes_every_topic() -> None:
    feed = feed_of_prefixes(())
    assert feed.slice_of(b"anything") == feed.slice_of(b"x" * 65_535) == 0
    assert feed.slices_for(b"") == feed.slices_for(b"any") == (0,)
    assert MAX_TOPIC_BYTES == layout.MAX_TOPIC_BYTES == 65_535


def test_share_is_crc32_of_the_root_and_slices_may_hold_shares_in_any_order() -> None:
    # CRC-32 of "123456789" is 0xCBF43926, the check value in every catalogue of CRCs.
    feed = feed_of_shares((2, 4), (3, 4), (0, 4), (1, 4))
    assert 0xCBF43926 % 4 == 2
    assert feed.slice_of(b"123456789") == feed.slice_of(b"123456789.trade.x") == 0


# An alphabet this small makes shared prefixes and dots frequent.
topics = st.binary(min_size=1, max_size=6).map(lambda raw: bytes(b"AB.\xff\0"[byte % 5] for byte in raw))
prefix_texts = st.text("AB.", max_size=4)


@njit(nogil=True)
def _route(routes: Routes, topic: int, size: int) -> int:
    return int(route(routes, topic, size))


def routed(routing: PrefixRouting | ShareRouting, topic: bytes) -> int:
    """Return the slice of a topic by the compiled routing."""
    text = numpy.frombuffer(topic + b"\0", numpy.uint8)
    return int(_route(routes_of(routing), text.ctypes.data, len(topic)))


@st.composite
def feeds(draw: st.DrawFn) -> Feed:
    if draw(st.booleans()):
        of = draw(st.integers(1, 5))
        return feed_of_shares(*((index, of) for index in draw(st.permutations(range(of)))))
    sets = draw(st.lists(st.lists(prefix_texts, min_size=1, max_size=4), min_size=1, max_size=4))
    try:
        return feed_of_prefixes(*map(tuple, sets))
    except ConfigError:
        assume(False)  # two of them overlap
        raise


def slow_slices_of(feed: Feed, topic: bytes) -> list[int]:
    """Return the slices of a topic by definition."""
    found = []
    for slice_id, feed_slice in enumerate(feed.slices):
        if feed_slice.share is not None:
            index, of = feed_slice.share
            if crc32(topic.split(b".")[0]) % of == index:
                found.append(slice_id)
        elif any(topic.startswith(prefix.encode()) for prefix in feed_slice.prefixes):
            found.append(slice_id)
    return found


@given(feeds(), topics)
def test_topic_has_the_slice_of_the_reference(feed: Feed, topic: bytes) -> None:
    expected = [] if topic[0] == 0 else slow_slices_of(feed, topic)
    assert routed(feed.routing, topic) == (expected[0] if expected else NO_SLICE)
    for size in range(len(topic) + 1 if expected else 0):
        assert set(expected) <= set(feed.slices_for(topic[:size]))
    if expected:
        assert [feed.slice_of(topic)] == expected
    elif topic[0]:
        with pytest.raises(ConfigError, match="is covered by no slice"):
            feed.slice_of(topic)


@given(st.lists(st.lists(st.binary(max_size=4), max_size=3), min_size=1, max_size=4), st.binary(max_size=6))
def test_compiled_routing_by_any_bytes_agrees(prefixes: list[list[bytes]], topic: bytes) -> None:
    try:
        routing = PrefixRouting(prefixes)
    except ConfigError:
        return
    for each in (topic, *(prefix + topic for prefixes_of in prefixes for prefix in prefixes_of)):
        found = [number for number, held in enumerate(prefixes) if any(map(each.startswith, held))]
        assert routed(routing, each) == (found[0] if found and each and each[0] else NO_SLICE)


@pytest.mark.parametrize("separator", [".", "~"])
def test_a_topic_that_is_too_long_has_no_slice(separator: str) -> None:
    routing = ShareRouting([(1, 2), (0, 2)], SymbolRule(separator=separator))
    for root in (b"A", b"B", b"C"):
        topic = (root + separator.encode()).ljust(65_535, b".")
        assert routed(routing, topic) == routing.slice_of(topic) == (crc32(topic.split(separator.encode())[0]) + 1) % 2
        assert routed(routing, topic + b".") == NO_SLICE


@given(feeds(), prefix_texts.map(str.encode))
def test_slices_of_a_prefix_are_ascending_and_each_can_hold_a_topic(feed: Feed, prefix: bytes) -> None:
    found = feed.slices_for(prefix)
    assert list(found) == sorted(set(found))
    for slice_id in found:
        feed_slice = feed.slices[slice_id]
        if feed_slice.share is None:
            candidates = [held.encode() for held in feed_slice.prefixes] + [prefix + b"A"]
        else:
            candidates = [prefix] + [prefix + b"%d" % number for number in range(200)]
        assert any(
            topic.startswith(prefix) and slow_slices_of(feed, topic) == [slice_id]
            for topic in (candidate or b"A" for candidate in candidates)
        )


@given(st.lists(st.lists(prefix_texts, min_size=1, max_size=3), min_size=1, max_size=3))
def test_prefixes_are_refused_exactly_if_a_topic_could_have_two_slices(sets: list[list[str]]) -> None:
    overlap = any(
        one.startswith(other) or other.startswith(one)
        for first, ones in enumerate(sets)
        for others in sets[first + 1 :]
        for one in ones
        for other in others
    )
    if overlap:
        with pytest.raises(ConfigError, match="overlaps with prefix"):
            feed_of_prefixes(*map(tuple, sets))
    else:
        feed_of_prefixes(*map(tuple, sets))
