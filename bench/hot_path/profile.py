"""Profile the hot path by step and thread: `python -m bench.hot_path.profile docs/performance/profile.md`.

    publish_many() ==ring==> sender ==> PUB, I/O thread ==TCP==> SUB, I/O thread | slice thread: compiled callbacks

Publisher and subscriber run in one process, so that one profile has the whole path. The scheduler knows the CPU time of
each thread; py-spy draws the flame graph.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import numpy

from bench.bench_delivery import PREFIXES
from bench.hot_path.kernels import Kernel, Subject
from bench.measure.machine import describe
from bench.processes.receiver import FOREVER_NS, wait_for
from bench.report.markdown import number, table
from bench.workload.messages import POOL_MESSAGES, TOPICS, make_pool
from bench.workload.tally import count_compiled
from blackbox import Feed, Publisher, SlowPolicy, Subscriber

_SECONDS: Final = 4.0
_TIMEOUT_S: Final = 240
_TRIES: Final = 40
_LEAST_NS: Final = 0.05
_ROOT: Final = Path(__file__).resolve().parents[2]
_TASKS: Final = Path("/proc/self/task")
_STEPS: Final = {
    "encode": "publisher's caller and sender",
    "check": "slice",
    "order": "slice",
    "match": "slice",
    "group": "slice",
    "callback": "slice",
    "hand over": "slice and workers, for Python callbacks",
}


class Profile(NamedTuple):
    """CPU time of each thread by name, ns per message, and M messages/s."""

    costs: dict[str, float]
    rate: float


def _tids() -> set[int]:
    return {int(task.name) for task in _TASKS.iterdir()}


def _cpu_ns(tid: int) -> int:
    return int((_TASKS / str(tid) / "schedstat").read_text().split()[0])


def _names(publishing: set[int], subscribing: set[int]) -> dict[int, str]:
    """Return each thread's name: Python's, or libzmq's with its side of the connection."""
    known = {thread.native_id: thread.name for thread in threading.enumerate()}
    found = {}
    for tid in _tids():
        comm = (_TASKS / str(tid) / "comm").read_text().strip()
        side = "publisher" if tid in publishing else "subscriber" if tid in subscribing else ""
        name = known.get(tid, f"{side} {'I/O thread' if 'IO' in comm else comm}" if side else comm)
        found[tid] = "caller of publish_many" if name == "MainThread" else name
    return found


def _deliver(publisher: Publisher, seconds: float) -> int:
    """Publish for `seconds`; return the number of messages."""
    pool = make_pool()
    end = time.monotonic() + seconds
    messages = 0
    while time.monotonic() < end:
        publisher.publish_many(pool.topics, pool.topic_index, pool.payloads, pool.ts_event)
        messages += POOL_MESSAGES
    publisher.flush()
    return messages


def run_load(seconds: float) -> Profile:
    """Warm up, then deliver for `seconds`."""
    feed = Feed.local("profile", slices=1)
    before = _tids()
    with Publisher(feed, when_full="wait") as publisher:
        publishing = _tids() - before
        subscriber = Subscriber(feed, slow=SlowPolicy(max_lag=FOREVER_NS / 1e9))
        for prefix in PREFIXES:
            subscriber.on_compiled(prefix, state=numpy.zeros((TOPICS, 3), numpy.int64))(count_compiled)
        with subscriber:
            publisher.wait_for_subscribers(timeout=60)
            warm = _deliver(publisher, 0.5)
            wait_for(subscriber, warm)
            names = _names(publishing, _tids() - before - publishing)
            begun, used = time.monotonic(), {tid: _cpu_ns(tid) for tid in names}
            messages = _deliver(publisher, seconds)
            wait_for(subscriber, warm + messages)
            rate = messages / (time.monotonic() - begun) / 1e6
            costs: dict[str, float] = {}
            for tid, name in names.items():
                costs[name] = costs.get(name, 0.0) + (_cpu_ns(tid) - used[tid]) / messages
    return Profile(costs, rate)


