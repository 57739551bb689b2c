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
from bench.contest import Contest, show
from bench.publishers import Remote
from blackbox import Feed, Message, Subscriber

RATE = 100_000
MESSAGES = 100_000


PERCENTS = (50, 99, 99.9)
Lags = tuple[list[float], list[float]]
"""µs at each of PERCENTS: since it was sent, since it was due."""


def _percentiles(sent: list[int], due: list[int]) -> Lags:
    assert len(sent) == len(due) == MESSAGES
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
    """µs, lower is better; the table shows the median over rounds of each round's p50."""
    feed = Feed.local("bench", slices=1)
    rival = Feed.local("rival", slices=1).slices[0].endpoints[0]
    contest = Contest(f"Latency at {RATE:,} messages/s, one at a time: p50 since sent", "µs")
    all_lags: dict[str, list[Lags]] = {"ours": [], "rival": []}
    with Remote("paced", feed=msgspec.to_builtins(feed)) as ours, Remote("paced", endpoint=rival) as plain:

        def run(who: str, measure: Callable[[], Lags]) -> float:
            all_lags[who].append(measure())
            return all_lags[who][-1][0][0]

        contest.add("on(prefix)", lambda: run("ours", lambda: _ours(feed, ours)))
        contest.add("rival: pyzmq recv()", lambda: run("rival", lambda: _rival(rival, plain)))
        contest.run(benchmark)
    for since, clock in enumerate(("sent", "due")):
        for place, percent in enumerate(PERCENTS):
            mine, theirs = (numpy.array([r[since][place] for r in all_lags[who][1:]]) for who in ("ours", "rival"))
            show(
                f"p{percent:g} since {clock}, ours / rival, µs",
                f"{numpy.median(mine):.0f} / {numpy.median(theirs):.0f}, ratio {numpy.median(mine / theirs):.2f}",
            )
