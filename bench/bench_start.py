"""Time to import, to the first message and to the first compile; and memory growth over a long run.

process --import--> blackbox --start--> publisher, subscriber --message--> first callback
each figure comes from its own process; the cache is the user's, or empty for the first compile

BLACKBOX_BENCH_LONG=1 also measures the first compile, which takes several minutes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench.measure.contest import Contest
from bench.processes.child import Child, answer, orders
from bench.processes.receiver import FOREVER_NS
from bench.workload.load import Load, column_rows
from blackbox import Feed, Publisher, SlowPolicy, Subscriber

GROWN = 4_000_000

_IMPORT = "import time; t = time.perf_counter(); import {0}; print(time.perf_counter() - t)"

_FIRST_MESSAGE = """
import json, threading, time
begun = time.perf_counter()
from blackbox import Feed, Publisher, Subscriber
feed = Feed.local("start", slices=1)
got = threading.Event()
subscriber = Subscriber(feed)
subscriber.on(b"")(lambda message: got.set())
with Publisher(feed) as publisher:
    started = time.perf_counter()
    with subscriber:
        publisher.publish(b"A.trade", b"x")
        assert got.wait(60)
        now = time.perf_counter()
print(json.dumps([now - started, now - begun]))
"""

_PUBLISHER = """
from blackbox import Feed, Publisher
Publisher(Feed.local("start", slices=1)).start()
"""

_SUBSCRIBER = """
from blackbox import Feed, Subscriber
from blackbox.testing import RawPublisher
feed = Feed.local("start", slices=1)
subscriber = Subscriber(feed)
subscriber.on(b"")(print)
with RawPublisher(feed):
    subscriber.start(60)
    subscriber.stop()
"""


def grow(messages: int) -> None:
    """Publish and subscribe in one process: `messages` first, then as ordered; answer with the growth in MB."""
    feed = Feed.local("memory", slices=1)
    subscriber = Subscriber(feed, slow=SlowPolicy(max_lag=FOREVER_NS / 1e9))
    subscriber.on_batch(b"")(len)
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        _send(publisher, messages)
        base = _resident_mb()
        for order in orders():
            _send(publisher, order)
            answer(mb=_resident_mb() - base)
    subscriber.run(until_end=True)


def _send(publisher: Publisher, messages: int) -> None:
    load = Load(messages=messages)
    pool = load.pool
    for _, rows in column_rows(load):
        publisher.publish_many(pool.topics, pool.topic_index[rows], pool.payloads[rows], pool.ts_event[rows])
    publisher.flush()


def _resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6


def _python(code: str, **environment: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent.parent,
        env={**os.environ, **environment},
    ).stdout


def _first_message() -> tuple[float, float]:
    since_start, since_import = json.loads(_python(_FIRST_MESSAGE))
    return float(since_start), float(since_import)


def test_start(benchmark: BenchmarkFixture) -> None:
    """Seconds."""
    contest = Contest("Start, caches warm", "s", lower=True, topology=__doc__)
    found: list[tuple[float, float]] = []  # one process measures both figures of a round

    def since_start() -> float:
        found.append(_first_message())
        return found[-1][0]

    contest.add("import blackbox", lambda: float(_python(_IMPORT.format("blackbox"))))
    contest.add("from start() to the first callback", since_start)
    contest.add("from the first import to the first callback", lambda: found[-1][1])
    contest.add("import zmq", lambda: float(_python(_IMPORT.format("zmq"))), "limit")
    contest.run(benchmark)


@pytest.mark.skipif("BLACKBOX_BENCH_LONG" not in os.environ, reason="takes minutes: set BLACKBOX_BENCH_LONG=1")
@pytest.mark.timeout(3_600)
def test_first_compile(benchmark: BenchmarkFixture) -> None:
    """Seconds with an empty cache until each has started; for both, until the first callback."""

    def compiled(code: str) -> float:
        with TemporaryDirectory() as empty:
            started = time.perf_counter()
            _python(code, NUMBA_CACHE_DIR=empty)
            return time.perf_counter() - started

    contest = Contest("First start ever, nothing compiled", "s", lower=True, topology=__doc__)
    contest.add("a publisher", lambda: compiled(_PUBLISHER))
    contest.add("a subscriber", lambda: compiled(_SUBSCRIBER))
    contest.add("both in one process", lambda: compiled(_FIRST_MESSAGE))
    contest.run(benchmark)


def test_memory(benchmark: BenchmarkFixture) -> None:
    """Growth in MB of a process with publisher and subscriber since its first messages."""
    contest = Contest(
        f"Memory: growth since the first {GROWN:,} messages, {GROWN:,} more each round",
        "MB",
        lower=True,
        topology=__doc__,
    )
    with Child("bench.bench_start:grow", messages=GROWN) as child:
        contest.add("resident set", lambda: float(child.ask(GROWN)["mb"]))
        contest.run(benchmark)
