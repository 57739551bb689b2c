"""Delivered to callbacks that work: count, digest and sum per topic.

    ours    PUB process ==blocks, TCP loopback==> SUB | ROUTER ==> DEALER x 2 ==> callbacks
    rival   PUB process --one message a frame---> plain pyzmq SUB recv(), no work
    limit   PUB process ==blocks================> SUB, compiled loop, nothing done

Same messages, same promise (the publisher waits), verified each round: where there is work, count, order and checksum
by topic; of the limit the count, of the rival the last message.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec
import numpy
import zmq
from numpy.typing import NDArray

from bench.contest import WAITS, Contest, Figure, Lost, expect
from bench.cost import Meter
from bench.loops import tally
from bench.publishers import Remote
from bench.receivers import FOREVER_NS, bare_subscriber, receive_bare, wait_for
from bench.workload import PAYLOAD_BYTES, TOPICS, digest, expect_tally, make_pool, tally_of
from blackbox import Batch, Feed, Subscriber

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_benchmark.fixture import BenchmarkFixture

MESSAGES = 4_000_000
RIVAL_MESSAGES = 200_000
PREFIXES = [b"S0", b"S1", b"S2", b"S3", b"S4"]
WIRE_BYTES = 119
"""Of a message in a full block: its payload, its place in each column, its share of topics."""
TIMEOUT_MS = 30_000


def _count(batch: Any, state: Any) -> None:
    for row in batch.rows:
        topic = batch.topic_numbers[batch.topic_index[row]]
        state[topic, 0] += 1
        state[topic, 1] = digest(state[topic, 1], batch.payloads[row * batch.stride + 8])
        state[topic, 2] += batch.payloads[row * batch.stride]


def compiled(feed: Feed, remote: Remote, workers: int = 2, messages: int = MESSAGES) -> Figure:
    """M messages/s to compiled callbacks that count, digest and sum."""
    subscriber = Subscriber(feed, workers=workers, max_lag_ns=FOREVER_NS)
    state = numpy.zeros((TOPICS, 3), numpy.int64)
    callbacks = [subscriber.on_compiled(prefix, state=state)(_count) for prefix in PREFIXES]
    figure = measure_delivery(subscriber, remote, messages)
    expect_tally(tally_of(callbacks), messages)
    return figure


def _batch(feed: Feed, remote: Remote) -> Figure:
    subscriber = Subscriber(feed, max_lag_ns=FOREVER_NS)
    states = []
    for prefix in PREFIXES:
        state = numpy.zeros((TOPICS, 3), numpy.int64)
        states.append(state)

        @subscriber.on_batch(prefix)
        def count(batch: Batch, state: NDArray[numpy.int64] = state) -> None:
            block = batch.block
            rows = numpy.arange(len(batch), dtype=numpy.int32) if batch.rows is None else batch.rows
            tally(batch.topic_numbers, block.topic_index, rows, block.payloads, block.stride, state)

    figure = measure_delivery(subscriber, remote)
    expect_tally(numpy.sum(states, axis=0), MESSAGES)
    return figure


def measure_delivery(subscriber: Subscriber, remote: Remote, messages: int = MESSAGES) -> Figure:
    """M messages/s from the publisher's first call to the last callback."""
    with subscriber:
        meter = Meter(remote.pid)
        remote.send(messages)
        wait_for(subscriber, messages)
        ended, spent = time.time_ns(), meter.spent(messages)
        began = remote.answer()["began"]
    total = subscriber.statistics().total
    expect("gaps, dropped, malformed", (total.gaps, total.dropped, total.malformed), (0, 0, 0))
    return Figure(messages / (ended - began) * 1e3, spent)


def received_only(feed: Feed, remote: Remote, messages: int = MESSAGES) -> Figure:
    """M messages/s of a loop that receives the blocks and does nothing with them."""
    with bare_subscriber(feed) as socket:
        meter = Meter(remote.pid)
        remote.send(messages)
        ended = receive_bare(socket, messages, PAYLOAD_BYTES)
        spent = meter.spent(messages)
    return Figure(messages / (ended - remote.answer()["began"]) * 1e3, spent)


def plain_pyzmq(endpoint: str, remote: Remote, function: Callable[[bytes], object] | None = None) -> Figure:
    """M messages/s of plain pyzmq, `recv()` in a loop, from its publisher's first call; hands each frame on if told.

    Raises Lost when a message does not come; the last one is compared with what was sent.
    """
    context = zmq.Context()
    try:
        socket = context.socket(zmq.SUB)
        socket.rcvtimeo = TIMEOUT_MS
        socket.connect(endpoint)
        socket.subscribe(b"")
        meter, receive, last = Meter(remote.pid), socket.recv, b""
        remote.send(RIVAL_MESSAGES)
        try:
            if function is None:
                for _ in range(RIVAL_MESSAGES):
                    last = receive()
            else:
                for _ in range(RIVAL_MESSAGES):
                    last = receive()
                    function(last)
        except zmq.Again:
            raise Lost(f"no message within {TIMEOUT_MS} ms") from None
        ended, spent = time.time_ns(), meter.spent(RIVAL_MESSAGES)
    finally:
        context.destroy(linger=0)
    pool = make_pool()
    place = (RIVAL_MESSAGES - 1) % len(pool.topic_index)
    expect("last message", last, pool.topics[pool.topic_index[place]] + b" " + pool.payloads[place].tobytes())
    return Figure(RIVAL_MESSAGES / (ended - remote.answer()["began"]) * 1e3, spent)


def test_delivery(benchmark: BenchmarkFixture) -> None:
    """M messages/s from the publisher's first call to the last callback."""
    feed = Feed.local("bench", slices=1)
    two = Feed.local("bench2", slices=2)
    rival = Feed.local("rival", slices=1).slices[0].endpoints[0]
    contest = Contest("Delivery to working callbacks, 2 workers, loopback TCP", "M messages/s", topology=__doc__)
    with (
        Remote("blackbox", feed=msgspec.to_builtins(feed)) as ours,
        Remote("blackbox", feed=msgspec.to_builtins(two)) as sliced,
        Remote("pyzmq", endpoint=rival) as plain,
    ):
        contest.add("compiled callbacks", lambda: compiled(feed, ours), promise=WAITS)
        contest.add("compiled callbacks, 2 slices x 1 worker", lambda: compiled(two, sliced, 1), promise=WAITS)
        contest.add("batch callbacks", lambda: _batch(feed, ours), promise=WAITS)
        contest.add("same blocks, only received", lambda: received_only(feed, ours), "limit", WAITS)
        contest.add("pyzmq, a message a frame, no work", lambda: plain_pyzmq(rival, plain), "rival", WAITS)
        contest.bound("loopback TCP", WIRE_BYTES)
        contest.run(benchmark)
