"""Cost per message of a recorded day and of days with 2, 4 and 8 times as many messages, replayed in process.

    journals of 1, 2, 4, 8 x a day, memory-mapped ==blocks==> compiled callback: count, digest and sum per topic
    limit   the journals' bytes, read once

Figures are ns a message: a flat curve means that the cost of a day is proportional to its length. The page cache is
warm. Short days are played several times a round, so that each figure comes from the same number of messages.
"""

from __future__ import annotations

import time
from functools import partial

import numpy
from pytest_benchmark.fixture import BenchmarkFixture

from bench.measure.contest import Contest, Figure, Spent
from bench.measure.cost import cpu_seconds
from bench.workload.load import Load
from bench.workload.messages import TOPICS
from bench.workload.recorded import open_recording, read_whole, recording_of
from bench.workload.tally import count_compiled, expect_tally, state_of
from blackbox import Subscriber

DAY = 500_000
TIMES = (1, 2, 4, 8)


def _replayed(times: int) -> Figure:
    messages, seconds, cpu_s = times * DAY, 0.0, 0.0
    for _ in range(TIMES[-1] // times):
        recording = open_recording(messages)
        subscriber = Subscriber(recording.feed)
        callback = subscriber.on_compiled(b"", state=numpy.zeros((TOPICS, 3), numpy.int64))(count_compiled)
        before = cpu_seconds()
        seconds += subscriber.replay(recording).seconds
        cpu_s += cpu_seconds() - before
        expect_tally(state_of([callback]), Load(messages=messages))
    played = TIMES[-1] * DAY
    return Figure(seconds / played * 1e9, Spent(subscriber_cpu_s=cpu_s, messages=played))


def _read(times: int) -> float:
    started = time.perf_counter()
    for _ in range(TIMES[-1] // times):
        read_whole(recording_of(times * DAY))
    return (time.perf_counter() - started) / (TIMES[-1] * DAY) * 1e9


def test_days(benchmark: BenchmarkFixture) -> None:
    """Nanoseconds a message."""
    title = "Replay in process, days of 0.5 to 4 million messages"
    contest = Contest(title, "ns a message", lower=True, topology=__doc__, axis="half a million messages of a day")
    for times in TIMES:
        contest.add("compiled callback", partial(_replayed, times), at=times)
        contest.add("the same bytes, read once", partial(_read, times), "limit", at=times)
    contest.run(benchmark)
