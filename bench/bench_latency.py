"""Latency of single messages at a steady 100,000 a second.

    ours    PUB process: publish() --TCP loopback--> SUB | ROUTER ==> DEALER ==> f(message)
    rival   PUB process: pyzmq send() ------------> pyzmq SUB recv(), f(frame)

Two clocks: from when a message was sent (`ts_out`; the rival stamps it just before `send()`), and from when it was due,
so that a late sender hides nothing (no coordinated omission).
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec
import numpy
import zmq
from pytest_benchmark.fixture import BenchmarkFixture

from bench.bench_delivery import wait_for
from bench.contest import Contest, expect
from bench.publishers import Remote
from blackbox import Feed, Message, Subscriber

RATE = 100_000
MESSAGES = 50_000


PERCENTS = (50, 90, 99, 99.9, 100)
Lags = tuple[list[float], list[float]]
"""µs at each of PERCENTS: since it was sent, since it was due."""


def _percentiles(sent: list[int], due: list[int]) -> Lags:
    expect("times noted", (len(sent), len(due)), (MESSAGES, MESSAGES))
    after = MESSAGES // 10  # the first tenth warms up
    return tuple(numpy.percentile(numpy.array(lags[after:]) / 1000, PERCENTS).tolist() for lags in (sent, due))


def _ours(feed: Feed, remote: Remote) -> Lags:
    subscriber = Subscriber(feed, workers=1, max_lag_ns=10**12)
    sent: list[int] = []
    due: list[int] = []
    clock = time.time_ns

    @subscriber.on(b"")
    def note(message: Message) -> None:
        now = clock()
        sent.append(now - message.ts_out)
        due.append(now - int.from_bytes(message.payload[:8], "little"))

    with subscriber:
        remote.send(MESSAGES, rate=RATE)
        remote.answer()
        wait_for(subscriber, MESSAGES)
    return _percentiles(sent, due)


def _rival(endpoint: str, remote: Remote) -> Lags:
    context = zmq.Context()
    socket = context.socket(zmq.SUB)
    socket.rcvhwm = 1_000_000
    socket.connect(endpoint)
    socket.subscribe(b"")
    sent: list[int] = []
    due: list[int] = []
    clock = time.time_ns
    remote.send(MESSAGES, rate=RATE)
    receive = socket.recv
    for _ in range(MESSAGES):
        frame = receive()
        now = clock()
        sent.append(now - int.from_bytes(frame[8:16], "little"))
        due.append(now - int.from_bytes(frame[:8], "little"))
    remote.answer()
    context.destroy(linger=0)
    return _percentiles(sent, due)


def test_latency(benchmark: BenchmarkFixture) -> None:
    """µs; the table shows the median over rounds of each round's p50, below it all percentiles."""
    feed = Feed.local("bench", slices=1)
    rival = Feed.local("rival", slices=1).slices[0].endpoints[0]
    contest = Contest(
        f"Latency at {RATE:,} messages/s, one at a time: p50 since sent", "µs", lower=True, topology=__doc__
    )
    with Remote("paced", feed=msgspec.to_builtins(feed)) as ours, Remote("paced", endpoint=rival) as plain:

        def run(who: str, measure: Callable[[], Lags]) -> float:
            lags = measure()
            for clock, values in zip(("since it was sent", "since it was due"), lags, strict=True):
                contest.percentiles(f"{who}, {clock}", {f"p{p:g}": v for p, v in zip(PERCENTS, values, strict=True)})
            return lags[0][0]

        contest.add("on(prefix)", lambda: run("on(prefix)", lambda: _ours(feed, ours)))
        contest.add("pyzmq recv()", lambda: run("pyzmq recv()", lambda: _rival(rival, plain)), "rival")
        contest.run(benchmark)
