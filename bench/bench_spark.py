"""Queries of a recorded day in Spark, in this process, on two cores.       rival: Spark's own Parquet.

recording ==connector (blocks in place)=> query      20 M trades of ITCH, 5,000 symbols, over a session of 6.5 hours
Parquet   ==native reader===============> query      the same rows, zstd, written by Spark   report: s a query, ratio

Each query's result is compared. Every value that is asked for is used: Spark would leave out what a count ends in.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench.contest import Contest
from bench.workload import POOL_MESSAGES, make_pool
from blackbox import Feed, Publisher, Recorder
from feeds.itch50 import SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MESSAGES = int(os.environ.get("BLACKBOX_BENCH_ROWS", "20000000"))
ROUNDS = 5
BEGIN = 1_700_000_000_000_000_000
SESSION_NS = 23_400 * 10**9
FORMS: dict[str, dict[str, str]] = {"payloads": {}, "records": {"records": "P"}}
Query = Callable[["DataFrame"], Any]


@cache
def _directory() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="blackbox-bench-")


@cache
def recorded() -> Path:
    """The day's directory of a recording of trades, in two slices."""
    feed = Feed.local("bench-spark", slices=2, schema="itch50")
    pool = make_pool()
    random = numpy.random.default_rng(3)
    trades = numpy.zeros(POOL_MESSAGES, SCHEMA.dtype("P"))
    trades["message_type"] = b"P"
    trades["stock"] = [b"S%04d   " % i for i in pool.topic_index]
    trades["buy_sell_indicator"] = random.choice([b"B", b"S"], POOL_MESSAGES)
    trades["shares"] = random.integers(1, 50, POOL_MESSAGES) * 100
    trades["price"] = 1_000_000 + 100 * pool.topic_index + random.integers(-500, 500, POOL_MESSAGES)
    trades["match_number"] = numpy.arange(POOL_MESSAGES)
    payloads = trades.view(numpy.uint8).reshape(POOL_MESSAGES, -1)
    with (
        Publisher(feed, when_full="wait") as publisher,
        Recorder(feed, _directory().name, fsync="never") as recorder,
    ):
        for start in range(0, MESSAGES, POOL_MESSAGES):
            count = min(POOL_MESSAGES, MESSAGES - start)
            times = BEGIN + (pool.ts_event[:count] + start) * (SESSION_NS // MESSAGES)
            publisher.publish_many(pool.topics, pool.topic_index[:count], payloads[:count], times)
        publisher.flush()
        while recorder.statistics().messages < MESSAGES:
            time.sleep(0.01)
    assert recorder.statistics().lost == 0
    (day,) = (path for path in recorder.directory.iterdir() if path.is_dir())
    return day


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    sql = pytest.importorskip("pyspark.sql")
    from blackbox.spark.connector import connector_jar

    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {
        "spark.master": "local[2]",
        "spark.jars": str(connector_jar()),
        "spark.driver.memory": "6g",
        "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "OFF",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.session.timeZone": "UTC",
    }
    session = sql.SparkSession.builder.config(map=settings).getOrCreate()
    yield session
    session.stop()


def load(spark: SparkSession, form: str, **options: str) -> DataFrame:
    return spark.read.format("blackbox").options(**FORMS[form], **options).load(str(recorded()))


def parquet(spark: SparkSession, form: str) -> DataFrame:
    """The same rows as Parquet, written once."""
    path = Path(_directory().name) / f"parquet-{form}"
    if not path.exists():
        load(spark, form).write.option("compression", "zstd").parquet(str(path))
    return spark.read.parquet(str(path))


def _of_all(table: DataFrame) -> Any:
    """One number that depends on every value."""
    from pyspark.sql import functions as f

    return table.agg(f.sum(f.xxhash64(*table.columns).cast("decimal(38,0)"))).collect()


def by_symbol(frame: DataFrame) -> Any:
    """Count, first and last time, and a sum of each symbol."""
    from pyspark.sql import functions as f

    table = frame.groupBy("symbol").agg(
        f.count("*").alias("n"),
        f.min("ts_event").alias("a"),
        f.max("ts_event").alias("b"),
        f.sum("sequence").alias("s"),
    )
    return table.agg(f.sum(f.xxhash64("symbol", "n", "a", "b", "s").cast("decimal(38,0)"))).collect()


def all_columns(frame: DataFrame) -> Any:
    """Every value of every row, into rows that are thrown away."""
    frame.write.format("noop").mode("overwrite").save()


def one_symbol(frame: DataFrame) -> Any:
    """Ten minutes of one symbol, two hours into the session."""
    from pyspark.sql import functions as f

    start = BEGIN + 7_200 * 10**9
    chosen = frame.where(f"symbol = 'S0007' AND ts_event >= {start} AND ts_event < {start + 600 * 10**9}")
    return chosen.agg(f.count("*"), f.sum("sequence"), f.max("topic")).collect()


def bars(frame: DataFrame) -> Any:
    """Open, high, low, close, volume and VWAP of each symbol and minute."""
    from pyspark.sql import functions as f

    value = f.col("price") * f.col("shares")
    table = frame.groupBy("symbol", f.window("event_time", "1 minute").start.alias("minute")).agg(
        f.min_by("price", "sequence").alias("o"),
        f.max("price").alias("h"),
        f.min("price").alias("l"),
        f.max_by("price", "sequence").alias("c"),
        f.sum("shares").alias("v"),
        (f.sum(value) / f.sum("shares")).alias("w"),
    )
    return table.agg(
        f.sum(f.xxhash64("symbol", "minute", "o", "h", "l", "c", "v", "w").cast("decimal(38,0)"))
    ).collect()


QUERIES: list[tuple[str, Query]] = [
    ("payloads", by_symbol),
    ("payloads", all_columns),
    ("payloads", one_symbol),
    ("records", by_symbol),
    ("records", all_columns),
    ("records", one_symbol),
    ("records", bars),
]


def _seconds(query: Query, frame: Callable[[], DataFrame], answers: list[Any]) -> float:
    started = time.perf_counter()
    answers.append(query(frame()))
    return time.perf_counter() - started


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize(("form", "query"), QUERIES, ids=lambda value: getattr(value, "__name__", value))
def test_query(benchmark: BenchmarkFixture, spark: SparkSession, form: str, query: Query) -> None:
    """Seconds a query, and the ratio to Parquet."""
    answers: list[Any] = []
    contest = Contest(f"{query.__doc__} {MESSAGES / 1e6:.0f} M messages, {form}", "s", lower=True, topology=__doc__)
    native = parquet(spark, form)
    contest.add("the connector", partial(_seconds, query, partial(load, spark, form), answers))
    contest.add("Parquet", partial(_seconds, query, lambda: native, answers), "rival")
    contest.add(
        "the connector without checksums",
        partial(_seconds, query, partial(load, spark, form, checksums="false"), answers),
    )
    contest.run(benchmark, ROUNDS)
    assert all(answer == answers[0] for answer in answers)
    contest.show("the connector's time / Parquet's", f"{contest.ratio('the connector', 'Parquet'):10.2f}")
