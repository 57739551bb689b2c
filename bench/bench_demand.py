"""The cost of tracking subscriptions in a publisher: 100,000 prefixes, 10,000 of them changing per second.

publish_many() ==> sender ==> XPUB ==TCP loopback==> SUB thread, compiled loop
^==== 10,000 changes a second ==== SUB process
wants(topic): a Python call compared with an empty one
"""

from __future__ import annotations

import time

from pytest_benchmark.fixture import BenchmarkFixture

from bench.bench_limits import empty_calls
from bench.bench_publish import within as published
from bench.measure.contest import WAITS, Contest, Figure, expect
from bench.processes.child import Child
from bench.workload.load import Load
from blackbox import Feed, Publisher

MESSAGES = 8_000_000
PREFIXES = 100_000
CHANGES_PER_S = 10_000
CALLS = 300_000
_LEAST_CHANGED = 0.8
"""Minimum share of the changes that must arrive in a round for it to count."""


def _settled(publisher: Publisher) -> None:
    deadline = time.monotonic() + 60
    while not all(publisher.wants(b"%07d.trade" % number) for number in range(0, PREFIXES, 101)):
        assert time.monotonic() < deadline, "not all prefixes were subscribed within 60 s"
        time.sleep(0.01)


def test_demand(benchmark: BenchmarkFixture) -> None:
    """M messages/s, from the first call until all messages are handed to ZeroMQ."""
    feed = Feed.local("demand", slices=1)
    load = Load(feed=feed, messages=MESSAGES)
    contest = Contest("publish_many() while 10,000 of 100,000 wants change a second", "M messages/s", topology=__doc__)
    with (
        Publisher(feed, when_full="wait") as publisher,
        Child(
            "bench.processes.churn:want",
            address=feed.slices[0].lines[0],
            prefixes=PREFIXES,
            changes_per_s=CHANGES_PER_S,
        ) as child,
    ):
        _settled(publisher)

        def changing() -> float:
            child.ask(True)
            began = time.perf_counter()
            try:
                return published(publisher, load)
            finally:
                seconds = time.perf_counter() - began
                changes = child.ask(False)["changes"]
                expect("enough changes", changes >= _LEAST_CHANGED * CHANGES_PER_S * seconds, True)

        contest.add("100,000 prefixes wanted", lambda: published(publisher, load), promise=WAITS)
        contest.add("and 10,000 changes a second", changing, promise=WAITS)
        contest.run(benchmark)
        ratio = contest.ratio("and 10,000 changes a second", "100,000 prefixes wanted")
        contest.show("rate with changing subscriptions / rate without", f"{ratio:.2f} x")


def test_wants(benchmark: BenchmarkFixture) -> None:
    """M calls/s."""
    feed = Feed.local("demand", slices=1)
    contest = Contest("wants(topic), 100,000 prefixes of one length", "M calls/s", topology=__doc__)
    with (
        Publisher(feed) as publisher,
        Child("bench.processes.churn:want", address=feed.slices[0].lines[0], prefixes=PREFIXES, changes_per_s=0),
    ):
        _settled(publisher)

        def calls() -> Figure:
            wants, topic = publisher.wants, b"0050000.trade"
            began = time.perf_counter()
            for _ in range(CALLS):
                wants(topic)
            return Figure(CALLS / (time.perf_counter() - began) / 1e6)

        contest.add("wants(topic)", calls)
        contest.add("an empty Python call", empty_calls, "limit")
        contest.run(benchmark)
