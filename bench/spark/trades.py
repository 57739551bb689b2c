"""Recorded ITCH trades, the same trades as Parquet, and a Spark session that reads both.

The environment variable BLACKBOX_BENCH_ROWS sets the size of a benchmark.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy
from blackbox_feeds.itch50 import SCHEMA

from bench.measure.contest import expect
from bench.workload.messages import POOL_MESSAGES, make_pool
from bench.workload.recorded import directory, record
from blackbox import Feed, Publisher

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS: Final = int(os.environ.get("BLACKBOX_BENCH_ROWS", "1000000"))
BEGIN: Final = 1_700_000_000_000_000_000
SESSION_NS: Final = 23_400 * 10**9


@cache
def recorded(rows: int) -> Path:
    """Record `rows` trades over a session in two slices; return the day's directory."""
    feed = Feed.local(f"bench-spark-{rows}", slices=2, schema="itch50")
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

    def publish(publisher: Publisher) -> None:
        for start in range(0, rows, POOL_MESSAGES):
            count = min(POOL_MESSAGES, rows - start)
            times = BEGIN + (pool.ts_event[:count] + start) * (SESSION_NS // rows)
            publisher.publish_many(pool.topics, pool.topic_index[:count], payloads[:count], times)

    return record(feed, rows, publish)


def load(spark: SparkSession, day: Path) -> DataFrame:
    """Return the typed trades of a recording as a DataFrame of the connector."""
    return spark.read.format("blackbox").option("messageType", "P").load(str(day))


def parquet(spark: SparkSession, rows: int) -> Path:
    """Return the same rows as Parquet with zstd, written once by Spark."""
    path = Path(directory().name) / f"parquet-{rows}"
    if not path.exists():
        load(spark, recorded(rows)).write.option("compression", "zstd").parquet(str(path))
        expect("rows of the Parquet", spark.read.parquet(str(path)).count(), rows)
    return path


def begin(master: str) -> SparkSession:
    """Start a quiet session."""
    import blackbox.analysis.spark  # only here: other benchmarks use the trades without Spark

    conf = {
        "spark.ui.enabled": False,
        "spark.ui.showConsoleProgress": False,
        "spark.log.level": "OFF",
        "spark.sql.join.sortMergeAsOfJoin.enabled": True,  # otherwise Spark's as-of join compares all rows with all
    }
    return blackbox.analysis.spark.session(master, conf=conf)
