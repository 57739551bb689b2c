"""Live, from the publisher's first call to the last callback: ours beside what else carries messages between processes.

    ours        PUB process ==blocks, TCP or a Unix socket==> SUB process: on(), on_batch(), on_compiled()
    pyzmq       PUB process --a message a frame, TCP--> SUB process: f(topic, data)      plain, asyncio, compiled
    pynng       PUSH process --TCP--> PULL process: f(topic, data)
    zenoh       peer process --TCP--> peer process: f(topic, data)
    iceoryx2    publisher process --shared memory--> subscriber process: f(topic, data)
    nats-py     process --TCP--> nats-server --TCP--> process: f(topic, data)
    redis-py    process --TCP--> redis-server --TCP--> process: f(topic, data)

The same records (topic, time, 100 bytes, 5,000 topics), the same work on each (count, digest, sum per topic), nothing
may be lost: a digest differs where an order does. Each side is a process of its own, and each rival is set as its own
documentation says is fastest: see its file in bench/rivals. In the first table rivals, which take a
call a message, are compared with `publish()`, which takes one too; what `publish_many` does with columns stands below.
In the second the rivals carry blocks packed by hand, and all work is compiled; those of shared memory, which end at
the host, are compared with ours over a Unix socket.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec
import pytest

from bench.contest import WAITS, Contest
from bench.rivals.pair import Missing, Pair, need
from bench.rivals.servers import Server, free_port, nats_server, redis_server
from blackbox import Feed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_benchmark.fixture import BenchmarkFixture

pytestmark = pytest.mark.timeout(600)
"""Two processes a contender, and servers: on a machine that is shared, a round takes its time."""

QUEUED: Final = "nothing lost: queues are longer than a run"
HOLDS: Final = "nothing lost: the server holds the whole run"
_ONE_BY_ONE: Final = "publish() one by one, on(prefix)"
_BATCH: Final = "publish_many(columns), on_batch(prefix)"
_BATCH_IPC: Final = f"{_BATCH}, ipc"
_COMPILED: Final = "publish_many(columns), on_compiled(prefix)"


class Rival(NamedTuple):
    """One that carries messages, or blocks packed by hand."""

    name: str
    module: str
    needs: tuple[str, ...]
    address: Callable[[], str]
    promise: str
    """Of messages one by one; blocks always wait, or are held as these are."""
    messages: int
    """Messages of a round one by one; 0: this one is not in the first table."""
    blocks: int = 0
    """Messages of a round in blocks; 0: this one is not in the second table."""
    server: Callable[[], Server] | None = None
    arguments: Mapping[str, Any] = MappingProxyType({})
    is_local: bool = False
    """It reaches no other host: blocks by hand are compared with ours over ipc, which does not either."""


def _tcp() -> str:
    return f"tcp://127.0.0.1:{free_port()}"


def _tcp_slash() -> str:
    return f"tcp/127.0.0.1:{free_port()}"


RIVALS: Final = (
    Rival("pyzmq", "plain_pyzmq", (), _tcp, QUEUED, 150_000, 8_000_000),
    Rival("zmq.asyncio on uvloop", "asyncio_pyzmq", ("uvloop",), _tcp, QUEUED, 20_000),
    Rival("pynng PUSH/PULL", "plain_pynng", ("pynng",), _tcp, QUEUED, 15_000, 6_000_000),
    Rival("zenoh, TCP", "plain_zenoh", ("eclipse-zenoh:zenoh",), _tcp_slash, WAITS, 30_000, 4_000_000),
    Rival(
        "zenoh, shared memory",
        "plain_zenoh",
        ("eclipse-zenoh:zenoh",),
        _tcp_slash,
        WAITS,
        0,
        6_000_000,
        arguments={"shared_memory": True},
        is_local=True,
    ),
    Rival(
        "iceoryx2, shared memory",
        "plain_iceoryx2",
        ("iceoryx2",),
        lambda: f"blackbox-bench/{time.time_ns()}",
        WAITS,
        60_000,
        10_000_000,
        is_local=True,
    ),
    Rival("nats-py, nats-server", "plain_nats", ("nats-py:nats", "uvloop"), str, HOLDS, 40_000, 400_000, nats_server),
    Rival("redis-py, redis-server", "plain_redis", ("redis", "hiredis"), str, HOLDS, 25_000, 400_000, redis_server),
)


def _enter(contest: Contest, stack: ExitStack, rival: Rival, form: str, versus: str) -> None:
    """Start a rival and enter it, or tell why not."""
    try:
        need(*rival.needs)
        server = stack.enter_context(rival.server()) if rival.server else None
        address = server.url if server else rival.address()
        pair = stack.enter_context(Pair(rival.module, server, form=form, address=address, **rival.arguments))
    except Missing as why:
        contest.skip(rival.name, str(why))
        return
    name = f"{rival.name} {server.version}" if server else rival.name
    messages, promise = rival.messages, rival.promise
    if form == "blocks":
        name, messages = f"{name}, blocks by hand", rival.blocks
        promise = HOLDS if server else WAITS
    contest.add(name, lambda: pair.round(messages), "rival", promise, versus=versus)


def _ours(
    contest: Contest, stack: ExitStack, name: str, form: str, messages: int, transport: Literal["tcp", "ipc"] = "tcp"
) -> None:
    feed = Feed.local("bench-" + form.replace(" ", "-"), slices=1, transport=transport)
    pair = stack.enter_context(Pair("ours", form=form, feed=msgspec.to_builtins(feed)))
    contest.add(name, lambda: pair.round(messages), "ours", WAITS)


def test_live_messages(benchmark: BenchmarkFixture) -> None:
    """M messages/s, a Python call for each on both sides; below, what `publish_many` makes of the same."""
    contest = Contest(
        "Live, a Python call a message on both sides; counts, digests, sums", "M messages/s", topology=__doc__
    )
    with ExitStack() as stack:
        _ours(contest, stack, _ONE_BY_ONE, "one by one", 250_000)
        for rival in RIVALS:
            if rival.messages:
                _enter(contest, stack, rival, "messages", _ONE_BY_ONE)
        _ours(contest, stack, "publish_many(columns), on(prefix)", "each", 400_000)
        _ours(contest, stack, _BATCH, "batch", 5_000_000)
        _ours(contest, stack, _COMPILED, "compiled", 5_000_000)
        loop = stack.enter_context(Pair("libzmq_loop", address=_tcp()))
        contest.add(
            "libzmq from compiled loops, a message a frame",
            lambda: loop.round(1_000_000),
            "limit",
            WAITS,
            versus=_COMPILED,
        )
        contest.run(benchmark)


def test_live_blocks(benchmark: BenchmarkFixture) -> None:
    """M messages/s, all work compiled: what is left of ours when its users pack blocks for the rivals themselves."""
    contest = Contest("Live, rivals with blocks packed by hand, compiled work", "M messages/s", topology=__doc__)
    with ExitStack() as stack:
        _ours(contest, stack, _BATCH, "batch", 6_000_000)
        _ours(contest, stack, _COMPILED, "compiled", 6_000_000)
        _ours(contest, stack, _BATCH_IPC, "batch", 6_000_000, "ipc")
        for rival in RIVALS:
            if rival.blocks:
                _enter(contest, stack, rival, "blocks", _BATCH_IPC if rival.is_local else _BATCH)
        contest.run(benchmark)
