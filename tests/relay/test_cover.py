"""Requests of relays, compared with a slow plain model: sets of prefixes, scanned one by one."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blackbox.publish.peers import Why
from blackbox.relay.cover import Changes, Cover, Interest, SmallestCover, together
from tests.examples import examples

LETTERS = b"A\xff\0"
KEYS = [bytes(key) for size in range(4) for key in itertools.product(LETTERS, repeat=size)]
prefixes = st.lists(st.sampled_from(LETTERS), max_size=3).map(bytes)


def lets_through(filters: Iterable[bytes], key: bytes) -> bool:
    return any(key.startswith(prefix) for prefix in filters)


def smallest(wanted: Iterable[bytes]) -> set[bytes]:
    wanted = set(wanted)
    return {one for one in wanted if not any(one != other and one.startswith(other) for other in wanted)}


class Above:
    """The requests so far; `wanted` must never be uncovered."""

    def __init__(self) -> None:
        self.filters: set[bytes] = set()
        self.wanted: Counter[bytes] = Counter()

    def take(self, changes: Changes) -> None:
        for prefix in changes.subscribe:
            assert prefix not in self.filters, "requested twice"
            self.filters.add(prefix)
            self.check()
        for prefix in changes.withdraw:
            self.filters.remove(prefix)
            self.check()

    def check(self) -> None:
        settled = [prefix for prefix in self.wanted if lets_through(self._before, prefix)]
        assert all(lets_through(self.filters, prefix) for prefix in settled), "a wanted prefix was uncovered"

    def begin(self) -> None:
        self._before = set(self.filters)


class Hop:
    """A relay: an `Interest`, its requests above and, if the source is another relay, that relay's `Hop`."""

    def __init__(self, hold_s: float, above: Hop | None) -> None:
        self.hold_s, self.above = hold_s, above
        self.restart()

    def restart(self) -> None:
        """Start empty, as after a crash: the relay above has noticed the lost connection."""
        self.interest, self.asked = Interest(SmallestCover(), self.hold_s), Above()
        self.held: dict[bytes, float] = {}

    def change(self, prefix: bytes, by: int, now: float) -> None:
        if by > 0:
            self.asked.begin()
            self.asked.wanted[prefix] += 1
            self.held.pop(prefix, None)
            self.pass_on(self.interest.want(prefix), now)
        else:
            self.asked.wanted[prefix] -= 1
            if not self.asked.wanted[prefix]:
                del self.asked.wanted[prefix]
                if self.hold_s:
                    self.held[prefix] = now + self.hold_s
            self.asked.begin()
            self.pass_on(self.interest.leave(prefix, now), now)
        self.settle(now)

    def settle(self, now: float) -> None:
        self.asked.begin()
        self.pass_on(self.interest.settle(now), now)
        self.held = {prefix: due for prefix, due in self.held.items() if due > now}
        assert self.asked.filters == smallest([*self.asked.wanted, *self.held]), "more was requested than needed"

    def pass_on(self, changes: Changes, now: float) -> None:
        self.asked.take(changes)
        if self.above is not None:
            for prefix in changes.subscribe:
                self.above.change(prefix, 1, now)
            for prefix in changes.withdraw:
                self.above.change(prefix, -1, now)


subscribers = st.integers(0, 3)
steps = st.one_of(
    st.tuples(st.just("subscribe"), subscribers, prefixes),
    st.tuples(st.just("leave"), subscribers, st.integers(0, 99)),
    st.tuples(st.just("crash"), subscribers),
    st.tuples(st.just("reconnect"), subscribers, st.randoms(use_true_random=False)),
    st.tuples(st.just("restart"), st.randoms(use_true_random=False)),
    st.tuples(st.just("restart above"), st.randoms(use_true_random=False)),
    st.tuples(st.just("wait"), st.integers(1, 20)),
)


