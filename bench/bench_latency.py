"""Latency of single messages at a steady 100,000 a second, from when each was due to its callback.

    ours    PUB process: publish() --TCP loopback--> SUB | ROUTER ==> DEALER ==> f(message)
    rival   PUB process: pyzmq send() ------------> pyzmq SUB recv(), f(frame)

The clock starts when a message was due, not when a late sender got to it: no coordinated omission.
"""

from __future__ import annotations

import time

import msgspec
import numpy
import zmq
from pytest_benchmark.fixture import BenchmarkFixture

from bench.bench_delivery import wait_for
from bench.contest import Contest, show
from bench.publishers import Remote
from blackbox import Feed, Message, Subscriber

RATE = 100_000
MESSAGES = 100_000


def _percentiles(lags_ns: list[int]) -> tuple[float, float, float]:
    p50, p99, p999 = numpy.percentile(numpy.array(lags_ns[MESSAGES // 10 :]) / 1000, (50, 99, 99.9))
    return float(p50), float(p99), float(p999)


def _ours(feed: Feed, remote: Remote) -> tuple[float, float, float]:
    subscriber = Subscriber(feed, workers=1, max_lag_ns=10**12)
    lags: list[int] = []
    clock = time.time_ns

    @subscriber.on(b"")
    def note(message: Message) -> None:
        lags.append(clock() - int.from_bytes(message.payload[:8], "little"))

    with subscriber:
        remote.send(MESSAGES, rate=RATE)
        remote.answer()
        wait_for(subscriber, MESSAGES)
    assert len(lags) == MESSAGES
    return _percentiles(lags)


def _rival(endpoint: str, remote: Remote) -> tuple[float, float, float]:
    context = zmq.Context()
    socket = context.socket(zmq.SUB)
    socket.rcvhwm = 1_000_000
    socket.connect(endpoint)
    socket.subscribe(b"")
    clock = time.time_ns
    remote.send(MESSAGES, rate=RATE)
    receive = socket.recv
    lags = [clock() - int.from_bytes(receive()[:8], "little") for _ in range(MESSAGES)]
    remote.answer()
    context.destroy(linger=0)
    return _percentiles(lags)


def test_latency(benchmark: BenchmarkFixture) -> None:
    """µs, lower is better; the table shows the median over rounds of each round's p50."""
    feed = Feed.local("bench", slices=1)
    rival = Feed.local("rival", slices=1).slices[0].endpoints[0]
    contest = Contest(f"Latency at {RATE:,} messages/s, one at a time: p50", "µs")
    tails: dict[str, list[tuple[float, float, float]]] = {"ours": [], "rival": []}
    with Remote("paced", feed=msgspec.to_builtins(feed)) as ours, Remote("paced", endpoint=rival) as plain:

        def run_ours() -> float:
            tails["ours"].append(_ours(feed, ours))
            return tails["ours"][-1][0]

        def run_rival() -> float:
            tails["rival"].append(_rival(rival, plain))
            return tails["rival"][-1][0]

        contest.add("on(prefix)", run_ours)
        contest.add("rival: pyzmq recv()", run_rival)
        contest.run(benchmark)
    for place, percent in enumerate(("p50", "p99", "p99.9")):
        mine, theirs = (numpy.array([r[place] for r in tails[who][1:]]) for who in ("ours", "rival"))
        show(
            f"{percent}, ours / rival, µs",
            f"{numpy.median(mine):.0f} / {numpy.median(theirs):.0f}, ratio {numpy.median(mine / theirs):.2f}",
        )
