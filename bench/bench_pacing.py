"""Schedule error of a paced replay, compared with a bare clock loop.

ours    journals ==> pacing ==> callbacks, speed 1, 10, 100
limit   the same due times, waited for by time.sleep and a spin
"""

from __future__ import annotations

import time
from functools import cache, partial
from pathlib import Path

import numpy
from pytest_benchmark.fixture import BenchmarkFixture

from bench.measure.contest import Contest, expect
from bench.workload.recorded import record
from blackbox import Feed, Publisher, Recording, Replay, Subscriber
from blackbox.replay.controls import Controls

MESSAGES = 1_000
"""Messages of a round: ten are above p99."""
SPAN_NS = 200_000_000
"""Wall time of a round."""
_SPIN_NS = 100_000


@cache
def _recording(speed: int) -> Path:
    """Return a recording of messages at random times that replays in `SPAN_NS` at that speed."""
    feed = Feed.local(f"pace-{speed}", slices=1)
    times = numpy.sort(numpy.random.default_rng(speed).integers(0, SPAN_NS * speed, MESSAGES)) + 10**18

    def publish(publisher: Publisher) -> None:
        publisher.publish_many((b"A",), numpy.zeros(MESSAGES, int), numpy.zeros((MESSAGES, 8), numpy.uint8), times)

    return record(feed, MESSAGES, publish)


def _paced(contest: Contest, name: str, speed: int) -> float:
    recording = Recording.open(_recording(speed))
    subscriber = Subscriber(recording.feed)
    seen = 0

    @subscriber.on_batch(b"")
    def count(batch: object) -> None:
        nonlocal seen
        seen += len(batch)  # type: ignore[arg-type]

    controls = Controls(float(speed))
    subscriber.replay(Replay(recording, controls=controls))
    expect("messages seen", seen, MESSAGES)
    lateness = controls.lateness()
    contest.percentiles(name, {"p50": lateness.p50_ns / 1e3, "p99": lateness.p99_ns / 1e3})
    return lateness.p50_ns / 1e3


def _bare(contest: Contest, name: str, speed: int) -> float:
    times = numpy.sort(numpy.random.default_rng(speed).integers(0, SPAN_NS * speed, MESSAGES)) // speed
    began = time.monotonic_ns()
    lates = []
    for at in times.tolist():
        due = began + at
        while (left := due - time.monotonic_ns()) > 0:
            if left > _SPIN_NS:
                time.sleep((left - _SPIN_NS) / 1e9)
        lates.append(time.monotonic_ns() - due)
    p50, p99 = (float(late) / 1e3 for late in numpy.percentile(lates, (50, 99)))
    contest.percentiles(name, {"p50": p50, "p99": p99})
    return p50


def test_pacing(benchmark: BenchmarkFixture) -> None:
    """Schedule error, µs."""
    contest = Contest(
        f"Schedule error of a paced replay, {MESSAGES:,} messages in 0.2 s: p50", "µs", lower=True, topology=__doc__
    )
    for speed in (1, 10, 100):
        ours, limit = f"replay at {speed} x", f"bare clock loop, {speed} x"
        contest.add(ours, partial(_paced, contest, ours, speed), promise="every message, in order")
        contest.add(limit, partial(_bare, contest, limit, speed), "limit", versus=ours)
    contest.run(benchmark)
