"""Delay of a well-behaved subscriber while another peer misbehaves.

direct          PUB process, 50 messages a half millisecond ==> SUB process ==> on_batch: check, note the delay
                            when_full="drop"                ==> a bad peer, or none
below a relay   PUB process ==> Relay process, when_full="drop" ==> the same two

All over TCP loopback. Figures: p99 since a message was due. A round in which the good subscriber missed a message is
void. Publisher, relay, subscriber and the bad peer share two cores, so the figures include the bad peer's own work.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench.measure.contest import Contest, Figure
from bench.processes.bad_peer import HOW
from bench.processes.child import Child
from bench.processes.pair import Pair, Work
from bench.workload.load import Load
from blackbox import Feed

RATE = 100_000
AT_ONCE = 50
MESSAGES = 100_000
HWM_BLOCKS = 1_000
ALONE = "no other"
DROPS = "the publisher never waits; the good subscriber loses nothing"


def _p99(contest: Contest, name: str, pair: Pair, load: Load, bad: Child, how: str) -> Figure:
    bad.ask({"how": how})
    try:
        percentiles, figure = pair.late(load, Work(form="late batches"))
    finally:
        bad.ask({"how": ""})
    contest.percentiles(name, percentiles)
    return Figure(percentiles["p99"], figure.spent)


@pytest.mark.parametrize("where", ["direct", "below a relay"])
def test_bad_peer(benchmark: BenchmarkFixture, where: str) -> None:
    """µs, p99."""
    title = f"With a bad peer, {where}, {RATE:,} messages/s: p99 since due"
    contest = Contest(title, "µs", lower=True, topology=__doc__)
    above = below = Feed.local("bad-peer", slices=1)
    with ExitStack() as stack:
        pair = stack.enter_context(Pair.ours(above, hwm_blocks=HWM_BLOCKS))
        if where != "direct":
            below = Feed.local("bad-peer", slices=1)
            settings = {"hwm_blocks": HWM_BLOCKS, "when_full": "drop"}
            stack.enter_context(Child("bench.processes.relay:pass_on", above=above, below=below, **settings))
        bad = stack.enter_context(Child("bench.processes.bad_peer:misbehave", feed=below))
        load = Load(feed=below, messages=MESSAGES, rate=RATE, at_once=AT_ONCE)
        for how in ("", *HOW):
            name = f"a peer that {how}" if how else ALONE
            contest.add(name, partial(_p99, contest, name, pair, load, bad, how), promise=DROPS)
        contest.run(benchmark)
        for how in HOW:
            contest.show(
                f"a peer that {how}: p99 / p99 with none", f"{contest.ratio(f'a peer that {how}', ALONE):.2f} x"
            )
