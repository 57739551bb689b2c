"""Queries of a recorded day in Spark on two cores.       rivals: Spark on Parquet; polars and DuckDB on that Parquet.

recording ==connector (blocks in place)=> Spark      trades of ITCH, 5,000 symbols by 1/rank, over 6.5 hours
Parquet   ==native reader===============> Spark      the same rows, zstd, written by Spark
Parquet   ==polars, DuckDB==============> this process      report: s a query, ratios; ns a row by size

Answers are compared. Larger: BLACKBOX_BENCH_ROWS=20000000 BLACKBOX_BENCH_SIZES=1000000,10000000,50000000 make bench
ONLY=spark.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench.measure.contest import Contest, expect
from bench.measure.results import Kind
from bench.processes.child import Child
from bench.spark.queries import INSTALLED, QUERIES
from bench.spark.trades import ROWS, SIZES, begin, load, parquet, recorded

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

CASES = [("payloads", "group by symbol"), *(("records", query) for query in QUERIES)]
CURVE = "minute bars"
_SERVE = "bench.spark.executors:serve"


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


def _contest(title: str, unit: str, axis: str = "") -> Contest:
    contest = Contest(title, unit, lower=True, topology=__doc__, axis=axis)
    for engine in (engine for engine, is_there in INSTALLED.items() if not is_there):
        contest.skip(f"{engine} on that Parquet", f"{engine} is not installed")
    return contest


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize(("form", "query"), CASES)
def test_query(benchmark: BenchmarkFixture, spark: SparkSession, form: str, query: str) -> None:
    """Seconds a query."""
    contest = _contest(f"{query}, {form}, {ROWS:,} rows", "s")
    for name, contender in _contenders(spark, form, query, ROWS).items():
        contest.add(name, contender, "ours" if name == "the connector" else "rival")
    contest.run(benchmark)
    contest.show("the connector's time / Parquet's", f"{contest.ratio('the connector', 'Parquet'):10.2f}")


@pytest.mark.timeout(3_600)
def test_rows(benchmark: BenchmarkFixture, spark: SparkSession) -> None:
    """Cost of a row by table size: it shows a query's fixed cost, and from which size Spark is worth it."""
    contest = _contest(f"{CURVE}, records", "ns a row", axis="rows")
    for rows in SIZES:
        for name, contender in _contenders(spark, "records", CURVE, rows).items():

            def cost(contender: Callable[[], float] = contender, rows: int = rows) -> float:
                return contender() * 1e9 / rows

            contest.add(name, cost, "ours" if name == "the connector" else "rival", at=rows)
    contest.run(benchmark)


@pytest.mark.timeout(1_800)
def test_executors(benchmark: BenchmarkFixture, spark: SparkSession) -> None:
    """One and two executors of one core each, in turn."""
    contest = Contest(f"{CURVE}, records, {ROWS:,} rows, by executors", "s", lower=True, topology=__doc__)
    day, path = recorded(ROWS), parquet(spark, "records", ROWS)
    answers = Answers(_expected(spark, CURVE, path))
    orders = {"the connector": {"form": "records", "day": str(day)}, "Parquet": {"parquet": str(path)}}

    def seconds(child: Child, order: dict[str, str]) -> float:
        told = child.ask({"query": CURVE, **order})
        answers.check(tuple(told["answer"]))
        return float(told["seconds"])

    with Child(_SERVE, executors=1) as one, Child(_SERVE, executors=2) as two:
        for name, order in orders.items():
            kind: Kind = "ours" if name == "the connector" else "rival"
            for executors, child in (("1 executor", one), ("2 executors", two)):
                contender = partial(seconds, child, order)
                contest.add(f"{name}, {executors}", contender, kind, versus=f"the connector, {executors}")
        contest.run(benchmark)
    for name in orders:
        faster = contest.ratio(f"{name}, 1 executor", f"{name}, 2 executors")
        contest.show(f"{name}: 2 executors are faster", f"{faster:10.2f} x")
