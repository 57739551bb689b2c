"""Start: CPU time until a subscriber is confirmed, and the first start in an environment where nothing is compiled.

warm    PUB process ==TCP loopback==> a process that has started before: Subscriber(feed), start(), again and again
limit   the same process: a SUB socket until its subscription is confirmed
first   a new process with an empty kernel cache: imports, publisher and subscriber, until the first callback
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec
import pytest
import zmq
from pytest_benchmark.fixture import BenchmarkFixture

from bench.measure.contest import Contest
from bench.measure.cost import cpu_seconds
from bench.processes.child import Child, answer, orders
from bench.processes.crowd import PATIENCE_MS, ask, wait_for
from blackbox import Feed, Subscriber

TIMES: Final = 20
_FIRST: Final = """
import threading
from blackbox import Feed, Publisher, Subscriber
feed, got = Feed.local("start", slices=1), threading.Event()
subscriber = Subscriber(feed)
subscriber.on(b"")(lambda message: got.set())
with Publisher(feed) as publisher, subscriber:
    publisher.publish(b"A.trade", b"x")
    assert got.wait(600)
"""


def start_again(feed: Any) -> None:
    """Start a subscriber or a socket as often as ordered; answer with the CPU time until each was confirmed."""
    feed = msgspec.convert(feed, Feed)
    with zmq.Context() as context:
        for order in orders():
            spent = 0.0
            for _ in range(TIMES):
                began = cpu_seconds()
                if order == "subscriber":
                    subscriber = Subscriber(feed)
                    subscriber.on(b"")(print)
                    subscriber.start(60)
                    spent += cpu_seconds() - began
                    subscriber.terminate()
                else:
                    with context.socket(zmq.SUB) as sub:
                        sub.linger, sub.rcvtimeo = 0, PATIENCE_MS
                        sub.connect(feed.slices[0].lines[0])
                        wait_for(sub, ask(sub))
                        spent += cpu_seconds() - began
            answer(spent_s=spent)


def test_start(benchmark: BenchmarkFixture) -> None:
    """CPU time in ms of all threads until a new subscriber is confirmed, caches warm."""
    contest = Contest("Start of a subscriber, until it is confirmed", "ms of CPU", lower=True, topology=__doc__)
    feed = Feed.local("start", slices=1)
    with (
        Child("bench.processes.sender:publish", feeds=[feed]),
        Child("bench.bench_start:start_again", feed=feed) as child,
    ):
        contest.add("Subscriber(feed).start()", lambda: child.ask("subscriber")["spent_s"] / TIMES * 1e3)
        contest.add("a SUB socket", lambda: child.ask("socket")["spent_s"] / TIMES * 1e3, "limit")
        contest.run(benchmark)


def _first() -> float:
    with TemporaryDirectory() as empty:
        began = time.perf_counter()
        environment = os.environ | {"NUMBA_CACHE_DIR": empty}
        subprocess.run([sys.executable, "-c", _FIRST], check=True, cwd=Path(__file__).parents[1], env=environment)
        return time.perf_counter() - began


@pytest.mark.timeout(1_800)
def test_first_start(benchmark: BenchmarkFixture) -> None:
    """Seconds from the start of a process until its first delivered message, nothing compiled before."""
    contest = Contest("First start ever, until the first message", "s", lower=True, topology=__doc__)
    contest.add("publisher and subscriber", _first)
    contest.run(benchmark, rounds=1)
