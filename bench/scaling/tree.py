"""A tree of relays, simulated with the relays' own merging code: subscriptions and the resulting traffic.

    source ──> relays, level 1 ──> ... ──> relays, level n ──> subscribers

Each relay is an `Interest` of `blackbox.services.relay.cover`, whose upstream changes go to the relay above.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy
from numpy.typing import NDArray

from bench.scaling.workload import Keys, Market
from blackbox.services.relay.cover import Changes, Interest


class Traffic(NamedTuple):
    """Mean traffic of one relay of a level; the last level are the subscribers."""

    relays: int
    blocks_in: float
    bytes_in: float
    blocks_out: float
    bytes_out: float


class Tree:
    """Relays, their subscriptions and their subscribers. Level 0 is the source."""

    def __init__(self, fan_outs: Sequence[int], subscribers: int, hold_s: float = 0.0) -> None:
        """`fan_outs` is the number of relays below each relay of a level, from the source down."""
        self.fan_outs, self.hold_s = tuple(fan_outs), hold_s
        self.widths = [1, *(int(numpy.prod(fan_outs[: level + 1])) for level in range(len(fan_outs)))]
        self.relays = [[Interest(hold_s) for _ in range(width)] for width in self.widths]
        self.asked = [Counter[int]() for _ in self.widths]
        """Changes received by each relay, by level."""
        self.leaf_of = numpy.arange(subscribers) * self.widths[-1] // subscribers

    def want(self, leaf: int, prefix: bytes) -> None:
        """Subscribe a subscriber below a relay of the last level to a prefix."""
        self._want(len(self.fan_outs), leaf, prefix)

    def leave(self, leaf: int, prefix: bytes, now: float) -> None:
        """Unsubscribe a subscriber from a prefix."""
        self._leave(len(self.fan_outs), leaf, prefix, now)

    def settle(self, now: float) -> None:
        """Let all relays send the unsubscriptions they held back for `hold_s`."""
        for level in range(len(self.fan_outs), -1, -1):
            for number, relay in enumerate(self.relays[level]):
                self._pass_up(level, number, relay.settle(now), now)

    def forget_asked(self) -> None:
        """Reset the counts of changes."""
        self.asked = [Counter[int]() for _ in self.widths]

    def _want(self, level: int, number: int, prefix: bytes, now: float = 0.0) -> None:
        self.asked[level][number] += 1
        self._pass_up(level, number, self.relays[level][number].want(prefix), now)

    def _leave(self, level: int, number: int, prefix: bytes, now: float) -> None:
        self.asked[level][number] += 1
        self._pass_up(level, number, self.relays[level][number].leave(prefix, now), now)

    def _pass_up(self, level: int, number: int, changes: Changes, now: float) -> None:
        if level == 0:
            return
        above = number // self.fan_outs[level - 1]
        for prefix in changes.subscribe:
            self._want(level - 1, above, prefix, now)
        for prefix in changes.withdraw:
            self._leave(level - 1, above, prefix, now)

    def fill(self, market: Market) -> None:
        """Subscribe all subscribers to their topics."""
        topics = market.topics
        for leaf, row in zip(self.leaf_of.tolist(), market.wants.tolist(), strict=True):
            for topic in row:
                self.want(leaf, topics[topic])

    def disconnect(self, level: int, number: int, wanted: Sequence[bytes], now: float) -> None:
        """Unsubscribe a failed relay at the relay above."""
        for prefix in wanted:
            self._leave(level - 1, number // self.fan_outs[level - 1], prefix, now)

    def reconnect(self, level: int, number: int, wanted: Sequence[bytes], now: float) -> None:
        """Let a fresh relay subscribe at the relay above to everything wanted below."""
        for prefix in wanted:
            self._want(level - 1, number // self.fan_outs[level - 1], prefix, now)


def wanted_at(tree: Tree, market: Market, level: int) -> list[NDArray[numpy.int64]]:
    """Return the topics subscribed at each relay of a level, computed independently of the relays."""
    width = tree.widths[level]
    relay_of = tree.leaf_of // (tree.widths[-1] // width)
    count = len(market.topics)
    pairs = numpy.unique(relay_of[:, None] * count + market.wants)
    bounds = numpy.searchsorted(pairs, numpy.arange(width + 1) * count)
    return [pairs[start:stop] % count for start, stop in itertools.pairwise(bounds)]


def traffic(tree: Tree, market: Market, keys: Keys) -> Iterator[Traffic]:
    """Yield the traffic of each level from the source down. A key passes if any of its topics is wanted."""
    into = [_total(tree, market, keys, level) for level in range(len(tree.widths))]
    into.append(_sums(market.wants, numpy.arange(len(market.wants)), keys))
    for level, width in enumerate([*tree.widths, len(market.wants)]):
        below = into[level + 1] if level < len(tree.widths) else (0.0, 0.0)
        yield Traffic(width, into[level][0] / width, into[level][1] / width, below[0] / width, below[1] / width)


def _total(tree: Tree, market: Market, keys: Keys, level: int) -> tuple[float, float]:
    relay_of = tree.leaf_of // (tree.widths[-1] // tree.widths[level])
    return _sums(market.wants, relay_of, keys)


def _sums(wants: NDArray[numpy.int32], owner: NDArray[numpy.int64], keys: Keys) -> tuple[float, float]:
    """Return the total blocks and bytes per second to all owners: each key once for each owner that wants it."""
    count = len(keys.blocks_per_s)
    found = numpy.unique(owner[:, None] * count + keys.of_topic[wants]) % count
    return float(keys.blocks_per_s[found].sum()), float(keys.bytes_per_s[found].sum())
