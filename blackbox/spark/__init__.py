"""Recorded days in PySpark: a session that is set up for them, the data source, analysis. Needs the extra `spark`.

What analyses is imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from blackbox.spark.session import session

if TYPE_CHECKING:
    from blackbox.spark.asof import asof_join
    from blackbox.spark.asof_slices import asof_recorded
    from blackbox.spark.averages import twap, vwap
    from blackbox.spark.bars import count_bars, time_bars, volume_bars
    from blackbox.spark.books import order_book, order_book_counts
    from blackbox.spark.counts import message_mix, message_rates
    from blackbox.spark.gaps import sequence_gaps
    from blackbox.spark.hours import Hours
    from blackbox.spark.lags import lag_percentiles
    from blackbox.spark.prices import recorded_quotes, recorded_trades
    from blackbox.spark.quotes import with_both_sides, with_spread

__all__ = [
    "Hours",
    "asof_join",
    "asof_recorded",
    "count_bars",
    "lag_percentiles",
    "message_mix",
    "message_rates",
    "order_book",
    "order_book_counts",
    "recorded_quotes",
    "recorded_trades",
    "sequence_gaps",
    "session",
    "time_bars",
    "twap",
    "volume_bars",
    "vwap",
    "with_both_sides",
    "with_spread",
]

_MODULE_OF = {
    "Hours": "hours",
    "asof_join": "asof",
    "asof_recorded": "asof_slices",
    "count_bars": "bars",
    "lag_percentiles": "lags",
    "message_mix": "counts",
    "message_rates": "counts",
    "order_book": "books",
    "order_book_counts": "books",
    "recorded_quotes": "prices",
    "recorded_trades": "prices",
    "sequence_gaps": "gaps",
    "time_bars": "bars",
    "twap": "averages",
    "volume_bars": "bars",
    "vwap": "averages",
    "with_both_sides": "quotes",
    "with_spread": "quotes",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'blackbox.spark' has no attribute {name!r}")
    value: object = getattr(import_module(f"blackbox.spark.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