def _steps() -> list[tuple[Kernel, float]]:
    """Return the fastest of many tries of each step."""
    with Subject() as kernels:
        return [
            (kernel, min(kernel.ns_a_message(100) for _ in range(_TRIES)))
            for kernel in kernels
            if kernel.name in _STEPS
        ]


def _draw_flames(target: Path) -> bool:
    """Write py-spy's flame graph of the load; return False if py-spy is missing or fails."""
    spy = shutil.which("py-spy") or shutil.which("py-spy", path=str(Path(sys.executable).parent))
    if spy is None:
        print("py-spy was not found (pip install py-spy): no flame graph")
        return False
    command = [spy, "record", "--native", "--threads", "--function", "-r", "50", "-f", "flamegraph", "-o"]
    load = [sys.executable, "-m", "bench.hot_path.profile", "--load"]
    done = subprocess.run(
        [*command, str(target.resolve()), "--", *load],
        capture_output=True,
        text=True,
        check=False,
        timeout=_TIMEOUT_S,
        cwd=_ROOT,
    )
    if done.returncode:
        print(f"py-spy failed: {done.stderr.strip()[-300:]}")
    return done.returncode == 0


def page(profile: Profile, steps: list[tuple[Kernel, float]], picture: str) -> Iterator[str]:
    """Yield the page with its tables: by thread from the scheduler, by step as measured alone."""
    machine, costs = describe(), profile.costs
    total = sum(costs.values())

    def of(*parts: str) -> float:
        return sum(cost for name, cost in costs.items() if any(part in name for part in parts))

    yield from ("# Where each nanosecond goes", "")
    yield (
        f"`make profile` on {machine['cpu_model']}, {machine['cpus']} CPUs, {machine['system']}."
        " Publisher and subscriber run in one process over loopback TCP, with compiled callbacks that count,"
        f" digest and sum. During the profile: {number(profile.rate)} M messages/s of 100 bytes,"
        f" {number(total)} ns of CPU for each message in all threads together."
    )
    if picture:
        yield from ("", f"![flame graph by py-spy]({picture})")
    yield from ("", "## By thread, from the scheduler", "")
    rows = [[name, number(cost), f"{cost / total:.0%}"] for name, cost in sorted(costs.items(), key=lambda i: -i[1])]
    yield from table(["thread", "ns per message", "share"], [row for row in rows if costs[row[0]] > _LEAST_NS])
    yield from ("## By step", "")
    yield "Each step alone: the fastest of many runs on one block in the caches. In a thread it also waits for memory."
    yield ""
    known = {kernel.name: ns for kernel, ns in steps}
    made = [[kernel.name, kernel.what, _STEPS[kernel.name], number(ns)] for kernel, ns in steps]
    in_slice = of("slice") - sum(ns for name, ns in known.items() if _STEPS[name] == "slice")
    publisher = of("caller", "sender") - known["encode"]
    made[1:1] = [
        ["rest of the publisher", "ring, memory, waiting for room", _STEPS["encode"], number(publisher)],
        ["TCP out", "libzmq, and the kernel's TCP", "publisher I/O thread", number(of("publisher I/O"))],
        ["TCP in", "libzmq, and the kernel's TCP", "subscriber I/O thread", number(of("subscriber I/O"))],
    ]
    made.append(["rest of the slice thread", "receiving, memory, waiting", "slice", number(in_slice)])
    yield from table(["step", "purpose", "thread", "ns per message"], made)


if __name__ == "__main__":
    if sys.argv[1] == "--load":
        run_load(3 * _SECONDS)
    else:
        out = Path(sys.argv[1])
        picture = out.with_suffix(".svg")
        text = "\n".join(page(run_load(_SECONDS), _steps(), picture.name if _draw_flames(picture) else "")) + "\n"
        out.write_text(text, encoding="utf-8")
        print(text)
