"""The publisher's calls, with a subscriber that takes all it sends.

ours    publish() / publish_many() ==ring==> line thread ==> XPUB ==TCP loopback==> SUB process
        publish_many() =================ring==> line thread ==> XPUB ==inproc========> SUB thread, compiled loop
rival   pyzmq PUB send(), one message a frame -------------> SUB process
limits  memcpy of the same payloads; an empty Python call
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self

import numpy
import zmq
from pytest_benchmark.fixture import BenchmarkFixture

from bench.bench_delivery import WIRE_BYTES
from bench.child import Child
from bench.contest import WAITS, Contest, expect
from bench.loops import receive_blocks
from bench.workload import PAYLOAD_BYTES, POOL_MESSAGES, make_pool
from blackbox import Feed, Publisher
from blackbox.feed import Slice

CALLS = 300_000
MANY = 4_000_000
_TOPIC, _PAYLOAD = b"S0001.trade", bytes(PAYLOAD_BYTES)
_TIMEOUT_MS = 20_000

_TAKER = f"""
import json, sys, numpy, zmq
from bench import loops
socket = zmq.Context().socket(zmq.SUB)
socket.rcvtimeo = {_TIMEOUT_MS}
socket.connect(sys.argv[2])
socket.subscribe(b"")
scratch = numpy.zeros(24, numpy.int64)
receive = getattr(loops, sys.argv[1])
receive(socket.underlying, scratch, 0)
print(0, flush=True)
for line in sys.stdin:
    print(receive(socket.underlying, scratch, json.loads(line)), flush=True)
"""
"""A process that takes so many messages, and says how many bytes they had; -1 when they did not come."""


class Thread:
    """The same in a thread."""

    def __init__(self, endpoint: str) -> None:
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.SUB)
        self._socket.setsockopt(zmq.RCVTIMEO, _TIMEOUT_MS)
        self._socket.connect(endpoint)
        self._socket.subscribe(b"")
        self._scratch = numpy.zeros(24, numpy.int64)
        self._executor = ThreadPoolExecutor(1)
        self._taken: Future[int] | None = None

    def begin(self) -> None:
        """Take the messages of a round."""
        self._taken = self._executor.submit(receive_blocks, self._socket.underlying, self._scratch, MANY)

    def came(self) -> int:
        """How many bytes they had."""
        assert self._taken is not None
        return self._taken.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._executor.shutdown()
        self._socket.close(linger=0)


def _publish(publisher: Publisher, taker: Child) -> float:
    publish = publisher.publish
    taker.send(CALLS)
    started = time.perf_counter()
    for _ in range(CALLS):
        publish(_TOPIC, _PAYLOAD)
    seconds = time.perf_counter() - started
    publisher.flush()
    expect("bytes above those of payloads came", taker.answer() > CALLS * PAYLOAD_BYTES, True)
    return CALLS / seconds / 1e6


def _send(socket: zmq.Socket[bytes], taker: Child) -> float:
    send, frame = socket.send, _TOPIC + b" " + _PAYLOAD
    taker.send(CALLS)
    started = time.perf_counter()
    for _ in range(CALLS):
        send(frame)
    seconds = time.perf_counter() - started
    expect("bytes that came", taker.answer(), CALLS * len(frame))
    return CALLS / seconds / 1e6


def _many(publisher: Publisher, begin: Callable[[], object], came: Callable[[], int]) -> float:
    pool = make_pool()
    begin()
    started = time.perf_counter()
    for _ in range(MANY // POOL_MESSAGES):
        publisher.publish_many(pool.topics, pool.topic_index, pool.payloads, pool.ts_event)
    publisher.flush()
    seconds = time.perf_counter() - started
    expect("bytes above those of payloads came", came() > MANY * PAYLOAD_BYTES, True)
    return MANY / seconds / 1e6


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
    rival = Feed.local("rival", slices=1).slices[0].endpoints[0]
    contest = Contest("publish(topic, payload), one call a message", "M calls/s", topology=__doc__)
    context = zmq.Context()
    socket = context.socket(zmq.XPUB)
    socket.setsockopt(zmq.XPUB_NODROP, 1)
    socket.bind(rival)
    with (
        Publisher(feed, when_full="wait") as publisher,
        Child("-c", _TAKER, "receive_blocks", feed.slices[0].endpoints[0]) as blocks,
        Child("-c", _TAKER, "receive_frames", rival) as frames,
    ):
        publisher.wait_for_subscribers(timeout=60)
        socket.recv()
        contest.add("publish()", lambda: _publish(publisher, blocks), promise=WAITS)
        contest.add("pyzmq send(), a message a frame", lambda: _send(socket, frames), "rival", WAITS)
        contest.add("an empty Python call", _empty_calls, "limit")
        contest.run(benchmark)
    context.destroy(linger=0)


def test_publish_many(benchmark: BenchmarkFixture) -> None:
    """M messages/s, from the first call until all is with ZeroMQ."""
    feed = Feed.local("bench", slices=1)
    near = Feed(name="bench-inproc", slices=(Slice(endpoints=("inproc://bench-publish",)),))
    pool = make_pool()
    target = numpy.empty_like(pool.payloads)

    def memcpy() -> float:
        started = time.perf_counter()
        for _ in range(MANY // POOL_MESSAGES):
            numpy.copyto(target, pool.payloads)
        return MANY / (time.perf_counter() - started) / 1e6

    contest = Contest("publish_many(columns), 100-byte payloads, 5,000 topics", "M messages/s", topology=__doc__)
    with (
        Publisher(feed, when_full="wait") as publisher,
        Publisher(near, when_full="wait") as close_by,
        Child("-c", _TAKER, "receive_blocks", feed.slices[0].endpoints[0]) as child,
        Thread(near.slices[0].endpoints[0]) as thread,
    ):
        publisher.wait_for_subscribers(timeout=60)
        close_by.wait_for_subscribers(timeout=60)
        over_tcp, over_inproc = "publish_many(), one subscriber over TCP", "publish_many(), one subscriber over inproc"
        contest.add(over_tcp, lambda: _many(publisher, lambda: child.send(MANY), child.answer), promise=WAITS)
        contest.add(over_inproc, lambda: _many(close_by, thread.begin, thread.came), promise=WAITS)
        contest.add("memcpy of the payloads", memcpy, "limit")
        contest.bound("loopback TCP", WIRE_BYTES)
        contest.run(benchmark)
