"""A thousand subscribers join late and at once: each gets the newest message of 10,000 topics, then the live feed.

ours    PUB process ==blocks, TCP loopback==> recorder process, whose archive thread sends images
                    |                         1,000 joiners in one process: a confirmed SUB socket each, then the image
                    `==blocks, TCP loopback==> a live subscriber, whose latency is measured
rival   redis-server: 1,000 connections, each SUBSCRIBE, then HGETALL of 10,000 fields of 100 bytes

The feed continues at 10,000 messages a second. 16 join at a time, all on the same two cores.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
from pytest_benchmark.fixture import BenchmarkFixture

from bench.measure.contest import Contest, expect
from bench.processes.child import Child
from bench.rivals.rival import need, tcp
from bench.rivals.servers import Missing, redis_server
from blackbox import Feed

_JOINERS: Final = 1_000
_TOPICS: Final = 10_000
_MESSAGES: Final = 1_000_000
_RATE: Final = 10_000
_ALONE_S: Final = 3.0
_PROMISE: Final = "the newest of each topic, then the live feed"


def _join(joiners: Child) -> float:
    return float(joiners.ask({"joiners": _JOINERS})["seconds"])


def test_joiners(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """Seconds until the last of 1,000 has all topics."""
    title = f"{_JOINERS:,} late joiners of {_TOPICS:,} topics, until the last one has all"
    contest = Contest(title, "s", lower=True, topology=__doc__)
    with ExitStack() as stack:
        _, joiners = _house(stack, tmp_path)
        contest.add("an image of the archive", partial(_join, joiners), promise=_PROMISE)
        try:
            need("redis", "hiredis")
            server = stack.enter_context(redis_server())
            fill = stack.enter_context(Child("bench.rivals.tables:redis_put", address=server.url, topics=_TOPICS))
            fill.ask({"updates": _TOPICS, "value": 1})
            rival = stack.enter_context(Child("bench.processes.joiners:join_redis", address=server.url, topics=_TOPICS))
        except Missing as why:
            contest.skip("redis", str(why))
        else:
            contest.add(f"redis {server.version}", partial(_join, rival), "rival", _PROMISE)
        contest.run(benchmark)


def test_latency_while_many_join(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """Latency of a live subscriber while 1,000 join."""
    contest = Contest("p99 of a live subscriber, 10,000 messages/s", "µs", lower=True, topology=__doc__)
    with ExitStack() as stack:
        feed, joiners = _house(stack, tmp_path)
        listener = stack.enter_context(Child("bench.processes.recovered:listen", feed=feed))
        alone, join = partial(time.sleep, _ALONE_S), partial(_join, joiners)
        for name, meanwhile in (("no joiner", alone), (f"{_JOINERS:,} join", join)):
            contest.add(name, partial(_late_beside, contest, name, listener, meanwhile))
        contest.run(benchmark)


def _house(stack: ExitStack, place: Path) -> tuple[Feed, Child]:
    feed = msgspec.structs.replace(Feed.local("joiners", slices=1), archives=(tcp(),))
    publisher = stack.enter_context(
        Child("bench.processes.recovered:publish", feed=feed, messages=_MESSAGES, rate=_RATE, topics=_TOPICS)
    )
    recorder = stack.enter_context(Child("bench.processes.recovered:record", feed=feed, directory=str(place)))
    publisher.ask({})
    recorder.ask({"messages": _MESSAGES})
    return feed, stack.enter_context(Child("bench.processes.joiners:join", feed=feed, topics=_TOPICS))


def _late_beside(contest: Contest, name: str, listener: Child, meanwhile: Callable[[], object]) -> float:
    """Return the p99 latency at `listener` while `meanwhile` ran, in µs; keep all its percentiles."""
    listener.ask({})
    meanwhile()
    told = listener.ask({})
    expect("messages lost", told.pop("gaps"), 0)
    contest.percentiles(name, told)
    return float(told["p99"])
