"""One publisher, four subscribers, one of which may be slow: what do the other three notice?

    PUB process, 50 messages a millisecond ==> 3 x SUB process ==> on_batch: check, note the delay
                    when_full="drop"       ==> 1 x SUB process ==> on_batch: the same, and sleep 50 ms a block
                                               none slow | on_slow="terminate": it ends | "warn": it hangs on
    rival           pyzmq PUB, at its high-water mark it drops too --a message a frame--> 4 x SUB process, recv()

Figures: p99 since a message was due, of the three that are not slow (their mean). A round in which one of the three
missed a message is void, so they got all of it at the rate at which it was sent: the slow one alone may lose.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

import numpy
from pytest_benchmark.fixture import BenchmarkFixture

from bench.child import Child
from bench.contest import Contest, Figure, Spent, expect
from bench.listeners import OnSlow, heard, listen, listener
from bench.loads import Load, order, sender
from bench.workload import expected_sum, make_pool
from blackbox import Feed

RATE = 50_000
AT_ONCE = 50
LISTENERS = 4
MESSAGES = 30_000
PAYLOAD_BYTES = 1_000
HWM_BLOCKS = 200
"""Less than a run has, with what TCP and the receiver hold: a slow one that hangs on makes the publisher drop."""
DROPS = "the publisher waits for nobody; the three lose nothing"


def _load(feed: Feed) -> Load:
    return Load(
        feed=feed, messages=MESSAGES, payload_bytes=PAYLOAD_BYTES, rate=RATE, at_once=AT_ONCE, subscribers=LISTENERS
    )


def _p99(
    contest: Contest,
    name: str,
    publisher: Child,
    listeners: Sequence[Child],
    load: Load,
    on_slow: OnSlow | None,
) -> Figure:
    listen(listeners, load, [*[None] * (LISTENERS - 1), on_slow])
    order(publisher, load)
    *others, last = heard(listeners, publisher.answer()["began"])
    for each in others:
        expect("messages of one that is not slow", each.messages, load.messages)
        expect("messages out of order", each.out_of_order, 0)
        expect("checksum", each.checksum, expected_sum(make_pool(payload_bytes=PAYLOAD_BYTES), load.messages))
    expect("the last one terminated", last.has_terminated, on_slow == "terminate")
    if on_slow is None:
        expect("messages of the last one", last.messages, load.messages)
    else:
        expect("the slow one missed some", last.messages < load.messages, True)
    mean = {percent: float(numpy.mean([each.late_us[percent] for each in others])) for percent in others[0].late_us}
    contest.percentiles(name, mean)
    spent = Spent(subscriber_cpu_s=float(numpy.mean([each.cpu_s for each in others])), messages=load.messages)
    return Figure(mean["p99"], spent)


def test_fanout(benchmark: BenchmarkFixture) -> None:
    """µs, p99."""
    title = f"Four subscribers, {RATE:,} messages/s, p99 since due of the three that are not slow"
    contest = Contest(title, "µs", lower=True, topology=__doc__)
    feed, plain = Feed.local("fanout", slices=1), Feed.local("fanout-rival", slices=1)
    cases: tuple[tuple[str, OnSlow | None], ...] = (
        ("none slow", None),
        ("one slow, which terminates", "terminate"),
        ("one slow, which hangs on", "warn"),
    )
    with ExitStack() as stack:
        ours = stack.enter_context(sender("paced", [feed], HWM_BLOCKS))
        theirs = stack.enter_context(sender("rival", [plain], HWM_BLOCKS * AT_ONCE))
        our_listeners = [stack.enter_context(listener("blackbox")) for _ in range(LISTENERS)]
        their_listeners = [stack.enter_context(listener("pyzmq")) for _ in range(LISTENERS)]
        for name, on_slow in cases:
            contest.add(name, partial(_p99, contest, name, ours, our_listeners, _load(feed), on_slow), promise=DROPS)
        for name, on_slow in cases[::2]:
            rival = f"pyzmq: {name}"
            run = partial(_p99, contest, rival, theirs, their_listeners, _load(plain), on_slow)
            contest.add(rival, run, "rival", DROPS, versus=name)
        contest.run(benchmark)
        for name, _ in cases[1:]:
            contest.show(f"{name}: p99 of the others beside none slow", f"{contest.ratio(name, 'none slow'):.2f} x")
