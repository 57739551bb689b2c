"""What a quote tells: its two sides, spread, mid and imbalance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import Window, functions

from blackbox.analysis.inputs import SYMBOL, TIES, ns_of, require

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def with_both_sides(
    quotes: DataFrame,
    by: Sequence[str] = SYMBOL,
    bid: str = "bid_price",
    ask: str = "ask_price",
    bid_size: str = "bid_size",
    ask_size: str = "ask_size",
    time: str = "ts_event",
    ties: Sequence[str] = TIES,
) -> DataFrame:
    """Fill each absent side of a quote from the last earlier quote of the same `by` that had it.

    For feeds that tell one side at a time, as the tape does. A side is absent when its price is null, or is 0 or less;
    where no earlier quote has it, its price and size become null. Earlier is by `time`, then `ties`; quotes of no known
    time come before all others. A side is carried forward without limit, also over night, unless `by` has a date in it.
    Put the exchange into `by` where quotes of several are mixed: the last one is not the best one.

    Raises ConfigError when a column is missing.
    """
    require(quotes, (*by, bid, ask, bid_size, ask_size, time, *ties), "quotes")
    before = Window.partitionBy(*by).orderBy(ns_of(quotes, time), *ties).rowsBetween(Window.unboundedPreceding, 0)
    sides = {}
    for price, size in ((bid, bid_size), (ask, ask_size)):
        there = functions.when(functions.col(price) > 0, functions.struct(price, size))
        sides[price, size] = functions.last(there, ignorenulls=True).over(before)
    columns = {name: side[name] for names, side in sides.items() for name in names}
    return quotes.select(*(columns[name].alias(name) if name in columns else name for name in quotes.columns))


def with_spread(
    quotes: DataFrame,
    bid: str = "bid_price",
    ask: str = "ask_price",
    bid_size: str = "bid_size",
    ask_size: str = "ask_size",
) -> DataFrame:
    """Add the columns `spread`, `mid` and `imbalance`.

    spread = ask - bid, of the prices' type: 0 where the market is locked, less where it is crossed.
    mid = (bid + ask) / 2, a double.
    imbalance = (bid size - ask size) / (bid size + ask size), a double from -1 to 1; null when both sizes are 0.

    A side is absent when its price is null, or is 0 or less. Where one is absent all three are null.

    Raises ConfigError when a column is missing.
    """
    require(quotes, (bid, ask, bid_size, ask_size), "quotes")
    bids, asks = functions.col(bid), functions.col(ask)
    both = (bids > 0) & (asks > 0)
    left, right = functions.col(bid_size).cast("double"), functions.col(ask_size).cast("double")
    weight = functions.nullif(left + right, functions.lit(0.0))
    return quotes.select(
        "*",
        functions.when(both, asks - bids).alias("spread"),
        functions.when(both, (bids.cast("double") + asks.cast("double")) / 2).alias("mid"),
        functions.when(both, (left - right) / weight).alias("imbalance"),
    )
