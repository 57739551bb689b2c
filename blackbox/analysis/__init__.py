"""Analyses of recorded days in Spark: bars, averages, quotes, as-of joins, order books, lags, gaps.

In: data frames of `blackbox.analysis.spark`, or recordings. Out: data frames. Needs the extra `spark`. Names are
imported on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from blackbox.analysis.measures.asof import asof_join
    from blackbox.analysis.measures.averages import twap, vwap
    from blackbox.analysis.measures.bars import count_bars, time_bars, volume_bars
    from blackbox.analysis.measures.books import order_book, order_book_counts
    from blackbox.analysis.measures.counts import message_mix, message_rates
    from blackbox.analysis.measures.gaps import sequence_gaps
    from blackbox.analysis.measures.hours import Hours
    from blackbox.analysis.measures.lags import lag_percentiles
    from blackbox.analysis.measures.prices import recorded_quotes, recorded_trades
    from blackbox.analysis.measures.quotes import with_both_sides, with_spread
    from blackbox.analysis.measures.recorded_asof import asof_recorded

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
    "asof_recorded": "recorded_asof",
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
        raise AttributeError(f"module 'blackbox.analysis' has no attribute {name!r}")
    value: object = getattr(import_module(f"blackbox.analysis.measures.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
