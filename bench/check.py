"""Detect steps that got slower or faster: `make bench-check`, on a quiet machine.

    step, fixed loop, step, fixed loop, …  ──> fastest of each ──> ratio ──> compared with bench/baseline.json

Most virtual machines have no instruction counters, and times drift with the load of the host. The fastest of many short
runs does not drift, and its ratio to a fixed compiled loop in the same second is independent of the clock rate. Steps
with several threads are noisier and have a larger threshold: replays, by CPU time, and `delivery`, the CPU time of both
processes divided by that of receiving and discarding the same blocks.

A slower step does not fail the check, only an error does. `make bench-check WRITE=1` stores the ratios as the baseline.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import numpy

from bench.bench_delivery import PREFIXES
from bench.hot_path.kernels import SPIN, Subject
from bench.measure.contest import Figure, Lost
from bench.measure.cost import cpu_seconds
from bench.measure.machine import describe, load
from bench.processes.pair import Pair, Work
from bench.workload.load import Load
from bench.workload.messages import TOPICS
from bench.workload.recorded import open_recording
from bench.workload.tally import count_compiled
from blackbox import Feed, Message, Recording, Subscriber

BASELINE: Final = Path(__file__).with_name("baseline.json")
_PASSES: Final = 3
_TRIES: Final = 25
_BLOCKS: Final = 25
_LEAST_S: Final = 0.0002
"""Minimum length of a try: long compared with the clock's resolution, short compared with disturbances."""
_REPLAYED: Final = 200_000
_DELIVERED: Final = 1_000_000
_MOVED: Final = 0.15
_MOVED_MUCH: Final = 0.35


class Ratio(NamedTuple):
    """Cost of a step relative to its reference: median and spread of the passes."""

    value: float
    spread: float
    moved: float
    """Smallest change that is reported."""


def _ratio(passes: list[float], moved: float) -> Ratio:
    value = statistics.median(passes)
    return Ratio(value, (max(passes) - min(passes)) / value, moved)


def _beside_loop(run: Callable[[], float], tries: int) -> float:
    """Return the fastest of many runs, ns a message, divided by the ns of a fixed loop's step."""
    figures = [(run(), SPIN.ns_a_message(_BLOCKS)) for _ in range(tries)]
    return min(mine for mine, _ in figures) / min(loop for _, loop in figures)


def _steps() -> Iterator[tuple[str, float]]:
    """Yield the cost of each step in turn, pass after pass."""
    with Subject() as kernels:
        for _ in range(_PASSES):
            for kernel in kernels:
                times = max(_BLOCKS, int(_BLOCKS * _LEAST_S / kernel.seconds(_BLOCKS)))
                yield kernel.name, _beside_loop(partial(kernel.ns_a_message, times), _TRIES)
            yield "replay, compiled", _beside_loop(_replay_compiled, 15)
            yield "replay, a call a message", _beside_loop(partial(_replay_calls, "sent"), 8)
            yield "replay, a call, by time", _beside_loop(partial(_replay_calls, "event"), 8)


def _replay_compiled() -> float:
    recording = open_recording(_REPLAYED)
    subscriber = Subscriber(recording.feed)
    subscriber.on_compiled(b"", state=numpy.zeros((TOPICS, 3), numpy.int64))(count_compiled)
    return _replay_ns(subscriber, recording)


def _replay_calls(order: Literal["event", "sent"]) -> float:
    recording = open_recording(_REPLAYED)
    subscriber = Subscriber(recording.feed)
    subscriber.on(b"")(_look)
    return _replay_ns(subscriber, recording, order)


def _replay_ns(subscriber: Subscriber, recording: Recording, order: Literal["event", "sent"] = "event") -> float:
    """Return the CPU time per message of all threads, ns."""
    began_s = cpu_seconds()
    subscriber.replay(recording, order=order)
    return (cpu_seconds() - began_s) * 1e9 / _REPLAYED


def _look(message: Message) -> None:
    len(message.payload)


def _delivery() -> Iterator[float]:
    """Yield the CPU time of delivery divided by that of only receiving."""
    feed = Feed.local("check", slices=1)
    run = Load(feed=feed, messages=_DELIVERED)
    works = Work(form="compiled", prefixes=PREFIXES, workers=2), Work(form="nothing")
    with Pair.ours(feed, when_full="wait") as pair:
        for number in range(_PASSES + 1):
            try:
                ours, bare = (_cpu_s(pair.round(run, work)) for work in works)
            except Lost as lost:  # noise of the machine
                print(f"delivery, pass {number}, was skipped: {lost}")
                continue
            if number:  # the first one is the warm-up
                yield ours / bare


def _cpu_s(figure: Figure) -> float:
    assert figure.spent is not None
    return (figure.spent.publisher_cpu_s or 0) + (figure.spent.subscriber_cpu_s or 0)


def measure() -> dict[str, Ratio]:
    """Return all ratios of this machine."""
    found: dict[str, list[float]] = {}
    for name, value in _steps():
        found.setdefault(name, []).append(value)
    if passes := list(_delivery()):
        found["delivery"] = passes
    threaded = {name for name in found if name.startswith(("replay", "delivery"))}
    return {name: _ratio(passes, _MOVED_MUCH if name in threaded else _MOVED) for name, passes in found.items()}


def compare(ratios: dict[str, Ratio], baseline: dict[str, float]) -> list[str]:
    """Return a line per step, which flags a change larger than the threshold and the spread of the passes."""
    lines = [f"{'step':28s} {'ratio':>9s} {'baseline':>9s} {'change':>8s}   spread"]
    for name, ratio in ratios.items():
        before = baseline.get(name)
        change = ratio.value / before - 1 if before else 0.0
        moved = abs(change) > max(ratio.moved, ratio.spread)
        verdict = f"   {'SLOWER' if change > 0 else 'faster'}" if moved else "" if before else "   new"
        told = f"{before:9.3f} {change:+8.1%}" if before else f"{'-':>9s} {'-':>8s}"
        lines.append(f"{name:28s} {ratio.value:9.3f} {told}   {ratio.spread:7.1%}{verdict}")
    return [
        *lines,
        *(f"{name:28s} is in the baseline, and was not measured" for name in baseline if name not in ratios),
    ]


def _main() -> None:
    begun = load()
    ratios = measure()
    machine = describe()
    known: dict[str, Any] = {"cpu_model": "", "ratios": {}}
    if BASELINE.exists():
        known = json.loads(BASELINE.read_text())
    if known["cpu_model"] not in ("", machine["cpu_model"]):
        print(f"the baseline was measured on another processor, {known['cpu_model']}: its ratios may differ")
    print("\n".join(compare(ratios, known["ratios"])))
    print(
        f"load average {begun[0]:g} at the start, {load()[0]:g} at the end; ratios are to a fixed loop, lower is better"
    )
    if "--write" in sys.argv[1:]:
        told = {name: float(f"{ratio.value:.4g}") for name, ratio in ratios.items()}
        BASELINE.write_text(json.dumps({"cpu_model": machine["cpu_model"], "ratios": told}, indent=2) + "\n")
        print(f"{BASELINE.name} written")


if __name__ == "__main__":
    _main()
