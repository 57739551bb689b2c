"""The same queries of a table of trades in Spark, polars and DuckDB. Every requested value is computed.

The three must agree on the answer; for all columns it is the number of rows, if the engine returns it.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.spark.trades import BEGIN

if TYPE_CHECKING:
    import polars
    from pyspark.sql import DataFrame

MINUTE_NS: Final = 60 * 10**9
START: Final = BEGIN + 7_200 * 10**9
STOP: Final = START + 10 * MINUTE_NS
ROWS_A_BATCH: Final = 131_072
INSTALLED: Final = {engine: find_spec(engine.lower()) is not None for engine in ("polars", "DuckDB")}
"""True for each rival engine that is installed."""

ByEngine = dict[str, Callable[[Any], Any]]
"""Query functions by engine; they take Spark's DataFrame or a directory of Parquet."""

_TEN_MINUTES: Final = f"symbol = 'S0007' AND ts_event >= {START} AND ts_event < {STOP}"
_SQL: Final = {
    "group by symbol": f"""SELECT count(symbol), sum(n), sum(a), sum(b), sum(s) FROM (
        SELECT symbol, count(*) n, min(ts_event) - {BEGIN} a, max(ts_event) - {BEGIN} b, sum(sequence) s
        FROM {{table}} GROUP BY symbol) rows""",
    "ten minutes of a symbol": f"SELECT count(*), sum(sequence), max(topic) FROM {{table}} WHERE {_TEN_MINUTES}",
    "minute bars": f"""SELECT count(*), sum(o), sum(h), sum(l), sum(c), sum(v), sum(w) FROM (
        SELECT min_by(price, sequence) o, max(price) h, min(price) l, max_by(price, sequence) c, sum(shares) v,
            sum(CAST(price AS DOUBLE) * shares) / sum(shares) w
        FROM {{table}} GROUP BY symbol, ts_event - ts_event % {MINUTE_NS}) bars""",
}
"""SQL for both Spark and DuckDB; the ten minutes start two hours into the session."""


def _spark(query: str) -> Callable[[DataFrame], Any]:
    return lambda frame: _plain(frame.sparkSession.sql(query, table=frame).first())


def _duckdb(query: str) -> Callable[[Path], Any]:
    def ask(path: Path) -> Any:
        import duckdb

        with duckdb.connect() as connection:
            return _plain(connection.execute(query.format(table=_table(path))).fetchone())

    return ask


def _by_symbol_polars(path: Path) -> Any:
    import polars

    time = polars.col("ts_event") - BEGIN
    table = (
        _scan(path)
        .group_by("symbol")
        .agg(
            polars.len().alias("n"),
            time.min().alias("a"),
            time.max().alias("b"),
            polars.col("sequence").sum().alias("s"),
        )
    )
    return _plain(table.select(polars.col("symbol").count(), polars.col("n", "a", "b", "s").sum()).collect().row(0))


def _ten_minutes_polars(path: Path) -> Any:
    import polars

    time = polars.col("ts_event")
    chosen = _scan(path).filter((polars.col("symbol") == "S0007") & (time >= START) & (time < STOP))
    found = chosen.select(polars.len(), polars.col("sequence").sum(), polars.col("topic").max()).collect()
    return _plain(found.row(0))


def _bars_polars(path: Path) -> Any:
    import polars

    price, shares, order = polars.col("price"), polars.col("shares"), polars.col("sequence")
    minute = (polars.col("ts_event") // MINUTE_NS).alias("minute")
    table = (
        _scan(path)
        .group_by("symbol", minute)
        .agg(
            price.get(order.arg_min()).alias("o"),
            price.max().alias("h"),
            price.min().alias("l"),
            price.get(order.arg_max()).alias("c"),
            shares.sum().alias("v"),
            ((price.cast(polars.Float64) * shares).sum() / shares.sum()).alias("w"),
        )
    )
    return _plain(table.select(polars.len(), polars.col(*"ohlcvw").sum()).collect().row(0))


def _all_spark(frame: DataFrame) -> Any:
    frame.write.format("noop").mode("overwrite").save()


def _all_polars(path: Path) -> Any:
    rows = 0

    def take(batch: polars.DataFrame) -> None:
        nonlocal rows
        rows += batch.height

    _scan(path).sink_batches(take, chunk_size=ROWS_A_BATCH)
    return rows


def _all_duckdb(path: Path) -> Any:
    import duckdb

    with duckdb.connect() as connection:
        reader = connection.sql(f"SELECT * FROM {_table(path)}").to_arrow_reader(ROWS_A_BATCH)
        return sum(batch.num_rows for batch in reader)


def _scan(path: Path) -> polars.LazyFrame:
    import polars

    return polars.scan_parquet(path / "*.parquet")


def _table(path: Path) -> str:
    return f"read_parquet('{path}/*.parquet')"


def _plain(row: Any) -> tuple[str, ...]:
    """Return the same text for equal values of any engine, with nine digits for floats."""
    return tuple(f"{float(value):.9g}" if not isinstance(value, int | str) else str(value) for value in row)


def _asked(query: str, by_polars: Callable[[Path], Any]) -> ByEngine:
    return {"Spark": _spark(_SQL[query]), "polars": by_polars, "DuckDB": _duckdb(_SQL[query])}


QUERIES: Final[dict[str, ByEngine]] = {
    "group by symbol": _asked("group by symbol", _by_symbol_polars),
    "all columns": {"Spark": _all_spark, "polars": _all_polars, "DuckDB": _all_duckdb},
    "ten minutes of a symbol": _asked("ten minutes of a symbol", _ten_minutes_polars),
    "minute bars": _asked("minute bars", _bars_polars),
}
