"""What a message costs as there is more of something: slices, workers, bytes, topics, subscriptions, bytes of key.

    PUB process ==blocks, TCP loopback==> SUB | ROUTER ==> DEALER x workers ==> compiled callbacks     x slices
    limit, beside it in each round: the same blocks ==> SUB, a compiled loop that does nothing with them; of one slice

Compiled callbacks keep count, last and sum per topic, Python ones those of all topics, message by message; all find
messages out of order. The publisher waits, nothing is lost. Flat curves are what one hopes for: on two cores a second
slice brings a second core, a fourth brings none.
"""

from __future__ import annotations

from functools import partial

import msgspec
import numpy
from pytest_benchmark.fixture import BenchmarkFixture

from bench.child import Child
from bench.contest import WAITS, Contest
from bench.loads import Load, sender
from bench.receivers import delivered, delivered_to_python, received_only, work_together
from bench.workload import make_pool
from blackbox import Feed

MESSAGES = 3_000_000
PYTHON_MESSAGES = 1_000_000
THOUSANDS = [b"S%d" % digit for digit in range(5)]
LIMIT = "same blocks, only received"


def _limit(contest: Contest, remote: Child, load: Load, at: float) -> None:
    contest.add(LIMIT, partial(received_only, remote, load), "limit", WAITS, at=at)


def test_slices(benchmark: BenchmarkFixture) -> None:
    """M messages/s over 1, 2, 4 slices of one worker each."""
    contest = Contest("Slices, 1 worker each", "M messages/s", topology=__doc__, axis="slices")
    feeds = [Feed.local(f"slices-{slices}", slices=slices) for slices in (1, 2, 4)]
    with sender("full", feeds) as remote:
        for feed in feeds:
            load = Load(feed=feed, messages=MESSAGES)
            at = len(feed.slices)
            contest.add("compiled callback", partial(delivered, remote, load), promise=WAITS, at=at)
        _limit(contest, remote, Load(feed=feeds[0], messages=MESSAGES), at=1)
        contest.run(benchmark)


def test_workers(benchmark: BenchmarkFixture) -> None:
    """M messages/s of one slice, its topics spread over callbacks on 1, 2, 4 workers."""
    contest = Contest("Workers of one slice", "M messages/s", topology=__doc__, axis="workers")
    load = Load(feed=Feed.local("workers", slices=1), messages=MESSAGES)
    with sender("full", [load.feed]) as remote:
        for workers in (1, 2, 4):
            contest.add(
                "compiled callbacks by thousands of topics",
                partial(delivered, remote, load, THOUSANDS, workers=workers),
                promise=WAITS,
                at=workers,
            )
            _limit(contest, remote, load, at=workers)
        contest.run(benchmark)


def test_processes(benchmark: BenchmarkFixture) -> None:
    """M messages/s handled one by one in Python: slices in threads, which share the GIL, and in processes."""
    title = "Python handles each message, slices in threads or in processes"
    contest = Contest(title, "M messages/s", topology=__doc__, axis="slices")
    feeds = [Feed.local(f"python-{slices}", slices=slices) for slices in (1, 2, 4)]
    with sender("full", feeds) as remote:
        for feed in feeds:
            load = Load(feed=feed, messages=PYTHON_MESSAGES)
            for name, processes in (("threads", False), ("processes", True)):
                contest.add(
                    name,
                    partial(delivered_to_python, remote, load, processes=processes),
                    promise=WAITS,
                    at=len(feed.slices),
                )
        _limit(contest, remote, Load(feed=feeds[0], messages=MESSAGES), at=1)
        contest.run(benchmark)


