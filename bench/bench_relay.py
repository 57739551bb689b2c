"""The cost of a relay: throughput compared with a direct connection, and the latency that each hop adds.

    direct    PUB process =======================================================> SUB process
    ours      PUB process ==> Relay process (compiled loop) =====================> SUB process
    three     PUB process ==> Relay process ==> Relay process ==> Relay process ==> SUB process
    rival     PUB process ==> process with XSUB, zmq_proxy(), XPUB ==============> SUB process

All use TCP loopback; all publishers wait for slow subscribers. Publisher and subscriber are the same. On two cores
every further process takes CPU time from these two: the ratio to direct is that of a machine without a spare core for
the relay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

from pytest_benchmark.fixture import BenchmarkFixture

from bench.measure.contest import WAITS, Contest
from bench.measure.results import Kind
from bench.processes.child import Child
from bench.processes.pair import Pair, Work
from bench.workload.load import Load
from blackbox import Feed

MESSAGES = 4_000_000
HWM_BLOCKS = 8
RATE = 1_000
PACED = 2_000
OURS, RIVAL = "bench.processes.relay:pass_on", "bench.rivals.zmq_proxy:pass_on"
WAYS: dict[str, tuple[Kind, Sequence[str]]] = {
    "direct": ("limit", ()),
    "through a relay": ("ours", (OURS,)),
    "through three relays": ("ours", (OURS,) * 3),
    "through zmq.proxy": ("rival", (RIVAL,)),
}


def _feed() -> Feed:
    return Feed.local("relay", slices=1)


@contextmanager
def _ways() -> Iterator[dict[str, tuple[Pair, Feed]]]:
    """Start sender, receiver and relays of each path. Yield each pair with the feed at its end."""
    with ExitStack() as stack:
        found = {}
        for name, (_, hops) in WAYS.items():
            above = _feed()
            feeds = [above, *(_feed() for _ in hops)]
            pair = stack.enter_context(Pair.ours(above, when_full="wait", hwm_blocks=HWM_BLOCKS))
            for function, upper, lower in zip(hops, feeds, feeds[1:], strict=False):
                waits = {"when_full": "wait"} if function == OURS else {}
                stack.enter_context(Child(function, above=upper, below=lower, hwm_blocks=HWM_BLOCKS, **waits))
            found[name] = pair, feeds[-1]
        yield found


def test_relay_throughput(benchmark: BenchmarkFixture) -> None:
    """M messages/s of 100 bytes in blocks, counted by a compiled callback."""
    contest = Contest("Through a relay, in blocks", "M messages/s", topology=__doc__)
    with _ways() as ways:
        for name, (pair, below) in ways.items():
            load = Load(feed=below, messages=MESSAGES)
            contest.add(name, partial(pair.round, load, Work(form="compiled")), WAYS[name][0], WAITS)
        contest.run(benchmark)
        for name in list(WAYS)[1:]:
            contest.show(f"{name}: rate / direct", f"{contest.ratio(name, 'direct'):.2f} x")


def test_relay_latency(benchmark: BenchmarkFixture) -> None:
    """µs since due at 1,000 single messages a second; a hop adds the difference to direct."""
    contest = Contest(f"Delay through relays, {RATE:,} single messages/s: p50", "µs", lower=True, topology=__doc__)
    with _ways() as ways:
        for name, (pair, below) in ways.items():
            load = Load(feed=below, messages=PACED, rate=RATE, at_once=1)
            contest.add(name, partial(pair.late, contest, name, load, Work(form="late")), WAYS[name][0], WAITS)
        contest.run(benchmark)
        medians = {each.name: each.median for each in contest.told().percentiles}
        for name, (_, hops) in list(WAYS.items())[1:]:
            for percentile in ("p50", "p99"):
                if percentile in medians.get(name, {}):
                    added = (medians[name][percentile] - medians["direct"][percentile]) / len(hops)
                    contest.show(f"{name}: a hop adds, {percentile}", f"{added:.0f} µs")
