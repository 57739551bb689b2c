"""Recording: at full wire speed beside plain writing, and what a live feed costs.

ours    PUB process ==blocks, TCP loopback==> SUB, I/O thread | slice thread ==write==> journal
limits  the same bytes, written one after the other to a file, with the same fsync policy;
        the same blocks, received and forgotten
"""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path

import msgspec
from pytest_benchmark.fixture import BenchmarkFixture

from bench.bench_delivery import WIRE_BYTES, received_only
from bench.contest import WAITS, Contest, Figure, expect
from bench.cost import Meter, cpu_seconds
from bench.publishers import Remote
from bench.recorded import wait_until_recorded
from blackbox import Feed, Recorder, Recording

MESSAGES = 1_500_000
BYTES = WIRE_BYTES * MESSAGES
PACED = 50_000
PACED_RATE = 100_000
BURST = 300_000
POLICIES = {"interval": "no fsync within a round", "block": "fsync each block"}
"""The interval is longer than a round."""
DROPS = "when full, the publisher drops: void if it did"
_SYNC_S = 1.0
_TIMEOUT_S = 30.0


def _record(feed: Feed, remote: Remote, directory: Path, fsync: str) -> Figure:
    recorder = Recorder(feed, directory, fsync=fsync)  # type: ignore[arg-type]  # one of its three words
    with recorder:
        meter, started = Meter(remote.pid), time.perf_counter()
        remote.send(MESSAGES)
        wait_until_recorded(recorder, MESSAGES, _TIMEOUT_S)
        seconds = time.perf_counter() - started
        spent = meter.spent(MESSAGES)
        remote.answer()
    _expect_all(recorder, MESSAGES)
    return Figure(recorder.statistics().stored_bytes / seconds / 1e9, spent)


def _expect_all(recorder: Recorder, messages: int) -> None:
    """Each message is in the journals, once, in order and whole; then they are removed."""
    statistics = recorder.statistics()
    found = (statistics.messages, statistics.lost, statistics.received.gaps)
    (day,) = (path for path in recorder.directory.iterdir() if path.is_dir())
    wrong = Recording.open(day).examine()
    _clear(recorder.directory)
    expect("messages recorded, lost, missing", found, (messages, 0, 0))
    expect("damage and gaps in the journals", wrong, ([], []))


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


def _clear(directory: Path) -> None:
    for path in sorted(directory.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()


def test_record_at_full_speed(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """GB/s of journal."""
    feed = Feed.local("record", slices=1)
    contest = Contest("Recording at full wire speed, one slice", "GB/s of journal", topology=__doc__)
    with Remote("blackbox", feed=msgspec.to_builtins(feed)) as remote:
        for policy, told in POLICIES.items():
            name = f"recorder, {told}"
            contest.add(name, partial(_record, feed, remote, tmp_path, policy), promise=WAITS)
            plain = f"plain writing, {told}"
            contest.add(plain, partial(_write, tmp_path, policy), "limit", versus=name)
        contest.add("same blocks, only received", partial(_received, feed, remote), "limit", WAITS)
        contest.bound("disk write", 0)
        contest.run(benchmark)


def _received(feed: Feed, remote: Remote) -> Figure:
    figure = received_only(feed, remote, MESSAGES)
    return Figure(figure.value * WIRE_BYTES / 1e3, figure.spent)


def _paced(feed: Feed, remote: Remote, directory: Path, blocks: list[int]) -> float:
    """Percent of a core that the recorder takes, from the first message to the last."""
    with Recorder(feed, directory) as recorder:
        before_s, started = cpu_seconds(), time.perf_counter()
        remote.send(PACED, rate=PACED_RATE)
        wait_until_recorded(recorder, PACED, _TIMEOUT_S, every_s=0.1)
        seconds = time.perf_counter() - started
        used_s = cpu_seconds() - before_s
        remote.answer()
    _expect_all(recorder, PACED)
    blocks.append(recorder.statistics().blocks)
    return 100 * used_s / seconds


def test_record_single_messages(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """Percent of a core, of a recorder of 100,000 messages a second."""
    # A block has one key: where each message has another than the one before, each gets a block of its own.
    alone = Feed.local("alone", slices=1, key_bytes=8)
    usual = Feed.local("usual", slices=1)
    contest = Contest(
        f"CPU of a recorder at {PACED_RATE:,} messages/s, published one by one",
        "% of a core",
        lower=True,
        topology=__doc__,
    )
    many: list[int] = []
    few: list[int] = []
    with (
        Remote("paced", feed=msgspec.to_builtins(alone)) as remote,
        Remote("paced", feed=msgspec.to_builtins(usual)) as other,
    ):
        name = "a block a message (each of another key)"
        contest.add(name, partial(_paced, alone, remote, tmp_path, many), promise=DROPS)
        contest.add("one key, blocks as they come", partial(_paced, usual, other, tmp_path, few), promise=DROPS)
        contest.run(benchmark)
    # A publisher that was held up sends what it has then: now and then a block has two messages of one key.
    contest.show("blocks of the last round, each of another key", f"{many[-1]:,} of {PACED:,} messages")
    contest.show("blocks of the last round, one key", f"{few[-1]:,}")


def _burst(feed: Feed, remote: Remote, directory: Path) -> float:
    """M messages/s that were published at 1 M messages/s; a lost message makes the round void."""
    with Recorder(feed, directory) as recorder:
        remote.send(BURST, rate=1_000_000)
        wait_until_recorded(recorder, BURST, _TIMEOUT_S)
        seconds = remote.answer()["seconds"]
    _expect_all(recorder, BURST)
    return BURST / float(seconds) / 1e6


def test_record_bursts(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """M messages/s, live policy: nothing waits, nothing may be lost."""
    feed = Feed.local("bursts", slices=1)
    contest = Contest(f"Recording bursts of {BURST:,} at 1 M messages/s", "M messages/s", topology=__doc__)
    with Remote("bursts", feed=msgspec.to_builtins(feed)) as remote:
        contest.add("published and recorded", lambda: _burst(feed, remote, tmp_path), promise=DROPS)
        contest.run(benchmark)
