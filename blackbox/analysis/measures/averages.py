"""Average prices: by volume (VWAP) and by time (TWAP), over whole groups or over intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from pyspark.sql import Window, functions

from blackbox.analysis.measures.bars import start_of, trades_of, vwap_of
from blackbox.analysis.measures.hours import CLOSES, Hours
from blackbox.analysis.measures.inputs import Length, instant, length_ns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def vwap(
    trades: DataFrame,
    by: Sequence[str] | None = None,
    price: str = "price",
    size: str = "size",
    time: str = "ts_event",
    hours: Hours | None = None,
) -> DataFrame:
    """Return the mean price of all trades of a group, weighted by size: sum(price * size) / sum(size), a double.

    Null if the sizes sum to 0. For intervals use `time_bars`. Trades without time, price or size are left out. With
    `hours`, trades outside them are left out too, and each session is a group.

    Columns: `by`, `session` with hours, `volume`, `trades`, `vwap`.
    """
    rows, groups, _ = trades_of(trades, by, price, size, time, (), hours)
    mean = vwap_of(functions.col(price), functions.col(size).cast("double"))
    return rows.groupBy(*groups).agg(
        functions.sum(size).alias("volume"), functions.count(price).alias("trades"), mean.alias("vwap")
    )


def twap(
    trades: DataFrame,
    every: Length,
    by: Sequence[str] | None = None,
    price: str = "price",
    time: str = "ts_event",
    ties: Sequence[str] | None = None,
    hours: Hours | None = None,
    start_with: Literal["previous", "first"] = "previous",
) -> DataFrame:
    """Return the mean price over each interval that has a trade, weighted by time, a double.

    The price at an instant is that of the last trade until then, by `time` and `ties`. The average of an interval
    starts at its beginning, with the price of the last trade of an earlier interval of the same group (with `hours`: of
    the same session). If there is no such trade, or with `start_with="first"`, it starts at the interval's first trade.
    It extends to the end of the interval, with `hours` at most to the close. Of several trades at one instant only the
    last counts.

    Other arguments, and which trades are left out, as in `time_bars`.

    Columns: `by`, `session` with hours, `start` (bigint ns), `start_time`, `covered_ns` (length of the averaged part),
    `twap`.
    """
    step = length_ns(every, "every")
    rows, groups, ties = trades_of(trades, by, price, None, time, ties, hours)
    start, ns = functions.col("start"), functions.col("_ns")
    end = start + functions.lit(step).cast("bigint")
    if hours is not None:
        end = functions.least(end, CLOSES)
    rows = rows.withColumn("start", start_of(ns, step, rows)).withColumn("_end", end)
    inside = Window.partitionBy(*groups, "start").orderBy("_ns", *ties)
    held = functions.coalesce(functions.lead("_ns").over(inside), "_end") - ns
    value = functions.col(price).cast("double")
    parts = rows.withColumn("_held", held).withColumn("_place", functions.row_number().over(inside))
    intervals = parts.groupBy(*groups, "start").agg(
        functions.sum(value * functions.col("_held")).alias("_sum"),
        functions.sum("_held").alias("_covered"),
        functions.max_by(value, "_place").alias("_last"),
        functions.min("_ns").alias("_first"),
    )
    before = functions.lag("_last").over(Window.partitionBy(*groups).orderBy("start"))
    if start_with == "first":
        before = functions.lit(None).cast("double")
    gap = functions.when(functions.col("_before").isNull(), 0).otherwise(functions.col("_first") - start)
    total = functions.col("_sum") + functions.coalesce("_before", functions.lit(0.0)) * functions.col("_gap")
    return (
        intervals.withColumn("_before", before)
        .withColumn("_gap", gap)
        .withColumn("covered_ns", functions.col("_covered") + functions.col("_gap"))
        .select(
            *groups,
            "start",
            instant(start).alias("start_time"),
            "covered_ns",
            (total / functions.col("covered_ns")).alias("twap"),
        )
    )
