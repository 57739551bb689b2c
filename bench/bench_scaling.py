"""Cost of a message by the number of slices, workers, topics and subscriptions, payload bytes and key bytes.

    PUB process ==blocks, TCP loopback==> SUB | ROUTER ==> DEALER x workers ==> compiled callbacks     x slices
    limit, in each round: the same blocks of one slice ==> SUB, a compiled loop that discards them

Compiled callbacks keep count, digest and sum per topic, Python ones count and sum over all topics, message by message;
all detect reordering. The publisher waits and nothing is lost. Flat curves are ideal. On two cores a second slice
adds a second core, a fourth adds none.
"""

from __future__ import annotations

from functools import partial

import msgspec
import numpy
from pytest_benchmark.fixture import BenchmarkFixture

from bench.measure.contest import WAITS, Contest
from bench.processes.pair import Pair, Work
from bench.workload.load import Load
from bench.workload.messages import make_pool
from blackbox import Feed

MESSAGES = 3_000_000
PYTHON_MESSAGES = 1_000_000
THOUSANDS = tuple(b"S%d" % digit for digit in range(5))
COMPILED = Work(form="compiled")
LIMIT = "same blocks, only received"


def _limit(contest: Contest, pair: Pair, load: Load, at: float) -> None:
    contest.add(LIMIT, partial(pair.round, load, Work(form="nothing")), "limit", WAITS, at=at)


def test_slices(benchmark: BenchmarkFixture) -> None:
    """M messages/s over 1, 2 and 4 slices with one worker each."""
    contest = Contest("Slices, 1 worker each", "M messages/s", topology=__doc__, axis="slices")
    feeds = [Feed.local(f"slices-{slices}", slices=slices) for slices in (1, 2, 4)]
    with Pair.ours(*feeds, when_full="wait") as pair:
        for feed in feeds:
            load = Load(feed=feed, messages=MESSAGES)
            at = len(feed.slices)
            contest.add("compiled callback", partial(pair.round, load, COMPILED), promise=WAITS, at=at)
        _limit(contest, pair, Load(feed=feeds[0], messages=MESSAGES), at=1)
        contest.run(benchmark)


def test_workers(benchmark: BenchmarkFixture) -> None:
    """M messages/s of one slice, its topics spread over callbacks on 1, 2 and 4 workers."""
    contest = Contest("Workers of one slice", "M messages/s", topology=__doc__, axis="workers")
    feed = Feed.local("workers", slices=1)
    load = Load(feed=feed, messages=MESSAGES)
    with Pair.ours(feed, when_full="wait") as pair:
        for workers in (1, 2, 4):
            contest.add(
                "compiled callbacks by thousands of topics",
                partial(pair.round, load, Work(form="compiled", prefixes=THOUSANDS, workers=workers)),
                promise=WAITS,
                at=workers,
            )
            _limit(contest, pair, load, at=workers)
        contest.run(benchmark)


def test_processes(benchmark: BenchmarkFixture) -> None:
    """M messages/s handled one by one in Python, with slices in threads, which share the GIL, and in processes."""
    title = "Python handles each message, slices in threads or in processes"
    contest = Contest(title, "M messages/s", topology=__doc__, axis="slices")
    feeds = [Feed.local(f"python-{slices}", slices=slices) for slices in (1, 2, 4)]
    with Pair.ours(*feeds, when_full="wait") as pair:
        for feed in feeds:
            load = Load(feed=feed, messages=PYTHON_MESSAGES)
            for name, processes in (("threads", False), ("processes", True)):
                work = Work(form="python", processes=processes)
                contest.add(name, partial(pair.round, load, work), promise=WAITS, at=len(feed.slices))
        _limit(contest, pair, Load(feed=feeds[0], messages=MESSAGES), at=1)
        contest.run(benchmark)


def test_workers_of_python(benchmark: BenchmarkFixture) -> None:
    """M messages/s of one slice handled one by one in Python, by workers, which share the GIL of their process."""
    title = "Python handles each message, workers in this process or in the slice's own"
    contest = Contest(title, "M messages/s", topology=__doc__, axis="workers")
    feed = Feed.local("python-workers", slices=1)
    load = Load(feed=feed, messages=PYTHON_MESSAGES)
    with Pair.ours(feed, when_full="wait") as pair:
        for workers in (1, 2, 4):
            for name, processes in (("threads", False), ("processes", True)):
                work = Work(form="python", prefixes=THOUSANDS, workers=workers, processes=processes)
                contest.add(name, partial(pair.round, load, work), promise=WAITS, at=workers)
            _limit(contest, pair, load, at=workers)
        contest.run(benchmark)


