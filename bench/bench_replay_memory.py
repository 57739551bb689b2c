"""Peak memory of a replay of a small recording and of one ten times as large.

process that has replayed once --fork--> replay of a day, compiled callback, peak above its start

BLACKBOX_BENCH_LARGE sets the messages of the large one; 42000000 are 4.9 GB.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import numpy
from pytest_benchmark.fixture import BenchmarkFixture

from bench.measure.contest import Contest, expect
from bench.processes.child import Child, answer, orders
from bench.workload.messages import TOPICS
from bench.workload.recorded import journals, recording_of
from bench.workload.tally import count_compiled
from blackbox import Recording, Subscriber

LARGE = int(os.environ.get("BLACKBOX_BENCH_LARGE", "4_000_000"))
SMALL = LARGE // 10
_LIMIT_MB = 300


def replay_forked(day: str) -> None:
    """Replay each ordered day in a forked process; answer with the messages and its peak in MB."""
    _replay(day)  # compile and import before measuring
    for order in orders():
        if os.fork() == 0:
            base = _resident("VmRSS")
            Path("/proc/self/clear_refs").write_text("5")  # reset the peak
            answer(messages=_replay(order), peak_mb=(_resident("VmHWM") - base) / 1024)
            os._exit(0)
        os.wait()


def _replay(day: str) -> int:
    recording = Recording.open(day)
    subscriber = Subscriber(recording.feed)
    subscriber.on_compiled(b"", state=numpy.zeros((TOPICS, 3), numpy.int64))(count_compiled)
    return subscriber.replay(recording).messages


def _resident(name: str) -> int:
    """Return a line of /proc/self/status in KiB."""
    with Path("/proc/self/status").open() as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name))


def _peak_mb(child: Child, day: Path, messages: int) -> float:
    told = child.ask(str(day))
    expect("messages replayed", told["messages"], messages)
    expect(f"peak below {_LIMIT_MB} MB", told["peak_mb"] < _LIMIT_MB, True)
    return float(told["peak_mb"])


def test_replay_memory(benchmark: BenchmarkFixture) -> None:
    """Peak memory in MB above that before the replay."""
    contest = Contest("Peak memory of a replay", "MB", lower=True, topology=__doc__)
    with Child("bench.bench_replay_memory:replay_forked", day=str(recording_of(200_000))) as child:
        for messages in (SMALL, LARGE):
            day = recording_of(messages)
            size = sum(path.stat().st_size for path in journals(day)) / 1e9
            contest.add(f"a recording of {size:.2f} GB", partial(_peak_mb, child, day, messages))
        contest.run(benchmark)
