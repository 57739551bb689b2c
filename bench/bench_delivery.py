"""Delivered to callbacks that work: count, last and sum per topic.

    ours    PUB process ==blocks, TCP loopback==> SUB | ROUTER ==> DEALER x 2 ==> callbacks
    rival   PUB process --one message a frame---> plain pyzmq SUB recv(), no work
    limit   PUB process ==blocks================> SUB, compiled loop, nothing done

Same messages, same promise (the publisher waits), count and checksum verified each round.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec
import numpy
import zmq
from numpy.typing import NDArray
from pytest_benchmark.fixture import BenchmarkFixture

from bench.contest import Contest
from bench.loops import receive_blocks, tally
from bench.publishers import Remote
from bench.workload import TOPICS, expected_sum, make_pool
from blackbox import Batch, Feed, Subscriber

MESSAGES = 20_000_000
RIVAL_MESSAGES = 400_000
PREFIXES = [b"S0", b"S1", b"S2", b"S3", b"S4"]
_FOREVER_NS = 10**15


def wait_for(subscriber: Subscriber, messages: int) -> None:
    """Wait until callbacks have got that many messages."""
    while subscriber.statistics().total.delivered < messages:
        subscriber.wait_confirmed()  # raises when something went wrong
        time.sleep(0.02)


def _count(batch: Any, state: Any) -> None:
    for row in batch.rows:
        topic = batch.topic_numbers[batch.topic_index[row]]
        state[topic, 0] += 1
        state[topic, 1] = batch.payloads[row * batch.stride + 8]
        state[topic, 2] += batch.payloads[row * batch.stride]


def _compiled(feed: Feed, remote: Remote, checksum: int, workers: int = 2) -> float:
    subscriber = Subscriber(feed, workers=workers, max_lag_ns=_FOREVER_NS)
    state = numpy.zeros((TOPICS, 3), numpy.int64)
    callbacks = [subscriber.on_compiled(prefix, state=state)(_count) for prefix in PREFIXES]
    with subscriber:
        started = time.perf_counter()
        remote.send(MESSAGES)
        wait_for(subscriber, MESSAGES)
        seconds = time.perf_counter() - started
        remote.answer()
    totals = numpy.sum([callback.total().sum(axis=0) for callback in callbacks], axis=0)
    _verify(subscriber, int(totals[0]), int(totals[2]), checksum)
    return MESSAGES / seconds / 1e6


def _batch(feed: Feed, remote: Remote, checksum: int) -> float:
    subscriber = Subscriber(feed, max_lag_ns=_FOREVER_NS)
    states = []
    for prefix in PREFIXES:
        state = numpy.zeros((TOPICS, 3), numpy.int64)
        states.append(state)

        @subscriber.on_batch(prefix)
        def count(batch: Batch, state: NDArray[numpy.int64] = state) -> None:
            block = batch.block
            rows = numpy.arange(len(batch), dtype=numpy.int32) if batch.rows is None else batch.rows
            tally(batch.topic_numbers, block.topic_index, rows, block.payloads, block.stride, state)

    with subscriber:
        started = time.perf_counter()
        remote.send(MESSAGES)
        wait_for(subscriber, MESSAGES)
        seconds = time.perf_counter() - started
        remote.answer()
    totals = numpy.sum([state.sum(axis=0) for state in states], axis=0)
    _verify(subscriber, int(totals[0]), int(totals[2]), checksum)
    return MESSAGES / seconds / 1e6


def _verify(subscriber: Subscriber, count: int, total: int, checksum: int) -> None:
    statistics = subscriber.statistics()
    assert (statistics.total.gaps, statistics.total.dropped, statistics.total.malformed) == (0, 0, 0)
    assert count == MESSAGES
    assert total == checksum


def received_only(feed: Feed, remote: Remote, messages: int = MESSAGES) -> float:
    """M messages/s of a loop that receives the blocks and does nothing with them."""
    context = zmq.Context()
    socket = context.socket(zmq.SUB)
    socket.connect(feed.slices[0].endpoints[0])
    socket.subscribe(b"")
    scratch = numpy.zeros(24, numpy.int64)
    started = time.perf_counter()
    remote.send(messages)
    assert receive_blocks(socket.underlying, scratch, messages) > 0
    seconds = time.perf_counter() - started
    remote.answer()
    context.destroy(linger=0)
    return messages / seconds / 1e6


def _plain_pyzmq(endpoint: str, remote: Remote, expected: bytes) -> float:
    context = zmq.Context()
    socket = context.socket(zmq.SUB)
    socket.connect(endpoint)
    socket.subscribe(b"")
    remote.send(RIVAL_MESSAGES)
    receive = socket.recv
    receive()
    started = time.perf_counter()
    for _ in range(RIVAL_MESSAGES - 2):
        receive()
    last = receive()
    seconds = time.perf_counter() - started
    remote.answer()
    context.destroy(linger=0)
    assert last == expected
    return RIVAL_MESSAGES / seconds / 1e6


def test_delivery(benchmark: BenchmarkFixture) -> None:
    """M messages/s from the publisher's first call to the last callback."""
    feed = Feed.local("bench", slices=1)
    two = Feed.local("bench2", slices=2)
    pool = make_pool()
    checksum = expected_sum(pool, MESSAGES)
    last = pool.topics[pool.topic_index[-1]] + b" " + pool.payloads[-1].tobytes()
    rival = Feed.local("rival", slices=1).slices[0].endpoints[0]
    contest = Contest("Delivery to working callbacks, 2 workers, loopback TCP", "M messages/s")
    with (
        Remote("blackbox", feed=msgspec.to_builtins(feed)) as ours,
        Remote("blackbox", feed=msgspec.to_builtins(two)) as sliced,
        Remote("pyzmq", endpoint=rival) as plain,
    ):
        contest.add("compiled callbacks", lambda: _compiled(feed, ours, checksum))
        contest.add("compiled callbacks, 2 slices x 1 worker", lambda: _compiled(two, sliced, checksum, 1))
        contest.add("batch callbacks", lambda: _batch(feed, ours, checksum))
        contest.add("limit: same blocks, only received", lambda: received_only(feed, ours))
        contest.add("rival: pyzmq, a message a frame, no work", lambda: _plain_pyzmq(rival, plain, last))
        contest.run(benchmark)
