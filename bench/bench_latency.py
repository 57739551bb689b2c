"""Latency at 1,000, 100,000 and 1,000,000 messages a second, each sent at its due time.

    ours    PUB process: publish() ==blocks, TCP loopback==========> SUB | ROUTER ==> DEALER ==> on(prefix)
                                                        workers=0: SUB ==> on(prefix) in the slice thread
                         publish_many(), 100 per call =============>                              on_compiled(prefix)
    rival   PUB process: pyzmq send() --a message a frame-----------> pyzmq SUB recv()
    in shared memory, spinning:   publish() ==> on_compiled(prefix)   rival   iceoryx2 send() --> receive(), polled

Latency counts from a message's due time to its arrival at the receiver, so a late sender and messages queued after a
slow one are included (no coordinated omission). Percentiles are computed from all messages, without sampling or a
histogram. Queues hold a whole run, and a round that lost a message is void. A round whose sender fell behind is also
void: its latency would be that of the backlog and depend on the length of the run. No contender here sends
1,000,000 single messages a second.
"""

from __future__ import annotations

import statistics
from functools import partial

import msgspec
from pytest_benchmark.fixture import BenchmarkFixture

from bench.measure.contest import Contest, Figure, Lost
from bench.measure.results import Kind
from bench.processes.pair import Pair, Work
from bench.rivals.rival import tcp
from bench.workload.load import Load
from blackbox import Feed

RUNS = {1_000: 1_000, 100_000: 40_000, 1_000_000: 200_000}
"""Messages of a round by rate."""
HWM = 1_000_000
SINGLY = (1_000, 100_000)
"""Rates at which messages can be sent one by one."""
STAGE_RUNS = 3
"""Runs after the rounds that divide the latency of `publish()` by stage, shown below the table."""
PROMISE = "nothing lost: queues are longer than a run"


def _noted(contest: Contest, name: str, pair: Pair, load: Load, work: Work) -> Figure:
    percentiles, figure = pair.late(load, work)
    contest.percentiles(f"{name} at {load.rate:,}", percentiles)
    return Figure(percentiles["p50"], figure.spent)


def test_latency(benchmark: BenchmarkFixture) -> None:
    """µs since due; the table has the median over rounds of each round's p50."""
    title = "Latency since due, one message at a time: p50"
    contest = Contest(title, "µs", lower=True, topology=__doc__, axis="messages a second")
    feed = Feed.local("latency", slices=1)
    late, in_slice, compiled = Work(form="late"), Work(form="late", workers=0), Work(form="late compiled")
    with (
        Pair.ours(feed, hwm_blocks=HWM) as ours,
        Pair.rival("plain_pyzmq", address=tcp(), form="late", mark=HWM, drops=True) as theirs,
    ):
        for rate, messages in RUNS.items():
            single = Load(feed=feed, messages=messages, rate=rate, at_once=1)
            many = Load(feed=feed, messages=messages, rate=rate, at_once=100)
            entries: list[tuple[str, Kind, Pair, Load, Work]] = [
                ("publish(), on(prefix)", "ours", ours, single, late),
                ("publish(), on(prefix), workers=0", "ours", ours, single, in_slice),
                ("pyzmq send(), recv()", "rival", theirs, single, late),
                ("publish_many(), on_compiled(prefix)", "ours", ours, many, compiled),
            ]
            singly, together = slice(0, 3), slice(3, 4)
            chosen = {min(RUNS): singly, max(RUNS): together}.get(rate, slice(None))
            for name, kind, pair, load, work in entries[chosen]:
                contest.add(name, partial(_noted, contest, name, pair, load, work), kind, PROMISE, at=rate)
        contest.run(benchmark)
        for rate in SINGLY:
            _show_stages(contest, ours, Load(feed=feed, messages=RUNS[rate], rate=rate, at_once=1))


def test_latency_in_shared_memory(benchmark: BenchmarkFixture) -> None:
    """µs since due, both sides spinning; the table has the median over rounds of each round's p50."""
    contest = Contest("Latency since due in shared memory, spinning: p50", "µs", lower=True, topology=__doc__)
    rate = min(RUNS)
    local = Feed.local("latency", slices=1, transport="shm")
    feed = msgspec.structs.replace(local, slices=(msgspec.structs.replace(local.slices[0], idle="spin"),))
    load = Load(feed=feed, messages=RUNS[rate], rate=rate, at_once=1)
    with (
        Pair.ours(feed, hwm_blocks=HWM) as ours,
        Pair.rival("plain_iceoryx2", address="latency", form="late") as theirs,
    ):
        entries: list[tuple[str, Kind, Pair, Work]] = [
            ("publish(), on_compiled(prefix)", "ours", ours, Work(form="late compiled")),
            ("publish(), on(prefix), workers=0", "ours", ours, Work(form="late", workers=0)),
            ("iceoryx2 send(), receive() polled", "rival", theirs, Work(form="late")),
        ]
        for name, kind, pair, work in entries:
            contest.add(name, partial(_noted, contest, name, pair, load, work), kind, PROMISE)
        contest.run(benchmark)


def _show_stages(contest: Contest, pair: Pair, load: Load) -> None:
    runs = []
    for _ in range(STAGE_RUNS):
        try:
            pair.late(load, Work(form="stages"))
            runs.append(pair.heard.stages)
        except Lost as lost:  # void, like a round
            contest.show(f"stages at {load.rate:,}: void run", lost)
    for stage in runs[0] if runs else ():
        value = statistics.median(run[stage] for run in runs)
        contest.show(f"{stage}, at {load.rate:,}", f"{value:.0f} µs")
