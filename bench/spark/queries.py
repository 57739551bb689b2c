"""The same queries of a table of trades in Spark, polars and DuckDB; each returns one row, which must agree."""

from __future__ import annotations

import time
from collections.abc import Callable
from decimal import Decimal
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bench.measure.contest import expect
from bench.spark.trades import BEGIN

if TYPE_CHECKING:
    import polars
    from pyspark.sql import DataFrame

MINUTE_NS: Final = 60 * 10**9
START: Final = BEGIN + 7_200 * 10**9
STOP: Final = START + 10 * MINUTE_NS
"""The ten minutes start two hours into the session."""
INSTALLED: Final = {engine: find_spec(engine.lower()) is not None for engine in ("polars", "DuckDB")}
"""True for each rival engine that is installed."""

Row = tuple[str, ...]
"""The same text for equal values of any engine, with nine digits for floats."""


class Query(NamedTuple):
    """A query in SQL of Spark and DuckDB, and of polars."""

    sql: str
    of_polars: Callable[[polars.LazyFrame], polars.LazyFrame]

    def ask_spark(self, frame: DataFrame) -> Row:
        return _plain(frame.sparkSession.sql(self.sql, table=frame).first())

    def ask_duckdb(self, trades: Any) -> Row:
        (row,) = trades.query("trades", self.sql.format(table="trades")).fetchall()
        return _plain(row)

    def ask_polars(self, frame: polars.LazyFrame) -> Row:
        return _plain(self.of_polars(frame).collect(engine="streaming").row(0))


def timed(ask: Callable[[], Row], expected: Row) -> float:
    """Return the seconds of a query. Raises Lost if its answer differs."""
    started = time.perf_counter()
    answer = ask()
    seconds = time.perf_counter() - started
    expect("answer", answer, expected)
    return seconds


def _plain(row: Any) -> Row:
    return tuple(f"{float(value):.9g}" if isinstance(value, float | Decimal) else str(value) for value in row)


def _one_column(trades: polars.LazyFrame) -> polars.LazyFrame:
    import polars

    return trades.select(polars.col("sequence").sum())


def _by_symbol(trades: polars.LazyFrame) -> polars.LazyFrame:
    import polars

    time, sequence = polars.col("ts_event") - BEGIN, polars.col("sequence")
    columns = polars.len().alias("n"), time.min().alias("a"), time.max().alias("b"), sequence.sum().alias("s")
    rows = trades.group_by("symbol").agg(*columns)
    return rows.select(polars.col("symbol").count(), polars.col("n", "a", "b", "s").sum())


def _ten_minutes(trades: polars.LazyFrame) -> polars.LazyFrame:
    import polars

    time = polars.col("ts_event")
    chosen = trades.filter((polars.col("symbol") == "S0007") & (time >= START) & (time < STOP))
    return chosen.select(polars.len(), polars.col("sequence").sum(), polars.col("topic").max())


def _bars(trades: polars.LazyFrame) -> polars.LazyFrame:
    import polars

    price, shares, order = polars.col("price"), polars.col("shares"), polars.col("sequence")
    bars = trades.group_by("symbol", (polars.col("ts_event") // MINUTE_NS).alias("minute")).agg(
        price.get(order.arg_min()).alias("o"),
        price.max().alias("h"),
        price.min().alias("l"),
        price.get(order.arg_max()).alias("c"),
        shares.sum().alias("v"),
        ((price.cast(polars.Float64) * shares).sum() / shares.sum()).alias("w"),
    )
    return bars.select(polars.len(), polars.col(*"ohlcvw").sum())


QUERIES: Final = {
    "one column": Query("SELECT sum(sequence) FROM {table}", _one_column),
    "group by symbol": Query(
        f"""SELECT count(symbol), sum(n), sum(a), sum(b), sum(s) FROM (
            SELECT symbol, count(*) n, min(ts_event) - {BEGIN} a, max(ts_event) - {BEGIN} b, sum(sequence) s
            FROM {{table}} GROUP BY symbol) rows""",
        _by_symbol,
    ),
    "ten minutes of a symbol": Query(
        f"""SELECT count(*), sum(sequence), max(topic) FROM {{table}}
            WHERE symbol = 'S0007' AND ts_event >= {START} AND ts_event < {STOP}""",
        _ten_minutes,
    ),
    "minute bars": Query(
        f"""SELECT count(*), sum(o), sum(h), sum(l), sum(c), sum(v), sum(w) FROM (
            SELECT min_by(price, sequence) o, max(price) h, min(price) l, max_by(price, sequence) c, sum(shares) v,
                sum(CAST(price AS DOUBLE) * shares) / sum(shares) w
            FROM {{table}} GROUP BY symbol, ts_event - ts_event % {MINUTE_NS}) bars""",
        _bars,
    ),
}
