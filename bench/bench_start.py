"""How soon it runs: import, first message after start, first compile ever; and memory over a long run.

each figure is a process of its own; the cache is the user's, or an empty one for the first compile
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from pytest_benchmark.fixture import BenchmarkFixture

from bench.contest import Contest

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

_MEMORY = """
import sys
from pathlib import Path
import numpy
from bench.workload import make_pool
from blackbox import Feed, Publisher, Subscriber
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6
pool = make_pool()
feed = Feed.local("memory", slices=1)
subscriber = Subscriber(feed, max_lag_ns=10**15)
subscriber.on_batch(b"")(len)
with Publisher(feed, when_full="wait") as publisher:
    subscriber.start()
    def send(times):
        for _ in range(times):
            publisher.publish_many(pool.topics, pool.topic_index, pool.payloads, pool.ts_event)
        publisher.flush()
    send(20)
    base = resident()
    send(20)
    short = resident() - base
    send(200)
    long = resident() - base
subscriber.run(until_end=True)
print(short, long)
"""


def _python(code: str, **environment: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent.parent,
        env={**os.environ, **environment},
    ).stdout


def test_start(benchmark: BenchmarkFixture) -> None:
    """Seconds, lower is better."""
    contest = Contest("Start, caches warm", "s")
    contest.add("import blackbox", lambda: float(_python(_IMPORT.format("blackbox"))))
    contest.add("from start() to the first callback", lambda: json.loads(_python(_FIRST_MESSAGE))[0])
    contest.add("from the first import to the first callback", lambda: json.loads(_python(_FIRST_MESSAGE))[1])
    contest.add("rival: import zmq", lambda: float(_python(_IMPORT.format("zmq"))))
    contest.run(benchmark)


def test_first_compile(benchmark: BenchmarkFixture) -> None:
    """Seconds from nothing, with an empty cache, until each has started; both: until the first callback."""

    def compiled(code: str) -> float:
        with TemporaryDirectory() as empty:
            started = time.perf_counter()
            _python(code, NUMBA_CACHE_DIR=empty)
            return time.perf_counter() - started

    contest = Contest("First start ever, nothing compiled", "s")
    contest.add("a publisher", lambda: compiled(_PUBLISHER))
    contest.add("a subscriber", lambda: compiled(_SUBSCRIBER))
    contest.add("both in one process", lambda: compiled(_FIRST_MESSAGE))
    contest.run(benchmark, rounds=3)


def test_memory(benchmark: BenchmarkFixture) -> None:
    """MB that a process grows after its warm-up, publisher and subscriber in one."""
    grown: list[tuple[float, float]] = []

    def run() -> float:
        short, long = map(float, _python(_MEMORY).split())
        grown.append((short, long))
        return long

    contest = Contest("Memory: growth over 44 M messages, after the first 4 M", "MB")
    contest.add("resident set", run)
    contest.run(benchmark, rounds=3)
    print(f"  growth over 4 M messages, then over 44 M: {grown}")
