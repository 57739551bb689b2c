"""Thousands of connections to one publisher: time to join, memory per connection, time to send a block to all.

    ours    PUB process ==TCP loopback==> 2,000 SUB sockets in one process, each with 50 prefixes of its own
    rival   a bare XPUB socket that returns nonces ==> the same crowd

Each round uses fresh processes. A socket has joined once all its prefixes are confirmed; there are 100,000 in total.
Then one block goes to all. The crowd runs on the same two cores.
"""

from __future__ import annotations

import statistics
from functools import partial
from pathlib import Path

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


def _memory_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


def _joined(function: str, seen: list[tuple[float, float]]) -> Figure:
    """Return seconds until all have joined; append KiB per connection and ms from a block's send to the last socket."""
    feed = Feed.local("crowd", slices=1, key_bytes=8)
    with (
        Child(function, feed=feed, sockets=CONNECTIONS) as publisher,
        Child(
            "bench.processes.crowd:gather",
            address=feed.slices[0].lines[0],
            sockets=CONNECTIONS,
            prefixes_each=PREFIXES_EACH,
        ) as crowd,
    ):
        before = _memory_bytes(publisher.pid)
        publisher.send(True)
        joined = crowd.ask(True)
        publisher.answer()
        kib = (_memory_bytes(publisher.pid) - before) / CONNECTIONS / 1024
        crowd.send(False)
        sent = publisher.ask(False)["sent"]
        seen.append((kib, (crowd.answer()["ended"] - sent) / 1e6))
        # libzmq scans all filters whenever a connection closes: a clean exit would take twenty seconds.
        publisher.kill()
        return Figure((joined["ended"] - joined["began"]) / 1e9)


def test_crowd(benchmark: BenchmarkFixture) -> None:
    """Seconds until all have joined."""
    title = f"{CONNECTIONS:,} connections, {CONNECTIONS * PREFIXES_EACH:,} prefixes: until all have joined"
    contest = Contest(title, "s", lower=True, topology=__doc__)
    seen: dict[str, list[tuple[float, float]]] = {name: [] for name in WAYS}
    for name, (kind, function) in WAYS.items():
        contest.add(name, partial(_joined, function, seen[name]), kind, PROMISE)
    contest.run(benchmark)
    for name, rounds in seen.items():
        kib, last_ms = (statistics.median(each) for each in zip(*rounds, strict=True))
        contest.show(f"{name}: memory per connection", f"{kib:.1f} KiB")
        contest.show(f"{name}: from sending a block to the last socket", f"{last_ms:.0f} ms")
