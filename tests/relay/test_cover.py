"""Requests of relays: combined changes, and bounds of held prefixes and of filters. See also `test_upstream.py`."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blackbox import Feed
from blackbox.block.form.format import SHARED_KEY
from blackbox.publish.listeners.peers import Why
from blackbox.publish.listeners.subscriptions import SUBSCRIBE
from blackbox.services.relay.cover import Changes, Interest, together
from blackbox.services.relay.requests_below import Below
from blackbox.services.relay.requests_up import Upstream

prefixes = st.lists(st.sampled_from(b"A\xff\0"), max_size=3).map(bytes)
FILTERS = [b"A" + hashlib.sha256(b"%d" % number).digest()[:7] for number in range(5_000)]


def new_upstream() -> Upstream:
    return Upstream(["tcp://source"], 0.0, 1.0, "relay", lambda: b"12345678")


@given(changes=st.lists(st.tuples(prefixes, st.booleans()), max_size=40))
def test_combined_changes_equal_single_changes(changes: list[tuple[bytes, bool]]) -> None:
    has: set[bytes] = set()
    steps = []
    for prefix, comes in changes:
        if comes != (prefix in has):
            has ^= {prefix}
            steps.append(Changes([prefix], []) if comes else Changes([], [prefix]))
    merged = together(steps)
    assert (set(merged.subscribe), merged.withdraw) == (has, [])


def test_a_held_filter_that_is_refused_is_withdrawn() -> None:
    interest = Interest(hold_s=1e9)
    interest.want(b"A")
    interest.leave(b"A", 0.0)
    assert interest.refuse({b"A": Why.NO_RIGHT}) == Changes([], [b"A"])


def test_held_filters_are_bounded() -> None:
    interest = Interest(hold_s=1e9)
    withdrawn = 0
    for number in range(70_000):
        prefix = number.to_bytes(4, "big")
        interest.want(prefix)
        withdrawn += len(interest.leave(prefix, 0.0).withdraw)
    assert withdrawn == 70_000 - 65_536
    with pytest.raises(KeyError):
        interest.leave(b"never wanted", 0.0)


def test_filters_of_readers_of_shared_memory_take_little_memory() -> None:
    below = Below(Feed.local("filters", slices=1, key_bytes=8, transport="shm"), 0, [new_upstream()], 1_000_000)
    for prefix in FILTERS:
        below.filter_changed((0, SHARED_KEY + prefix), 1)
    below.renew_readers()
    assert sum(each.nbytes for each in below.readers) == 16 * len(FILTERS)


def test_filters_requested_in_shared_memory_take_little_memory() -> None:
    upstream = new_upstream()
    upstream.read_in(True)
    for prefix in FILTERS:
        upstream.want(prefix, 1, 0.0)
    assert sum(each.nbytes for each in upstream.keys) < 1 << 20


def test_a_relay_requests_everything_before_its_source_refuses_more() -> None:
    upstream = new_upstream()
    below = Below(Feed.local("filters", slices=1, key_bytes=4), 0, [upstream], 50)
    for number in range(90):
        below.note(0, -1, SUBSCRIBE + b"%04d" % number, 5, 0)
    assert b"" in upstream.filters
    assert len(upstream.filters) == 52, "the filters that it covers are withdrawn once it is confirmed"
