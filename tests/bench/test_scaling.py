"""The simulated relay tree, compared with a plain count of wanted topics."""

from __future__ import annotations

import numpy
import pytest

from bench.scaling.costs import Costs
from bench.scaling.scenario import die, zap
from bench.scaling.tree import Tree, traffic, wanted_at
from bench.scaling.workload import Market, keys_of, make_market

COSTS = Costs(block_in=1e-5, block_out=1e-6, byte_out=1e-9, change=1e-5)
FAN_OUTS = (3, 4)
SUBSCRIBERS, TOPICS, EACH = 240, 60, 3


def filled(hold_s: float = 0.0) -> tuple[Tree, Market]:
    market = make_market(numpy.random.default_rng(1), SUBSCRIBERS, TOPICS, EACH, 10_000.0, 100)
    tree = Tree(FAN_OUTS, SUBSCRIBERS, hold_s)
    tree.fill(market)
    return tree, market


@pytest.mark.parametrize("key_bytes", [0, 2])
def test_traffic_matches_a_plain_count(key_bytes: int) -> None:
    tree, made = filled()
    rate_of: dict[bytes, float] = {}
    for topic, rate in zip(made.topics, made.rates.tolist(), strict=True):
        rate_of[topic[:key_bytes]] = rate_of.get(topic[:key_bytes], 0.0) + rate
    blocks_of = {key: (1 - numpy.exp(-rate * 0.001)) / 0.001 for key, rate in rate_of.items()}
    found = list(traffic(tree, made, keys_of(made, key_bytes, 0.001)))
    for level, each in enumerate(found[:-1]):
        wanted = [{made.topics[t][:key_bytes] for t in topics.tolist()} for topics in wanted_at(tree, made, level)]
        total = sum(blocks_of[key] for keys_wanted in wanted for key in keys_wanted)
        assert each.blocks_in == pytest.approx(total / len(wanted))
    own = [{made.topics[t][:key_bytes] for t in row} for row in made.wants.tolist()]
    assert found[-1].blocks_in == pytest.approx(sum(blocks_of[key] for each in own for key in each) / SUBSCRIBERS)
    for above, below in zip(found, found[1:], strict=False):
        assert above.blocks_out * above.relays == pytest.approx(below.blocks_in * below.relays)
        assert above.bytes_out * above.relays == pytest.approx(below.bytes_in * below.relays)


@pytest.mark.parametrize("hold_s", [0.0, 5.0])
def test_zapping_leaves_each_relay_with_the_wanted_topics(hold_s: float) -> None:
    tree, made = filled(hold_s)
    zap(tree, made, 100, seed=3)
    for level in range(len(tree.widths)):  # prefixes released at one level are then held at the level above
        tree.settle(1e9 * (level + 1))
    for level in range(1, len(tree.widths)):
        fan_out = tree.fan_outs[level - 1]
        for number, relay in enumerate(tree.relays[level - 1]):
            below = tree.relays[level][number * fan_out : (number + 1) * fan_out]
            assert set(relay._references) == {prefix for each in below for prefix in each._references}


def test_a_relay_that_dies_leaves_the_tree_as_it_was() -> None:
    tree, made = filled()
    before = [[dict(relay._references) for relay in level] for level in tree.relays]
    death = die(tree, made, 1, COSTS)
    assert [[dict(relay._references) for relay in level] for level in tree.relays] == before
    assert death.asked_above == death.asked_source == 2 * len(wanted_at(tree, made, 1)[0])
    assert death.restored == sum(len(each) for each in wanted_at(tree, made, 2)[:4])
