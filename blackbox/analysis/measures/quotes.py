"""Quotes: both sides, spread, mid and imbalance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import Window, functions

from blackbox.analysis.measures.inputs import groups_of, ns_of, require, ties_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def with_both_sides(
    quotes: DataFrame,
    by: Sequence[str] | None = None,
    bid: str = "bid_price",
    ask: str = "ask_price",
    bid_size: str = "bid_size",
    ask_size: str = "ask_size",
    time: str | None = "ts_event",
    ties: Sequence[str] | None = None,
) -> DataFrame:
    """Fill each absent side of a quote from the last earlier quote of the same `by` that had it.

    For feeds that send one side at a time, like the tape; `recorded_quotes` and `asof_recorded` already do this. A side
    is absent if its price is null; if no earlier quote has it, price and size become null. Zero and negative prices are
    valid.

    Order is by `time`, then `ties`; quotes without a known time come first. With `time=None` it is by `ties` alone, the
    order of the recording. Default of `ties`: those of `epoch`, `slice`, `sequence` that exist.

    Without `by`, sides are carried within `symbol`, and `feed` and `date` if they exist. If quotes of several exchanges
    are mixed, include the exchange in `by`, because the last quote is not the best one.

    Raises ConfigError if a column is missing.
    """
    groups, ties = groups_of(by, quotes), ties_of(quotes, ties)
    times = [] if time is None else [time]
    require(quotes, (*groups, bid, ask, bid_size, ask_size, *times, *ties), "quotes")
    order: list[Any] = [*(ns_of(quotes, name) for name in times), *ties]
    before = Window.partitionBy(*groups).orderBy(*order).rowsBetween(Window.unboundedPreceding, 0)
    sides = {}
    for price, size in ((bid, bid_size), (ask, ask_size)):
        there = functions.when(functions.col(price).isNotNull(), functions.struct(price, size))
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

    spread = ask - bid, in the prices' type: 0 in a locked market, negative in a crossed one. mid = (bid + ask) / 2, a
    double. imbalance = (bid size - ask size) / (bid size + ask size), a double from -1 to 1; null if both sizes are 0.

    A side is absent if its price is null; if one is absent, all three are null. Zero and negative prices are valid, so
    convert a feed's price of 0 for an absent side to null, as `recorded_quotes` does.

    Raises ConfigError if a column is missing.
    """
    require(quotes, (bid, ask, bid_size, ask_size), "quotes")
    bids, asks = functions.col(bid), functions.col(ask)
    both = bids.isNotNull() & asks.isNotNull()
    left, right = functions.col(bid_size).cast("double"), functions.col(ask_size).cast("double")
    weight = functions.nullif(left + right, functions.lit(0.0))
    return quotes.select(
        "*",
        functions.when(both, asks - bids).alias("spread"),
        functions.when(both, (bids.cast("double") + asks.cast("double")) / 2).alias("mid"),
        functions.when(both, (left - right) / weight).alias("imbalance"),
    )
