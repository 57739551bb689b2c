"""Queries of a recorded day in Spark on two cores.       rivals: Spark on Parquet; polars and DuckDB on that Parquet.

recording ==connector (blocks in place)=> Spark      trades of ITCH, 5,000 symbols by 1/rank, over 6.5 hours
Parquet   ==native reader===============> Spark      the same rows, zstd, written by Spark
Parquet   ==polars, DuckDB==============> this process      report: s a query, ratios

Answers are compared. Larger: BLACKBOX_BENCH_ROWS=20000000 make bench ONLY=spark.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench.measure.contest import Contest, expect
from bench.spark.queries import INSTALLED, QUERIES
from bench.spark.trades import ROWS, begin, load, parquet, recorded

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

CASES = [("payloads", "group by symbol"), *(("records", query) for query in QUERIES)]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = begin("local[2]")
    yield session
    session.stop()


class Answers:
    """Answer that all contenders must give: a rival's from before the rounds, else that of the first contender."""

    def __init__(self, expected: Any) -> None:
        self._expected: Any = expected

    def check(self, answer: Any) -> None:
        if answer is not None and self._expected is None:
            self._expected = answer
        expect("answer", answer if answer is not None else self._expected, self._expected)


def _expected(spark: SparkSession, query: str, path: Path) -> Any:
    """Return the answer of polars on the Parquet, or of Spark without polars."""
    engines = QUERIES[query]
    return engines["polars"](path) if INSTALLED["polars"] else engines["Spark"](spark.read.parquet(str(path)))


def _timed(query: Callable[[Any], Any], table: Callable[[], Any], answers: Answers) -> float:
    started = time.perf_counter()
    answer = query(table())
    seconds = time.perf_counter() - started
    answers.check(answer)
    return seconds


def _contenders(spark: SparkSession, form: str, query: str, rows: int) -> dict[str, Callable[[], float]]:
    """Return each contender as a function that returns seconds, ours first."""
    engines, day, path = QUERIES[query], recorded(rows), parquet(spark, form, rows)
    answers = Answers(_expected(spark, query, path))
    found: dict[str, Callable[[], float]] = {
        "the connector": partial(_timed, engines["Spark"], partial(load, spark, form, day), answers),
        "Parquet": partial(_timed, engines["Spark"], lambda: spark.read.parquet(str(path)), answers),
    }
    for engine in (engine for engine, is_there in INSTALLED.items() if is_there):
        found[f"{engine} on that Parquet"] = partial(_timed, engines[engine], lambda: path, answers)
    return found


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize(("form", "query"), CASES)
def test_query(benchmark: BenchmarkFixture, spark: SparkSession, form: str, query: str) -> None:
    """Seconds a query."""
    contest = Contest(f"{query}, {form}, {ROWS:,} rows", "s", lower=True, topology=__doc__)
    for engine in (engine for engine, is_there in INSTALLED.items() if not is_there):
        contest.skip(f"{engine} on that Parquet", f"{engine} is not installed")
    for name, contender in _contenders(spark, form, query, ROWS).items():
        contest.add(name, contender, "ours" if name == "the connector" else "rival")
    contest.run(benchmark)
    contest.show("the connector's time / Parquet's", f"{contest.ratio('the connector', 'Parquet'):10.2f}")
