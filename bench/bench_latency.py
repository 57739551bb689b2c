"""Latency at 1,000 and 100,000 messages a second, each sent at its due time.

    ours    PUB process: publish() ==blocks, TCP loopback==========> SUB | ROUTER ==> DEALER ==> on(prefix)
                                                        workers=0: SUB ==> on(prefix) in the slice thread
    rival   PUB process: pyzmq send() --a message a frame-----------> pyzmq SUB recv()
    in shared memory, spinning:   publish() ==> on_compiled(prefix)   rival   iceoryx2 send() --> receive(), polled

Latency counts from a message's due time to its arrival at the receiver, so a late sender and messages queued after a
slow one are included (no coordinated omission). Percentiles are computed from all messages, without sampling or a
histogram. Queues hold a whole run, and a round that lost a message is void. A round whose sender fell behind is also
void: its latency would be that of the backlog and depend on the length of the run.
"""

from __future__ import annotations

from functools import partial

import msgspec
from pytest_benchmark.fixture import BenchmarkFixture

from bench.measure.contest import Contest
from bench.measure.results import Kind
from bench.processes.pair import Pair, Work
from bench.rivals.rival import tcp
from bench.workload.load import Load
from blackbox import Feed

RUNS = {1_000: 1_000, 100_000: 40_000}
"""Messages of a round by rate."""
HWM = 1_000_000
PROMISE = "nothing lost: queues are longer than a run"
DEFAULT, IN_SLICE = "publish(), on(prefix)", "publish(), on(prefix), workers=0"


def test_latency(benchmark: BenchmarkFixture) -> None:
    """µs since due; the table has the median over rounds of each round's p50."""
    title = "Latency since due, one message at a time: p50"
    contest = Contest(title, "µs", lower=True, topology=__doc__, axis="messages a second")
    feed = Feed.local("latency", slices=1)
    late, in_slice = Work(form="late"), Work(form="late", workers=0)
    with (
        Pair.ours(feed, hwm_blocks=HWM) as ours,
        Pair.rival("plain_pyzmq", address=tcp(), form="late", mark=HWM, drops=True) as theirs,
    ):
        for rate, messages in RUNS.items():
            load = Load(feed=feed, messages=messages, rate=rate, at_once=1)
            entries: list[tuple[str, Kind, Pair, Work]] = [
                (DEFAULT, "ours", ours, late),
                (IN_SLICE, "ours", ours, in_slice),
                ("pyzmq send(), recv()", "rival", theirs, late),
            ]
            for name, kind, pair, work in entries:
                run = partial(pair.late, contest, f"{name} at {rate:,}", load, work)
                contest.add(name, run, kind, PROMISE, at=rate, versus=(DEFAULT, IN_SLICE) if kind == "rival" else ())
        contest.run(benchmark)


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
            (IN_SLICE, "ours", ours, Work(form="late", workers=0)),
            ("iceoryx2 send(), receive() polled", "rival", theirs, Work(form="late")),
        ]
        for name, kind, pair, work in entries:
            contest.add(name, partial(pair.late, contest, name, load, work), kind, PROMISE)
        contest.run(benchmark)
