"""Replays: in process and on the wire, beside the live bench and what memory and disk allow.

in process  journals, memory-mapped ==blocks==> callbacks, in the caller's thread
on the wire journals ==bodies as they are==> XPUB ==TCP loopback==> SUB | ROUTER ==> DEALER x 1 ==> callbacks (2 slices)
live        columns ==blocks==> XPUB, and on as above
limit       the journals' bytes, read once
"""

from __future__ import annotations

import time
from typing import Any

import msgspec
import numpy
from numba import njit
from pytest_benchmark.fixture import BenchmarkFixture

from bench.bench_delivery import PREFIXES, WIRE_BYTES, _count
from bench.contest import WAITS, Contest, Figure, expect
from bench.cost import Meter
from bench.loops import tally
from bench.publishers import Remote
from bench.receivers import FOREVER_NS, wait_for
from bench.recorded import drop_page_cache, open_recording, read_whole, recording_of
from bench.workload import PAYLOAD_BYTES, TOPICS, expect_tally, tally_of
from blackbox import Batch, Feed, Subscriber

MESSAGES = 5_000_000
CALLS = 1_000_000


_unchecked = njit(nogil=True)(_count)
"""The callback compiled by its user, who answers for its indexes."""


def _compiled(messages: int, function: Any = _unchecked) -> float:
    recording = open_recording(messages)
    subscriber = Subscriber(recording.feed)
    callback = subscriber.on_compiled(b"", state=numpy.zeros((TOPICS, 3), numpy.int64))(function)
    statistics = subscriber.replay(recording)
    expect_tally(tally_of([callback]), messages)
    return messages / statistics.seconds / 1e6


def _batch(messages: int) -> float:
    recording = open_recording(messages)
    subscriber = Subscriber(recording.feed)
    states = numpy.zeros((2, TOPICS, 3), numpy.int64)
    every = numpy.arange(1 << 20, dtype=numpy.int32)

    @subscriber.on_batch(b"")
    def count(batch: Batch) -> None:
        block = batch.block
        rows = every[: len(batch)] if batch.rows is None else batch.rows
        tally(batch.topic_numbers, block.topic_index, rows, block.payloads, block.stride, states[block.slice_id])

    statistics = subscriber.replay(recording)
    expect_tally(states.reshape(-1, 3), messages)
    return messages / statistics.seconds / 1e6


def _read(messages: int) -> float:
    started = time.perf_counter()
    expect("bytes read above those of payloads", read_whole(recording_of(messages)) > PAYLOAD_BYTES * messages, True)
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
    contest.add("compiled callback, indexes checked", lambda: _compiled(MESSAGES, _count))
    contest.add("batch callback", lambda: _batch(MESSAGES))
    contest.add("the same bytes, read once", lambda: _read(MESSAGES), "limit")
    cold = "compiled callback, cache cold"
    contest.add(cold, lambda: _cold(MESSAGES, _compiled))
    contest.add("the same bytes, read once, cache cold", lambda: _cold(MESSAGES, _read), "limit", versus=cold)
    contest.run(benchmark)


def _wire(feed: Feed, remote: Remote, messages: int) -> Figure:
    subscriber = Subscriber(feed, workers=1, max_lag_ns=FOREVER_NS)
    callbacks = [
        subscriber.on_compiled(prefix, state=numpy.zeros((TOPICS, 3), numpy.int64))(_count) for prefix in PREFIXES
    ]
    with subscriber:
        meter, started = Meter(remote.pid), time.perf_counter()
        remote.send(messages)
        wait_for(subscriber, messages)
        seconds = time.perf_counter() - started
        spent = meter.spent(messages)
        remote.answer()
    expect_tally(tally_of(callbacks), messages)
    total = subscriber.statistics().total
    expect("gaps, dropped, malformed", (total.gaps, total.dropped, total.malformed), (0, 0, 0))
    return Figure(messages / seconds / 1e6, spent)


def test_replay_on_the_wire(benchmark: BenchmarkFixture) -> None:
    """M messages/s from the first block to the last callback."""
    day = str(recording_of(MESSAGES))
    replayed, lived = Feed.local("replayed", slices=2), Feed.local("lived", slices=2)
    contest = Contest(
        "Replay on the wire, 2 slices x 1 worker, callbacks that work, loopback TCP", "M messages/s", topology=__doc__
    )
    with (
        Remote("replay", feed=msgspec.to_builtins(replayed), day=day) as replay,
        Remote("blackbox", feed=msgspec.to_builtins(lived)) as live,
    ):
        contest.add("replayed", lambda: _wire(replayed, replay, MESSAGES), promise=WAITS)
        contest.add("live", lambda: _wire(lived, live, MESSAGES), promise=WAITS)
        contest.bound("loopback TCP", WIRE_BYTES)
        contest.run(benchmark)
