"""Profile the hot path by step and thread: `python -m bench.hot_path.profile docs/performance/profile.md`.

    bench.hot_path.profile_load ──perf, or py-spy──> stacks of each thread ──┐
             └────────── CPU time of each thread ───────────────────┴─> profile.svg, profile.md

perf also sees libzmq's threads and the kernel, as root or with kernel.perf_event_paranoid at most 1; with 2 it does not
see the kernel. Without perf, py-spy (from pip, needs no privileges because it starts the process) sees only Python's
threads; the cost of the others is still known from the scheduler.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from bench.hot_path.flames import Stacks, flames
from bench.hot_path.kernels import Kernel, Subject
from bench.hot_path.profile_load import CALLER
from bench.measure.machine import describe
from bench.report.markdown import number, table

SECONDS: Final = 4
_ROOT: Final = Path(__file__).resolve().parents[2]
_RATE: Final = 299
_TIMEOUT_S: Final = 240
_TRIES: Final = 40
_LEAST_NS: Final = 0.05
_DEEPEST: Final = 10
_EVERYWHERE: Final = ("entry_SYSCALL", "do_syscall", "__x64_sys_", "__sys_", "asm_", "sysvec_")
"""Frames of kernel entry, which are in every stack."""
_WAITING: Final = ("poll (", "__poll (", "sem_", "pthread_cond", "clock_nanosleep", "select (")
_STEPS: Final = {
    "encode": "publisher's caller and line",
    "check": "slice",
    "order": "slice",
    "match": "slice",
    "group": "slice",
    "hand over": "slice and workers",
    "callback": "workers",
}
_Sample = tuple[str, tuple[str, ...]]
"""A thread and its frames, outermost first."""


def perf_samples(load: list[str], place: Path) -> list[_Sample]:
    """Return perf's samples of the load; empty if perf is missing or not permitted."""
    data, told = place / "perf.data", place / "told.json"
    recorder = ["perf", "record", "-q", "-k", "mono", "-e", "cpu-clock", "-F", str(_RATE), "--call-graph", "dwarf,8192"]
    if shutil.which("perf") is None or _failed([*recorder, "-o", str(data), "--", *load, str(told)]):
        return []
    names = Path(f"/tmp/perf-{json.loads(told.read_text())['pid']}.map")
    try:
        script = ["perf", "script", "-i", str(data), "--no-inline", "-F", "comm,tid,time,ip,sym,dso"]
        done = subprocess.run(script, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)
    finally:
        names.unlink(missing_ok=True)
    return list(of_perf(done.stdout, json.loads(told.read_text())))


def of_perf(script: str, told: dict[str, Any]) -> Iterator[_Sample]:
    """Yield the samples of perf's script within the time of the load."""
    for block in script.split("\n\n"):
        head, *lines = block.strip("\n").split("\n")
        found = re.match(r".*?\s(\d+)\s+([\d.]+):", head)
        if found is None or not told["begun"] < float(found[2]) < told["ended"] or found[1] not in told["threads"]:
            continue
        name = told["threads"][found[1]][0]
        yield name, tuple(_merged(_frame(line, name) for line in reversed(lines)))[:_DEEPEST]


def _frame(line: str, thread: str) -> str:
    found = re.match(r"\s*[0-9a-f]+ (.*) \((.*)\)$", line)
    symbol, file = (found[1], found[2]) if found else ("?", "")
    if Path(file).name.startswith(("libpython", "python3")):
        return "Python"
    if symbol != "[unknown]":
        return "" if symbol.startswith(_EVERYWHERE) else symbol
    if file.endswith(".map") or file in ("//anon", "[unknown]"):
        return "compiled callback" if "worker" in thread else "compiled code"
    return re.sub(r"[-.]\S*$", "", Path(file).name)


def _merged(frames: Iterable[str]) -> Iterator[str]:
    """Merge consecutive frames of the same name; drop those that start every thread."""
    last = ""
    for frame in frames:
        if frame not in (last, "", "clone3", "start_thread", "?"):
            yield frame
            last = frame


def py_spy_samples(load: list[str], place: Path) -> list[_Sample]:
    """Return py-spy's samples: Python's threads only, by line."""
    spy = shutil.which("py-spy") or shutil.which("py-spy", path=str(Path(sys.executable).parent))
    raw, told = place / "raw.txt", place / "told.json"
    command = [str(spy), "record", "--native", "--threads", "-r", "200", "-f", "raw", "-o", str(raw), "--"]
    if spy is None or _failed([*command, *load, str(told)]) or not raw.exists():
        return []
    known = json.loads(told.read_text())
    Path(f"/tmp/perf-{known['pid']}.map").unlink(missing_ok=True)
    return list(of_py_spy(raw.read_text(), {name for name, _ in known["threads"].values()}))


def of_py_spy(raw: str, names: set[str]) -> Iterator[_Sample]:
    """Yield the samples of py-spy's raw format, without waiting threads."""
    for line in raw.splitlines():
        stack, _, count = line.rpartition(" ")
        thread, *frames = stack.split(";")
        if not frames or frames[-1].startswith(_WAITING):
            continue
        if "MainThread" in thread:
            delivering = next((place for place, frame in enumerate(frames) if frame.startswith("deliver (")), None)
            frames = [] if delivering is None else frames[delivering + 1 :]
        name = CALLER if "MainThread" in thread else next((name for name in names if name in thread), None)
        if name is not None and frames:
            kept = (
                re.sub(r"^0x[0-9a-f]+.*", "compiled code", frame) for frame in frames if "threading.py" not in frame
            )
            yield from [(name, tuple(_merged(kept))[:_DEEPEST])] * int(count)


