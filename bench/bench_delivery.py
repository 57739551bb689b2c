"""Delivery to callbacks that do work: count, digest and sum per topic; and with keys by channel.

    ours    PUB process ==blocks, TCP loopback==> SUB | ROUTER ==> DEALER x 2 ==> callbacks
    rival   PUB process --one message a frame---> plain pyzmq SUB recv(), no work
    limit   PUB process ==blocks================> SUB, compiled loop that discards

Each side is a process. Same messages, same promise (the publisher waits). Each round is verified: ours by count, order
and checksum per topic, the limit by count, the rival by its last message.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from bench.measure.contest import WAITS, Contest
from bench.processes.pair import Pair, Work
from bench.rivals.rival import tcp
from bench.workload.load import Load
from blackbox import Feed

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

MESSAGES = 4_000_000
RIVAL_MESSAGES = 200_000
CHANNEL_MESSAGES = 1_600_000
PYZMQ_MARK: Final = 1_000
"""High-water mark in frames on each side of plain pyzmq: its default."""
PREFIXES: Final = (b"S0", b"S1", b"S2", b"S3", b"S4")


def test_delivery(benchmark: BenchmarkFixture) -> None:
    """M messages/s from the publisher's first call to the last callback."""
    feed, two = Feed.local("bench", slices=1), Feed.local("bench2", slices=2)
    load, sliced, plain = (
        Load(feed=feed, messages=MESSAGES),
        Load(feed=two, messages=MESSAGES),
        Load(messages=RIVAL_MESSAGES),
    )
    compiled, batch = (Work(form=form, prefixes=PREFIXES, workers=2) for form in ("compiled", "batch"))
    one_worker = Work(form="compiled", prefixes=PREFIXES)
    contest = Contest("Delivery to working callbacks, 2 workers, loopback TCP", "M messages/s", topology=__doc__)
    with (
        Pair.ours(feed, two, when_full="wait") as ours,
        Pair.rival("plain_pyzmq", address=tcp(), form="nothing", mark=PYZMQ_MARK) as pyzmq,
    ):
        contest.add("compiled callbacks", lambda: ours.round(load, compiled), promise=WAITS)
        contest.add("compiled callbacks, 2 slices x 1 worker", lambda: ours.round(sliced, one_worker), promise=WAITS)
        contest.add("batch callbacks", lambda: ours.round(load, batch), promise=WAITS)
        contest.add("same blocks, only received", lambda: ours.round(load, Work(form="nothing")), "limit", WAITS)
        contest.add("pyzmq, a message a frame, no work", lambda: pyzmq.round(plain), "rival", WAITS)
        contest.run(benchmark)


def test_channels(benchmark: BenchmarkFixture) -> None:
    """M messages/s published, of 500 symbols, to subscribers of all and of one symbol, and their bytes on the wire."""
    contest = Contest("Channels", "M messages/s", topology=__doc__, axis="channels")
    feeds = [Feed.local(f"channels-{channels}", slices=1, channels=channels) for channels in (1, 16, 64)]
    with Pair.ours(*feeds, when_full="wait") as pair:
        for feed in feeds:
            load = Load(feed=feed, messages=CHANNEL_MESSAGES, topics=500, in_turn=True)
            for name, prefix in (("wants all", b""), ("wants one symbol", b"S017.")):
                work = Work(form="compiled", prefixes=(prefix,))
                contest.add(name, partial(pair.round, load, work), promise=WAITS, at=feed.channels)
        contest.run(benchmark)
