"""Bursts of ten times the mean for 1 ms, fifty a second: how late do messages come, and is one lost?

    ours    PUB process: publish() ==blocks, TCP loopback==> SUB | ROUTER ==> DEALER ==> f(message)
    rival   PUB process: pyzmq send() --a message a frame--> pyzmq SUB recv(), note

        rate  1,000,000/s  █                    █            mean 100,000/s: 1,000 messages in 1 ms,
                52,632/s   █▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁█▁▁▁▁▁▁▁     1,000 more in the 19 ms that follow

Ours with the queue it has unless told otherwise, 1,000 blocks; pyzmq with its own, 1,000 messages, and with one that
holds the whole run. All drop what does not fit: here losses are a result, told below the table. Delays are counted
since a message was due, and a lost one is late without end: with more than 1 % lost there is no p99, the round is void.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from pytest_benchmark.fixture import BenchmarkFixture

from bench.contest import Contest, Figure, Lost
from bench.loads import Load, sender
from bench.receivers import Delays, delays, percentiles_us, rival_delays
from blackbox import Feed

RATE = 100_000
MESSAGES = 40_000
DROPS = "drops when its queue is full: losses are told"
QUEUES = (1_000, MESSAGES)
"""Of pyzmq, in messages: what it has unless told otherwise, and a whole run."""


def test_bursts(benchmark: BenchmarkFixture) -> None:
    """µs since due, p99."""
    contest = Contest(f"Mean {RATE:,} messages/s, p99 since due", "µs", lower=True, topology=__doc__)
    feed = Feed.local("bursts", slices=1)
    lost: dict[str, list[int]] = {}

    def run(name: str, measure: Callable[[], Delays]) -> Figure:
        found = measure()
        lost.setdefault(name, []).append(found.lost)
        percentiles = percentiles_us(found.late_ns, found.lost)
        if "p99" not in percentiles:
            raise Lost(f"there is no p99: {found.lost:,} of {MESSAGES:,} messages were lost")
        contest.percentiles(name, percentiles)
        return Figure(percentiles["p99"], found.spent)

    with ExitStack() as stack:
        ours = stack.enter_context(sender("paced", [feed]))
        theirs = []
        for queue in QUEUES:
            plain = Feed.local(f"bursts-rival-{queue}", slices=1)
            theirs.append((queue, plain, stack.enter_context(sender("rival", [plain], queue))))
        for shape, is_bursting in (("bursts", True), ("steady", False)):
            load = Load(feed=feed, messages=MESSAGES, rate=RATE, is_bursting=is_bursting)
            name = f"publish(), on(prefix): {shape}"
            contest.add(name, partial(run, name, partial(delays, ours, load)), promise=DROPS)
            for queue, plain, remote in theirs:
                load = Load(feed=plain, messages=MESSAGES, rate=RATE, is_bursting=is_bursting)
                rival = f"pyzmq send(), recv(), queue of {queue:,}: {shape}"
                measure = partial(run, rival, partial(rival_delays, remote, load, queue))
                contest.add(rival, measure, "rival", DROPS, versus=name)
        contest.run(benchmark)
    for name, losses in lost.items():
        contest.show(f"{name}: lost", f"{sum(losses[1:])} of {MESSAGES * len(losses[1:]):,}")
