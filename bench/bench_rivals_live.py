"""Live delivery, from the publisher's first call to the last callback: ours and other messaging libraries.

    ours        PUB process ==blocks, TCP, Unix socket, memory==> SUB process: on(), on_batch(), on_compiled()
    pyzmq       PUB process --a message a frame, TCP--> SUB process: f(topic, data)      plain, asyncio, compiled
    pynng       PUSH process --TCP--> PULL process: f(topic, data)
    zenoh       peer process --TCP--> peer process: f(topic, data)
    iceoryx2    publisher process --shared memory--> subscriber process: f(topic, data)
    nats-py     process --TCP--> nats-server --TCP--> process: f(topic, data)
    redis-py    process --TCP--> redis-server --TCP--> process: f(topic, data)

The same records (topic, time, 100 bytes, 5,000 topics), the same work on each (count, digest, sum per topic). Nothing
may be lost or reordered, which the digest detects. Each side is its own process, and each rival is configured as its
documentation recommends for speed: see its file in bench/rivals. The first table compares rivals, which take one call
per message, with `publish()`; its last rows show `publish_many` with columns. In the second the rivals carry blocks
packed by hand and all work is compiled. Rivals with shared memory are compared with ours in shared memory.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal

import pytest

from bench.measure.contest import WAITS, Contest
from bench.processes.pair import Form, Pair, Work
from bench.rivals.rival import HOLDS, Rival, tcp, tcp_slash
from bench.rivals.servers import nats_server, redis_server
from bench.workload.load import Load
from blackbox import Feed

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

pytestmark = pytest.mark.timeout(600)
"""Each contender has two processes, some a server: rounds are slow on a shared machine."""

QUEUED: Final = "nothing lost: queues are longer than a run"
_ONE_BY_ONE: Final = "publish() one by one, on(prefix)"
_BATCH: Final = "publish_many(columns), on_batch(prefix)"
_COMPILED: Final = "publish_many(columns), on_compiled(prefix)"
_COMPILED_SHM: Final = f"{_COMPILED}, shm"
_ZENOH: Final = ("eclipse-zenoh:zenoh",)

RIVALS: Final = (
    Rival("pyzmq", "plain_pyzmq", (), tcp, QUEUED, 150_000, 8_000_000),
    Rival("zmq.asyncio on uvloop", "asyncio_pyzmq", ("uvloop",), tcp, QUEUED, 20_000),
    Rival("pynng PUSH/PULL", "plain_pynng", ("pynng",), tcp, QUEUED, 15_000, 6_000_000),
    Rival("zenoh, TCP", "plain_zenoh", _ZENOH, tcp_slash, WAITS, 30_000, 4_000_000),
    Rival(
        "zenoh, shared memory",
        "plain_zenoh",
        _ZENOH,
        tcp_slash,
        WAITS,
        0,
        6_000_000,
        arguments=MappingProxyType({"shared_memory": True}),
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


def _enter(contest: Contest, stack: ExitStack, rival: Rival, form: Form, versus: str) -> None:
    """Start a rival and enter it, or report why it was skipped."""

    def begin(arguments: Mapping[str, Any]) -> Pair:
        return Pair.rival(rival.module, form=form, **arguments)

    if started := rival.start(contest, stack, begin):
        name, messages, promise = started.name, rival.messages, rival.promise
        if form == "blocks":
            name, messages = f"{name}, blocks by hand", rival.more
            promise = HOLDS if started.server else WAITS
        contest.add(name, started.rounds(messages), "rival", promise, versus=versus)


def _ours(
    contest: Contest,
    stack: ExitStack,
    name: str,
    form: Form,
    messages: int,
    *,
    at_once: int = 0,
    transport: Literal["tcp", "ipc", "shm"] = "tcp",
) -> None:
    feed = Feed.local(f"bench-{form}-{at_once}", slices=1, transport=transport)
    pair = stack.enter_context(Pair.ours(feed, when_full="wait"))
    load = Load(feed=feed, messages=messages, at_once=at_once)
    contest.add(name, lambda: pair.round(load, Work(form=form)), "ours", WAITS)


def test_live_messages(benchmark: BenchmarkFixture) -> None:
    """M messages/s with a Python call per message on both sides; the last rows use `publish_many`."""
    contest = Contest(
        "Live, a Python call a message on both sides; counts, digests, sums", "M messages/s", topology=__doc__
    )
    with ExitStack() as stack:
        _ours(contest, stack, _ONE_BY_ONE, "each", 250_000, at_once=1)
        for rival in RIVALS:
            if rival.messages:
                _enter(contest, stack, rival, "messages", _ONE_BY_ONE)
        _ours(contest, stack, "publish_many(columns), on(prefix)", "each", 400_000)
        _ours(contest, stack, _BATCH, "batch", 5_000_000)
        _ours(contest, stack, _COMPILED, "compiled", 5_000_000)
        loop = stack.enter_context(Pair.rival("libzmq_loop", address=tcp()))
        contest.add(
            "libzmq from compiled loops, a message a frame",
            lambda: loop.round(Load(messages=1_000_000)),
            "limit",
            WAITS,
            versus=_COMPILED,
        )
        contest.run(benchmark)


def test_live_blocks(benchmark: BenchmarkFixture) -> None:
    """M messages/s, all work compiled, when users of the rivals pack blocks themselves."""
    contest = Contest("Live, rivals with blocks packed by hand, compiled work", "M messages/s", topology=__doc__)
    with ExitStack() as stack:
        _ours(contest, stack, _BATCH, "batch", 6_000_000)
        _ours(contest, stack, _COMPILED, "compiled", 6_000_000)
        _ours(contest, stack, f"{_COMPILED}, ipc", "compiled", 6_000_000, transport="ipc")
        _ours(contest, stack, _COMPILED_SHM, "compiled", 10_000_000, transport="shm")
        _ours(contest, stack, f"{_BATCH}, shm", "batch", 10_000_000, transport="shm")
        for rival in RIVALS:
            if rival.more:
                _enter(contest, stack, rival, "blocks", _COMPILED_SHM if rival.is_local else _COMPILED)
        contest.run(benchmark)
