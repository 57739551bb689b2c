"""Put to a hub and wait for the acknowledgement after each call; every message has 100 bytes.

ours        HubClient ==requests of columns, TCP loopback==> hub process ==one append for all waiting==> journal
pair        HubClient ==the same==> hub process ==the same append==> a second hub process, which confirms it
JetStream   nats-py ==a message each, TCP loopback==> nats-server ==write==> files; acknowledgements, one a message
Redis       redis-py ==XADD in a pipeline, TCP loopback==> redis-server ==write==> append-only file

Recorded: in the page cache, so that it survives kill -9. Synced: on disk; JetStream with `sync_interval: always`, Redis
with `appendfsync always`. Ours also publishes each message.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench.measure.contest import Contest, expect
from bench.processes.child import Child
from bench.rivals.rival import NATS, REDIS, enter, jetstream, optional, redis_stored, tcp
from blackbox import Feed, HubClient

_CALLS: Final = {"recorded": {1: 1_000, 10_000: 10}, "synced": {1: 300, 10_000: 10}}
_RIVALS_CALLS: Final = {"recorded": {1: 1_000, 10_000: 3}, "synced": {1: 300, 10_000: 2}}
_RESTARTED: Final = 10_000_000
_SYNC: Final = {"recorded": "2m", "synced": "always"}
_APPENDFSYNC: Final = {"recorded": "everysec", "synced": "always"}


@pytest.mark.timeout(900)
def test_restart(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """Milliseconds from the start of the process after `kill -9` until it has stored one more message."""
    contest = Contest(f"A hub of {_RESTARTED:,} messages restarts and takes a put", "ms", lower=True, topology=__doc__)
    feed = msgspec.structs.replace(Feed.local("restart", slices=1), archives=(tcp(),), hub=tcp())
    serve = partial(Child, "bench.processes.hub:serve", feed=feed, directory=str(tmp_path / "hub"))
    hubs = [serve()]
    with ExitStack() as stack:
        stack.callback(_close_last, hubs)
        with Child("bench.processes.hub:put", feed=feed, acknowledged="recorded") as child:
            child.ask({"how": "put_many", "at_once": 10_000, "calls": _RESTARTED // 10_000})
        client = stack.enter_context(HubClient(feed))
        contest.add("a hub", partial(_restarted, serve, hubs, client), promise="recorded")
        contest.run(benchmark)


def _close_last(hubs: list[Child]) -> None:
    hubs[-1].close()


def _restarted(serve: Callable[[], Child], hubs: list[Child], client: HubClient) -> float:
    hubs[-1].kill()
    hubs[-1].close()
    began = time.perf_counter()
    hubs.append(serve())
    client.put("AAPL.trade", b"again", timeout=60.0)
    return 1e3 * (time.perf_counter() - began)


def _ours(contest: Contest, hub: Child, client: Child, how: str, at_once: int, calls: int) -> float:
    before = hub.ask({})["stored"]
    told = client.ask({"how": how, "at_once": at_once, "calls": calls})
    expect("messages stored", hub.ask({})["stored"] - before, at_once * calls)
    return contest.calls(how, told["times"])


def _rival(contest: Contest, name: str, child: Child, at_once: int, calls: int) -> float:
    told = child.ask({"at_once": at_once, "calls": calls})
    expect("messages stored", told["stored"], at_once * calls)
    return contest.calls(name, told["times"])


@pytest.mark.parametrize("what", ["recorded", "synced"])
def test_put(benchmark: BenchmarkFixture, tmp_path: Path, what: str) -> None:
    """Calls/s; each call returns when the hub has acknowledged all its messages."""
    contest = Contest(f"Put to a hub, {what}", "calls/s", topology=__doc__, axis="messages a call")
    with ExitStack() as stack:
        feed = msgspec.structs.replace(Feed.local(f"hub-{what}", slices=1), archives=(tcp(),), hub=tcp())
        hub = stack.enter_context(Child("bench.processes.hub:serve", feed=feed, directory=str(tmp_path / "hub")))
        client = stack.enter_context(Child("bench.processes.hub:put", feed=feed, acknowledged=what))
        for at_once, calls in _CALLS[what].items():
            for how in ("put",) if at_once == 1 else ("put_soon", "put_many"):
                name = "put" if at_once == 1 else f"{how}, flush" if how == "put_soon" else how
                contest.add(name, partial(_ours, contest, hub, client, how, at_once, calls), promise=what, at=at_once)
        pair = Feed.local(f"pair-{what}", slices=1, lines=2)
        pair = msgspec.structs.replace(pair, archives=(tcp(), tcp()), hub=tcp(), hub_backup=tcp())
        links = tcp(), tcp()
        for role, link, peer in (("backup", *links[::-1]), ("primary", *links)):
            settings = {"role": role, "link": link, "peer": peer}
            serve = Child("bench.processes.hub:serve_pair", feed=pair, directory=str(tmp_path / role), pair=settings)
            hub = stack.enter_context(serve)
        client = stack.enter_context(Child("bench.processes.hub:put", feed=pair, acknowledged=what))
        run = partial(_ours, contest, hub, client, "put", 1, _CALLS[what][1])
        contest.add("put to a pair of hubs", run, promise=what, at=1)
        for name, module, packages, server in (
            ("NATS JetStream, nats-server", "nats_jetstream", NATS, partial(jetstream, tmp_path, _SYNC[what])),
            ("Redis Streams, redis-server", "redis_streams", REDIS, partial(redis_stored, _APPENDFSYNC[what])),
        ):
            with optional(contest, name, *packages):
                started, rival = enter(stack, server, f"{module}:acknowledge")
                full = f"{name} {started.version}"
                for at_once, calls in _RIVALS_CALLS[what].items():
                    run = partial(_rival, contest, full, rival, at_once, calls)
                    contest.add(full, run, "rival", what, at=at_once)
        contest.run(benchmark)
