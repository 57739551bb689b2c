"""One publisher and a hundred subscribers: connected directly, or ten to each of ten relays.

    direct    PUB process ======================================> 100 SUB sockets in one process
    ours      PUB process ==> 10 Relay processes, 10 sockets each => 100 SUB sockets
    rival     PUB process ==> 10 processes with zmq_proxy() ======> 100 SUB sockets

All over TCP loopback with the same publisher, which waits. Each socket counts its messages; a socket that missed one
voids the round. All processes share two cores, and the tree sends each block 110 times instead of 100. The figure that
matters is the CPU time that the tree saves the publisher.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Final

from pytest_benchmark.fixture import BenchmarkFixture

from bench.measure.contest import WAITS, Contest
from bench.measure.results import Kind
from bench.processes.child import Child
from bench.processes.pair import Pair
from bench.workload.load import Load
from blackbox import Feed

MESSAGES: Final = 200_000
HWM_BLOCKS: Final = 8
SUBSCRIBERS: Final = 100
RELAYS: Final = 10
WAYS: Final[dict[str, tuple[Kind, str]]] = {
    "direct": ("limit", ""),
    "through ten relays": ("ours", "bench.processes.relay:pass_on"),
    "through ten zmq.proxy": ("rival", "bench.rivals.zmq_proxy:pass_on"),
}


def _feed() -> Feed:
    return Feed.local("tree", slices=1, key_bytes=1)


@contextmanager
def _way(function: str, above: Feed) -> Iterator[Pair]:
    """Start a publisher, the relays or proxies, and the sockets."""
    with ExitStack() as stack:
        ends = [above]

        def listen() -> Child:
            if function:
                ends[:] = [_feed() for _ in range(RELAYS)]
                waits = {"when_full": "wait"} if "relay" in function else {}
                for below in ends:
                    stack.enter_context(Child(function, above=above, below=below, hwm_blocks=HWM_BLOCKS, **waits))
            addresses = [each.slices[0].lines[0] for each in ends]
            return Child("bench.processes.fan:receive", addresses=addresses, sockets=SUBSCRIBERS // len(ends))

        publish = partial(
            Child, "bench.processes.sender:publish", feeds=[above], when_full="wait", hwm_blocks=HWM_BLOCKS
        )
        yield stack.enter_context(Pair(publish, listen))


def test_tree(benchmark: BenchmarkFixture) -> None:
    """M messages/s of 100 bytes in blocks over all sockets, from the first call until the last socket has all."""
    contest = Contest(f"One publisher, {SUBSCRIBERS} subscribers", "M messages/s", topology=__doc__)
    with ExitStack() as stack:
        for name, (kind, function) in WAYS.items():
            above = _feed()
            pair = stack.enter_context(_way(function, above))
            contest.add(name, partial(pair.round, Load(feed=above, messages=MESSAGES)), kind, WAITS)
        contest.run(benchmark)
        costs = {row.name: row.spent.get("publisher_cpu_s", math.nan) for row in contest.told().rows}
        for name in list(WAYS)[1:]:
            contest.show(f"{name}: rate / direct", f"{contest.ratio(name, 'direct'):.2f} x")
            contest.show(f"{name}: the publisher's CPU time / direct", f"{costs[name] / costs['direct']:.2f} x")
