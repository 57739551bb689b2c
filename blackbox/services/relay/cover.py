"""Compute the prefixes that a relay subscribes to above from those wanted below. Does no I/O."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from blackbox.block.form.format import WANT_KEY
from blackbox.publish.listeners.peers import Why

_MOST_HELD: Final = 65_536
"""Most prefixes held after their last subscriber has left; the oldest ones above that are withdrawn."""


class Changes(NamedTuple):
    """Prefixes to subscribe to first, then prefixes to withdraw: all wanted prefixes stay covered meanwhile."""

    subscribe: list[bytes]
    withdraw: list[bytes]


NO_CHANGES: Final = Changes([], [])


class SmallestCover:
    """Subscribes to the wanted prefixes that no other wanted prefix covers.

    Each prefix is added once, and removed once when no subscriber wants it.
    """

    def __init__(self) -> None:
        self._wanted: set[bytes] = set()
        self._sorted: list[bytes] = []
        """The wanted prefixes, sorted: a prefix comes before those that it covers."""

    def add(self, prefix: bytes) -> Changes:
        """Cover a new prefix."""
        changes = NO_CHANGES if self._is_covered(prefix) else Changes([prefix], list(self._uppermost_below(prefix)))
        self._wanted.add(prefix)
        insort(self._sorted, prefix)
        return changes

    def remove(self, prefix: bytes) -> Changes:
        """Stop covering a prefix."""
        self._wanted.remove(prefix)
        del self._sorted[bisect_left(self._sorted, prefix)]
        return NO_CHANGES if self._is_covered(prefix) else Changes(list(self._uppermost_below(prefix)), [prefix])

    def _is_covered(self, prefix: bytes) -> bool:
        return any(prefix[:size] in self._wanted for size in range(len(prefix)))

    def _uppermost_below(self, prefix: bytes) -> Iterator[bytes]:
        """Yield the wanted prefixes that begin with `prefix` and are not covered by each other."""
        at = bisect_left(self._sorted, prefix)
        while at < len(self._sorted) and (found := self._sorted[at]).startswith(prefix):
            yield found
            behind = _behind(found)
            at = bisect_left(self._sorted, behind, at + 1) if behind else len(self._sorted)


class CoverByKind:
    """Covers filters, and wanted topics (after WANT_KEY) apart: no filter covers these."""

    def __init__(self) -> None:
        self._filters, self._topics = SmallestCover(), SmallestCover()

    def add(self, prefix: bytes) -> Changes:
        """Cover a new prefix."""
        return (self._topics if prefix.startswith(WANT_KEY) else self._filters).add(prefix)

    def remove(self, prefix: bytes) -> Changes:
        """Stop covering a prefix."""
        return (self._topics if prefix.startswith(WANT_KEY) else self._filters).remove(prefix)


def _behind(prefix: bytes) -> bytes:
    """Return the first bytes that sort after everything that begins with `prefix`; empty: no bytes do."""
    head = prefix.rstrip(b"\xff")
    return head and head[:-1] + bytes([head[-1] + 1])


class Interest:
    """Counts the subscribers of each prefix; a `CoverByKind` turns them into subscriptions above.

    A prefix without subscribers stays covered for `hold_s` seconds, so that a new subscriber changes nothing upstream.
    All times must be from one clock.
    """

    def __init__(self, hold_s: float = 0.0) -> None:
        self._cover, self._hold_s = CoverByKind(), hold_s
        self._references: Counter[bytes] = Counter()
        self._held: OrderedDict[bytes, float] = OrderedDict()
        """End of the hold of each prefix without subscribers, earliest first."""
        self.refused: dict[bytes, Why] = {}
        """Wanted prefixes that the source refuses, and why; they cover no others."""

    def want(self, prefix: bytes) -> Changes:
        """Add a subscriber of a prefix."""
        self._references[prefix] += 1
        if self._references[prefix] > 1 or self._held.pop(prefix, None) is not None:
            return NO_CHANGES
        return self._cover.add(prefix)

    def leave(self, prefix: bytes, now: float) -> Changes:
        """Remove a subscriber of a prefix. Raises KeyError if it has none."""
        if not self._references[prefix]:
            raise KeyError(prefix)
        self._references[prefix] -= 1
        if self._references[prefix]:
            return NO_CHANGES
        del self._references[prefix]
        if self.refused.pop(prefix, None) is not None:
            return NO_CHANGES
        if self._hold_s > 0:
            self._held[prefix] = now + self._hold_s
            return self.settle(now)
        return self._cover.remove(prefix)

    def refuse(self, prefixes: Mapping[bytes, Why]) -> Changes:
        """Stop covering prefixes that the source refuses; the prefixes that they covered are requested again."""
        new = {each: why for each, why in prefixes.items() if self._references[each] and each not in self.refused}
        held = [prefix for prefix in prefixes if self._held.pop(prefix, None) is not None]
        self.refused.update(new)
        return together(self._cover.remove(prefix) for prefix in (*new, *held))

    def ask_again(self) -> Changes:
        """Cover refused prefixes again: another source may accept them."""
        again, self.refused = self.refused, {}
        return together(self._cover.add(prefix) for prefix in sorted(again))

    def settle(self, now: float) -> Changes:
        """Withdraw prefixes whose hold has ended."""
        gone = []
        while self._held and (self._held[first := next(iter(self._held))] <= now or len(self._held) > _MOST_HELD):
            del self._held[first]
            gone.append(first)
        return together(self._cover.remove(prefix) for prefix in gone)


def together(changes: Iterable[Changes]) -> Changes:
    """Combine successive changes; prefixes that were both added and withdrawn are left out."""
    subscribe: dict[bytes, None] = {}
    withdraw: dict[bytes, None] = {}
    for change in changes:
        for prefix in change.subscribe:
            if withdraw.pop(prefix, prefix) is not None:
                subscribe[prefix] = None
        for prefix in change.withdraw:
            if subscribe.pop(prefix, prefix) is not None:
                withdraw[prefix] = None
    return Changes(list(subscribe), list(withdraw))
