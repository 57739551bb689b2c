"""Peak memory of a replay, of a recording of 0.5 GB and of one ten times as large, each in a process of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from pytest_benchmark.fixture import BenchmarkFixture

from bench.contest import show
from bench.recorded import journals, recording_of

SMALL = 4_200_000
LARGE = 10 * SMALL
_LIMIT_MB = 300

_REPLAY = """
import sys, numpy
from bench.bench_delivery import _count
from bench.workload import TOPICS
from blackbox import Recording, Subscriber

def replay(day):
    recording = Recording.open(day)
    subscriber = Subscriber(recording.feed)
    subscriber.on_compiled(b"", state=numpy.zeros((TOPICS, 3), numpy.int64))(_count)
    return subscriber.replay(recording).messages

def resident(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name))

replay(sys.argv[1])  # what is compiled, and imported, is there before it counts
base = resident("VmRSS")
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # the peak begins anew
print(replay(sys.argv[2]), (resident("VmHWM") - base) / 1024)
"""


def _peak_mb(first: Path, day: Path, messages: int) -> float:
    done = subprocess.run(
        [sys.executable, "-c", _REPLAY, str(first), str(day)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parent.parent,
    )
    found = re.fullmatch(r"(\d+) (-?[\d.]+)\s*", done.stdout)
    assert found is not None, done.stdout
    assert int(found[1]) == messages
    return float(found[2])


def test_replay_memory(benchmark: BenchmarkFixture) -> None:
    """MB above the process's base."""
    tiny, small, large = (recording_of(messages) for messages in (200_000, SMALL, LARGE))
    peaks: list[tuple[float, float]] = []

    def both() -> None:
        peaks.append((_peak_mb(tiny, small, SMALL), _peak_mb(tiny, large, LARGE)))

    benchmark.pedantic(both, rounds=3, iterations=1)
    for name, day, place in (("small", small, 0), ("large", large, 1)):
        size = sum(path.stat().st_size for path in journals(day)) / 1e9
        show(f"{name}: {size:.2f} GB, peak above base", ", ".join(f"{peak[place]:.0f} MB" for peak in peaks))
    assert all(peak < _LIMIT_MB for pair in peaks for peak in pair)
