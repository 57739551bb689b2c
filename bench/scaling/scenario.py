"""The simulation: a million subscribers below several trees, changes of subscriptions, and a relay that fails."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy

from bench.scaling.costs import Costs
from bench.scaling.tree import Traffic, Tree, traffic, wanted_at
from bench.scaling.workload import Market, draw, keys_of, make_market, zipf_shares

SUBSCRIBERS: Final = 1_000_000
TOPICS: Final = 10_000
TOPICS_EACH: Final = 4
MESSAGES_PER_S: Final = 100_000.0
PAYLOAD_BYTES: Final = 100
WINDOW_S: Final = 0.002
TREES: Final = ((1_000,), (32, 32), (10, 10, 10), (16, 16, 16))
KEY_BYTES: Final = (0, 1, 2, 3, 5)
ZAPS_PER_S: Final = 10_000
ZAPPED_S: Final = 20
HOLDS_S: Final = (0.0, 5.0)
RECONNECT_S: Final = 0.1
"""libzmq's reconnect interval, as set by relays and subscribers."""
HOP_S: Final = 0.0001
"""Time of a confirmation for one level up or down within a data centre."""
SEED: Final = 20_261_125


class Choice(NamedTuple):
    """Traffic in a tree with one choice of `key_bytes`."""

    key_bytes: int
    levels: list[Traffic]


class Zapping(NamedTuple):
    """Mean subscription changes per second that a relay of each level receives, from the source down."""

    hold_s: float
    mean: list[float]


class Death(NamedTuple):
    """A relay of a level fails and is replaced."""

    level: int
    restored: int
    """Prefixes that the peers below it subscribe to again."""
    asked_above: int
    """Total changes received by the relay above it."""
    asked_source: int
    """Total changes received by the source."""
    seconds: float
    """Time from its connections breaking until all subscriptions are restored."""


class Outcome(NamedTuple):
    """Results for one tree."""

    fan_outs: tuple[int, ...]
    filters: list[float]
    """Mean prefixes subscribed at a relay of each level."""
    choices: list[Choice]
    zapping: list[Zapping]
    deaths: list[Death]


def simulate(
    fan_outs: tuple[int, ...],
    costs: Costs,
    subscribers: int = SUBSCRIBERS,
    topics: int = TOPICS,
    zaps_per_s: int = ZAPS_PER_S,
    seed: int = SEED,
) -> Outcome:
    """Simulate one tree."""
    rng = numpy.random.default_rng(seed)
    market = make_market(rng, subscribers, topics, TOPICS_EACH, MESSAGES_PER_S, PAYLOAD_BYTES)
    zapping = []
    for hold_s in HOLDS_S:
        tree = Tree(fan_outs, subscribers, hold_s)
        tree.fill(market)
        if not hold_s:
            filters = [
                float(numpy.mean([len(each) for each in wanted_at(tree, market, level)])) for level in _all(tree)
            ]
            choices = [Choice(many, list(traffic(tree, market, keys_of(market, many, WINDOW_S)))) for many in KEY_BYTES]
            deaths = [die(tree, market, level, costs) for level in range(1, len(tree.widths))]
        zapping.append(zap(tree, market, zaps_per_s, seed))
    return Outcome(fan_outs, filters, choices, zapping, deaths)


def zap(tree: Tree, market: Market, zaps_per_s: int, seed: int) -> Zapping:
    """Let subscribers replace random topics for ZAPPED_S seconds."""
    rng = numpy.random.default_rng(seed + 1)
    wants, topics = market.wants.copy(), market.topics
    shares = zipf_shares(len(topics))
    tree.forget_asked()
    for second in range(ZAPPED_S):
        who = rng.integers(0, len(wants), zaps_per_s)
        which = rng.integers(0, wants.shape[1], zaps_per_s)
        fresh = draw(rng, shares, zaps_per_s, 1)[:, 0]
        for subscriber, place, topic in zip(who.tolist(), which.tolist(), fresh.tolist(), strict=True):
            if topic not in wants[subscriber]:
                leaf = int(tree.leaf_of[subscriber])
                tree.leave(leaf, topics[wants[subscriber, place]], second)
                tree.want(leaf, topics[topic])
                wants[subscriber, place] = topic
        tree.settle(second + 1)
    mean = [sum(asked.values()) / width / ZAPPED_S for asked, width in zip(tree.asked, tree.widths, strict=True)]
    return Zapping(tree.hold_s, mean)


def die(tree: Tree, market: Market, level: int, costs: Costs) -> Death:
    """Restart the first relay of a level without state. The tree is unchanged when this returns."""
    wanted = [market.topics[topic] for topic in wanted_at(tree, market, level)[0].tolist()]
    if level == len(tree.widths) - 1:
        restored = int((tree.leaf_of == 0).sum()) * market.wants.shape[1]
    else:
        fan_out = tree.fan_outs[level]
        restored = sum(len(each) for each in wanted_at(tree, market, level + 1)[:fan_out])
    tree.forget_asked()
    tree.disconnect(level, 0, wanted, 0.0)
    tree.reconnect(level, 0, wanted, 0.0)
    above, source = tree.asked[level - 1][0], tree.asked[0][0]
    # It reads the prefixes from below and sends them to the relay above, which reads them; then a confirmation returns.
    seconds = RECONNECT_S + restored * costs.change + above * costs.change + 2 * level * HOP_S
    return Death(level, restored, above, source, seconds)


def _all(tree: Tree) -> range:
    return range(len(tree.widths))
