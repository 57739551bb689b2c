"""Put to a hub and wait for the acknowledgement after each call; every message has 100 bytes.

ours        HubClient ==requests of columns, TCP loopback==> hub process ==one append for all waiting==> journal
JetStream   nats-py ==a message each, TCP loopback==> nats-server ==write==> files; acknowledgements, one a message
limit       a DEALER ==a message, TCP loopback==> a ROUTER that replies and stores nothing
Redis       redis-py ==XADD in a pipeline, TCP loopback==> redis-server ==write==> append-only file

Recorded: in the page cache, so that it survives kill -9. Synced: on disk; JetStream with `sync_interval: always`, Redis
with `appendfsync always`. Ours also publishes each message.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench.measure.contest import Contest, expect
from bench.processes.child import Child
from bench.rivals.rival import need, tcp
from bench.rivals.servers import Missing, Server, nats_server, redis_server
from blackbox import Feed, HubClient

_CALLS: Final = {"recorded": {1: 1_000, 10_000: 10}, "synced": {1: 300, 10_000: 10}}
_RIVALS_CALLS: Final = {"recorded": {1: 1_000, 10_000: 3}, "synced": {1: 300, 10_000: 2}}
_RESTARTED: Final = 10_000_000
_RIVAL_RESTARTED: Final = 100_000
"""Messages stored by the rival before its restart, one by one; ours are stored in columns."""
_SYNC: Final = {"recorded": "2m", "synced": "always"}
_APPENDFSYNC: Final = {"recorded": "everysec", "synced": "always"}


@pytest.mark.timeout(900)
def test_restart(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """Milliseconds from the start of the process after `kill -9` until it has stored one more message."""
    contest = Contest(
        "A hub restarts and takes a put", "ms", lower=True, topology=__doc__, axis="messages stored before"
    )
    with ExitStack() as stack:
        for messages in (_RESTARTED, _RIVAL_RESTARTED):
            feed = msgspec.structs.replace(Feed.local(f"restart-{messages}", slices=1), archives=(tcp(),), hub=tcp())
            serve = partial(Child, "bench.processes.hub:serve", feed=feed, directory=str(tmp_path / feed.name))
            hubs = [serve()]
            stack.callback(_close_last, hubs)
            _fill("bench.processes.hub:put", messages, how="put_many", feed=feed, acknowledged="recorded")
            client = stack.enter_context(HubClient(feed))
            contest.add("a hub", partial(_restarted, serve, hubs, client), at=messages, promise="recorded")
        contest.add("python -c 'import blackbox.services.hub.server.hub'", _imported, "limit", at=_RESTARTED)
        try:
            need("nats-py:nats", "uvloop")
            servers = [_nats(tmp_path, "recorded")]
            _fill("bench.rivals.nats_jetstream:acknowledge", _RIVAL_RESTARTED, address=servers[0].url)
            rival = stack.enter_context(Child("bench.rivals.nats_jetstream:restarted"))
        except Missing as why:
            contest.skip("NATS JetStream, nats-server", str(why))
        else:
            stack.callback(_close_last, servers)
            name = f"NATS JetStream, nats-server {servers[0].version}"
            contest.add(
                name, partial(_nats_restarted, tmp_path, servers, rival), "rival", "recorded", at=_RIVAL_RESTARTED
            )
        contest.run(benchmark)


def _fill(function: str, messages: int, how: str = "", **arguments: Any) -> None:
    with Child(function, **arguments) as child:
        child.ask({"how": how, "at_once": 10_000, "calls": messages // 10_000})


def _close_last(started: list[Child] | list[Server]) -> None:
    started[-1].close()


def _restarted(serve: Callable[[], Child], hubs: list[Child], client: HubClient) -> float:
    hubs[-1].kill()
    hubs[-1].close()
    began = time.perf_counter()
    hubs.append(serve())
    client.put("AAPL.trade", b"again", timeout=60.0)
    return 1e3 * (time.perf_counter() - began)


def _nats_restarted(tmp_path: Path, servers: list[Server], rival: Child) -> float:
    os.kill(servers[-1].pid, signal.SIGKILL)
    servers[-1].close()
    servers.append(_nats(tmp_path, "recorded"))
    return float(rival.ask({"address": servers[-1].url})["at"] - servers[-1].began_ns) / 1e6


def _imported() -> float:
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", "import blackbox.services.hub.server.hub"], check=True, cwd=Path(__file__).parents[1]
    )
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
        address = tcp()
        stack.enter_context(Child("bench.rivals.zmq_echo:serve", address=address))
        echo = stack.enter_context(Child("bench.rivals.zmq_echo:acknowledge", address=address))
        name = "a DEALER's request and its reply"
        run = partial(_rival, contest, name, echo, 1, _RIVALS_CALLS[what][1])
        contest.add(name, run, "limit", at=1)
        for name, module, needs, serve in (
            ("NATS JetStream, nats-server", "nats_jetstream", ("nats-py:nats", "uvloop"), partial(_nats, tmp_path)),
            ("Redis Streams, redis-server", "redis_streams", ("redis", "hiredis"), _redis),
        ):
            try:
                need(*needs)
                server = stack.enter_context(serve(what))
                rival = stack.enter_context(Child(f"bench.rivals.{module}:acknowledge", address=server.url))
            except Missing as why:
                contest.skip(name, str(why))
            else:
                for at_once, calls in _RIVALS_CALLS[what].items():
                    full = f"{name} {server.version}"
                    run = partial(_rival, contest, full, rival, at_once, calls)
                    contest.add(full, run, "rival", what, at=at_once)
        contest.run(benchmark)


def _nats(place: Path, what: str) -> Server:
    settings = place / "nats.conf"
    settings.write_text(f'jetstream {{ store_dir: "{place / "nats"}", sync_interval: {_SYNC[what]} }}')
    return nats_server("-c", str(settings))


def _redis(what: str) -> Server:
    return redis_server("--appendonly", "yes", "--appendfsync", _APPENDFSYNC[what])
