"""Time until a lost or rejected message is received again.

ours        PUB ==line B==> recorder ==archive, TCP loopback==> SUB, whose line A lost the block
            from sending the next block to the callback with the lost one
JetStream   nats-server ==TCP loopback==> a push consumer that rejects a message (nak)
            from the nak to the redelivery: the server is notified at once, ours must detect the gap first

One at a time.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import numpy
from pytest_benchmark.fixture import BenchmarkFixture

from bench.measure.contest import Contest, expect, percentiles_of
from bench.processes.child import Child
from bench.rivals.rival import NATS, enter, jetstream, optional, tcp
from blackbox import Feed

TIMES: Final = 300


def _repaired(contest: Contest, name: str, child: Child) -> float:
    told = child.ask({"times": TIMES})
    expect("messages lost", told.get("gaps", 0), 0)
    took = numpy.array(told["took"]) / 1e3
    contest.percentiles(name, percentiles_of(took))
    return float(numpy.median(took))


def test_repair(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """µs, median of 300 losses."""
    contest = Contest("One lost message is repaired", "µs", lower=True, topology=__doc__)
    with ExitStack() as stack:
        feed = msgspec.structs.replace(Feed.local("repair", slices=1, lines=2), archives=(tcp(),))
        child = stack.enter_context(Child("bench.processes.recovered:repair", feed=feed, directory=str(tmp_path)))
        name = 'on_gap="repair"'
        contest.add(name, partial(_repaired, contest, name, child))
        with optional(contest, "NATS JetStream", *NATS):
            server, rival = enter(stack, partial(jetstream, tmp_path), "nats_jetstream:give_back")
            name = f"NATS JetStream nak(), nats-server {server.version}"
            contest.add(name, partial(_repaired, contest, name, rival), "rival")
        contest.run(benchmark)
