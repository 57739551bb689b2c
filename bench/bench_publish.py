"""The publisher's calls, with a subscriber that takes all it sends.

ours    publish() / publish_many() ==ring==> line thread ==> XPUB ==TCP loopback==> SUB process
        publish_many() =================ring==> line thread ==> XPUB ==inproc========> SUB thread, compiled loop
rival   pyzmq PUB send(), one message a frame -------------> SUB process
limits  memcpy of the same payloads; an empty Python call
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy
import zmq
from pytest_benchmark.fixture import BenchmarkFixture

from bench.bench_delivery import WAITS
from bench.contest import Contest
from bench.loops import receive_blocks
from bench.workload import POOL_MESSAGES, make_pool
from blackbox import Feed, Publisher
from blackbox.feed import Slice

CALLS = 300_000
MANY = 4_000_000


def _swallow(endpoint: str) -> None:
    context = zmq.Context()
    socket = context.socket(zmq.SUB)
    socket.connect(endpoint)
    socket.subscribe(b"")
    receive_blocks(socket.underlying, numpy.zeros(24, numpy.int64), 1 << 60)


@contextmanager
def _swallower(endpoint: str) -> Iterator[None]:
    process = multiprocessing.get_context("spawn").Process(target=_swallow, args=(endpoint,), daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


@contextmanager
def _swallowing_thread(endpoint: str) -> Iterator[None]:
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.SUB)
    socket.connect(endpoint)
    socket.subscribe(b"")
    socket.rcvtimeo = 1_000  # without messages for so long, the loop ends
    scratch = numpy.zeros(24, numpy.int64)
    thread = threading.Thread(target=receive_blocks, args=(socket.underlying, scratch, 1 << 60))
    thread.start()
    yield
    thread.join()
    socket.close(linger=0)


def _publish(publisher: Publisher, payload: bytes) -> float:
    publish = publisher.publish
    started = time.perf_counter()
    for _ in range(CALLS):
        publish(b"S0001.trade", payload)
    seconds = time.perf_counter() - started
    publisher.flush()
    return CALLS / seconds / 1e6


def _send(socket: zmq.Socket[bytes], frame: bytes) -> float:
    send = socket.send
    started = time.perf_counter()
    for _ in range(CALLS):
        send(frame)
    return CALLS / (time.perf_counter() - started) / 1e6


def _empty_calls() -> float:
    def nothing(topic: bytes, payload: bytes, ts_event: int = 0) -> None:
        pass

    started = time.perf_counter()
    for _ in range(CALLS):
        nothing(b"S0001.trade", b"")
    return CALLS / (time.perf_counter() - started) / 1e6


def test_publish(benchmark: BenchmarkFixture) -> None:
    """M calls/s."""
    feed = Feed.local("bench", slices=1)
    endpoint = Feed.local("rival", slices=1).slices[0].endpoints[0]
    contest = Contest("publish(topic, payload), one call a message", "M calls/s", topology=__doc__)
    context = zmq.Context()
    socket = context.socket(zmq.XPUB)
    socket.setsockopt(zmq.XPUB_NODROP, 1)
    socket.bind(endpoint)
    with (
        Publisher(feed, when_full="wait") as publisher,
        _swallower(feed.slices[0].endpoints[0]),
        _swallower(endpoint),
    ):
        publisher.wait_for_subscribers(timeout=60)
        socket.recv()
        contest.add("publish()", lambda: _publish(publisher, bytes(100)), promise=WAITS)
        frame = b"S0001.trade " + bytes(100)
        contest.add("pyzmq send(), a message a frame", lambda: _send(socket, frame), "rival", WAITS)
        contest.add("an empty Python call", _empty_calls, "limit")
        contest.run(benchmark)
        publisher.close(timeout=1)
    context.destroy(linger=0)


def test_publish_many(benchmark: BenchmarkFixture) -> None:
    """M messages/s, from the first call until all is with ZeroMQ."""
    feed = Feed.local("bench", slices=1)
    pool = make_pool()
    target = numpy.empty_like(pool.payloads)

    def many(publisher: Publisher) -> float:
        started = time.perf_counter()
        for _ in range(MANY // POOL_MESSAGES):
            publisher.publish_many(pool.topics, pool.topic_index, pool.payloads, pool.ts_event)
        publisher.flush()
        return MANY / (time.perf_counter() - started) / 1e6

    def memcpy() -> float:
        started = time.perf_counter()
        for _ in range(MANY // POOL_MESSAGES):
            numpy.copyto(target, pool.payloads)
        return MANY / (time.perf_counter() - started) / 1e6

    contest = Contest("publish_many(columns), 100-byte payloads, 5,000 topics", "M messages/s", topology=__doc__)
    near = Feed(name="bench-inproc", slices=(Slice(endpoints=("inproc://bench-publish",)),))
    with Publisher(feed, when_full="wait") as publisher, Publisher(near, when_full="wait") as close_by:
        with _swallower(feed.slices[0].endpoints[0]), _swallowing_thread(near.slices[0].endpoints[0]):
            publisher.wait_for_subscribers(timeout=60)
            close_by.wait_for_subscribers(timeout=60)
            contest.add("publish_many(), one subscriber over TCP", lambda: many(publisher), promise=WAITS)
            contest.add("publish_many(), one subscriber over inproc", lambda: many(close_by), promise=WAITS)
            contest.add("memcpy of the payloads", memcpy, "limit")
            contest.run(benchmark)
        publisher.close(timeout=1)
