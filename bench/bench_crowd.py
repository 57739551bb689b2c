"""Thousands of connections to one publisher: time to join, memory, time to send a block to all, and their end.

    ours    PUB process ==TCP loopback==> 2,000 SUB sockets in one process, each with 50 prefixes of its own
                        ==TCP loopback==> one SUB socket in a process that stays
    rival   a bare XPUB socket that returns nonces ==> the same

Each round uses fresh processes. A socket has joined once all its prefixes are confirmed; there are 100,000 in total.
Then one block goes to all. To leave, the crowd's process is killed while the socket that stays gets a message each
millisecond: its longest wait is the silence. All share the same two cores.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench.measure.contest import Contest, Figure
from bench.measure.results import Kind
from bench.processes.child import Child
from blackbox import Feed

CONNECTIONS = 2_000
PREFIXES_EACH = 50
PROMISE = "each socket receives the block"
WAYS: dict[str, tuple[Kind, str]] = {
    "Publisher": ("ours", "bench.processes.crowd:publish"),
    "a bare XPUB socket": ("rival", "bench.processes.crowd:publish_bare"),
}
_WHO = f"{CONNECTIONS:,} connections, {CONNECTIONS * PREFIXES_EACH:,} prefixes"


def _memory_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


@contextmanager
def _processes(function: str) -> Iterator[tuple[Child, Child, Child]]:
    """Start a publisher, the process that stays, and the crowd. Kill them at the end.

    libzmq scans all filters whenever a connection closes: a clean exit would take twenty seconds.
    """
    feed = Feed.local("crowd", slices=1, key_bytes=8)
    gather, address = "bench.processes.crowd:gather", feed.slices[0].lines[0]
    with (
        Child(function, feed=feed, sockets=CONNECTIONS) as publisher,
        Child("bench.processes.crowd:stay", address=address) as staying,
        Child(gather, address=address, sockets=CONNECTIONS, prefixes_each=PREFIXES_EACH) as crowd,
    ):
        yield publisher, staying, crowd
        for each in (publisher, staying, crowd):
            each.kill()


def _joined(function: str, seen: list[tuple[float, float]]) -> Figure:
    """Return seconds until all have joined; append KiB per connection and ms from a block's send to the last socket."""
    with _processes(function) as (publisher, _, crowd):
        before = _memory_bytes(publisher.pid)
        publisher.send("join")
        joined = crowd.ask(True)
        publisher.answer()
        kib = (_memory_bytes(publisher.pid) - before) / CONNECTIONS / 1024
        crowd.send(False)
        sent = publisher.ask("block")["sent"]
        seen.append((kib, (crowd.answer()["ended"] - sent) / 1e6))
        return Figure((joined["ended"] - joined["began"]) / 1e9)


def test_crowd(benchmark: BenchmarkFixture) -> None:
    """Seconds until all have joined."""
    contest = Contest(f"{_WHO}: until all have joined", "s", lower=True, topology=__doc__)
    seen: dict[str, list[tuple[float, float]]] = {name: [] for name in WAYS}
    for name, (kind, function) in WAYS.items():
        contest.add(name, partial(_joined, function, seen[name]), kind, PROMISE)
    contest.run(benchmark)
    for name, rounds in seen.items():
        kib, last_ms = (statistics.median(each) for each in zip(*rounds, strict=True))
        contest.show(f"{name}: memory per connection", f"{kib:.1f} KiB")
        contest.show(f"{name}: from sending a block to the last socket", f"{last_ms:.0f} ms")


def _silent(function: str) -> float:
    with _processes(function) as (publisher, staying, crowd):
        publisher.send("join")
        crowd.ask(True)
        publisher.ask("beats")
        staying.ask("began")
        crowd.kill()
        return float(staying.ask("silence")["seconds"])


@pytest.mark.timeout(900)
def test_leave(benchmark: BenchmarkFixture) -> None:
    """Longest time in s without a message while all leave at once."""
    contest = Contest(f"{_WHO}: silence while all leave", "s", lower=True, topology=__doc__)
    for name, (kind, function) in WAYS.items():
        contest.add(name, partial(_silent, function), kind)
    contest.run(benchmark, rounds=3)
