"""Queries of a recorded day by polars and DuckDB, in place.       rivals: the same queries of the day's Parquet.

recording ==scan_polars, to_duckdb=====> this process      trades of ITCH, 5,000 symbols by 1/rank, over 6.5 hours
Parquet   ==scan_parquet, read_parquet=> this process      the same rows, written by to_parquet      report: s, ratios

Answers are compared. Larger: BLACKBOX_BENCH_ROWS=20000000 make bench ONLY=scan.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench.measure.contest import Contest, expect
from bench.spark.queries import INSTALLED, START, STOP
from bench.spark.trades import ROWS, recorded
from bench.workload.recorded import directory
from blackbox import Recording

if TYPE_CHECKING:
    import polars

SQL: Final = {
    "one column": "SELECT sum(sequence) FROM trades",
    "group by symbol": """SELECT count(*), sum(n), sum(h), sum(v) FROM (
        SELECT symbol, count(*) n, max(price) h, sum(shares) v FROM trades GROUP BY symbol) rows""",
    "ten minutes of a symbol": f"""SELECT count(*), sum(sequence), max(price) FROM trades
        WHERE symbol = 'S0007' AND ts_event >= {START} AND ts_event < {STOP}""",
    "five columns": """SELECT sum(sequence), max(price), sum(shares), max(ts_event), count(DISTINCT symbol)
        FROM trades""",
}


def _by_polars(query: str, frame: polars.LazyFrame) -> tuple[Any, ...]:
    import polars

    column, rows = polars.col, polars.len()
    if query == "one column":
        asked = frame.select(column("sequence").sum())
    elif query == "group by symbol":
        by_symbol = frame.group_by("symbol").agg(
            rows.alias("n"), column("price").max().alias("h"), column("shares").sum().alias("v")
        )
        asked = by_symbol.select(rows, column("n", "h", "v").sum())
    elif query == "ten minutes of a symbol":
        time_ns = column("ts_event")
        chosen = frame.filter((column("symbol") == "S0007") & (time_ns >= START) & (time_ns < STOP))
        asked = chosen.select(rows, column("sequence").sum(), column("price").max())
    else:
        asked = frame.select(
            column("sequence").sum(),
            column("price").max(),
            column("shares").sum(),
            column("ts_event").max(),
            column("symbol").n_unique(),
        )
    return asked.collect(engine="streaming").row(0)


@cache
def _parquet() -> Path:
    path = Path(directory().name) / f"scan-{ROWS}"
    Recording.open(recorded(ROWS)).to_parquet(path, message_type="P", prices="float")
    return path


def _scanned_polars(query: str) -> tuple[Any, ...]:
    recording = Recording.open(recorded(ROWS))
    return _by_polars(query, recording.scan_polars(message_type="P", times="integer"))


def _parquet_polars(query: str) -> tuple[Any, ...]:
    import polars

    return _by_polars(query, polars.scan_parquet(_parquet(), hive_partitioning=True))


def _scanned_duckdb(query: str) -> tuple[Any, ...]:
    import duckdb

    with duckdb.connect() as connection:
        return _asked(Recording.open(recorded(ROWS)).to_duckdb(connection, message_type="P"), query)


def _parquet_duckdb(query: str) -> tuple[Any, ...]:
    import duckdb

    with duckdb.connect() as connection:
        return _asked(connection.read_parquet(f"{_parquet()}/*/*/*.parquet", hive_partitioning=True), query)


def _asked(trades: Any, query: str) -> tuple[Any, ...]:
    (answer,) = trades.query("trades", SQL[query]).fetchall()
    return tuple(answer)


def _timed(ask: Callable[[str], tuple[Any, ...]], query: str, expected: tuple[str, ...]) -> float:
    started = time.perf_counter()
    answer = ask(query)
    seconds = time.perf_counter() - started
    expect("answer", _plain(answer), expected)
    return seconds


def _plain(answer: tuple[Any, ...]) -> tuple[str, ...]:
    """Return the same text for equal values of both engines."""
    return tuple(f"{float(value):.9g}" for value in answer)


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("query", SQL)
@pytest.mark.parametrize("engine", ["polars", "DuckDB"])
def test_scan(benchmark: BenchmarkFixture, engine: str, query: str) -> None:
    """Seconds a query."""
    contest = Contest(f"{query} by {engine}, {ROWS:,} rows", "s", lower=True, topology=__doc__)
    if not INSTALLED[engine]:
        pytest.skip(f"{engine} is not installed")
    ours, rival = (_scanned_polars, _parquet_polars) if engine == "polars" else (_scanned_duckdb, _parquet_duckdb)
    expected = _plain(rival(query))
    contest.add("the recording", partial(_timed, ours, query, expected))
    contest.add("its Parquet", partial(_timed, rival, query, expected), "rival")
    contest.run(benchmark)
    contest.show("the recording's time / Parquet's", f"{contest.ratio('the recording', 'its Parquet'):10.2f}")
