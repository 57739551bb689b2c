"""The publisher's calls, with a subscriber of everything.

ours    publish() / publish_many() ==ring==> sender ==> XPUB ==TCP loopback==> SUB process
        publish_many() =================ring==> sender ==> XPUB ==inproc========> SUB thread, compiled loop
rival   pyzmq PUB send(), one message a frame -------------> SUB process
limits  memcpy of the same payloads; an empty Python call
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy
import zmq
from pytest_benchmark.fixture import BenchmarkFixture

from bench.bench_delivery import WIRE_BYTES
from bench.bench_limits import empty_calls
from bench.measure.contest import WAITS, Contest, Figure, expect
from bench.processes.pair import Pair, Work
from bench.processes.receiver import receive_blocks
from bench.rivals.rival import tcp
from bench.workload.load import Load, column_rows
from bench.workload.messages import make_pool
from blackbox import Feed, Publisher
from blackbox.feed.slice import Slice

CALLS = 300_000
MANY = 4_000_000
_TIMEOUT_MS = 20_000


def _called(pair: Pair, load: Load) -> Figure:
    """Return M calls/s until the last call returned."""
    figure = pair.round(load, Work(form="nothing"))
    return Figure(load.messages * 1e3 / (pair.sent.ended - pair.sent.began), figure.spent)


def _handed_over(pair: Pair, load: Load) -> Figure:
    """Return M messages/s until all messages were handed to ZeroMQ."""
    figure = pair.round(load, Work(form="nothing"))
    return Figure(load.messages * 1e3 / (pair.sent.flushed - pair.sent.began), figure.spent)


def test_publish(benchmark: BenchmarkFixture) -> None:
    """M calls/s."""
    feed = Feed.local("bench", slices=1)
    load = Load(feed=feed, messages=CALLS, at_once=1)
    contest = Contest("publish(topic, payload), one call a message", "M calls/s", topology=__doc__)
    with (
        Pair.ours(feed, when_full="wait") as ours,
        Pair.rival("plain_pyzmq", address=tcp(), form="nothing", mark=1_000) as pyzmq,
    ):
        contest.add("publish()", lambda: _called(ours, load), promise=WAITS)
        contest.add("pyzmq send(), a message a frame", lambda: _called(pyzmq, load), "rival", WAITS)
        contest.add("an empty Python call", empty_calls, "limit")
        contest.run(benchmark)


def within(publisher: Publisher, load: Load) -> float:
    """Return the same with a subscriber thread in this process that runs a compiled loop."""
    pool = load.pool
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.SUB)
    socket.rcvtimeo = _TIMEOUT_MS
    socket.connect(publisher.feed.slices[0].lines[0])
    socket.subscribe(b"")
    publisher.wait_for_subscribers(timeout=60)
    with ThreadPoolExecutor(1) as executor:
        taken = executor.submit(receive_blocks, socket.underlying, numpy.zeros(24, numpy.int64), load.messages)
        began = time.perf_counter()
        for _, rows in column_rows(load):
            publisher.publish_many(pool.topics, pool.topic_index[rows], pool.payloads[rows], pool.ts_event[rows])
        publisher.flush()
        seconds = time.perf_counter() - began
        size = taken.result()
    socket.close(linger=0)
    expect("more bytes than those of payloads received", size > load.messages * load.payload_bytes, True)
    return load.messages / seconds / 1e6


def test_publish_many(benchmark: BenchmarkFixture) -> None:
    """M messages/s, from the first call until all messages are handed to ZeroMQ."""
    feed = Feed.local("bench", slices=1)
    near = Feed(name="bench-inproc", slices=(Slice(endpoints=("inproc://bench-publish",)),))
    load = Load(feed=feed, messages=MANY)
    payloads = make_pool().payloads
    target = numpy.empty_like(payloads)

    def memcpy() -> float:
        started = time.perf_counter()
        for _ in column_rows(load):
            numpy.copyto(target, payloads)
        return MANY / (time.perf_counter() - started) / 1e6

    contest = Contest("publish_many(columns), 100-byte payloads, 5,000 topics", "M messages/s", topology=__doc__)
    with Pair.ours(feed, when_full="wait") as pair, Publisher(near, when_full="wait") as close_by:
        over_tcp, over_inproc = "publish_many(), one subscriber over TCP", "publish_many(), one subscriber over inproc"
        contest.add(over_tcp, lambda: _handed_over(pair, load), promise=WAITS)
        contest.add(over_inproc, lambda: within(close_by, load), promise=WAITS)
        contest.add("memcpy of the payloads", memcpy, "limit")
        contest.bound("loopback TCP", WIRE_BYTES)
        contest.run(benchmark)
