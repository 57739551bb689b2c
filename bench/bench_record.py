"""Recording: full wire speed compared with plain writing.

ours    PUB process ==blocks, TCP loopback==> SUB, I/O thread | slice thread ==write==> journal
limits  the same bytes, written to a file in sequence with the same fsync policy;
        the same blocks, received and discarded
"""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path

from pytest_benchmark.fixture import BenchmarkFixture

from bench.bench_delivery import WIRE_BYTES
from bench.measure.contest import WAITS, Contest, Figure
from bench.processes.child import Child
from bench.processes.pair import Pair, Work
from bench.workload.load import Load
from blackbox import Feed

MESSAGES = 1_500_000
BYTES = WIRE_BYTES * MESSAGES
POLICIES = {"interval": "no fsync within a round", "block": "fsync each block"}
"""The fsync interval is longer than a round."""
_SHARED = "recorder, from shared memory, no fsync within a round"
_SYNC_S = 1.0


def _recording(feed: Feed, directory: Path, fsync: str = "interval", **settings: object) -> Pair:
    """Return a publisher and a recorder process; each recording is read back, verified and removed."""
    return Pair(
        partial(Child, "bench.processes.sender:publish", feeds=[feed], **settings),
        partial(Child, "bench.processes.recorder:receive", directory=str(directory), fsync=fsync),
    )


def _record(pair: Pair, load: Load) -> Figure:
    figure = pair.round(load)
    return Figure(pair.heard.stored_bytes / (pair.heard.ended - pair.sent.began), figure.spent)


def _write(directory: Path, fsync: str) -> float:
    path = directory / "plain"
    block = os.urandom(256 << 10)
    left = BYTES // len(block)
    started = synced = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for _ in range(left):
            file.write(block)
            if fsync == "interval" and time.perf_counter() - synced > _SYNC_S:
                os.fdatasync(file.fileno())
                synced = time.perf_counter()
            elif fsync == "block":
                os.fdatasync(file.fileno())
        seconds = time.perf_counter() - started
    path.unlink()
    return left * len(block) / seconds / 1e9


def _received(pair: Pair, load: Load) -> Figure:
    figure = pair.round(load, Work(form="nothing"))
    return Figure(figure.value * WIRE_BYTES / 1e3, figure.spent)


def test_record_at_full_speed(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """GB/s of journal."""
    contest = Contest("Recording at full wire speed, one slice", "GB/s of journal", topology=__doc__)
    feeds = {policy: Feed.local(f"record-{policy}", slices=1) for policy in (*POLICIES, "none")}
    feeds["shared"] = Feed.local("record-shared", slices=1, transport="shm")
    loads = {policy: Load(feed=feed, messages=MESSAGES) for policy, feed in feeds.items()}
    with (
        _recording(feeds["interval"], tmp_path, "interval", when_full="wait") as interval,
        _recording(feeds["block"], tmp_path, "block", when_full="wait") as block,
        _recording(feeds["shared"], tmp_path, when_full="wait") as shared,
        Pair.ours(feeds["none"], when_full="wait") as bare,
    ):
        for policy, pair in (("interval", interval), ("block", block)):
            name = f"recorder, {POLICIES[policy]}"
            contest.add(name, partial(_record, pair, loads[policy]), promise=WAITS)
            plain = f"plain writing, {POLICIES[policy]}"
            contest.add(plain, partial(_write, tmp_path, policy), "limit", versus=name)
        contest.add(_SHARED, partial(_record, shared, loads["shared"]), promise=WAITS)
        contest.add("same blocks, only received", partial(_received, bare, loads["none"]), "limit", WAITS)
        contest.bound("disk write", 0)
        contest.run(benchmark)
        plain = f"plain writing, {POLICIES['interval']}"
        contest.show("from shared memory / plain writing", f"{contest.ratio(_SHARED, plain):.2f} x")
