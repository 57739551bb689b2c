"""Requests of relays: combined changes, and the bound of held prefixes. See also `test_upstream.py`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blackbox.publish.listeners.peers import Why
from blackbox.services.relay.cover import Changes, Interest, SmallestCover, together

prefixes = st.lists(st.sampled_from(b"A\xff\0"), max_size=3).map(bytes)


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
    interest = Interest(SmallestCover(), hold_s=1e9)
    interest.want(b"A")
    interest.leave(b"A", 0.0)
    assert interest.refuse({b"A": Why.NO_RIGHT}) == Changes([], [b"A"])


def test_held_filters_are_bounded() -> None:
    interest = Interest(SmallestCover(), hold_s=1e9)
    withdrawn = 0
    for number in range(70_000):
        prefix = number.to_bytes(4, "big")
        interest.want(prefix)
        withdrawn += len(interest.leave(prefix, 0.0).withdraw)
    assert withdrawn == 70_000 - 65_536
    with pytest.raises(KeyError):
        interest.leave(b"never wanted", 0.0)
