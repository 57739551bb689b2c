"""A day stored and replayed: ours beside the servers that people store streams in.

    ours        PUB process ==blocks, TCP==> Recorder process ==> journal ==memory-mapped==> callbacks
    Redis       redis-py --XADD--> redis-server ==> append-only file; memory --XRANGE--> f(topic, data)
    JetStream   nats-py --publish--> nats-server ==> files --ordered consumer--> f(topic, data)

The same records, none lost; all are on their way to the disk when the clock stops, and Redis and ours sync every second
(JetStream every 2 minutes). Replay hands each message to the same Python function, as fast as it takes them.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from bench.contest import Contest
from bench.recorded import journals, recording_of
from bench.rivals.pair import Missing, Pair, Single, need
from bench.rivals.servers import Server, nats_server, redis_server
from blackbox import Feed

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pytest_benchmark.fixture import BenchmarkFixture

_CALLS: Final = 300_000
_REPLAYED: Final = 4_000_000
_ONE_BY_ONE: Final = "publish() one by one, Recorder"
_EACH: Final = "on(prefix), a Python call a message"


class Store(NamedTuple):
    """A server that stores streams."""

    name: str
    module: str
    needs: tuple[str, ...]
    server: Callable[[], Server]
    promise: str
    messages: int
    replayed: int


STORES: Final = (
    Store(
        "Redis Streams, redis-server",
        "redis_streams",
        ("redis", "hiredis"),
        lambda: redis_server("--appendonly", "yes", "--appendfsync", "everysec"),
        "acknowledged; synced every second",
        15_000,
        100_000,
    ),
    Store(
        "NATS JetStream, nats-server",
        "nats_jetstream",
        ("nats-py:nats", "uvloop"),
        lambda: nats_server("-js", "-sd", "{data}"),
        "acknowledged; synced every 2 minutes",
        8_000,
        40_000,
    ),
)


def _enter(contest: Contest, stack: ExitStack, store: Store, versus: str) -> tuple[str, Server, Single] | None:
    """Start a store and the process that records into it; None, and told, if that cannot be."""
    try:
        need(*store.needs)
        server = stack.enter_context(store.server())
        recorder = stack.enter_context(Single(store.module, "record", server, address=server.url))
    except Missing as why:
        contest.skip(store.name, str(why))
        return None
    return f"{store.name} {server.version}", server, recorder


def test_store(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """M messages/s from the first call until all are stored."""
    contest = Contest("Recording a stream, as fast as it is taken", "M messages/s", topology=__doc__)
    with ExitStack() as stack:
        for name, form, messages in (
            ("publish_many(), Recorder", "columns", 6_000_000),
            (_ONE_BY_ONE, "one by one", 400_000),
        ):
            feed = msgspec.to_builtins(Feed.local("bench-" + form.replace(" ", "-"), slices=1))
            pair = stack.enter_context(Pair("ours_store", form=form, feed=feed, directory=str(tmp_path)))
            contest.add(name, _rounds(pair, messages), "ours", "nothing lost; synced every second")
        for store in STORES:
            if entered := _enter(contest, stack, store, _ONE_BY_ONE):
                name, _, recorder = entered
                contest.add(name, _rounds(recorder, store.messages), "rival", store.promise, versus=_ONE_BY_ONE)
        contest.run(benchmark)


def test_replay_from_store(benchmark: BenchmarkFixture) -> None:
    """M messages/s, each handed to a Python function; below, batch and compiled callbacks."""
    contest = Contest("Replaying what was stored, a Python call a message", "M messages/s", topology=__doc__)
    stored: dict[str, Callable[[], float]] = {}
    with ExitStack() as stack:
        for name, form, messages in (
            (_EACH, "each", _CALLS),
            ("on_batch(prefix)", "batch", _REPLAYED),
            ("on_compiled(prefix)", "compiled", _REPLAYED),
        ):
            day = recording_of(messages, slices=1)
            single = stack.enter_context(Single("ours_store", "replay", day=str(day), form=form))
            contest.add(name, _rounds(single, messages), "ours", "in the order of publishing")
        stored["ours"] = lambda: sum(path.stat().st_size for path in journals(day)) / _REPLAYED
        for store in STORES:
            if entered := _enter(contest, stack, store, _EACH):
                name, server, recorder = entered
                recorder.round(store.replayed)
                stored[name] = partial(_bytes_each, server, store.replayed)
                reader = stack.enter_context(Single(store.module, "replay", server, address=server.url))
                contest.add(name, _rounds(reader, store.replayed), "rival", "in the order of storing", versus=_EACH)
        contest.run(benchmark)
        # At the end: Redis may hold its writes back while a sync runs.
        for name, bytes_each in stored.items():
            contest.show(f"bytes on disk a message, {name}", f"{bytes_each():.0f}")


def _bytes_each(server: Server, messages: int) -> float:
    return server.stored_bytes() / messages


def _rounds(contender: Pair | Single, messages: int) -> Callable[[], Any]:
    return lambda: contender.round(messages)
