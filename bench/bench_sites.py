"""Two sites with a hub each: cost of reading the other site's feed, and bytes on the link. Messages of 100 bytes.

    direct    HubClient ==puts==> hub "ldn" =====================================> SUB process
    ours      HubClient ==puts==> hub "ldn" ==subscribed==> hub "ams" ===========> SUB process
    nats      nats-py process --> nats-server --------------------------------> nats-py process

All over TCP loopback on the same two cores; there is no slow link between the sites. Ours stores and numbers each
message before publishing; core NATS stores nothing.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench.measure.contest import Contest, Lost, expect
from bench.processes.child import Child
from bench.processes.pair import Order, Work, play
from bench.rivals.rival import HOLDS, NATS, enter_nats, optional, tcp
from bench.workload.load import Load
from blackbox import Feed

MESSAGES: Final = 300_000
TOPICS: Final = 100
RATE: Final = 1_000
PACED: Final = 2_000
SLICES: Final = 8
KEYS: Final = {"key_bytes": 8}
"""Each topic has its own key: `S17.trad` for `S17.trade`."""
PATIENCE_S: Final = 30.0
DIRECT, ACROSS = "read at the putting hub", "read at the other hub"
STORED: Final = "stored and numbered before it is published"


class Sites(NamedTuple):
    """Two hubs, and the feeds that readers of each site load to read the messages put in London."""

    ldn: Feed
    here: Feed
    ams: Child
    """The hub in Amsterdam."""

    def crossed(self) -> dict[str, int]:
        """Return the messages and bytes sent across so far, once all subscriptions are gone."""
        deadline = time.monotonic() + PATIENCE_S
        while (told := self.ams.ask({}))["filters"]:
            if time.monotonic() > deadline:
                raise Lost(f"filters at the other hub were {told['filters']}, expected 0 without readers")
        return dict(told)


@contextmanager
def _sites(directory: Path, slices: int, **keys: Any) -> Iterator[Sites]:
    ldn, ams = (
        msgspec.structs.replace(Feed.local(name, slices=slices, **keys), archives=(tcp(),), hub=tcp())
        for name in ("ldn", "ams")
    )
    here = msgspec.structs.replace(ldn, slices=Feed.local("ldn", slices=slices).slices)
    serve = "bench.processes.hub:serve"
    with (
        Child(serve, feed=ldn, directory=str(directory / "ldn")),
        Child(serve, feed=ams, directory=str(directory / "ams"), peers=[(ldn, here)]) as hub,
    ):
        yield Sites(ldn, here, hub)


class _Both:
    """Readers of one run at both hubs: the difference of their latencies is the cost of crossing."""

    def __init__(self, contest: Contest, sites: Sites, stack: ExitStack) -> None:
        self._contest, self._feeds = contest, (sites.here, sites.ldn)
        self._sender = stack.enter_context(Child("bench.processes.hub:send", feed=sites.ldn))
        self._receivers = [stack.enter_context(Child("bench.processes.receiver:receive")) for _ in self._feeds]
        self._direct: dict[str, float] = {}
        self.added: list[dict[str, float]] = []

    def across(self) -> float:
        """Play a run; return the median latency of the reader at the other hub."""
        loads = [Load(feed=feed, messages=PACED, rate=RATE, at_once=1, topics=TOPICS) for feed in self._feeds]
        orders = [Order(load, Work(form="late")) for load in loads]
        _, heard = play(self._sender, self._receivers, orders)
        for each in heard:
            if each.lost or each.missed:
                raise Lost(each.lost or f"messages lost was {each.missed}, expected 0")
        across, self._direct = heard[0].late_us, heard[1].late_us
        self.added.append({each: across[each] - self._direct[each] for each in ("p50", "p99")})
        self._contest.percentiles(ACROSS, across)
        return across["p50"]

    def direct(self) -> float:
        """Return the median latency of the reader at the putting hub in the same run."""
        self._contest.percentiles(DIRECT, self._direct)
        return self._direct["p50"]


def test_sites_latency(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """µs since a put was due, at 1,000 single puts a second, for simultaneous readers at both hubs."""
    contest = Contest(f"Delay at another site, {RATE:,} puts/s: p50", "µs", lower=True, topology=__doc__)
    with ExitStack() as stack:
        both = _Both(contest, stack.enter_context(_sites(tmp_path, 1)), stack)
        contest.add(ACROSS, both.across, promise=STORED)
        contest.add(DIRECT, both.direct, promise=STORED)
        with optional(contest, "nats-server", *NATS):
            name, rival = enter_nats(stack, "late")
            load = Load(messages=PACED, rate=RATE, at_once=1)
            contest.add(name, partial(rival.late, contest, name, load, Work(form="late")), "rival", HOLDS)
        contest.run(benchmark)
        for percentile in ("p50", "p99"):
            added = statistics.median(each[percentile] for each in both.added[1:])
            contest.show(f"crossing adds, {percentile}", f"{added:.0f} µs")


def _bytes_across(sites: Sites, sender: Child, receiver: Child, prefixes: tuple[bytes, ...]) -> float:
    """Return bytes on the link per message put, including block headers."""
    load = Load(feed=sites.here, messages=MESSAGES, topics=TOPICS, in_turn=True)
    before = sites.crossed()
    if prefixes:
        _, (heard,) = play(sender, [receiver], [Order(load, Work(form="compiled", prefixes=prefixes))])
        if heard.lost:
            raise Lost(heard.lost)
    else:
        sender.ask(Order(load))
    after = sites.crossed()
    messages = after["messages"] - before["messages"]
    expect("messages crossed", messages > 0, bool(prefixes))
    return (after["bytes"] - before["bytes"]) / MESSAGES


@pytest.mark.parametrize(("slices", "keys"), [(1, {}), (SLICES, {}), (1, KEYS)])
def test_sites_interest(benchmark: BenchmarkFixture, tmp_path: Path, slices: int, keys: dict[str, int]) -> None:
    """Bytes on the link per message put, with no, one or all topics subscribed at the other site."""
    what = ", ".join(["Bytes between sites", f"{slices} slices", *(f"{name} {value}" for name, value in keys.items())])
    contest = Contest(what, "bytes/message put", lower=True, topology=__doc__)
    with ExitStack() as stack:
        sites = stack.enter_context(_sites(tmp_path, slices, **keys))
        sender = stack.enter_context(Child("bench.processes.hub:send", feed=sites.ldn))
        receiver = stack.enter_context(Child("bench.processes.receiver:receive"))
        for name, prefixes in (("all topics", (b"",)), ("one topic", (b"S17.trade",)), ("no topic", ())):
            contest.add(name, partial(_bytes_across, sites, sender, receiver, prefixes))
        contest.run(benchmark)
