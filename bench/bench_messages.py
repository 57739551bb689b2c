"""Per-message Python callbacks that read the payload, and loops that read it from a stream.

ours    PUB process ==blocks, TCP loopback==> SUB | ROUTER ==> DEALER x 2 ==> f(message)
                                                           ==> DEALER ==> stream | for message in stream: f(payload)
rival   PUB process --one message a frame---> plain pyzmq SUB: f(recv())
                                              zmq.asyncio SUB: f(await recv_multipart())
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
ASYNCIO_MESSAGES = 50_000


def test_messages(benchmark: BenchmarkFixture) -> None:
    """M calls/s."""
    feed = Feed.local("bench", slices=1)
    load, plain = Load(feed=feed, messages=MESSAGES), Load(messages=RIVAL_MESSAGES)
    awaited = Load(messages=ASYNCIO_MESSAGES)
    work = Work(form="digest", prefixes=PREFIXES, workers=2)
    loop, batches, in_asyncio = Work(form="stream"), Work(form="stream of batches"), Work(form="stream in asyncio")
    contest = Contest("One Python call per message, payload read", "M calls/s", topology=__doc__)
    with (
        Pair.ours(feed, when_full="wait") as ours,
        Pair.rival("plain_pyzmq", address=tcp(), form="digest", mark=PYZMQ_MARK) as pyzmq,
        Pair.rival("plain_pyzmq", address=tcp(), form="asyncio", mark=PYZMQ_MARK) as asyncio_pyzmq,
    ):
        contest.add("on(prefix)", lambda: ours.round(load, work), promise=WAITS)
        contest.add("for message in stream", lambda: ours.round(load, loop), promise=WAITS)
        contest.add("for batch in stream", lambda: ours.round(load, batches), promise=WAITS)
        contest.add("async for message in stream", lambda: ours.round(load, in_asyncio), promise=WAITS)
        contest.add("pyzmq recv() and a call", lambda: pyzmq.round(plain), "rival", WAITS)
        contest.add(
            "zmq.asyncio recv_multipart()",
            lambda: asyncio_pyzmq.round(awaited),
            "rival",
            WAITS,
            versus="async for message in stream",
        )
        contest.bound("an empty Python call")
        contest.run(benchmark)