class Tree:
    """Four subscribers below a relay below another one below the source."""

    def __init__(self, hold_s: float) -> None:
        self.upper = Hop(hold_s, None)
        self.lower = Hop(hold_s, self.upper)
        self.wants: list[list[bytes]] = [[] for _ in range(4)]
        """Filters of each subscriber; a connection counts a filter once."""
        self.is_there = [True] * 4
        self.now = 0.0

    def tell(self, filters: Iterable[bytes], by: int) -> None:
        for prefix in filters:
            self.lower.change(prefix, by, self.now)

    def subscribe(self, who: int, prefix: bytes) -> None:
        if prefix not in self.wants[who]:
            self.wants[who].append(prefix)
            self.tell([prefix] * self.is_there[who], 1)

    def leave(self, who: int, place: int) -> None:
        if self.wants[who]:
            prefix = self.wants[who].pop(place % len(self.wants[who]))
            self.tell([prefix] * self.is_there[who], -1)

    def crash(self, who: int) -> None:
        if self.is_there[who]:
            self.is_there[who] = False
            self.tell(self.wants[who], -1)

    def reconnect(self, who: int, random: Random) -> None:
        if not self.is_there[who]:
            self.is_there[who] = True
            self.tell(random.sample(self.wants[who], len(self.wants[who])), 1)

    def restart(self, random: Random) -> None:
        """Restart the lower relay: the upper one loses the connection; subscribers repeat all filters in any order."""
        for prefix in list(self.lower.asked.filters):
            self.upper.change(prefix, -1, self.now)
        self.lower.restart()
        again = [prefix for who, wants in enumerate(self.wants) if self.is_there[who] for prefix in wants]
        self.tell(random.sample(again, len(again)), 1)

    def restart_above(self, random: Random) -> None:
        """Restart the upper relay: the lower one repeats its requests in any order."""
        self.upper.restart()
        again = sorted(self.lower.asked.filters)
        for prefix in random.sample(again, len(again)):
            self.upper.change(prefix, 1, self.now)

    def wait(self, seconds: int) -> None:
        self.now += seconds
        for hop in (self.lower, self.upper):
            hop.settle(self.now)

    def check(self) -> None:
        for who, wants in enumerate(self.wants):
            for key in KEYS if self.is_there[who] else ():
                alone = lets_through(wants, key)
                passes = lets_through(self.upper.asked.filters, key) and lets_through(self.lower.asked.filters, key)
                assert not alone or passes, f"subscriber {who} would get {key!r} directly, but not below relays"


@pytest.mark.parametrize("hold_s", [0.0, 10.0])
@given(schedule=st.lists(steps, max_size=60))
@settings(max_examples=examples(300), deadline=None)
def test_subscribers_below_relays_get_the_same_with_the_least_requests(
    hold_s: float, schedule: list[tuple[str, ...]]
) -> None:
    tree = Tree(hold_s)
    for what, *words in schedule:
        getattr(tree, what.replace(" ", "_"))(*words)
        tree.check()
    for who in range(4):
        tree.crash(who)
    tree.wait(1_000)
    tree.wait(1_000)
    assert not tree.upper.asked.filters


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


def test_a_filter_that_returns_while_held_changes_nothing_above() -> None:
    interest = Interest(SmallestCover(), hold_s=5.0)
    assert interest.want(b"AA") == ([b"AA"], [])
    for now in range(4):
        assert interest.leave(b"AA", float(now)) == ([], [])
        assert interest.want(b"AA") == ([], [])
    interest.leave(b"AA", 4.0)
    assert interest.settle(8.9) == ([], [])
    assert interest.settle(9.0) == ([], [b"AA"])


def test_held_filters_are_bounded() -> None:
    interest = Interest(SmallestCover(), hold_s=1e9)
    withdrawn = 0
    for number in range(70_000):
        prefix = number.to_bytes(4, "big")
        interest.want(prefix)
        withdrawn += len(interest.leave(prefix, 0.0).withdraw)
    assert withdrawn == 70_000 - 65_536


def test_an_unwanted_filter_cannot_be_left() -> None:
    with pytest.raises(KeyError):
        Interest(SmallestCover()).leave(b"A", 0.0)


def test_a_custom_cover_may_request_more() -> None:
    class FirstByte:
        """Requests first bytes while any filter below begins with them."""

        def __init__(self) -> None:
            self.counts: Counter[bytes] = Counter()

        def add(self, prefix: bytes) -> Changes:
            self.counts[prefix[:1]] += 1
            return Changes([prefix[:1]] if self.counts[prefix[:1]] == 1 else [], [])

        def remove(self, prefix: bytes) -> Changes:
            self.counts[prefix[:1]] -= 1
            return Changes([], [] if self.counts[prefix[:1]] else [prefix[:1]])

    cover: Cover = FirstByte()
    interest = Interest(cover)
    assert interest.want(b"AB") == ([b"A"], [])
    assert interest.want(b"AC") == ([], [])
    interest.leave(b"AB", 0.0)
    assert interest.leave(b"AC", 0.0) == ([], [b"A"])


def test_a_held_filter_that_is_refused_is_withdrawn() -> None:
    interest = Interest(SmallestCover(), 5.0)
    for prefix in (b"AA", b"AAA", b"B"):
        interest.want(prefix)
    interest.leave(b"AA", 0.0)
    assert interest.refuse(dict.fromkeys([b"AA", b"B", b"GONE"], Why.TOO_MANY)) == ([b"AAA"], [b"B", b"AA"])
    assert interest.refused == {b"B": Why.TOO_MANY}
    assert interest.settle(9.0) == ([], [])
    assert interest.ask_again() == ([b"B"], [])
