"""Tables of 10,000 and 1,000,000 topics with values of 100 bytes, updated by another process.

ours    HubClient ==put_many==> hub: journal ==blocks, TCP loopback==> Subscriber.table
Redis   redis-py ==HSET, PUBLISH in a pipeline==> redis-server ==a message each==> a dict

From the first put until the table has the last one. Ours is stored and survives kill -9; Redis keeps updates in memory.
Join: from start to a synced table.
"""

from __future__ import annotations

import statistics
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
from bench.rivals.rival import REDIS, enter, optional, tcp
from bench.rivals.servers import redis_server
from blackbox import Feed

_UPDATES: Final = {"ours": 1_000_000, "redis": 50_000}


class _Pair:
    """A process that puts and one that keeps a table; each round puts a new value."""

    def __init__(self, putter: Child, keeper: Callable[[], Child], updates: int, topics: int) -> None:
        self._putter, self._make, self._updates, self._value = putter, keeper, updates, 0
        self._topics = topics
        self.bytes_a_topic = list[float]()
        self._putter.ask({"updates": topics, "value": 0})
        self._keeper = keeper()

    def update(self) -> float:
        """Put, wait until the table has all updates and return updates/s."""
        self._value = (self._value + 1) % 256
        order = {"updates": self._updates, "value": self._value}
        if not self._is_ours:  # a rival's table counts updates as they arrive
            self._keeper.send(order)
        told = self._putter.ask(order)
        has = self._keeper.ask(order | {"last": told["last"]}) if self._is_ours else self._keeper.answer()
        expect("topics with the last value", has["right"], min(self._topics, self._updates))
        return float(self._updates / (has["ended"] - told["began"]) * 1e9)

    def join(self) -> float:
        """Start a fresh table and return the seconds until it is synced."""
        child = self._make()
        try:
            told = child.ask("joined")
        finally:
            child.close()
        expect("topics", told["topics"], self._topics)
        self.bytes_a_topic.append(told["bytes"] / self._topics)
        return float(told["seconds"])

    def close(self) -> None:
        """End the table's process."""
        self._keeper.close()

    @property
    def _is_ours(self) -> bool:
        return self._updates == _UPDATES["ours"]


@pytest.mark.parametrize("topics", [10_000, 1_000_000])
@pytest.mark.parametrize("what", ["updates", "join"])
def test_table(benchmark: BenchmarkFixture, tmp_path: Path, what: str, topics: int) -> None:
    """Updates/s applied to a table, or seconds until a new one is synced."""
    is_join = what == "join"
    title = f"{'Join' if is_join else 'Updates of'} a table of {topics:,} topics"
    contest = Contest(title, "s" if is_join else "updates/s", lower=is_join, topology=__doc__)
    with ExitStack() as stack:
        feed = msgspec.structs.replace(Feed.local("table", slices=1), archives=(tcp(),), hub=tcp())
        stack.enter_context(Child("bench.processes.hub:serve", feed=feed, directory=str(tmp_path / "hub")))
        putter = stack.enter_context(Child("bench.processes.table:put", feed=feed, topics=topics))
        pair = _Pair(putter, partial(Child, "bench.processes.table:keep", feed=feed), _UPDATES["ours"], topics)
        stack.callback(pair.close)
        contest.add("table of a hub", pair.join if is_join else pair.update, promise="stored by the hub")
        with optional(contest, "redis", *REDIS):
            server, putter = enter(stack, redis_server, "redis_table:put", topics=topics)
            keeper = partial(Child, "bench.rivals.redis_table:keep", address=server.url)
            rival = _Pair(putter, keeper, _UPDATES["redis"], topics)
            stack.callback(rival.close)
            run = rival.join if is_join else rival.update
            contest.add(f"redis {server.version}", run, "rival", "in memory")
        contest.run(benchmark)
        if is_join and topics > 10_000:  # with few topics the process itself dominates
            contest.show("table of a hub: memory per topic", f"{statistics.median(pair.bytes_a_topic):.0f} bytes")
