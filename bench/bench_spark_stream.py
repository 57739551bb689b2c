"""From `publish` to a row of a Spark stream, at 1,000 messages/s: p99 since due.

    PUB process ==blocks, TCP==> a recorder ==write==> journal ==data source==> Spark, local[2] --foreach--> row

micro-batches    a batch begins when the one before has ended
real-time mode   trigger(realTime=...), if Spark accepts the source; otherwise it is skipped, with Spark's reason
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any, Final

import numpy
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench.measure.contest import Contest, percentiles_of
from bench.processes.child import Child
from bench.processes.pair import Order
from bench.workload.load import Load
from bench.workload.recorded import directory
from blackbox import Feed, Recorder
from blackbox.testing import wait_until

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyspark.sql import SparkSession

MESSAGES: Final = 5_000
WARM_UP: Final = 500
RATE: Final = 1_000
MICRO, REAL_TIME = "micro-batches", "real-time mode"
_PATIENCE_S: Final = 60.0


def _start(spark: SparkSession, place: Path, found: Path, name: str) -> Any:
    """Start a stream of the rows from now on, which writes due time and arrival of each to a file."""

    def take(row: Any) -> None:
        with Path(path).open("a") as file:
            file.write(f"{row.ts_event} {time.time_ns()}\n")

    path = str(found)
    rows = spark.readStream.format("blackbox").load(str(place)).where(f"ts_event > {time.time_ns()}")
    writer = rows.select("ts_event").writeStream.foreach(take).option("checkpointLocation", mkdtemp(dir=found.parent))
    if name == REAL_TIME:
        writer = writer.outputMode("update").trigger(realTime="5 minutes")  # type: ignore[call-overload]
    return writer.start()


def _late_ms(name: str, sender: Child, feed: Feed, spark: SparkSession, place: Path) -> NDArray[numpy.float64]:
    """Return the delay of each message since it was due. Raises PySparkException if the query fails."""
    found = Path(mkdtemp(dir=directory().name)) / "found"
    query = _start(spark, place, found, name)

    def has(messages: int) -> bool:
        if error := query.exception():
            raise error
        return found.read_text().count("\n") >= messages

    try:
        for messages in (WARM_UP, MESSAGES):
            found.write_text("")
            sender.ask(Order(Load(feed=feed, messages=messages, rate=RATE, at_once=1)))
            wait_until(partial(has, messages), _PATIENCE_S)
    finally:
        query.stop()
    due, arrived = numpy.loadtxt(found, numpy.int64).T
    return (arrived - due) / 1e6  # type: ignore[no-any-return]


@pytest.mark.timeout(900)
def test_spark_stream(benchmark: BenchmarkFixture, spark: SparkSession, tmp_path: Path) -> None:
    """Milliseconds, p99."""
    from pyspark.errors import PySparkException

    contest = Contest("From publish to a Spark row: p99", "ms", lower=True, topology=__doc__)
    feed = Feed.local("spark-stream", slices=1)

    def p99(name: str) -> float:
        values = percentiles_of(_late_ms(name, sender, feed, spark, recorder.directory))
        contest.percentiles(name, values, "ms")
        return values["p99"]

    with Child("bench.processes.sender:publish", feeds=[feed]) as sender, Recorder(feed, tmp_path) as recorder:
        sender.ask(Order(Load(feed=feed, messages=WARM_UP, rate=RATE, at_once=1)))
        contest.add(MICRO, partial(p99, MICRO))
        try:
            _late_ms(REAL_TIME, sender, feed, spark, recorder.directory)
        except (PySparkException, TimeoutError) as error:
            contest.skip(REAL_TIME, str(error).strip().splitlines()[0])
        else:
            contest.add(REAL_TIME, partial(p99, REAL_TIME))
        contest.run(benchmark)
        if len(contest.told().rows) > 1:
            contest.show(f"{REAL_TIME} / {MICRO}", f"{contest.ratio(REAL_TIME, MICRO):.3f} x")
