"""The cost of a relay: throughput compared with a direct connection, and the latency that each hop adds.

    direct    PUB process =======================================================> SUB process
    ours      PUB process ==> Relay process (compiled loop) =====================> SUB process
    three     PUB process ==> Relay process ==> Relay process ==> Relay process ==> SUB process
    rival     PUB process ==> process with XSUB, zmq_proxy(), XPUB ==============> SUB process
    nats      nats-py process --> nats-server --> nats-py process
    zenoh     zenoh process --> zenoh process in router mode --> zenoh process; also two peers without a router

NATS and Zenoh carry blocks packed by hand, or single messages handled in Python. All use TCP loopback, ours also shared
memory; all publishers wait for slow subscribers (nats-server holds a whole run). Publisher and subscriber are the same.
On two cores every further process takes CPU time from these two: the ratio to direct is that of a machine without a
spare core for the relay.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Literal

from pytest_benchmark.fixture import BenchmarkFixture

from bench.measure.contest import WAITS, Contest, Figure
from bench.measure.results import Kind
from bench.processes.child import Child
from bench.processes.pair import Form, Pair, Work
from bench.rivals.rival import HOLDS, Rival, tcp_slash
from bench.rivals.servers import nats_server
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


def _feed(transport: Literal["tcp", "shm"] = "tcp") -> Feed:
    return Feed.local("relay", slices=1, transport=transport)


BROKERS = (
    Rival("through nats-server", "plain_nats", ("nats-py:nats", "uvloop"), str, HOLDS, PACED, 400_000, nats_server),
    Rival(
        "through a Zenoh router",
        "plain_zenoh",
        ("eclipse-zenoh:zenoh",),
        tcp_slash,
        WAITS,
        PACED,
        MESSAGES,
        arguments={"has_router": True},
    ),
    Rival("two Zenoh peers", "plain_zenoh", ("eclipse-zenoh:zenoh",), tcp_slash, WAITS, PACED, MESSAGES),
)


def _brokers(contest: Contest, stack: ExitStack, form: Form) -> Iterator[tuple[Rival, str, Pair]]:
    """Start the servers and routers of the rivals, each with a publisher and a subscriber."""
    for rival in BROKERS:

        def begin(arguments: Mapping[str, Any]) -> Pair:
            if arguments.get("has_router"):
                router = Child("bench.rivals.zenoh_router:route", address=arguments["address"])
                arguments = {**arguments, "server_pid": stack.enter_context(router).pid}
            return Pair.rival(rival.module, form=form, **arguments)  # noqa: B023  # called before the next

        if started := rival.start(contest, stack, begin):
            assert isinstance(started.contender, Pair)
            yield rival, started.name, started.contender


@contextmanager
def _ways(names: Sequence[str], transport: Literal["tcp", "shm"] = "tcp") -> Iterator[dict[str, tuple[Pair, Feed]]]:
    """Start sender, receiver and relays of each path. Yield each pair with the feed at its end."""
    with ExitStack() as stack:
        found = {}
        for name in names:
            above = _feed(transport)
            hops = WAYS[name][1]
            feeds = [above, *(_feed(transport) for _ in hops)]
            below = feeds[-1]
            pair = stack.enter_context(Pair.ours(above, when_full="wait", hwm_blocks=HWM_BLOCKS))
            for function, upper, lower in zip(hops, feeds, feeds[1:], strict=False):
                waits = {"when_full": "wait"} if function == OURS else {}
                stack.enter_context(Child(function, above=upper, below=lower, hwm_blocks=HWM_BLOCKS, **waits))
            found[name] = pair, below
        yield found


def test_relay_throughput(benchmark: BenchmarkFixture) -> None:
    """M messages/s of 100 bytes in blocks, counted by a compiled callback."""
    contest = Contest("Through a relay, in blocks", "M messages/s", topology=__doc__)
    with ExitStack() as stack, _ways(list(WAYS)) as ways:
        for name, (pair, below) in ways.items():
            load = Load(feed=below, messages=MESSAGES)
            contest.add(name, partial(pair.round, load, Work(form="compiled")), WAYS[name][0], WAITS)
        for rival, name, pair in _brokers(contest, stack, "blocks"):
            run = partial(pair.round, Load(messages=rival.more))
            contest.add(name, run, "rival", rival.promise, versus="through a relay")
        contest.run(benchmark)
        for name in list(WAYS)[1:]:
            contest.show(f"{name}: rate / direct", f"{contest.ratio(name, 'direct'):.2f} x")
        ahead = contest.ratio("through a relay", "through zmq.proxy")
        contest.show("through a relay / through zmq.proxy", f"{ahead:.2f} x")


def test_relay_in_memory(benchmark: BenchmarkFixture) -> None:
    """M messages/s of 100 bytes in blocks, with shared memory on both sides of the relay."""
    contest = Contest("Through a relay, by shared memory", "M messages/s", topology=__doc__)
    names = ["direct", "through a relay", "through three relays"]
    with _ways(names, "shm") as ways:
        for name, (pair, below) in ways.items():
            load = Load(feed=below, messages=MESSAGES)
            contest.add(name, partial(pair.round, load, Work(form="compiled")), WAYS[name][0], WAITS)
        contest.run(benchmark)
        for name in names[1:]:
            contest.show(f"{name}: rate / direct", f"{contest.ratio(name, 'direct'):.2f} x")


def test_relay_blocks(benchmark: BenchmarkFixture) -> None:
    """M messages/s passed on to a receiver that discards them."""
    contest = Contest("Through a relay, blocks that are discarded", "M messages/s", topology=__doc__)
    names = ["direct", "through a relay", "through zmq.proxy"]
    with _ways(names) as ways:
        for name, (pair, below) in ways.items():
            load = Load(feed=below, messages=MESSAGES)
            contest.add(name, partial(pair.round, load, Work(form="nothing")), WAYS[name][0], WAITS)
        contest.run(benchmark)
        for name in names[1:]:
            contest.show(f"{name}: rate / direct", f"{contest.ratio(name, 'direct'):.2f} x")


def _noted(contest: Contest, name: str, pair: Pair, load: Load) -> Figure:
    percentiles, figure = pair.late(load, Work(form="late"))
    contest.percentiles(name, percentiles)
    return Figure(percentiles["p50"], figure.spent)


def test_relay_latency(benchmark: BenchmarkFixture) -> None:
    """µs since due at 1,000 single messages a second; a hop adds the difference to direct."""
    contest = Contest(f"Delay through relays, {RATE:,} single messages/s: p50", "µs", lower=True, topology=__doc__)
    with ExitStack() as stack, _ways(list(WAYS)) as ways:
        for name, (pair, below) in ways.items():
            load = Load(feed=below, messages=PACED, rate=RATE, at_once=1)
            contest.add(name, partial(_noted, contest, name, pair, load), WAYS[name][0], WAITS)
        for rival, name, pair in _brokers(contest, stack, "late"):
            run = partial(_noted, contest, name, pair, Load(messages=PACED, rate=RATE, at_once=1))
            contest.add(name, run, "rival", rival.promise, versus="through a relay")
        contest.run(benchmark)
        medians = {each.name: each.median for each in contest.told().percentiles}
        hops = {"through a relay": 1, "through three relays": 3, "through zmq.proxy": 1, "through a Zenoh router": 1}
        for name, hops_of in hops.items():
            without = "two Zenoh peers" if "Zenoh" in name else "direct"
            if name not in medians or without not in medians:
                continue
            for percentile in ("p50", "p99"):
                added = (medians[name][percentile] - medians[without][percentile]) / hops_of
                contest.show(f"{name}: a hop adds, {percentile}", f"{added:.0f} µs")
