"""As-of join: for each row of one frame, the last earlier row of another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import Window, functions
from pyspark.sql.types import StructType, TimestampType

from blackbox.analysis.measures.inputs import check_time, groups_of, require, ties_of
from blackbox.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def asof_join(
    trades: DataFrame,
    quotes: DataFrame,
    by: Sequence[str] | None = None,
    on: str = "ts_event",
    ties: Sequence[str] | None = None,
    tolerance: int | None = None,
    exact: bool = True,
    suffix: str = "_quote",
) -> DataFrame:
    """Return each row of `trades`, joined with the last row of `quotes` of the same `by` that is not later.

    For a trade at time t that is the quote with the greatest `on` <= t (< t unless `exact`). Among quotes of equal `on`
    the last one by `ties` is used. Each trade appears once, in no particular order. The columns of quotes are null if
    there is no such quote, or the trade's time or a value of `by` is null. With `by=["symbol"]` quotes carry over to
    later days: yesterday's last quote is used this morning, unless `tolerance` limits its age.

    This works for any two frames; for recordings `asof_recorded` is much faster.

    Args:
        trades: a frame with the columns `by` and `on`.
        quotes: a frame with the same columns, and `ties`.
        by: the columns that must be equal; default: `symbol`, and those of `feed` and `date` that both have.
        on: the column of time, integers or timestamps. `sequence` joins in the order of capture if trades and quotes
            share a key, and `by` includes `epoch` and `slice`.
        ties: orders quotes of equal time. Default: those of `epoch`, `slice` and `sequence` that quotes have.
        tolerance: the greatest age of a quote, in the unit of `on` (microseconds for a timestamp).
        exact: True if a quote at the time of the trade counts.
        suffix: appended to the names of quote columns that trades have too.

    The result has the columns of trades, then those of quotes without `by`.

    Raises ConfigError if columns are missing or differ in type, `tolerance` is negative, or two names collide.
    """
    by = groups_of(by, trades, quotes)
    require(trades, [*by, on], "trades")
    ties = ties_of(quotes, ties)
    require(quotes, [*by, on, *ties], "quotes")
    for frame in (trades, quotes):
        check_time(frame, on)
    if tolerance is not None and tolerance < 0:
        raise ConfigError(f"tolerance was {tolerance}, expected 0 or more")
    for name in (*by, on):
        left, right = trades.schema[name].dataType, quotes.schema[name].dataType
        if left != right:
            raise ConfigError(
                f"column {name!r} was {right.simpleString()} in quotes, expected {left.simpleString()} as in trades"
            )
    names = joined_names(trades.schema, quotes.schema, by, suffix)
    # One sorted union, scanned once: Spark's own as-of join compares all rows with all.
    kept = StructType([quotes.schema[name] for name in names])
    places = [f"_tie_{name}" for name in ties]
    left_rows = trades.select(
        *by,
        on,
        functions.lit(int(exact)).alias("_side"),
        *(functions.lit(None).cast(quotes.schema[name].dataType).alias(f"_tie_{name}") for name in ties),
        functions.struct("*").alias("_trade"),
        functions.lit(None).cast(kept).alias("_quote"),
    )
    right_rows = quotes.dropna(subset=[*by, on]).select(
        *by,
        on,
        functions.lit(1 - int(exact)).alias("_side"),
        *(functions.col(name).alias(f"_tie_{name}") for name in ties),
        functions.lit(None).cast(trades.schema).alias("_trade"),
        functions.struct(*names).alias("_quote"),
    )
    before = Window.partitionBy(*by).orderBy(on, "_side", *places).rowsBetween(Window.unboundedPreceding, 0)
    last = functions.last("_quote", ignorenulls=True).over(before)
    found = left_rows.unionByName(right_rows).withColumn("_found", last).where("_trade is not null")
    if tolerance is not None:
        age = _number(trades, on, functions.col(on)) - _number(trades, on, functions.col("_found")[on])
        found = found.withColumn("_found", functions.when(age <= tolerance, functions.col("_found")))
    return found.select("_trade.*", *(functions.col("_found")[name].alias(made) for name, made in names.items()))


def _number(frame: DataFrame, name: str, column: Column) -> Column:
    return functions.unix_micros(column) if isinstance(frame.schema[name].dataType, TimestampType) else column


def joined_names(trades: StructType, quotes: StructType, by: Sequence[str], suffix: str) -> dict[str, str]:
    """Map the columns of quotes to their names in the result. Raises ConfigError if two names collide."""
    taken = set(trades.names)
    names = {name: name + suffix * (name in taken) for name in quotes.names if name not in by}
    whole = [*trades.names, *names.values()]
    if len(set(whole)) < len(whole):
        raise ConfigError(f"suffix was {suffix!r}, which makes duplicate column names: {', '.join(whole)}")
    return names
