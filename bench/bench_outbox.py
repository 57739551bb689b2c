"""Publish through an outbox, which writes each block before it is sent.

with      PUB process ==write()==> outbox, ==blocks, TCP loopback==> SUB process
without   PUB process =====================blocks, TCP loopback==> SUB process
limit     the same bytes, write() once a block
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from pytest_benchmark.fixture import BenchmarkFixture

from bench.bench_delivery import WIRE_BYTES
from bench.measure.contest import WAITS, Contest
from bench.processes.pair import Pair, Work
from bench.workload.load import Load
from blackbox import Feed

_MANY = 1_000_000
_CALLS = 200_000
_NONE = "without an outbox"
_WITH = "with an outbox"


def _written(directory: Path, messages: int) -> float:
    """Return M messages/s of plain writes of whole blocks."""
    path, block = directory / "plain", os.urandom(256 << 10)
    with path.open("wb", buffering=0) as file:
        began = time.perf_counter()
        for _ in range(messages * WIRE_BYTES // len(block)):
            file.write(block)
        seconds = time.perf_counter() - began
    path.unlink()
    return messages / seconds / 1e6


def test_outbox(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """M messages/s from the first call to the last callback, in columns and one message a call."""
    feed, kept = Feed.local("bench", slices=1), Feed.local("bench-kept", slices=1)
    contest = Contest("Publish through an outbox, 100-byte payloads", "M messages/s", topology=__doc__, axis="a call")
    with (
        Pair.ours(feed, when_full="wait") as plain,
        Pair.ours(kept, when_full="wait", outbox=str(tmp_path)) as through,
    ):
        for at_once, messages in ((1, _CALLS), (4_096, _MANY)):
            for name, pair, of in ((_NONE, plain, feed), (_WITH, through, kept)):
                load = Load(feed=of, messages=messages, at_once=at_once)
                work = Work(form="nothing")
                promise = WAITS if pair is plain else "waits; survives kill -9"
                contest.add(name, lambda p=pair, o=load, w=work: p.round(o, w), promise=promise, at=at_once)  # type: ignore[misc]
        contest.add("write() of the same bytes", lambda: _written(tmp_path, _MANY), "limit", at=4_096)
        contest.run(benchmark)