def _failed(command: list[str]) -> bool:
    """Run a profiler; print its output only if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S, cwd=_ROOT)
    if done.returncode:
        print(f"{command[0]} failed: {done.stderr.strip()[-300:]}")
    return done.returncode != 0


def stacks_of(samples: list[_Sample], costs: dict[str, float]) -> Stacks:
    """Return the cost of each stack: a thread's cost divided among its samples, or all of it without samples."""
    counted = Counter(samples)
    of_thread = Counter(thread for thread, _ in samples)
    found = {
        (thread, *frames): costs[thread] * count / of_thread[thread] for (thread, frames), count in counted.items()
    }
    return found | {(thread,): cost for thread, cost in costs.items() if thread not in of_thread and cost > _LEAST_NS}


def _steps() -> list[tuple[Kernel, float]]:
    """Return the fastest of many tries of each step."""
    with Subject() as kernels:
        return [
            (kernel, min(kernel.ns_a_message(100) for _ in range(_TRIES)))
            for kernel in kernels
            if kernel.name in _STEPS
        ]


def _of(costs: dict[str, float], *parts: str) -> float:
    return sum(cost for name, cost in costs.items() if any(part in name for part in parts))


def page(costs: dict[str, float], steps: list[tuple[Kernel, float]], how: str, rate: float) -> Iterator[str]:
    """Yield the page with its tables: by thread from the scheduler, by step as measured alone."""
    machine = describe()
    total = sum(costs.values())
    yield from ("# Where each nanosecond goes", "")
    yield (
        f"`make profile` on {machine['cpu_model']}, {machine['cpus']} CPUs, {machine['system']}."
        " Publisher and subscriber run in one process over loopback TCP, with two workers and compiled callbacks that"
        f" count, digest and sum. During the profile: {number(rate)} M messages/s of 100 bytes,"
        f" {number(total)} ns of CPU for each message in all threads together. Stacks by {how}."
    )
    yield from ("", "![flame graph](profile.svg)", "", "## By thread, from the scheduler", "")
    rows = [[name, number(cost), f"{cost / total:.0%}"] for name, cost in sorted(costs.items(), key=lambda i: -i[1])]
    yield from table(["thread", "ns per message", "share"], [row for row in rows if float(costs[row[0]]) > _LEAST_NS])
    yield from ("## By step", "")
    yield "Each step alone: the fastest of many runs on one block in the caches. In a thread it also waits for memory."
    yield ""
    known = {kernel.name: ns for kernel, ns in steps}
    made = [[kernel.name, kernel.what, _STEPS[kernel.name], number(ns)] for kernel, ns in steps]
    publisher = _of(costs, "caller", "line")
    slices, workers = _of(costs, "slice"), _of(costs, "worker")
    in_slice = sum(known[name] for name in ("check", "order", "match", "group", "hand over"))
    made[1:1] = [
        [
            "rest of the publisher",
            "ring, memory, waiting for room",
            "publisher's caller and line",
            number(publisher - known["encode"]),
        ],
        ["TCP out", "libzmq, and the kernel's TCP", "publisher I/O thread", number(_of(costs, "publisher I/O"))],
        ["TCP in", "libzmq, and the kernel's TCP", "subscriber I/O thread", number(_of(costs, "subscriber I/O"))],
    ]
    made.append(["rest of the slice thread", "receiving, memory, waiting", "slice", number(slices - in_slice)])
    made.append(["rest of the workers", "receiving, memory, waiting", "workers", number(workers - known["callback"])])
    yield from table(["step", "purpose", "thread", "ns per message"], made)


def main(out: Path) -> None:
    """Profile the load; write the graph and the page."""
    with TemporaryDirectory(prefix="blackbox-profile-") as directory:
        place = Path(directory)
        load = [sys.executable, "-m", "bench.hot_path.profile_load", str(SECONDS)]
        samples, how = perf_samples(load, place), "perf"
        if not samples:
            samples, how = py_spy_samples(load, place), "py-spy, which sees Python's threads only"
        if not samples:
            print("neither perf nor py-spy is usable (pip install py-spy): the graph has whole threads only")
            subprocess.run([*load, str(place / "told.json")], check=True, timeout=_TIMEOUT_S, cwd=_ROOT)
            how = "neither perf nor py-spy, so whole threads only"
        told = json.loads((place / "told.json").read_text())
    costs: dict[str, float] = {}
    for name, ns in told["threads"].values():
        costs[name] = costs.get(name, 0.0) + ns / told["messages"]
    rate = told["messages"] / (told["ended"] - told["begun"]) / 1e6
    title = f"{number(sum(costs.values()))} ns of CPU a message, publish to callback"
    svg = flames(title, f"by thread; stacks by {how}; width is cost", stacks_of(samples, costs), "ns a message")
    out.with_suffix(".svg").write_text(svg, encoding="utf-8")
    text = "\n".join(page(costs, _steps(), how, rate)) + "\n"
    out.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
