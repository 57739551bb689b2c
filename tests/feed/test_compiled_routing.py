"""Compiled routing finds the same slice as `Feed.slice_of` for any topic."""

from __future__ import annotations

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blackbox import ConfigError
from blackbox.feed.compiled_routing import NO_SLICE, Routes, route, routes_of
from blackbox.feed.routing import PrefixRouting, ShareRouting
from blackbox.feed.symbol import SymbolRule
from blackbox.native.jit import njit

SMALL = st.binary(max_size=6).map(lambda text: bytes(b"\0.AB\xff"[byte % 5] for byte in text))


@njit(nogil=True)
def _route(routes: Routes, topic: int, size: int) -> int:
    return int(route(routes, topic, size))


def routed(routing: PrefixRouting | ShareRouting, topic: bytes) -> int:
    text = numpy.frombuffer(topic + b"\0", numpy.uint8)
    return int(_route(routes_of(routing), text.ctypes.data, len(topic)))


def expected(routing: PrefixRouting | ShareRouting, topic: bytes) -> int:
    if not topic or topic[0] == 0:
        return NO_SLICE
    try:
        return routing.slice_of(topic)
    except ConfigError:
        return NO_SLICE


@given(st.lists(st.lists(SMALL, max_size=3), min_size=1, max_size=4), st.lists(SMALL, max_size=20))
def test_routing_by_prefix_agrees_with_the_feed(prefixes: list[list[bytes]], topics: list[bytes]) -> None:
    try:
        routing = PrefixRouting(prefixes)
    except ConfigError:
        return
    for topic in topics:
        assert routed(routing, topic) == expected(routing, topic)


@given(st.permutations(range(5)), st.lists(st.binary(max_size=12), max_size=20), st.sampled_from(".A~"))
def test_routing_by_share_agrees_with_the_feed(order: list[int], topics: list[bytes], separator: str) -> None:
    routing = ShareRouting([(index, 5) for index in order], SymbolRule(separator=separator))
    for topic in topics:
        assert routed(routing, topic) == expected(routing, topic)


@pytest.mark.parametrize("size", [65_535, 65_536])
def test_a_topic_that_is_too_long_has_no_slice(size: int) -> None:
    routing = ShareRouting([(0, 1)], SymbolRule())
    assert routed(routing, b"A" * size) == (0 if size == 65_535 else NO_SLICE)
