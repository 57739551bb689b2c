"""Peak memory of a replay, of a small recording and of one ten times as large.

process that has replayed once --fork--> replay of a day, compiled callback, peak above what it began with

BLACKBOX_BENCH_LARGE is how many messages the large one has: 42000000 are 4.9 GB.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from pytest_benchmark.fixture import BenchmarkFixture

from bench.child import Child
from bench.contest import Contest, expect
from bench.recorded import journals, recording_of

LARGE = int(os.environ.get("BLACKBOX_BENCH_LARGE", "4_000_000"))
SMALL = LARGE // 10
_LIMIT_MB = 300

_REPLAY = """
import json, os, sys, numpy
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
print(0, flush=True)
for line in sys.stdin:
    if os.fork() == 0:
        base = resident("VmRSS")
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # the peak begins anew
        print(json.dumps([replay(json.loads(line)), (resident("VmHWM") - base) / 1024]), flush=True)
        os._exit(0)
    os.wait()
"""


def _peak_mb(child: Child, day: Path, messages: int) -> float:
    replayed, peak_mb = child.ask(str(day))
    expect("messages replayed", replayed, messages)
    expect(f"peak below {_LIMIT_MB} MB", peak_mb < _LIMIT_MB, True)
    return float(peak_mb)


def test_replay_memory(benchmark: BenchmarkFixture) -> None:
    """MB above what the process had before."""
    contest = Contest("Peak memory of a replay", "MB", lower=True, topology=__doc__)
    with Child("-c", _REPLAY, str(recording_of(200_000))) as child:
        for messages in (SMALL, LARGE):
            day = recording_of(messages)
            size = sum(path.stat().st_size for path in journals(day)) / 1e9
            contest.add(f"a recording of {size:.2f} GB", partial(_peak_mb, child, day, messages))
        contest.run(benchmark)
