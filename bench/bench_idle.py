"""CPU use of a subscriber while its feed is silent.

publisher ──heartbeat a second──> subscriber, parked or spinning     limit: a plain SUB in a blocking poll
each in its own process; the figure is the CPU time of all its threads in percent of one core
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Any, Literal

import msgspec
import zmq
from pytest_benchmark.fixture import BenchmarkFixture

from bench.measure.contest import Contest
from bench.processes.child import Child, answer, has_order, orders
from blackbox import Feed, Publisher, Subscriber

SECONDS = 2.0


def subscribe(feed: Any, workers: int) -> None:
    """Subscribe to everything with a callback per message; answer each order with the CPU seconds so far."""
    subscriber = Subscriber(msgspec.convert(feed, Feed), workers=workers)
    subscriber.on(b"")(len)
    subscriber.start()
    for _ in orders():
        answer(cpu_s=time.process_time())
    subscriber.stop()


def poll(endpoint: str) -> None:
    """Poll a plain SUB socket that receives the heartbeats; answer each order with the CPU seconds so far."""
    with zmq.Context() as context, context.socket(zmq.SUB) as sub:
        sub.subscribe(b"")
        sub.connect(endpoint)
        for _ in orders():
            answer(cpu_s=time.process_time())
            while not has_order():
                if sub.poll(100):
                    sub.recv_multipart()


def _feed(transport: Literal["tcp", "shm"], idle: Literal["park", "spin"]) -> Feed:
    feed = Feed.local("idle", slices=1, transport=transport)
    return msgspec.structs.replace(feed, slices=(msgspec.structs.replace(feed.slices[0], idle=idle),))


def _percent(child: Child) -> float:
    began = child.ask("cpu")["cpu_s"]
    time.sleep(SECONDS)
    return float(100 * (child.ask("cpu")["cpu_s"] - began) / SECONDS)


def test_idle(benchmark: BenchmarkFixture) -> None:
    """Percent of a core."""
    contest = Contest("A subscriber of a silent feed", "% of a core", lower=True, topology=__doc__)
    with ExitStack() as stack:
        for transport, idle in (("tcp", "park"), ("shm", "park"), ("tcp", "spin"), ("shm", "spin")):
            feed = _feed(transport, idle)  # type: ignore[arg-type]
            stack.enter_context(Publisher(feed))
            for workers in (2, 0):
                child = Child("bench.bench_idle:subscribe", feed=feed, workers=workers)
                stack.enter_context(child)
                contest.add(f"{transport}, {idle}, workers={workers}", lambda child=child: _percent(child))  # type: ignore[misc]
        plain = Child("bench.bench_idle:poll", endpoint=_endpoint(stack))
        stack.enter_context(plain)
        contest.add("plain SUB that polls", lambda: _percent(plain), "limit")
        contest.run(benchmark)


def _endpoint(stack: ExitStack) -> str:
    """Return the endpoint of a silent publisher."""
    feed = _feed("tcp", "park")
    stack.enter_context(Publisher(feed))
    return feed.slices[0].endpoints[0]
