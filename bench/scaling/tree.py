"""A tree of relays, simulated with the relays' own merging code: who asks whom for what, and what then passes.

    source ──> relays, level 1 ──> ... ──> relays, level n ──> subscribers

Each relay is an `Interest` of `blackbox.relay.cover`. What it says is to go upstream is given to the relay above.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy
from numpy.typing import NDArray

from bench.scaling.workload import Keys, Market
from blackbox.relay.cover import Changes, Interest, SmallestCover


class Traffic(NamedTuple):
    """What passes one relay of a level, on average; of the last one, a subscriber."""

    relays: int
    blocks_in: float
    bytes_in: float
    blocks_out: float
    bytes_out: float


class Tree:
    """Relays and what each is asked for, and who it serves. Level 0 is the source."""

    def __init__(self, fan_outs: Sequence[int], subscribers: int, hold_s: float = 0.0) -> None:
        """`fan_outs`: how many relays each of a level has below it, from the source on."""
        self.fan_outs, self.hold_s = tuple(fan_outs), hold_s
        self.widths = [1, *(int(numpy.prod(fan_outs[: level + 1])) for level in range(len(fan_outs)))]
        self.relays = [[Interest(SmallestCover(), hold_s) for _ in range(width)] for width in self.widths]
        self.asked = [Counter[int]() for _ in self.widths]
        """By level: the changes that each relay was asked for."""
        self.leaf_of = numpy.arange(subscribers) * self.widths[-1] // subscribers

    def want(self, leaf: int, prefix: bytes) -> None:
        """Have a subscriber below a relay of the last level want a prefix."""
        self._want(len(self.fan_outs), leaf, prefix)

    def leave(self, leaf: int, prefix: bytes, now: float) -> None:
        """Have it leave the prefix."""
        self._leave(len(self.fan_outs), leaf, prefix, now)

    def settle(self, now: float) -> None:
        """Have all relays withdraw what they held back for long enough."""
        for level in range(len(self.fan_outs), -1, -1):
            for number, relay in enumerate(self.relays[level]):
                self._pass_up(level, number, relay.settle(now), now)

    def forget_asked(self) -> None:
        """Count changes from now on."""
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
        """Have all subscribers want their topics."""
        topics = market.topics
        for leaf, row in zip(self.leaf_of.tolist(), market.wants.tolist(), strict=True):
            for topic in row:
                self.want(leaf, topics[topic])

    def disconnect(self, level: int, number: int, wanted: Sequence[bytes], now: float) -> None:
        """Have the relay above notice that this one has died: it wants nothing any more."""
        for prefix in wanted:
            self._leave(level - 1, number // self.fan_outs[level - 1], prefix, now)

    def reconnect(self, level: int, number: int, wanted: Sequence[bytes], now: float) -> None:
        """Have a fresh relay in its place ask the one above for all that those below want."""
        for prefix in wanted:
            self._want(level - 1, number // self.fan_outs[level - 1], prefix, now)


def wanted_at(tree: Tree, market: Market, level: int) -> list[NDArray[numpy.int64]]:
    """Return which topics are wanted at each relay of a level, worked out without any relay's help."""
    width = tree.widths[level]
    relay_of = tree.leaf_of // (tree.widths[-1] // width)
    count = len(market.topics)
    pairs = numpy.unique(relay_of[:, None] * count + market.wants)
    bounds = numpy.searchsorted(pairs, numpy.arange(width + 1) * count)
    return [pairs[start:stop] % count for start, stop in itertools.pairwise(bounds)]


def traffic(tree: Tree, market: Market, keys: Keys) -> Iterator[Traffic]:
    """Yield what passes each level, from the source to the subscribers. A key passes where a topic of it is wanted."""
    into = [_total(tree, market, keys, level) for level in range(len(tree.widths))]
    into.append(_sums(market.wants, numpy.arange(len(market.wants)), keys))
    for level, width in enumerate([*tree.widths, len(market.wants)]):
        below = into[level + 1] if level < len(tree.widths) else (0.0, 0.0)
        yield Traffic(width, into[level][0] / width, into[level][1] / width, below[0] / width, below[1] / width)


def _total(tree: Tree, market: Market, keys: Keys, level: int) -> tuple[float, float]:
    relay_of = tree.leaf_of // (tree.widths[-1] // tree.widths[level])
    return _sums(market.wants, relay_of, keys)


def _sums(wants: NDArray[numpy.int32], owner: NDArray[numpy.int64], keys: Keys) -> tuple[float, float]:
    """Return blocks and bytes a second that all owners get together: each key once for each owner that wants it."""
    count = len(keys.blocks_per_s)
    found = numpy.unique(owner[:, None] * count + keys.of_topic[wants]) % count
    return float(keys.blocks_per_s[found].sum()), float(keys.bytes_per_s[found].sum())
