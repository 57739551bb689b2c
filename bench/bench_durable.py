"""A named consumer reads a stored stream and its position is saved: messages/s acknowledged.

ours        recorder process ==archive, TCP loopback==> SUB, name=, a checkpoint every 100 ms and at the end, synced
JetStream   nats-server ==fetch(1,000), TCP loopback==> durable pull consumer, ack_sync() of the last of each batch
Redis       redis-server ==XREADGROUP COUNT 1000, TCP loopback==> consumer of a group, XACK of each batch

Each delivers at least once: messages after the last acknowledgement are redelivered after a crash. Ours syncs its
file; JetStream and Redis save positions without a sync by default.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
from pytest_benchmark.fixture import BenchmarkFixture

from bench.measure.contest import Contest, expect
from bench.processes.child import Child
from bench.rivals.rival import need, tcp
from bench.rivals.servers import Missing, Server, nats_server, redis_server
from blackbox import Feed

MESSAGES: Final = 4_000_000
RIVALS_MESSAGES: Final = 100_000


def _consumed(child: Child, messages: int) -> float:
    told = child.ask({"messages": messages})
    expect("messages acknowledged", told["reached"], messages)
    expect("messages received", told["messages"], messages)
    return float(messages / told["seconds"] / 1e6)


def test_durable_consumers(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """M messages/s, delivered and acknowledged."""
    contest = Contest("A durable consumer catches up", "M messages/s", topology=__doc__)
    with ExitStack() as stack:
        feed = msgspec.structs.replace(Feed.local("durable", slices=1), archives=(tcp(),))
        publisher = stack.enter_context(
            Child("bench.processes.recovered:publish", feed=feed, messages=MESSAGES, rate=0)
        )
        recorder = stack.enter_context(Child("bench.processes.recovered:record", feed=feed, directory=str(tmp_path)))
        publisher.ask({})
        recorder.ask({"messages": MESSAGES})
        child = stack.enter_context(Child("bench.processes.recovered:consume", feed=feed, messages=MESSAGES))
        contest.add("Subscriber(name=...)", partial(_consumed, child, MESSAGES), promise="at least once, synced")
        for name, module, needs, serve in (
            ("NATS JetStream, nats-server", "nats_jetstream", ("nats-py:nats", "uvloop"), _nats),
            ("Redis Streams, redis-server", "redis_streams", ("redis", "hiredis"), _redis),
        ):
            try:
                need(*needs)
                server = stack.enter_context(serve())
                rival = stack.enter_context(Child(f"bench.rivals.{module}:consume", address=server.url))
            except Missing as why:
                contest.skip(name, str(why))
            else:
                run = partial(_consumed, rival, RIVALS_MESSAGES)
                contest.add(f"{name} {server.version}", run, "rival", "at least once")
        contest.run(benchmark)


def _nats() -> Server:
    return nats_server("-js", "-sd", "{data}")


def _redis() -> Server:
    return redis_server("--appendonly", "yes", "--appendfsync", "everysec")
