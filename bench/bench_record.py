"""Recording: at full wire speed beside plain writing, and what a live feed costs.

ours    PUB process ==blocks, TCP loopback==> SUB, I/O thread | slice thread ==write==> journal
limits  the same bytes, written one after the other to a file, with the same fsync policy;
        the same blocks, received and forgotten
"""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

import msgspec
from pytest_benchmark.fixture import BenchmarkFixture

from bench.bench_delivery import received_only
from bench.contest import Contest, show
from bench.publishers import Remote
from blackbox import Feed, Recorder

MESSAGES = 10_000_000
BYTES = 119 * MESSAGES
PACED = 300_000
_SYNC_S = 1.0
_WIRE = "limit: only received"


def _wait_for(recorder: Recorder, messages: int, every_s: float = 0.01) -> None:
    """Wait until that many messages were recorded, or are known to be lost: what follows then fails."""
    while (statistics := recorder.statistics()).messages + statistics.lost + statistics.received.gaps < messages:
        time.sleep(every_s)


def _record(feed: Feed, remote: Remote, directory: Path, fsync: str) -> float:
    recorder = Recorder(feed, directory, fsync=fsync)  # type: ignore[arg-type]  # one of its three words
    with recorder:
        started = time.perf_counter()
        remote.send(MESSAGES)
        _wait_for(recorder, MESSAGES)
        seconds = time.perf_counter() - started
        remote.answer()
    statistics = recorder.statistics()
    assert (statistics.messages, statistics.lost, statistics.received.gaps) == (MESSAGES, 0, 0)
    _clear(recorder.directory)
    return statistics.stored_bytes / seconds / 1e9


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
    contest = Contest("Recording at full wire speed, one slice", "GB/s of journal")
    with Remote("blackbox", feed=msgspec.to_builtins(feed)) as remote:
        for policy in ("interval", "never", "block"):
            contest.add(f"recorder, fsync {policy}", lambda p=policy: _record(feed, remote, tmp_path, p))  # type: ignore[misc]
            contest.add(f"limit: plain writing, fsync {policy}", lambda p=policy: _write(tmp_path, p))  # type: ignore[misc]
        contest.add(_WIRE, lambda: received_only(feed, remote, MESSAGES) * BYTES / MESSAGES / 1e3)
        contest.run(benchmark)
        for policy in ("interval", "never", "block"):
            ratio = contest.ratio(f"recorder, fsync {policy}", f"limit: plain writing, fsync {policy}")
            show(f"recorder / plain writing, fsync {policy}", f"{ratio:.2f}")
            show(
                f"recorder / received only, fsync {policy}", f"{contest.ratio(f'recorder, fsync {policy}', _WIRE):.2f}"
            )


def _paced(feed: Feed, remote: Remote, directory: Path) -> float:
    """Percent of a core that the recorder takes at 100,000 blocks a second, one message each."""
    with Recorder(feed, directory) as recorder:
        before, started = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        remote.send(PACED, rate=100_000)
        _wait_for(recorder, PACED, 0.1)
        seconds = time.perf_counter() - started
        after = resource.getrusage(resource.RUSAGE_SELF)
        remote.answer()
    statistics = recorder.statistics()
    assert (statistics.messages, statistics.lost, statistics.received.gaps) == (PACED, 0, 0)
    _clear(recorder.directory)
    blocks.append(statistics.blocks)
    return 100 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / seconds


blocks: list[int] = []


def test_record_single_messages(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """Percent of a core, of a recorder of 100,000 messages a second."""
    # A block has one key: where each message has another than the one before, each gets a block of its own.
    alone = Feed.local("alone", slices=1, key_bytes=8)
    usual = Feed.local("usual", slices=1)
    contest = Contest("CPU of a recorder at 100,000 messages/s, published one by one", "% of a core; lower is better")
    with (
        Remote("paced", feed=msgspec.to_builtins(alone)) as remote,
        Remote("paced", feed=msgspec.to_builtins(usual)) as other,
    ):
        contest.add("a block a message (each of another key)", lambda: _paced(alone, remote, tmp_path))
        contest.add("one key, blocks as they come", lambda: _paced(usual, other, tmp_path))
        contest.run(benchmark)
    show("blocks recorded in a round, in turn", blocks[-2:])
    # A publisher that was held up sends what it has then: now and then a block has two messages of one key.
    assert blocks[-2] > 0.95 * PACED


def _burst(feed: Feed, remote: Remote, directory: Path) -> float:
    """M messages/s that were published in one second at 1 M messages/s; a lost message fails the round."""
    messages = 1_000_000
    with Recorder(feed, directory) as recorder:
        remote.send(messages, rate=1_000_000)
        _wait_for(recorder, messages)
        seconds = remote.answer()["seconds"]
    statistics = recorder.statistics()
    assert (statistics.messages, statistics.lost, statistics.received.gaps) == (messages, 0, 0)
    _clear(recorder.directory)
    return messages / float(seconds) / 1e6


def test_record_bursts(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """M messages/s, live policy: nothing waits, nothing may be lost."""
    feed = Feed.local("bursts", slices=1)
    contest = Contest("Recording one-second bursts of 1 M messages/s, when_full=drop", "M messages/s")
    with Remote("bursts", feed=msgspec.to_builtins(feed)) as remote:
        contest.add("published and recorded, none lost", lambda: _burst(feed, remote, tmp_path))
        contest.run(benchmark)