def test_workers_of_python(benchmark: BenchmarkFixture) -> None:
    """The same of one slice, by workers: they share the GIL of their process, be it the slice's own."""
    title = "Python handles each message, workers in this process or in the slice's own"
    contest = Contest(title, "M messages/s", topology=__doc__, axis="workers")
    load = Load(feed=Feed.local("python-workers", slices=1), messages=PYTHON_MESSAGES)
    with sender("full", [load.feed]) as remote:
        for workers in (1, 2, 4):
            for name, processes in (("threads", False), ("processes", True)):
                measure = partial(delivered_to_python, remote, load, THOUSANDS, workers=workers, processes=processes)
                contest.add(name, measure, promise=WAITS, at=workers)
            _limit(contest, remote, load, at=workers)
        contest.run(benchmark)


def test_payload_bytes(benchmark: BenchmarkFixture) -> None:
    """M messages/s of 16 to 4,096 bytes."""
    contest = Contest("Size of a message", "M messages/s", topology=__doc__, axis="payload bytes")
    feed = Feed.local("sizes", slices=1)
    with sender("full", [feed]) as remote:
        for size in (16, 64, 256, 1024, 4096):
            load = Load(feed=feed, messages=min(4_000_000, 400_000_000 // size), payload_bytes=size)
            contest.add("compiled callback", partial(delivered, remote, load), promise=WAITS, at=size)
            _limit(contest, remote, load, at=size)
        contest.run(benchmark)


def test_topics(benchmark: BenchmarkFixture) -> None:
    """M messages/s of 1 to 100,000 topics, each met for the first time in every round."""
    contest = Contest("Topics", "M messages/s", topology=__doc__, axis="topics")
    feed = Feed.local("topics", slices=1)
    with sender("full", [feed]) as remote:
        for topics in (1, 100, 5_000, 100_000):
            load = Load(feed=feed, messages=MESSAGES, topics=topics)
            contest.add("compiled callback", partial(delivered, remote, load), promise=WAITS, at=topics)
            _limit(contest, remote, load, at=topics)
        contest.run(benchmark)


def test_subscriptions(benchmark: BenchmarkFixture) -> None:
    """M messages/s of 10,000 topics that 1, 100 or 10,000 callbacks share; every message goes to one of them."""
    contest = Contest("Subscriptions, a callback each", "M messages/s", topology=__doc__, axis="subscriptions")
    load = Load(feed=Feed.local("subscriptions", slices=1), messages=2_000_000, topics=10_000)
    with sender("full", [load.feed]) as remote:
        for digits in (0, 2, 4):
            prefixes = [b"S%0*d" % (digits, number) if digits else b"" for number in range(10**digits)]
            contest.add(
                "compiled callbacks",
                partial(delivered, remote, load, prefixes, function=work_together),
                promise=WAITS,
                at=len(prefixes),
            )
            _limit(contest, remote, load, at=len(prefixes))
        contest.run(benchmark)


def test_key_bytes(benchmark: BenchmarkFixture) -> None:
    """M messages/s published, to who wants all and to who wants one symbol of 5,000; the table has bytes on the wire.

    2 bytes of a key are `S0` to `S4`, 4 are 500 keys, 8 are every symbol.
    """
    contest = Contest("Bytes of the key", "M messages/s", topology=__doc__, axis="key bytes")
    pool = make_pool()
    symbol = int(numpy.argmax(numpy.bincount(pool.topic_index)))
    wanted = int((pool.topic_index == symbol).sum())
    feeds = [msgspec.structs.replace(Feed.local(f"keys-{size}", slices=1), key_bytes=size) for size in (0, 2, 4, 8)]
    with sender("full", feeds) as remote:
        for feed in feeds:
            load = Load(feed=feed, messages=1_600_000)
            due = wanted * load.messages // len(pool.topic_index)
            contest.add("wants all", partial(delivered, remote, load), promise=WAITS, at=feed.key_bytes)
            contest.add(
                "wants one symbol of 5,000",
                partial(delivered, remote, load, [pool.topics[symbol]], wanted=due),
                promise=WAITS,
                at=feed.key_bytes,
            )
            _limit(contest, remote, load, at=feed.key_bytes)
        contest.run(benchmark)
