"""Paced replay: how late messages are, beside a bare clock loop.

ours    journals ==> pacing ==> callbacks, speed 1, 10, 100
limit   the same due times, waited for by time.sleep and a spin, nothing done
"""

from __future__ import annotations

import time
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy
from pytest_benchmark.fixture import BenchmarkFixture

from bench.contest import Contest
from blackbox import Controls, Feed, Publisher, Recorder, Recording, Replay, Subscriber

MESSAGES = 2_000
SPAN_NS = 1_000_000_000
"""Wall time of a round."""
_SPIN_NS = 100_000


@cache
def _directory() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="blackbox-bench-")


@cache
def _recording(speed: int) -> Path:
    """Messages at random times over `SPAN_NS` at that speed."""
    feed = Feed.local(f"pace-{speed}", slices=1)
    times = numpy.sort(numpy.random.default_rng(speed).integers(0, SPAN_NS * speed, MESSAGES)) + 10**18
    with Publisher(feed, when_full="wait") as publisher, Recorder(feed, _directory().name) as recorder:
        publisher.publish_many((b"A",), numpy.zeros(MESSAGES, int), numpy.zeros((MESSAGES, 8), numpy.uint8), times)
        publisher.flush()
        while recorder.statistics().messages < MESSAGES:
            time.sleep(0.01)
    (day,) = (path for path in recorder.directory.iterdir() if path.is_dir())
    return day


def _paced(speed: int, late: list[tuple[int, int]]) -> float:
    recording = Recording.open(_recording(speed))
    subscriber = Subscriber(recording.feed)
    seen = 0

    @subscriber.on_batch(b"")
    def count(batch: object) -> None:
        nonlocal seen
        seen += len(batch)  # type: ignore[arg-type]

    controls = Controls(float(speed))
    subscriber.replay(Replay(recording, controls=controls))
    assert seen == MESSAGES
    lateness = controls.lateness()
    late.append((lateness.p50_ns, lateness.p99_ns))
    return lateness.p50_ns / 1e3


def _bare(speed: int, late: list[tuple[int, int]]) -> float:
    times = numpy.sort(numpy.random.default_rng(speed).integers(0, SPAN_NS * speed, MESSAGES)) // speed
    began = time.monotonic_ns()
    lates = []
    for at in times.tolist():
        due = began + at
        while (left := due - time.monotonic_ns()) > 0:
            if left > _SPIN_NS:
                time.sleep((left - _SPIN_NS) / 1e9)
        lates.append(time.monotonic_ns() - due)
    late.append((int(numpy.percentile(lates, 50)), int(numpy.percentile(lates, 99))))
    return float(numpy.percentile(lates, 50) / 1e3)


def test_pacing(benchmark: BenchmarkFixture) -> None:
    """Schedule error, us."""
    contest = Contest("Schedule error of a paced replay, 2,000 messages in 1 s, median", "us; lower is better")
    found: dict[str, list[tuple[int, int]]] = {}
    for speed in (1, 10, 100):
        for name, contender in ((f"replay at {speed} x", _paced), (f"limit: bare clock loop, {speed} x", _bare)):
            found[name] = []
            contest.add(name, lambda s=speed, c=contender, f=found[name]: c(s, f))  # type: ignore[misc]
    contest.run(benchmark)
    for name, rounds in found.items():
        p50, p99 = numpy.median(rounds[1:], axis=0) / 1e3
        print(f"  {name:44s} p50 {p50:8.1f} us   p99 {p99:8.1f} us")
