"""Queries of a recorded day in Spark on two cores.       rivals: Spark on Parquet; polars and DuckDB on that Parquet.

recording ==connector (blocks in place)=> Spark      trades of ITCH, 5,000 symbols by 1/rank, over 6.5 hours
Parquet   ==native reader===============> Spark      the same rows, zstd, written by Spark
Parquet   ==polars, DuckDB==============> this process      report: s a query, ratios

Answers are compared. Larger: BLACKBOX_BENCH_ROWS=20000000 make bench ONLY=spark.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench.measure.contest import Contest
from bench.spark.queries import INSTALLED, QUERIES, Query, Row, timed
from bench.spark.trades import ROWS, load, parquet, recorded

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _by_polars(query: Query, path: Path) -> Row:
    import polars

    return query.ask_polars(polars.scan_parquet(path / "*.parquet"))


def _by_duckdb(query: Query, path: Path) -> Row:
    import duckdb

    with duckdb.connect() as connection:
        return query.ask_duckdb(connection.read_parquet(f"{path}/*.parquet"))


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("name", QUERIES)
def test_query(benchmark: BenchmarkFixture, spark: SparkSession, name: str) -> None:
    """Seconds a query."""
    contest = Contest(f"{name}, {ROWS:,} rows in Spark", "s", lower=True, topology=__doc__)
    query, day, path = QUERIES[name], recorded(ROWS), parquet(spark, ROWS)
    asked: dict[str, Callable[[], Row]] = {
        "the connector": lambda: query.ask_spark(load(spark, day)),
        "Parquet": lambda: query.ask_spark(spark.read.parquet(str(path))),
    }
    for engine, ask in (("polars", _by_polars), ("DuckDB", _by_duckdb)):
        if INSTALLED[engine]:
            asked[f"{engine} on that Parquet"] = partial(ask, query, path)
        else:
            contest.skip(f"{engine} on that Parquet", f"{engine} is not installed")
    expected = asked["Parquet"]()
    for contender, run in asked.items():
        contest.add(contender, partial(timed, run, expected), "ours" if contender == "the connector" else "rival")
    contest.run(benchmark)
    contest.show("the connector's time / Parquet's", f"{contest.ratio('the connector', 'Parquet'):10.2f}")
