"""Recording: full wire speed compared with plain writing, and the CPU use of a live feed.

ours    PUB process ==blocks, TCP loopback==> SUB, I/O thread | slice thread ==write==> journal
limits  the same bytes, written to a file in sequence with the same fsync policy;
        the same blocks, received and discarded
"""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path

import msgspec
from pytest_benchmark.fixture import BenchmarkFixture

from bench.bench_delivery import WIRE_BYTES
from bench.measure.contest import WAITS, Contest, Figure
from bench.processes.child import Child
from bench.processes.pair import Pair, Work
from bench.workload.load import Load
from blackbox import Feed

MESSAGES = 1_500_000
BYTES = WIRE_BYTES * MESSAGES
PACED = 50_000
PACED_RATE = 100_000
BURST = 300_000
BURST_RATE = 1_000_000
POLICIES = {"interval": "no fsync within a round", "block": "fsync each block"}
"""The fsync interval is longer than a round."""
_SHARED = "recorder, from shared memory, no fsync within a round"
DROPS = "drops when full; a round with drops is void"
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


def _paced(pair: Pair, load: Load, blocks: list[int]) -> float:
    """Return the recorder's CPU use in percent of a core, from the first message to the last."""
    pair.round(load)
    blocks.append(pair.heard.blocks)
    return 100 * pair.heard.cpu_s * 1e9 / (pair.heard.ended - pair.sent.began)


def test_record_single_messages(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """CPU use of a recorder of 100,000 messages a second, in percent of a core."""
    # A block has one key: consecutive messages with different keys each get their own block.
    alone, usual = Feed.local("alone", slices=1, key_bytes=8), Feed.local("usual", slices=1)
    contest = Contest(
        f"CPU of a recorder at {PACED_RATE:,} messages/s, published one by one",
        "% of a core",
        lower=True,
        topology=__doc__,
    )
    paced = Load(messages=PACED, rate=PACED_RATE, at_once=1, in_turn=True)
    many: list[int] = []
    few: list[int] = []
    # The default queue of 1,000 blocks of one message would hold only 10 ms at 100,000 messages a second.
    with (
        _recording(alone, tmp_path, hwm_blocks=100_000) as pair,
        _recording(usual, tmp_path, hwm_blocks=100_000) as other,
    ):
        load = msgspec.structs.replace(paced, feed=alone, topics=1_000)
        contest.add("a block per message (each with a different key)", partial(_paced, pair, load, many), promise=DROPS)
        load = msgspec.structs.replace(paced, feed=usual, topics=1)
        contest.add("one key, default blocks", partial(_paced, other, load, few), promise=DROPS)
        contest.run(benchmark)
    # A delayed publisher sends all it has gathered, so a block occasionally has two messages of one key.
    contest.show("blocks of the last round, different keys", f"{many[-1]:,} of {PACED:,} messages")
    contest.show("blocks of the last round, one key", f"{few[-1]:,}")


def _burst(pair: Pair, load: Load) -> float:
    """Return M messages/s recorded while 1 M messages/s are published; a lost message makes the round void."""
    pair.round(load)
    return load.messages * 1e3 / (pair.sent.ended - pair.sent.began)


def test_record_bursts(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """M messages/s with the live policy: the publisher never waits and nothing may be lost."""
    feed = Feed.local("bursts", slices=1)
    load = Load(feed=feed, messages=BURST, rate=BURST_RATE, at_once=100)
    contest = Contest(f"Recording bursts of {BURST:,} at 1 M messages/s", "M messages/s", topology=__doc__)
    with _recording(feed, tmp_path) as pair:
        contest.add("published and recorded", partial(_burst, pair, load), promise=DROPS)
        contest.run(benchmark)
