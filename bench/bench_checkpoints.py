"""The cost of checkpoints: delivery rate while a thread repeatedly pauses all callbacks between two messages.

ours    PUB process ==blocks, TCP loopback==> SUB | ROUTER ==> DEALER ==> callbacks
                                              a thread ==checkpoint()==> slice thread and worker

Same messages, same work, same promise (the publisher waits); each round verifies count, order and checksum by topic.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from bench.measure.contest import WAITS, Contest
from bench.processes.pair import Pair, Work
from bench.workload.load import Load
from blackbox import Feed

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

MESSAGES: Final = 20_000_000
RATES: Final = (0, 1, 10, 1_000)


def test_checkpoints(benchmark: BenchmarkFixture) -> None:
    """M messages/s from the publisher's first call to the last callback."""
    feed = Feed.local("bench", slices=1)
    load = Load(feed=feed, messages=MESSAGES)
    contest = Contest("Delivery with checkpoints, 1 worker, loopback TCP", "M messages/s", topology=__doc__)
    with Pair.ours(feed, when_full="wait") as pair:
        for rate in RATES:
            work = Work(form="batch", prefixes=(b"",), checkpoints_per_s=rate)
            name = f"{rate:,} checkpoints/s" if rate else "no checkpoint"
            contest.add(name, partial(pair.round, load, work), promise=WAITS)
        contest.run(benchmark)
