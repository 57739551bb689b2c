"""Per-message Python callbacks that read the payload.

ours    PUB process ==blocks, TCP loopback==> SUB | ROUTER ==> DEALER x 2 ==> f(message)
rival   PUB process --one message a frame---> plain pyzmq SUB: f(recv())
"""

from __future__ import annotations

from functools import cache

import msgspec
import numpy
from pytest_benchmark.fixture import BenchmarkFixture

from bench.bench_delivery import PREFIXES, RIVAL_MESSAGES, measure_delivery, plain_pyzmq
from bench.contest import WAITS, Contest, Figure, expect
from bench.publishers import Remote
from bench.receivers import FOREVER_NS
from bench.workload import DIGEST_FACTOR, DIGEST_MASK, POOL_MESSAGES, make_pool
from blackbox import Feed, Message, Subscriber

MESSAGES = 1_000_000


def _ours(feed: Feed, remote: Remote) -> Figure:
    subscriber = Subscriber(feed, max_lag_ns=FOREVER_NS)
    digests = [0] * len(PREFIXES)  # one place a callback: a callback runs in one thread of a slice

    for place, prefix in enumerate(PREFIXES):

        @subscriber.on(prefix)
        def count(message: Message, place: int = place) -> None:
            digests[place] = (digests[place] * DIGEST_FACTOR + message.payload[8]) & DIGEST_MASK

    figure = measure_delivery(subscriber, remote, MESSAGES)
    expect("digests of the payloads, by prefix", digests, [_expected(prefix, MESSAGES) for prefix in PREFIXES])
    return figure


def _rival(endpoint: str, remote: Remote) -> Figure:
    so_far, place = 0, len(b"S0000.trade ") + 8

    def count(frame: bytes) -> None:
        nonlocal so_far
        so_far = (so_far * DIGEST_FACTOR + frame[place]) & DIGEST_MASK

    figure = plain_pyzmq(endpoint, remote, count)
    expect("digest of the payloads", so_far, _expected(b"", RIVAL_MESSAGES))
    return figure


@cache
def _expected(prefix: bytes, messages: int) -> int:
    """Digest of byte 8 of the payloads, in their order, of topics with that prefix."""
    pool = make_pool()
    wanted = numpy.array([topic.startswith(prefix) for topic in pool.topics])
    payloads = pool.payloads[wanted[pool.topic_index], 8].tolist()
    so_far = 0
    for _ in range(messages // POOL_MESSAGES):
        for value in payloads:
            so_far = (so_far * DIGEST_FACTOR + value) & DIGEST_MASK
    return so_far


def test_messages(benchmark: BenchmarkFixture) -> None:
    """M calls/s."""
    feed = Feed.local("bench", slices=1)
    rival = Feed.local("rival", slices=1).slices[0].endpoints[0]
    contest = Contest("One Python call per message, payload read", "M calls/s", topology=__doc__)
    with Remote("blackbox", feed=msgspec.to_builtins(feed)) as ours, Remote("pyzmq", endpoint=rival) as plain:
        contest.add("on(prefix)", lambda: _ours(feed, ours), promise=WAITS)
        contest.add("pyzmq recv() and a call", lambda: _rival(rival, plain), "rival", WAITS)
        contest.bound("an empty Python call")
        contest.run(benchmark)
