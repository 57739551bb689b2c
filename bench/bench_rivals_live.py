"""Live delivery, from the publisher's first call to the last callback: ours and other messaging libraries.

    ours        PUB process ==blocks, TCP or shared memory==> SUB process: on(), on_batch(), on_compiled()
    pyzmq       PUB process --a message a frame, TCP--> SUB process: f(topic, data)
    iceoryx2    publisher process --shared memory--> subscriber process: f(topic, data)
    nats-py     process --TCP--> nats-server --TCP--> process: f(topic, data)

The same records (topic, time, 100 bytes, 5,000 topics), the same work on each (count, digest, sum per topic). Nothing
may be lost or reordered, which the digest detects. Each side is its own process, and each rival is configured as its
documentation recommends for speed: see its file in bench/rivals. In the first table both sides take a Python call per
message. In the second ours publishes columns, the rivals carry blocks packed by hand, and all work is compiled.
iceoryx2 is compared with ours in shared memory.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

import pytest

from bench.measure.contest import WAITS, Contest
from bench.processes.pair import Form, Pair, Work
from bench.rivals.rival import HOLDS, NATS, enter_nats, optional, tcp
from bench.workload.load import Load
from blackbox import Feed

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

pytestmark = pytest.mark.timeout(600)
"""Each contender has two processes, some a server: rounds are slow on a shared machine."""

_MESSAGES: Final = {"pyzmq": (150_000, 8_000_000), "iceoryx2": (60_000, 10_000_000), "nats": (40_000, 400_000)}
"""Messages of a round, one by one and in blocks."""
_ONE_BY_ONE: Final = "publish() one by one, on(prefix)"
_COMPILED: Final = "publish_many(columns), on_compiled(prefix)"
_COMPILED_SHM: Final = f"{_COMPILED}, shm"


def _enter_rivals(contest: Contest, stack: ExitStack, form: Form, ours: str, ours_in_memory: str) -> None:
    """Start the rivals and enter them."""
    in_blocks = form == "blocks"

    def enter(name: str, rival: str, pair: Any, promise: str, versus: str) -> None:
        run = partial(pair.round, Load(messages=_MESSAGES[rival][in_blocks]))
        contest.add(f"{name}, blocks by hand" if in_blocks else name, run, "rival", promise, versus=versus)

    pyzmq = stack.enter_context(Pair.rival("plain_pyzmq", address=tcp(), form=form))
    enter("pyzmq", "pyzmq", pyzmq, WAITS, ours)
    name = "iceoryx2, shared memory"
    with optional(contest, name, "iceoryx2"):
        address = f"blackbox-bench/{time.time_ns()}"
        pair = stack.enter_context(Pair.rival("plain_iceoryx2", address=address, form=form))
        enter(name, "iceoryx2", pair, WAITS, ours_in_memory)
    with optional(contest, "nats-py, nats-server", *NATS):
        name, pair = enter_nats(stack, form)
        enter(name, "nats", pair, HOLDS, ours)


def _enter_ours(
    contest: Contest,
    stack: ExitStack,
    name: str,
    form: Form,
    messages: int,
    *,
    at_once: int = 0,
    transport: Literal["tcp", "shm"] = "tcp",
) -> None:
    feed = Feed.local(f"bench-{form}-{at_once}", slices=1, transport=transport)
    pair = stack.enter_context(Pair.ours(feed, when_full="wait"))
    load = Load(feed=feed, messages=messages, at_once=at_once)
    contest.add(name, partial(pair.round, load, Work(form=form)), "ours", WAITS)


def test_live_messages(benchmark: BenchmarkFixture) -> None:
    """M messages/s with a Python call per message on both sides."""
    contest = Contest(
        "Live, a Python call a message on both sides; counts, digests, sums", "M messages/s", topology=__doc__
    )
    with ExitStack() as stack:
        _enter_ours(contest, stack, _ONE_BY_ONE, "each", 250_000, at_once=1)
        _enter_rivals(contest, stack, "messages", _ONE_BY_ONE, _ONE_BY_ONE)
        contest.run(benchmark)


def test_live_blocks(benchmark: BenchmarkFixture) -> None:
    """M messages/s, all work compiled, when users of the rivals pack blocks themselves."""
    contest = Contest("Live, rivals with blocks packed by hand, compiled work", "M messages/s", topology=__doc__)
    with ExitStack() as stack:
        _enter_ours(contest, stack, _COMPILED, "compiled", 6_000_000)
        _enter_ours(contest, stack, "publish_many(columns), on_batch(prefix)", "batch", 6_000_000)
        _enter_ours(contest, stack, _COMPILED_SHM, "compiled", 10_000_000, transport="shm")
        _enter_rivals(contest, stack, "blocks", _COMPILED, _COMPILED_SHM)
        contest.run(benchmark)
