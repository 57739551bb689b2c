"""Bursts of ten times the mean rate for 1 ms, fifty times a second: latency and losses.

    ours    PUB process: publish() ==blocks, TCP loopback==> SUB | ROUTER ==> DEALER ==> f(message)
    rival   PUB process: pyzmq send() --a message a frame--> pyzmq SUB recv(), note

        rate  1,000,000/s  █                    █            mean 100,000/s: 1,000 messages in 1 ms,
                52,632/s   █▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁█▁▁▁▁▁▁▁     1,000 more in the 19 ms that follow

Ours uses its default queue of 1,000 blocks; pyzmq its default of 1,000 messages, and one that holds the whole run. All
drop messages when a queue is full; losses are listed below the table. Delays count from a message's due time, and a
lost message has infinite delay: with more than 1 % lost there is no p99 and the round is void.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

from pytest_benchmark.fixture import BenchmarkFixture

from bench.measure.contest import Contest, Figure, Lost
from bench.processes.pair import Pair, Work
from bench.rivals.rival import tcp
from bench.workload.load import Load
from blackbox import Feed

RATE = 100_000
MESSAGES = 40_000
DROPS = "drops when its queue is full: losses are listed"
HWM_BLOCKS = 1_000
QUEUES = (1_000, MESSAGES)
"""Queue sizes of pyzmq in messages: its default and a whole run."""


def test_bursts(benchmark: BenchmarkFixture) -> None:
    """p99 since due, µs."""
    contest = Contest(f"Mean {RATE:,} messages/s, p99 since due", "µs", lower=True, topology=__doc__)
    feed = Feed.local("bursts", slices=1)
    lost: dict[str, list[int]] = {}

    def run(name: str, pair: Pair, load: Load) -> Figure:
        spent = pair.round(load, Work(form="late")).spent
        lost.setdefault(name, []).append(pair.heard.missed)
        if "p99" not in pair.heard.late_us:
            raise Lost(f"no p99: {pair.heard.missed:,} of {MESSAGES:,} messages were lost")
        contest.percentiles(name, pair.heard.late_us)
        return Figure(pair.heard.late_us["p99"], spent)

    with ExitStack() as stack:
        ours = stack.enter_context(Pair.ours(feed, hwm_blocks=HWM_BLOCKS))
        theirs = [
            (queue, stack.enter_context(Pair.rival("plain_pyzmq", address=tcp(), form="late", mark=queue, drops=True)))
            for queue in QUEUES
        ]
        for shape, is_bursting in (("bursts", True), ("steady", False)):
            load = Load(feed=feed, messages=MESSAGES, rate=RATE, at_once=1, is_bursting=is_bursting)
            name = f"publish(), on(prefix): {shape}"
            contest.add(name, partial(run, name, ours, load), promise=DROPS)
            for queue, pair in theirs:
                rival = f"pyzmq send(), recv(), queue of {queue:,}: {shape}"
                contest.add(rival, partial(run, rival, pair, load), "rival", DROPS, versus=name)
        contest.run(benchmark)
    for name, losses in lost.items():
        contest.show(f"{name}: lost", f"{sum(losses[1:])} of {MESSAGES * len(losses[1:]):,}")
