"""One large recorded day: recorded live, verified, replayed and grouped in Spark, from its beginning to its end.

    PUB process ==blocks, TCP loopback==> recorder process ==write==> journals of one slice
    journals ==> verify    ==> replay in process, a compiled callback    ==> Spark, local[2]: group by symbol

Figures are the rate in the last quarter of the day divided by that in the first; rates and peak memory (without mapped
files; of Spark's Java process with them) follow below the table. BLACKBOX_BENCH_DAY_GB sets the size, which must fit on
the disk.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Self

import msgspec
import numpy
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench.measure.contest import Contest, expect
from bench.processes.child import Child, answer, orders
from bench.processes.pair import Order
from bench.workload.load import Load
from bench.workload.recorded import wait_until_recorded
from blackbox import Feed, Recorder, Recording, Subscriber

GB: Final = float(os.environ.get("BLACKBOX_BENCH_DAY_GB", "25"))
BYTES_EACH: Final = 119
"""Bytes of a message in a journal: its payload, its column values, its share of the topics."""
_PATIENCE_S: Final = 3_600.0
_LOOK_S: Final = 0.02


class _Watch:
    """Samples progress and memory of this process in a thread, until the block is left."""

    def __init__(self, done: Callable[[], float]) -> None:
        self._done, self._over, self._mb = done, threading.Event(), 0.0
        self._samples: list[tuple[float, float]] = []
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._over.wait(_LOOK_S):
            self._look()

    def _look(self) -> None:
        _, resident, shared, *_ = map(int, Path("/proc/self/statm").read_text().split())
        self._mb = max(self._mb, (resident - shared) * 4_096 / 1e6)
        done = self._done()
        if not done:  # it has not begun
            self._samples.clear()
        self._samples.append((time.monotonic(), done))

    def told(self) -> dict[str, Any]:
        """Return the times at which 0, 25, 75 and 100 % were reached, and the peak memory, MB."""
        times, amounts = numpy.array(self._samples).T
        at = numpy.interp(numpy.array((0, 0.25, 0.75, 1)) * amounts[-1], amounts, times)
        return {"at": at.tolist(), "mb": self._mb}

    def __enter__(self) -> Self:
        self._look()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._look()


def record(feed: Any, directory: str) -> None:
    """Record the ordered number of messages."""
    with Recorder(msgspec.convert(feed, Feed), directory) as recorder:
        for messages in orders():
            with _Watch(lambda: recorder.statistics().messages) as watch:
                wait_until_recorded(recorder, messages, _PATIENCE_S)
            expect("messages lost", recorder.statistics().lost, 0)
            answer(**watch.told())


def _verify(recording: Recording, messages: int) -> dict[str, Any]:
    size = 0

    def note(so_far: int) -> None:
        nonlocal size
        size = so_far

    with _Watch(lambda: size) as watch:
        damage, gaps, _ = recording.examine(note)
    expect("damage and gaps", (damage, gaps), ([], []))
    return watch.told()


def _count(batch: Any, state: Any) -> None:
    state[0] += len(batch.rows)


def _replay(recording: Recording, messages: int) -> dict[str, Any]:
    subscriber = Subscriber(recording.feed)
    callback = subscriber.on_compiled(b"", state=numpy.zeros(1, numpy.int64))(_count)
    with _Watch(lambda: int(callback.total()[0])) as watch:
        subscriber.replay(recording)
    expect("messages replayed", int(callback.total()[0]), messages)
    return watch.told()


def read(day: str, messages: int) -> None:
    """Verify or replay a day as ordered."""
    for order in orders():
        answer(**{"verify": _verify, "replay": _replay}[order](Recording.open(day), messages))


def _in_spark(day: Path, messages: int) -> dict[str, Any]:
    from bench.spark.trades import begin

    spark = begin("local[2]")
    try:
        frame = spark.read.format("blackbox").load(str(day)).select("symbol", "ts_event", "sequence")

        def seconds(where: str, expected: int) -> float:
            started = time.perf_counter()
            groups = frame.where(where).groupBy("symbol").agg({"*": "count", "sequence": "max"}).collect()
            expect("rows", sum(row["count(1)"] for row in groups), expected)
            return time.perf_counter() - started

        quarter = messages // 4
        seconds("ts_event <= 1", 1)  # warm-up
        first = seconds(f"ts_event <= {quarter}", quarter)
        last = seconds(f"ts_event > {messages - quarter}", quarter)
        everything = seconds("true", messages)
        jvm = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
        memory = next(line for line in Path(f"/proc/{jvm}/status").read_text().splitlines() if "VmHWM" in line)
    finally:
        spark.stop()
    return {"at": [0.0, first, everything - last, everything], "mb": int(memory.split()[1]) / 1e3}


@pytest.mark.timeout(3_600)
def test_days(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """Rate in the last quarter of the day / in the first."""
    messages = int(GB * 1e9) // BYTES_EACH
    if shutil.disk_usage(tmp_path).free < 1.2e9 * GB:
        pytest.skip(f"a day of {GB:g} GB does not fit on the disk: set BLACKBOX_BENCH_DAY_GB")
    contest = Contest(f"A recorded day of {GB:g} GB", "end / beginning", topology=__doc__)
    feed = Feed.local("day", slices=1)
    found: dict[str, dict[str, Any]] = {}
    with (
        Child("bench.processes.sender:publish", feeds=[feed], when_full="wait") as sender,
        Child("bench.bench_days:record", feed=feed, directory=str(tmp_path)) as recorder,
    ):
        recorder.send(messages)
        sender.send(Order(Load(feed=feed, messages=messages)))
        found["recorded live"] = recorder.answer(_PATIENCE_S)
        sender.answer(_PATIENCE_S)
    (day,) = (path for path in (tmp_path / feed.name).iterdir() if path.is_dir())
    with Child("bench.bench_days:read", day=str(day), messages=messages) as reader:
        for order in ("verify", "replay"):
            reader.send(order)
            found[order] = reader.answer(_PATIENCE_S)
    if find_spec("pyspark"):
        found["grouped in Spark"] = _in_spark(day, messages)

    def ratio(at: list[float]) -> Callable[[], float]:
        return lambda: (at[1] - at[0]) / (at[3] - at[2])

    for name, told in found.items():  # each was measured once
        contest.add(name, ratio(told["at"]), versus=None)
    contest.run(benchmark, rounds=1)
    for name, told in found.items():
        contest.show(f"{name}: M messages/s", f"{messages / (told['at'][3] - told['at'][0]) / 1e6:.2f}")
        contest.show(f"{name}: peak memory", f"{told['mb']:,.0f} MB")
