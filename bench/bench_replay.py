"""Replay in process and on the wire, compared with live delivery and the limits of memory and disk.

in process  journals, memory-mapped ==blocks==> callbacks, in the caller's thread
on the wire journals ==unchanged bodies==> XPUB ==TCP loopback==> SUB | ROUTER ==> DEALER x 1 ==> callbacks (2 slices)
live        columns ==blocks==> XPUB, then as above
limit       the journals' bytes, read once
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import numpy
from numba import njit
from pytest_benchmark.fixture import BenchmarkFixture

from bench.bench_delivery import PREFIXES, WIRE_BYTES
from bench.measure.contest import WAITS, Contest, expect
from bench.processes.child import Child
from bench.processes.forms import batch
from bench.processes.pair import Order, Pair, Work
from bench.workload.load import Load
from bench.workload.messages import PAYLOAD_BYTES, TOPICS
from bench.workload.recorded import drop_page_cache, open_recording, read_whole, recording_of
from bench.workload.tally import count_compiled, expect_tally, state_of
from blackbox import Feed, Replay, Subscriber

MESSAGES = 5_000_000

_unchecked = njit(nogil=True)(count_compiled)
"""The callback compiled by the user, without bounds checks."""


def _compiled(messages: int, function: Any = _unchecked) -> float:
    recording = open_recording(messages)
    subscriber = Subscriber(recording.feed)
    callback = subscriber.on_compiled(b"", state=numpy.zeros((TOPICS, 3), numpy.int64))(function)
    statistics = subscriber.replay(recording)
    expect_tally(state_of([callback]), Load(messages=messages))
    return messages / statistics.seconds / 1e6


def _batch(messages: int) -> float:
    recording = open_recording(messages)
    subscriber = Subscriber(recording.feed)
    findings = batch(subscriber, Order(Load(messages=messages), Work(form="batch")))
    # As sent: blocks keep the slices that it counts by. `bench_market_order` has batches in time order.
    statistics = subscriber.replay(Replay(recording, order="sent"))
    findings(0)
    return messages / statistics.seconds / 1e6


def _read(messages: int) -> float:
    started = time.perf_counter()
    expect(
        "more bytes read than those of payloads", read_whole(recording_of(messages)) > PAYLOAD_BYTES * messages, True
    )
    return messages / (time.perf_counter() - started) / 1e6


def _cold(messages: int, contender: Any) -> float:
    drop_page_cache(recording_of(messages))
    return float(contender(messages))


def test_replay_in_process(benchmark: BenchmarkFixture) -> None:
    """M messages/s, page cache warm, then cold."""
    contest = Contest(
        "Replay in process, callbacks that work, page cache warm and cold", "M messages/s", topology=__doc__
    )
    contest.add("compiled callback", lambda: _compiled(MESSAGES))
    contest.add("compiled callback, indexes checked", lambda: _compiled(MESSAGES, count_compiled))
    contest.add("batch callback, order='sent'", lambda: _batch(MESSAGES))
    contest.add("the same bytes, read once", lambda: _read(MESSAGES), "limit")
    cold = "compiled callback, cache cold"
    contest.add(cold, lambda: _cold(MESSAGES, _compiled))
    contest.add("the same bytes, read once, cache cold", lambda: _cold(MESSAGES, _read), "limit", versus=cold)
    contest.run(benchmark)


def test_replay_on_the_wire(benchmark: BenchmarkFixture) -> None:
    """M messages/s from the first block to the last callback."""
    day = str(recording_of(MESSAGES))
    replayed, lived = Feed.local("replayed", slices=2), Feed.local("lived", slices=2)
    work = Work(form="compiled", prefixes=PREFIXES)
    contest = Contest(
        "Replay on the wire, 2 slices x 1 worker, callbacks that work, loopback TCP", "M messages/s", topology=__doc__
    )
    with (
        Pair(
            partial(Child, "bench.processes.sender:replay", feed=replayed, day=day),
            partial(Child, "bench.processes.receiver:receive"),
        ) as replay,
        Pair.ours(lived, when_full="wait") as live,
    ):
        contest.add("replayed", lambda: replay.round(Load(feed=replayed, messages=MESSAGES), work), promise=WAITS)
        contest.add("live", lambda: live.round(Load(feed=lived, messages=MESSAGES), work), promise=WAITS)
        contest.bound("loopback TCP", WIRE_BYTES)
        contest.run(benchmark)
