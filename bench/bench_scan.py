"""Queries of a recorded day by polars and DuckDB, in place.       rivals: the same queries of the day's Parquet.

recording ==scan_polars, to_duckdb=====> this process      trades of ITCH, 5,000 symbols by 1/rank, over 6.5 hours
Parquet   ==scan_parquet, read_parquet=> this process      the same rows, written by to_parquet      report: s, ratios

Answers are compared. Larger: BLACKBOX_BENCH_ROWS=20000000 make bench ONLY=scan.
"""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench.measure.contest import Contest
from bench.spark.queries import INSTALLED, QUERIES, Query, Row, timed
from bench.spark.trades import ROWS, recorded
from bench.workload.recorded import directory
from blackbox import Recording


@cache
def _parquet() -> Path:
    path = Path(directory().name) / f"scan-{ROWS}"
    Recording.open(recorded(ROWS)).to_parquet(path, message_type="P", prices="float")
    return path


def _by_polars(query: Query, *, in_place: bool) -> Row:
    import polars

    if in_place:
        return query.ask_polars(Recording.open(recorded(ROWS)).scan_polars(message_type="P", times="integer"))
    return query.ask_polars(polars.scan_parquet(_parquet(), hive_partitioning=True))


def _by_duckdb(query: Query, *, in_place: bool) -> Row:
    import duckdb

    with duckdb.connect() as connection:
        if in_place:
            return query.ask_duckdb(Recording.open(recorded(ROWS)).to_duckdb(connection, message_type="P"))
        return query.ask_duckdb(connection.read_parquet(f"{_parquet()}/*/*/*.parquet", hive_partitioning=True))


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("name", QUERIES)
@pytest.mark.parametrize("engine", ["polars", "DuckDB"])
def test_scan(benchmark: BenchmarkFixture, engine: str, name: str) -> None:
    """Seconds a query."""
    contest = Contest(f"{name} by {engine}, {ROWS:,} rows", "s", lower=True, topology=__doc__)
    if not INSTALLED[engine]:
        pytest.skip(f"{engine} is not installed")
    ask = partial(_by_polars if engine == "polars" else _by_duckdb, QUERIES[name])
    expected = ask(in_place=False)
    contest.add("the recording", partial(timed, partial(ask, in_place=True), expected))
    contest.add("its Parquet", partial(timed, partial(ask, in_place=False), expected), "rival")
    contest.run(benchmark)
    contest.show("the recording's time / Parquet's", f"{contest.ratio('the recording', 'its Parquet'):10.2f}")