def test_payload_bytes(benchmark: BenchmarkFixture) -> None:
    """M messages/s of 16 to 4,096 bytes."""
    contest = Contest("Size of a message", "M messages/s", topology=__doc__, axis="payload bytes")
    feed = Feed.local("sizes", slices=1)
    with Pair.ours(feed, when_full="wait") as pair:
        for size in (16, 64, 256, 1024, 4096):
            load = Load(feed=feed, messages=min(4_000_000, 400_000_000 // size), payload_bytes=size)
            contest.add("compiled callback", partial(pair.round, load, COMPILED), promise=WAITS, at=size)
            _limit(contest, pair, load, at=size)
        contest.run(benchmark)


def test_topics(benchmark: BenchmarkFixture) -> None:
    """M messages/s of 1 to 100,000 topics, each new in every round."""
    contest = Contest("Topics", "M messages/s", topology=__doc__, axis="topics")
    feed = Feed.local("topics", slices=1)
    with Pair.ours(feed, when_full="wait") as pair:
        for topics in (1, 100, 5_000, 100_000):
            load = Load(feed=feed, messages=MESSAGES, topics=topics)
            contest.add("compiled callback", partial(pair.round, load, COMPILED), promise=WAITS, at=topics)
            _limit(contest, pair, load, at=topics)
        contest.run(benchmark)


def test_subscriptions(benchmark: BenchmarkFixture) -> None:
    """M messages/s of 10,000 topics divided among 1, 100 or 10,000 callbacks; each message goes to one of them."""
    contest = Contest("Subscriptions, a callback each", "M messages/s", topology=__doc__, axis="subscriptions")
    feed = Feed.local("subscriptions", slices=1)
    load = Load(feed=feed, messages=2_000_000, topics=10_000)
    with Pair.ours(feed, when_full="wait") as pair:
        for digits in (0, 2, 4):
            prefixes = tuple(b"S%0*d" % (digits, number) if digits else b"" for number in range(10**digits))
            work = Work(form="together", prefixes=prefixes)
            contest.add("compiled callbacks", partial(pair.round, load, work), promise=WAITS, at=len(prefixes))
            _limit(contest, pair, load, at=len(prefixes))
        contest.run(benchmark)


def test_key_bytes(benchmark: BenchmarkFixture) -> None:
    """M messages/s published to a subscriber of everything and of one symbol in 5,000, and bytes on the wire.

    Keys of 2 bytes are `S0` to `S4`, 4 bytes make 500 keys, 8 bytes one per symbol.
    """
    contest = Contest("Bytes of the key", "M messages/s", topology=__doc__, axis="key bytes")
    pool = make_pool()
    symbol = int(numpy.argmax(numpy.bincount(pool.topic_index)))
    feeds = [msgspec.structs.replace(Feed.local(f"keys-{size}", slices=1), key_bytes=size) for size in (0, 2, 4, 8)]
    with Pair.ours(*feeds, when_full="wait") as pair:
        for feed in feeds:
            load = Load(feed=feed, messages=1_600_000)
            contest.add("wants all", partial(pair.round, load, COMPILED), promise=WAITS, at=feed.key_bytes)
            work = Work(form="compiled", prefixes=(pool.topics[symbol],))
            contest.add("wants one symbol of 5,000", partial(pair.round, load, work), promise=WAITS, at=feed.key_bytes)
            _limit(contest, pair, load, at=feed.key_bytes)
        contest.run(benchmark)


def test_channels(benchmark: BenchmarkFixture) -> None:
    """M messages/s of 500 symbols, in columns and one by one, to subscribers of everything and of one symbol.

    One by one, more channels mean smaller blocks. The table also has bytes on the wire and CPU time.
    """
    contest = Contest("Channels", "M messages/s", topology=__doc__, axis="channels")
    topics = make_pool(500, in_turn=True).topics
    one = Work(form="compiled", prefixes=(topics[0].partition(b".")[0] + b".",))
    feeds = [Feed.local(f"channels-{channels}", slices=1, channels=channels) for channels in (1, 16, 64)]
    with Pair.ours(*feeds, when_full="wait") as pair:
        for feed in feeds:
            columns = Load(feed=feed, messages=1_600_000, topics=500, in_turn=True)
            singles = msgspec.structs.replace(columns, messages=400_000, at_once=1)
            paced = msgspec.structs.replace(columns, messages=100_000, at_once=1, rate=100_000)
            for name, load in (("columns", columns), ("one by one", singles), ("100,000/s, one by one", paced)):
                at = feed.channels
                contest.add(f"{name}, wants all", partial(pair.round, load, COMPILED), promise=WAITS, at=at)
                contest.add(f"{name}, wants one symbol", partial(pair.round, load, one), promise=WAITS, at=at)
        contest.run(benchmark)
