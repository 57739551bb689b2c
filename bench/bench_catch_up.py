"""A subscriber starts in the past while the feed continues at a million messages a second.

ours    PUB process ==blocks, TCP loopback==> recorder process ==write==> journal
                    |                         its archive thread ==blocks, TCP loopback==> the new subscriber
                    `==blocks, TCP loopback==> a live subscriber, whose latency is measured
limit   the files of the same number of messages read into one buffer

Sequence numbers are checked for gaps and order; a round in which a message is missing is void.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
from pytest_benchmark.fixture import BenchmarkFixture

from bench.measure.beside import late_beside
from bench.measure.contest import Contest, expect
from bench.processes.child import Child
from bench.rivals.rival import tcp
from bench.workload.recorded import read_whole
from blackbox import Feed

MESSAGES: Final = 10_000_000
RATE: Final = 1_000_000
_ALONE_S: Final = 5.0


def _join(joiner: Child) -> float:
    told = joiner.ask({"back": MESSAGES})
    expect("messages lost", told["gaps"], 0)
    return float(told["messages"] / told["seconds"] / 1e6)


def _files(place: Path, publisher: Child) -> float:
    began = time.perf_counter()
    (day,) = (path.parent for path in place.rglob("manifest.json"))
    size = read_whole(day)
    seconds = time.perf_counter() - began
    assert size
    return float(publisher.ask({})["published"] / seconds / 1e6)


def test_catch_up(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """M messages/s received by the new subscriber until it is live; the feed continues at 1."""
    contest = Contest("Catching up with a feed of 1 M messages/s", "M messages/s", topology=__doc__)
    with ExitStack() as stack:
        publisher, joiner = _house(stack, tmp_path)
        contest.add("start(back=10,000,000)", partial(_join, joiner), promise="all, in order")
        contest.add("reading the files", partial(_files, tmp_path, publisher), "limit")
        contest.run(benchmark)


def test_latency_while_another_joins(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """Latency of a live subscriber while another one joins."""
    contest = Contest("p99 of a live subscriber, 1 M messages/s", "µs", lower=True, topology=__doc__)
    with ExitStack() as stack:
        feed = _feed()
        _, joiner = _house(stack, tmp_path, feed)
        listener = stack.enter_context(Child("bench.processes.recovered:listen", feed=feed))
        alone, join = partial(time.sleep, _ALONE_S), partial(_join, joiner)
        for name, meanwhile in (("no joiner", alone), ("one joins a day of 10 M", join)):
            contest.add(name, partial(late_beside, contest, name, listener, meanwhile))
        contest.run(benchmark)


def _feed() -> Feed:
    return msgspec.structs.replace(Feed.local("catch-up", slices=1), archives=(tcp(),))


def _house(stack: ExitStack, place: Path, feed: Feed | None = None) -> tuple[Child, Child]:
    feed = feed or _feed()
    publisher = stack.enter_context(Child("bench.processes.recovered:publish", feed=feed, messages=MESSAGES, rate=RATE))
    recorder = stack.enter_context(Child("bench.processes.recovered:record", feed=feed, directory=str(place)))
    publisher.ask({})
    recorder.ask({"messages": MESSAGES})
    return publisher, stack.enter_context(Child("bench.processes.recovered:join", feed=feed))
