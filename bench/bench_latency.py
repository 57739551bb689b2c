"""Latency of messages at 1,000, 100,000 and 1,000,000 a second, each sent at its due time.

    ours    PUB process: publish() ==blocks of 100 µs, TCP loopback==> SUB | ROUTER ==> DEALER ==> on(prefix)
                         publish_many(), 100 at once ==============>                              on_compiled(prefix)
    rival   PUB process: pyzmq send() --a message a frame-----------> pyzmq SUB recv()

Counted from when a message was due until it is noted at the receiver: a sender that is late, or is held up, hides
nothing, and what waits behind a slow message counts for each that waits (no coordinated omission). Percentiles are of
all messages, not of samples or of a histogram. Nothing may be lost: queues are long, and a round that lost is void. So
is one that fell behind its rate: there a delay is that of the backlog, and depends on how long the run is. One message
at a time, nobody here sends 1,000,000 a second: of that the second table tells only the rate that was reached.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial

from pytest_benchmark.fixture import BenchmarkFixture

from bench.child import Child
from bench.contest import Contest, Figure, Kind, Lost, expect
from bench.loads import Load, sender
from bench.receivers import Delays, compiled_delays, delays, expect_rate, percentiles_us, rival_delays, stages
from blackbox import Feed

RUNS = {1_000: 1_000, 100_000: 40_000, 1_000_000: 200_000}
"""Rate to messages of a round."""
HWM = 1_000_000
SINGLY = (1_000, 100_000)
"""Rates at which messages can be sent one by one."""
STAGE_RUNS = 3
"""After the rounds: where the time of `publish()` goes, told below the table."""
PROMISE = "nothing lost: queues are longer than a run"


def _noted(contest: Contest, name: str, load: Load, measure: Callable[[], Delays]) -> Figure:
    found = measure()
    expect("messages lost", found.lost, 0)
    expect_rate(load, found.rate)
    percentiles = percentiles_us(found.late_ns)
    contest.percentiles(f"{name} at {load.rate:,}", percentiles)
    return Figure(percentiles["p50"], found.spent)


def test_latency(benchmark: BenchmarkFixture) -> None:
    """µs since due: the table has medians over rounds of each round's p50."""
    title = "Latency since due, one message at a time: p50"
    contest = Contest(title, "µs", lower=True, topology=__doc__, axis="messages a second")
    feed, plain = Feed.local("latency", slices=1), Feed.local("latency-rival", slices=1)
    with sender("paced", [feed], HWM) as ours, sender("rival", [plain], HWM) as theirs:
        for rate, messages in RUNS.items():
            single, many, rival = (
                Load(feed=feed, messages=messages, rate=rate),
                Load(feed=feed, messages=messages, rate=rate, at_once=100),
                Load(feed=plain, messages=messages, rate=rate),
            )
            entries: list[tuple[str, Kind, Load, Callable[[], Delays]]] = [
                ("publish(), on(prefix)", "ours", single, partial(delays, ours, single)),
                ("pyzmq send(), recv()", "rival", rival, partial(rival_delays, theirs, rival, HWM)),
                ("publish_many(), on_compiled(prefix)", "ours", many, partial(compiled_delays, ours, many)),
            ]
            singly, together = slice(0, 2), slice(2, 3)
            chosen = {min(RUNS): singly, max(RUNS): together}.get(rate, slice(None))
            for name, kind, load, measure in entries[chosen]:
                contest.add(name, partial(_noted, contest, name, load, measure), kind, PROMISE, at=rate)
        contest.run(benchmark)
        for rate in SINGLY:
            _show_stages(contest, ours, Load(feed=feed, messages=RUNS[rate], rate=rate))


def _show_stages(contest: Contest, remote: Child, load: Load) -> None:
    runs = []
    for _ in range(STAGE_RUNS):
        try:
            runs.append(stages(remote, load))
        except Lost as lost:  # as void as a round would be
            contest.show(f"stages at {load.rate:,}: a run is void", lost)
    for stage in runs[0] if runs else ():
        value = statistics.median(run[stage] for run in runs)
        contest.show(f"{stage}, at {load.rate:,}", f"{value:.0f} µs")


def _reached(measure: Callable[[], Delays]) -> Figure:
    found = measure()
    expect("messages lost", found.lost, 0)
    return Figure(found.rate / 1e6, found.spent)


def test_overload(benchmark: BenchmarkFixture) -> None:
    """M messages/s that are reached where 1 M are due."""
    rate = max(RUNS)
    contest = Contest(f"Due at {rate:,} a second, one at a time: the rate reached", "M messages/s", topology=__doc__)
    feed, plain = Feed.local("overload", slices=1), Feed.local("overload-rival", slices=1)
    with sender("paced", [feed], HWM) as ours, sender("rival", [plain], HWM) as theirs:
        single, rival = (Load(feed=each, messages=RUNS[rate], rate=rate) for each in (feed, plain))
        contest.add("publish(), on(prefix)", lambda: _reached(partial(delays, ours, single)), "ours", PROMISE)
        contest.add(
            "pyzmq send(), recv()", lambda: _reached(partial(rival_delays, theirs, rival, HWM)), "rival", PROMISE
        )
        contest.run(benchmark)
