"""Replay in process and on the wire, compared with live delivery and reading the same bytes.

in process  journals, memory-mapped ==blocks, by market time==> callbacks
on the wire journals ==unchanged bodies==> XPUB ==TCP loopback==> SUB | callbacks (2 slices)
live        columns ==blocks==> XPUB, then as above
one symbol  a day of 10 M messages and 500 symbols ==> on(prefix), batches(prefix), to_polars(prefix)
limit       the journals' bytes, read once
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final

import numpy
from numba import njit
from pytest_benchmark.fixture import BenchmarkFixture

from bench.bench_delivery import PREFIXES
from bench.measure.contest import WAITS, Contest, expect
from bench.processes.child import Child
from bench.processes.pair import Pair, Single, Work
from bench.workload.load import Load
from bench.workload.messages import PAYLOAD_BYTES, TOPICS
from bench.workload.recorded import open_recording, read_whole, recording_of
from bench.workload.tally import count_compiled, expect_tally, state_of, wanted
from blackbox import Batch, Feed, Message, Recording, Subscriber

MESSAGES = 5_000_000
DAY: Final = Load(messages=10_000_000, topics=500)
SYMBOL: Final = b"S017."

_unchecked = njit(nogil=True)(count_compiled)
"""The callback compiled by the user, without bounds checks."""


def _compiled() -> float:
    recording = open_recording(MESSAGES)
    subscriber = Subscriber(recording.feed)
    callback = subscriber.on_compiled(b"", state=numpy.zeros((TOPICS, 3), numpy.int64))(_unchecked)
    statistics = subscriber.replay(recording)
    expect_tally(state_of([callback]), Load(messages=MESSAGES))
    return MESSAGES / statistics.seconds / 1e6


def _read() -> float:
    started = time.perf_counter()
    size = read_whole(recording_of(MESSAGES))
    expect("more bytes read than those of payloads", size > PAYLOAD_BYTES * MESSAGES, True)
    return MESSAGES / (time.perf_counter() - started) / 1e6


def test_replay_in_process(benchmark: BenchmarkFixture) -> None:
    """M messages/s by market time, two slices, page cache warm."""
    contest = Contest("Replay in process, callbacks that work", "M messages/s", topology=__doc__)
    contest.add("compiled callback", _compiled)
    contest.add("the same bytes, read once", _read, "limit")
    contest.run(benchmark)


def test_replay_on_the_wire(benchmark: BenchmarkFixture) -> None:
    """M messages/s from the first block to the last callback."""
    day = str(recording_of(MESSAGES))
    replayed, lived = Feed.local("replayed", slices=2), Feed.local("lived", slices=2)
    work = Work(form="compiled", prefixes=PREFIXES)
    contest = Contest("Replay on the wire, 2 slices, callbacks that work, TCP", "M messages/s", topology=__doc__)
    with (
        Pair(
            partial(Child, "bench.processes.sender:replay", feed=replayed, day=day),
            partial(Child, "bench.processes.receiver:receive"),
        ) as replay,
        Pair.ours(lived, when_full="wait") as live,
        Single("bench.processes.recorder:replay", day=day) as process,
    ):
        contest.add("on the wire", lambda: replay.round(Load(feed=replayed, messages=MESSAGES), work), promise=WAITS)
        contest.add("in process", lambda: process.round(Load(messages=MESSAGES), work))
        contest.add("live", lambda: live.round(Load(feed=lived, messages=MESSAGES), work), promise=WAITS)
        contest.run(benchmark)
        contest.show("in process / on the wire", f"{contest.ratio('in process', 'on the wire'):.2f} x")


def _seconds(read: Callable[[Recording], int], messages: int) -> float:
    recording = Recording.open(recording_of(DAY.messages, topics=DAY.topics))
    started = time.perf_counter()
    found = read(recording)
    seconds = time.perf_counter() - started
    expect("messages", found, messages)
    return seconds


def _on_prefix(recording: Recording) -> int:
    found = 0
    subscriber = Subscriber(recording.feed)

    @subscriber.on(SYMBOL)
    def count(message: Message) -> None:
        nonlocal found
        found += len(message.payload) == PAYLOAD_BYTES

    subscriber.replay(recording)
    return found


def _on_batch(recording: Recording) -> int:
    found = 0
    subscriber = Subscriber(recording.feed)

    @subscriber.on_batch(b"")
    def count(batch: Batch) -> None:
        nonlocal found
        found += len(batch)

    subscriber.replay(recording)
    return found


def test_one_symbol(benchmark: BenchmarkFixture) -> None:
    """Seconds for one symbol of a day, and for all of it."""
    contest = Contest("One symbol of a recorded day", "s", lower=True, topology=__doc__)
    one, everything = wanted(DAY, (SYMBOL,)), DAY.messages
    reads: dict[str, tuple[Callable[[Recording], int], int]] = {
        "on(prefix)": (_on_prefix, one),
        "batches(prefix)": (lambda day: sum(map(len, day.batches(SYMBOL))), one),
        "to_polars(prefix)": (lambda day: len(day.to_polars(SYMBOL)), one),
        "batches() of all": (lambda day: sum(map(len, day.batches())), everything),
        "on_batch() of all, by market time": (_on_batch, everything),
    }
    for name, (read, messages) in reads.items():
        contest.add(name, partial(_seconds, read, messages))
    contest.run(benchmark)
    for name, other in (
        ("on(prefix)", "batches() of all"),
        ("to_polars(prefix)", "batches(prefix)"),
        ("batches() of all", "on_batch() of all, by market time"),
    ):
        contest.show(f"time of {name} / {other}", f"{contest.ratio(name, other):.2f} x")
