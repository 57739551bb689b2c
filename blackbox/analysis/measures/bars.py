"""Bars: open, high, low, close, volume and VWAP of trades, by time, by trade count or by volume."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Final, Literal, get_args

from pyspark.sql import Window, functions
from pyspark.sql.types import DoubleType, FloatType

from blackbox.analysis.measures.hours import CLOSES, OPENS, SESSION, Hours
from blackbox.analysis.measures.inputs import Length, check_free, groups_of, instant, length_ns, ns_of, require, ties_of
from blackbox.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.window import WindowSpec

Fill = Literal["none", "null", "previous"]
PRICES: Final = ("open", "high", "low", "close")
_MADE: Final = (*PRICES, "start", "start_time", "end", "bar", "volume", "trades", "vwap", SESSION)


def time_bars(
    trades: DataFrame,
    every: Length,
    by: Sequence[str] | None = None,
    price: str = "price",
    size: str = "size",
    time: str = "ts_event",
    ties: Sequence[str] | None = None,
    hours: Hours | None = None,
    fill: Fill = "none",
) -> DataFrame:
    """Return one bar for each interval [start, start + every) that has a trade.

    Intervals start at whole multiples of `every` since 1970-01-01 UTC. With `hours` they start at the open of each
    session, and the last one ends at the close. A trade at the very end of an interval belongs to the next one. Open
    and close are the prices of the first and the last trade by `time`, then `ties`. VWAP is the sum of price times size
    over the sum of sizes, a double; null if that is 0. Trades without time, price or size are left out.

    Args:
        trades: rows with the columns named here.
        every: the length of the intervals.
        by: columns to group by; each group has its own bars. Default: `symbol`, and those of `feed` and `date` that
            exist, so that each recorded day has its own bars; with `hours` without `date`, because a session may last
            over midnight.
        price: integers, decimals or doubles; the bars' prices have the same type.
        size: likewise; the volume has the type of Spark's sum.
        time: bigint ns (0: not known) or timestamp.
        ties: columns that order trades of equal times; default: those of `epoch`, `slice`, `sequence` that exist.
        hours: use only trades in these sessions; each session is a group, with its date in the column `session`.
        fill: policy for intervals without a trade, between the first and the last one with a trade (with `hours`:
            between open and close of a session that has a trade). "none" leaves them out, "null" adds bars without
            prices, "previous" adds bars at the previous close of the same session, or without prices before the first.
            Their volume and trades are 0, their VWAP is null.

    Columns: `by`, `session` with hours, `start` (bigint ns), `start_time`, `open`, `high`, `low`, `close`, `volume`,
    `trades`, `vwap`.

    Raises ConfigError if a column is missing or an argument is invalid.
    """
    if fill not in get_args(Fill):
        raise ConfigError(f"fill was {fill!r}, expected one of: {', '.join(get_args(Fill))}")
    step = length_ns(every, "every")
    rows, groups, ties = trades_of(trades, by, price, size, time, ties, hours)
    bounds = [functions.first(name).alias(name) for name in (OPENS, CLOSES) if name in rows.columns]
    starts = rows.withColumn("start", start_of(functions.col("_ns"), step, rows))
    place = functions.struct("_ns", *ties)
    bars = starts.groupBy(*groups, "start").agg(*_measures(price, size, place), *bounds)
    if fill != "none":
        bars = _filled(bars, groups, step, fill == "previous")
    return bars.select(*groups, "start", instant(functions.col("start")).alias("start_time"), *_columns())


def count_bars(
    trades: DataFrame,
    count: int,
    by: Sequence[str] | None = None,
    price: str = "price",
    size: str = "size",
    time: str = "ts_event",
    ties: Sequence[str] | None = None,
    hours: Hours | None = None,
) -> DataFrame:
    """Return a bar for every `count` trades, by `time` and then `ties`; the last one of a group may have fewer.

    Arguments and columns as in `time_bars`, but instead of `start_time` there is `bar`, its number from 0 within its
    group (`by`, and the session with `hours`), and `start` and `end` are the times of its first and last trade.
    """
    if count < 1:
        raise ConfigError(f"count was {count}, expected 1 or more")
    rows, groups, ties = trades_of(trades, by, price, size, time, ties, hours)
    numbered = _numbered(rows, groups, ties)
    return _by_number(numbered, groups, functions.expr(f"(_place - 1) div {count}"), price, size)


def volume_bars(
    trades: DataFrame,
    volume: int | Decimal | float,
    by: Sequence[str] | None = None,
    price: str = "price",
    size: str = "size",
    time: str = "ts_event",
    ties: Sequence[str] | None = None,
    hours: Hours | None = None,
) -> DataFrame:
    """Return a bar for every `volume` traded: a trade is in bar floor(V / volume), V being the volume before it.

    Trades are not split. The trade that fills a bar belongs to it entirely, and its excess counts for the next bar. A
    trade larger than `volume` skips bar numbers. The last bar of a group may have less. Otherwise as `count_bars`.
    """
    if not volume > 0:
        raise ConfigError(f"volume was {volume}, expected more than 0")
    rows, groups, ties = trades_of(trades, by, price, size, time, ties, hours)
    before = functions.sum(size).over(_ordered(groups, ties).rowsBetween(Window.unboundedPreceding, 0))
    rows = _numbered(rows, groups, ties).withColumn("_before", before - functions.col(size))
    if isinstance(volume, float) or isinstance(rows.schema[size].dataType, FloatType | DoubleType):
        bar = functions.floor(functions.col("_before") / functions.lit(float(volume)))
    else:
        bar = functions.call_function("div", functions.col("_before"), functions.lit(volume))
    return _by_number(rows, groups, bar, price, size)


def trades_of(
    trades: DataFrame,
    by: Sequence[str] | None,
    price: str,
    size: str | None,
    time: str,
    ties: Sequence[str] | None,
    hours: Hours | None,
) -> tuple[DataFrame, list[str], list[str]]:
    """Return the trades with a time, price and size, their time as `_ns`; the columns to group by; the ties."""
    values = [price] if size is None else [price, size]
    groups, ties = groups_of(by, trades), ties_of(trades, ties)
    if hours is not None and by is None and "date" in groups:
        groups.remove("date")  # a session may last over midnight
    require(trades, [*groups, *values, time, *ties], "trades")
    check_free(groups, _MADE)
    names = dict.fromkeys([*groups, *values, *ties])
    rows = trades.select(*names, ns_of(trades, time).alias("_ns")).dropna(subset=["_ns", *values])
    if hours is not None:
        rows = hours.select(rows, functions.col("_ns"))
        groups.append(SESSION)
    return rows, groups, ties


def start_of(ns: Column, step: int, rows: DataFrame) -> Column:
    """Return the start of the interval that contains `ns`."""
    origin = functions.col(OPENS) if OPENS in rows.columns else functions.lit(0).cast("bigint")
    return ns - functions.pmod(ns - origin, functions.lit(step).cast("bigint"))


def _measures(price: str, size: str, place: Column) -> list[Column]:
    weight = functions.col(size).cast("double")
    return [
        functions.min_by(price, place).alias("open"),
        functions.max(price).alias("high"),
        functions.min(price).alias("low"),
        functions.max_by(price, place).alias("close"),
        functions.sum(size).alias("volume"),
        functions.count(price).alias("trades"),
        vwap_of(functions.col(price), weight).alias("vwap"),
    ]


def vwap_of(price: Column, weight: Column) -> Column:
    """Return the weighted mean of a price, a double; null if all weights are 0."""
    total = functions.nullif(functions.sum(weight), functions.lit(0.0))
    return functions.sum(price.cast("double") * weight) / total


def _columns() -> list[str]:
    return [*PRICES, "volume", "trades", "vwap"]


def _filled(bars: DataFrame, groups: list[str], step: int, previous: bool) -> DataFrame:
    """Add bars for the empty intervals: each bar is repeated up to the next one."""
    order = Window.partitionBy(*groups).orderBy("start")
    first, last = functions.col("start"), functions.col("start")
    if OPENS in bars.columns:
        first = functions.when(functions.lag("start").over(order).isNull(), functions.col(OPENS)).otherwise(first)
        last = functions.col(CLOSES) - 1
    last = functions.coalesce(functions.lead("start").over(order) - 1, last)
    starts = functions.sequence("_first", "_last", functions.lit(step).cast("bigint"))
    whole = bars.withColumns({"_first": first, "_last": last}).withColumn("_start", functions.explode(starts))
    own = functions.col("start") == functions.col("_start")
    nothing = {name: functions.lit(0) if name in _COUNTS else functions.lit(None) for name in _columns()}
    whole = whole.withColumns(
        {name: functions.when(own, functions.col(name)).otherwise(nothing[name]) for name in nothing}
    )
    whole = whole.withColumn("start", functions.col("_start"))
    if previous:
        whole = whole.withColumn("close", functions.last("close", ignorenulls=True).over(order))
        whole = whole.withColumns({name: functions.coalesce(name, "close") for name in PRICES[:3]})
    return whole


_COUNTS: Final = ("volume", "trades")


def _ordered(groups: list[str], ties: Sequence[str]) -> WindowSpec:
    return Window.partitionBy(*groups).orderBy("_ns", *ties)


def _numbered(rows: DataFrame, groups: list[str], ties: Sequence[str]) -> DataFrame:
    return rows.withColumn("_place", functions.row_number().over(_ordered(groups, ties)).cast("bigint"))


def _by_number(numbered: DataFrame, groups: list[str], bar: Column, price: str, size: str) -> DataFrame:
    times = [functions.min("_ns").alias("start"), functions.max("_ns").alias("end")]
    bars = numbered.groupBy(*groups, bar.alias("bar")).agg(*_measures(price, size, functions.col("_place")), *times)
    return bars.select(*groups, "bar", "start", "end", *_columns())
