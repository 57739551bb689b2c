"""Requests of relays, compared with a slow plain model: sets of prefixes, scanned one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blackbox.publish.listeners.peers import Why
from blackbox.services.relay.cover import Changes, Interest, SmallestCover, together
from tests.examples import examples

prefixes = st.lists(st.sampled_from(b"A\xff\0"), max_size=3).map(bytes)
steps = st.tuples(st.sampled_from(["want", "leave", "refuse", "ask again", "wait"]), prefixes)


def lets_through(filters: Iterable[bytes], key: bytes) -> bool:
    return any(key.startswith(prefix) for prefix in filters)


def smallest(wanted: set[bytes]) -> set[bytes]:
    return {one for one in wanted if not lets_through(wanted - {one}, one)}


class Above:
    """The requests so far; a wanted prefix that is covered must never be uncovered."""

    def __init__(self) -> None:
        self.filters, self.wanted, self.refused = set[bytes](), Counter[bytes](), set[bytes]()

    def take(self, changes: Changes) -> None:
        settled = [each for each in self.wanted if each not in self.refused and lets_through(self.filters, each)]
        for prefix in changes.subscribe:
            assert prefix not in self.filters, "requested twice"
            self.filters.add(prefix)
        for prefix in changes.withdraw:
            self.filters.remove(prefix)
            assert all(lets_through(self.filters, each) for each in settled), "a wanted prefix was uncovered"


@pytest.mark.parametrize("hold_s", [0.0, 3.0])
@given(schedule=st.lists(steps, max_size=60))
@settings(max_examples=examples(800), deadline=None)
def test_all_wanted_prefixes_are_covered_with_the_least_requests(
    hold_s: float, schedule: list[tuple[str, bytes]]
) -> None:
    interest, above, held = Interest(SmallestCover(), hold_s), Above(), dict[bytes, float]()
    for now, (what, prefix) in enumerate(schedule):
        if what == "want":
            above.wanted[prefix] += 1
            held.pop(prefix, None)
            above.take(interest.want(prefix))
        elif what == "leave" and prefix in above.wanted:
            above.wanted = +(above.wanted - Counter([prefix]))
            if prefix not in above.wanted:
                if prefix not in above.refused:
                    held[prefix] = now + hold_s
                above.refused.discard(prefix)
            above.take(interest.leave(prefix, float(now)))
        elif what == "refuse":
            above.refused |= {prefix} & {*above.wanted}
            held.pop(prefix, None)
            above.take(interest.refuse({prefix: Why.NO_RIGHT}))
        elif what == "ask again":
            above.refused.clear()
            above.take(interest.ask_again())
        above.take(interest.settle(float(now)))
        held = {prefix: due for prefix, due in held.items() if due > now}
        assert interest.refused.keys() == above.refused
        wanted = {*above.wanted, *held} - above.refused
        assert above.filters == smallest(wanted), "not exactly what is needed was requested"


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
