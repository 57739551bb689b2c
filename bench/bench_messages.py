"""Per-message Python callbacks that read the payload, with one and two workers.

ours    PUB process ==blocks, TCP loopback==> SUB | ROUTER ==> DEALER x 1 or 2 ==> f(message)
rival   PUB process --one message a frame---> plain pyzmq SUB: f(recv())
"""

from __future__ import annotations

from pytest_benchmark.fixture import BenchmarkFixture

from bench.bench_delivery import PREFIXES, PYZMQ_MARK, RIVAL_MESSAGES
from bench.measure.contest import WAITS, Contest
from bench.processes.pair import Pair, Work
from bench.rivals.rival import tcp
from bench.workload.load import Load
from blackbox import Feed

MESSAGES = 1_000_000


def test_messages(benchmark: BenchmarkFixture) -> None:
    """M calls/s."""
    feed = Feed.local("bench", slices=1)
    load, plain = Load(feed=feed, messages=MESSAGES), Load(messages=RIVAL_MESSAGES)
    two, one = (Work(form="digest", prefixes=PREFIXES, workers=workers) for workers in (2, 1))
    contest = Contest("One Python call per message, payload read", "M calls/s", topology=__doc__)
    with (
        Pair.ours(feed, when_full="wait") as ours,
        Pair.rival("plain_pyzmq", address=tcp(), form="digest", mark=PYZMQ_MARK) as pyzmq,
    ):
        contest.add("on(prefix)", lambda: ours.round(load, two), promise=WAITS)
        contest.add("on(prefix), one worker", lambda: ours.round(load, one), promise=WAITS)
        contest.add("pyzmq recv() and a call", lambda: pyzmq.round(plain), "rival", WAITS)
        contest.run(benchmark)
        contest.show("two workers / one", f"{contest.ratio('on(prefix)', 'on(prefix), one worker'):.2f} x")
