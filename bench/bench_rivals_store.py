"""Store and replay a day: ours and servers that store streams.

    ours        PUB process ==blocks, TCP==> Recorder process ==> journal ==memory-mapped==> callbacks
    Redis       redis-py --XADD--> redis-server ==> append-only file; memory --XRANGE--> f(topic, data)
    JetStream   nats-py --publish--> nats-server ==> files --ordered consumer--> f(topic, data)

The same records, none lost. All are in the page cache when the clock stops; Redis and ours sync every second, JetStream
every 2 minutes. Replay passes each message to the same Python function as fast as possible.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from bench.measure.contest import Contest
from bench.processes.child import Child
from bench.processes.pair import Form, Pair, Single, Work
from bench.rivals.rival import Rival, Started
from bench.rivals.servers import nats_server, redis_server
from bench.workload.load import Load
from bench.workload.recorded import journals, recording_of
from blackbox import Feed

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_benchmark.fixture import BenchmarkFixture

_CALLS: Final = 300_000
_REPLAYED: Final = 4_000_000
_ONE_BY_ONE: Final = "publish() one by one, Recorder"
_EACH: Final = "on(prefix), a Python call a message"

STORES: Final = (
    Rival(
        "Redis Streams, redis-server",
        "redis_streams",
        ("redis", "hiredis"),
        str,
        "acknowledged; synced every second",
        15_000,
        100_000,
        lambda: redis_server("--appendonly", "yes", "--appendfsync", "everysec"),
    ),
    Rival(
        "NATS JetStream, nats-server",
        "nats_jetstream",
        ("nats-py:nats", "uvloop"),
        str,
        "acknowledged; synced every 2 minutes",
        8_000,
        40_000,
        lambda: nats_server("-js", "-sd", "{data}"),
    ),
)


def _start(contest: Contest, stack: ExitStack, store: Rival) -> tuple[Started, Mapping[str, Any]] | None:
    """Start a store and the process that records into it; return it with its arguments, or None if it was skipped."""
    given: dict[str, Any] = {}

    def begin(arguments: Mapping[str, Any]) -> Single:
        given.update(arguments)
        return Single(f"bench.rivals.{store.module}:record", **arguments)

    started = store.start(contest, stack, begin)
    return (started, given) if started else None


def test_store(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """M messages/s from the first call until all are stored."""
    contest = Contest("Recording a stream at full speed", "M messages/s", topology=__doc__)
    with ExitStack() as stack:
        for name, at_once, messages in (("publish_many(), Recorder", 0, 6_000_000), (_ONE_BY_ONE, 1, 400_000)):
            feed = Feed.local(f"bench-store-{at_once}", slices=1)
            pair = stack.enter_context(
                Pair(
                    partial(Child, "bench.processes.sender:publish", feeds=[feed], when_full="wait"),
                    partial(Child, "bench.processes.recorder:receive", directory=str(tmp_path)),
                )
            )
            load = Load(feed=feed, messages=messages, at_once=at_once)
            contest.add(name, partial(pair.round, load), "ours", "nothing lost; synced every second")
        for store in STORES:
            if entered := _start(contest, stack, store):
                started, _ = entered
                contest.add(started.name, started.rounds(store.messages), "rival", store.promise, versus=_ONE_BY_ONE)
        contest.run(benchmark)


def test_replay_from_store(benchmark: BenchmarkFixture) -> None:
    """M messages/s, each passed to a Python function; the last rows have batch and compiled callbacks."""
    contest = Contest("Replaying what was stored, a Python call a message", "M messages/s", topology=__doc__)
    stored: dict[str, Callable[[], float]] = {}
    forms: tuple[tuple[str, Form, int], ...] = (
        (_EACH, "each", _CALLS),
        ("on_batch(prefix)", "batch", _REPLAYED),
        ("on_compiled(prefix)", "compiled", _REPLAYED),
    )
    with ExitStack() as stack:
        for name, form, messages in forms:
            day = recording_of(messages, slices=1)
            single = stack.enter_context(Single("bench.processes.recorder:replay", day=str(day)))
            run = partial(single.round, Load(messages=messages), Work(form=form))
            contest.add(name, run, "ours", "in the order of publishing")
        stored["ours"] = lambda: sum(path.stat().st_size for path in journals(day)) / _REPLAYED
        for store in STORES:
            if entered := _start(contest, stack, store):
                started, arguments = entered
                started.rounds(store.more)()
                assert started.server is not None
                stored[started.name] = partial(_bytes_each, started.server.stored_bytes, store.more)
                reader = stack.enter_context(Single(f"bench.rivals.{store.module}:replay", **arguments))
                run = partial(reader.round, Load(messages=store.more))
                contest.add(started.name, run, "rival", "in the order of storing", versus=_EACH)
        contest.run(benchmark)
        # Measured at the end: Redis may hold back writes while a sync runs.
        for name, bytes_each in stored.items():
            contest.show(f"bytes on disk per message, {name}", f"{bytes_each():.0f}")


def _bytes_each(stored_bytes: Callable[[], int], messages: int) -> float:
    return stored_bytes() / messages
