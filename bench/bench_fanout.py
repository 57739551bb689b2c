"""One publisher, four subscribers, one of them possibly slow: the delay of the other three.

    PUB process, 50 messages a millisecond ==> 3 x SUB process ==> on_batch: check, note the delay
                    when_full="drop"       ==> 1 x SUB process ==> on_batch: the same, and sleep 50 ms a block
                                               none slow | SlowPolicy("raise"): it ends | "warn": it continues
    rival           pyzmq PUB, also drops at its high-water mark --a message a frame--> 4 x SUB process, recv()

Figures: p99 since a message was due, mean of the three fast subscribers. A round in which one of the three missed a
message is void; only the slow one may lose messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Literal

import numpy
from pytest_benchmark.fixture import BenchmarkFixture

from bench.measure.contest import Contest, Figure, Spent, expect
from bench.processes.child import Child
from bench.processes.pair import Form, Order, Work, play
from bench.rivals.rival import tcp
from bench.workload.load import Load
from blackbox import Feed

RATE = 50_000
AT_ONCE = 50
LISTENERS = 4
MESSAGES = 30_000
PAYLOAD_BYTES = 1_000
HWM_BLOCKS = 200
"""Less than a run, even with the buffers of TCP and the receiver: a slow subscriber makes the publisher drop."""
DROPS = "the publisher never waits; the three lose nothing"
OnSlow = Literal["raise", "warn"] | None
Sides = tuple[Child, Sequence[Child]]


def _p99(contest: Contest, name: str, sides: Sides, load: Load, form: Form, on_slow: OnSlow) -> Figure:
    publisher, listeners = sides
    orders = [Order(load, Work(form=form)) for _ in listeners]
    orders[-1] = Order(load, Work(form=form, on_slow=on_slow))
    _, (*others, last) = play(publisher, listeners, orders)
    for each in others:
        expect("error of a fast subscriber", each.lost, "")
        expect("messages of a fast subscriber", each.messages, load.messages)
    expect("slow subscriber terminated", last.has_terminated, on_slow == "raise")
    expect("last subscriber received all", last.messages == load.messages, on_slow is None)
    mean = {percent: float(numpy.mean([each.late_us[percent] for each in others])) for percent in others[0].late_us}
    contest.percentiles(name, mean)
    spent = Spent(subscriber_cpu_s=float(numpy.mean([each.cpu_s for each in others])), messages=load.messages)
    return Figure(mean["p99"], spent)


def test_fanout(benchmark: BenchmarkFixture) -> None:
    """µs, p99."""
    title = f"Four subscribers, {RATE:,} messages/s, p99 since due of the three that are not slow"
    contest = Contest(title, "µs", lower=True, topology=__doc__)
    feed = Feed.local("fanout", slices=1)
    load = Load(
        feed=feed, messages=MESSAGES, payload_bytes=PAYLOAD_BYTES, rate=RATE, at_once=AT_ONCE, subscribers=LISTENERS
    )
    cases: tuple[tuple[str, OnSlow], ...] = (
        ("none slow", None),
        ("one slow, which terminates", "raise"),
        ("one slow, which hangs on", "warn"),
    )
    plain = {"address": tcp(), "form": "late", "mark": HWM_BLOCKS * AT_ONCE, "drops": True}
    with ExitStack() as stack:

        def begin(publish: str, receive: str, sent: dict[str, object], heard: dict[str, object]) -> Sides:
            publisher = stack.enter_context(Child(publish, **sent))
            return publisher, [stack.enter_context(Child(receive, **heard)) for _ in range(LISTENERS)]

        settings = {"feeds": [feed], "hwm_blocks": HWM_BLOCKS}
        ours = begin("bench.processes.sender:publish", "bench.processes.receiver:receive", settings, {})
        theirs = begin("bench.rivals.plain_pyzmq:publish", "bench.rivals.plain_pyzmq:receive", plain, plain)
        for name, on_slow in cases:
            contest.add(name, partial(_p99, contest, name, ours, load, "late batches", on_slow), promise=DROPS)
        for name, on_slow in cases[::2]:
            rival = f"pyzmq: {name}"
            run = partial(_p99, contest, rival, theirs, load, "late", on_slow)
            contest.add(rival, run, "rival", DROPS, versus=name)
        contest.run(benchmark)
        for name, _ in cases[1:]:
            contest.show(f"{name}: p99 of the others / none slow", f"{contest.ratio(name, 'none slow'):.2f} x")
