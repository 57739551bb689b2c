"""Per-message Python callbacks that read the payload.

ours    PUB process ==blocks, TCP loopback==> SUB | ROUTER ==> DEALER x 2 ==> f(message)
rival   PUB process --one message a frame---> plain pyzmq SUB: f(recv())
"""

from __future__ import annotations

import time

import msgspec
import zmq
from pytest_benchmark.fixture import BenchmarkFixture

from bench.bench_delivery import PREFIXES, RIVAL_MESSAGES, wait_for
from bench.contest import Contest
from bench.publishers import Remote
from bench.workload import PAYLOAD_BYTES
from blackbox import Feed, Message, Subscriber

MESSAGES = 2_000_000


def _ours(feed: Feed, remote: Remote) -> float:
    subscriber = Subscriber(feed, max_lag_ns=10**15)
    sizes = [0] * len(PREFIXES)  # one place a callback: a callback runs in one thread of a slice

    for place, prefix in enumerate(PREFIXES):

        @subscriber.on(prefix)
        def count(message: Message, place: int = place) -> None:
            sizes[place] += len(message.payload)

    with subscriber:
        started = time.perf_counter()
        remote.send(MESSAGES)
        wait_for(subscriber, MESSAGES)
        seconds = time.perf_counter() - started
        remote.answer()
    assert sum(sizes) == MESSAGES * PAYLOAD_BYTES
    assert subscriber.statistics().total.gaps == 0
    return MESSAGES / seconds / 1e6


def _rival(endpoint: str, remote: Remote) -> float:
    context = zmq.Context()
    socket = context.socket(zmq.SUB)
    socket.connect(endpoint)
    socket.subscribe(b"")
    size = 0

    def count(frame: bytes) -> None:
        nonlocal size
        size += len(frame)

    remote.send(RIVAL_MESSAGES)
    receive = socket.recv
    count(receive())
    started = time.perf_counter()
    for _ in range(RIVAL_MESSAGES - 1):
        count(receive())
    seconds = time.perf_counter() - started
    remote.answer()
    context.destroy(linger=0)
    assert size == RIVAL_MESSAGES * (PAYLOAD_BYTES + len(b"S0000.trade "))
    return RIVAL_MESSAGES / seconds / 1e6


def test_messages(benchmark: BenchmarkFixture) -> None:
    """M calls/s."""
    feed = Feed.local("bench", slices=1)
    rival = Feed.local("rival", slices=1).slices[0].endpoints[0]
    contest = Contest("One Python call per message, payload read", "M calls/s")
    with Remote("blackbox", feed=msgspec.to_builtins(feed)) as ours, Remote("pyzmq", endpoint=rival) as plain:
        contest.add("on(prefix)", lambda: _ours(feed, ours))
        contest.add("rival: pyzmq recv() and a call", lambda: _rival(rival, plain))
        contest.run(benchmark)
