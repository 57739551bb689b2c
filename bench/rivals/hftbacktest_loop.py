"""hftbacktest's feed loop, without latency or orders: its compiled loop over an array of events per asset."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import numpy
from blackbox_feeds.tape import PRICE_SCALE
from hftbacktest import (
    BUY_EVENT,
    EXCH_EVENT,
    LOCAL_EVENT,
    TRADE_EVENT,
    BacktestAsset,
    ROIVectorMarketDepthBacktest,
)
from hftbacktest.types import event_dtype
from numba import njit

from bench.rivals.pair_strategy import SYMBOLS, expect_decisions, fresh_state, see_compiled, tape_trades
from bench.rivals.trades import expect_trades, trades
from bench.workload.messages import TOPICS
from bench.workload.tally import digest

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FOREVER_NS: Final = 10**15
_BIN_NS: Final = 1_000_000
"""Step of `elapse`: a thousand trades."""


def events(messages: int) -> NDArray[Any]:
    """Return the trades as hftbacktest's events."""
    records = trades(messages)
    out = _trade_events(records["ts_event"], 100.0, records["size"])
    out["ival"] = records["instrument_id"]
    return out


def feed_loop(data: NDArray[Any], by_bins: bool) -> float:
    """Return M events/s of `wait_next_feed`, an event at a time, or of `elapse`, a millisecond at a time."""
    backtest = ROIVectorMarketDepthBacktest([_asset(data)])
    state = numpy.zeros((TOPICS, 3), numpy.int64)
    started = time.perf_counter()
    (_bins if by_bins else _each)(backtest, state)
    seconds = time.perf_counter() - started
    backtest.close()
    expect_trades(state, len(data))
    return len(data) / seconds / 1e6


def pair_loop(days: int) -> float:
    """Return M trades/s of a strategy over several assets, an event at a time."""
    records, symbols, times = tape_trades(days)
    out = _trade_events(times, records["price"] / PRICE_SCALE, records["size"])
    by_asset = [out[symbols == number] for number in range(len(SYMBOLS))]  # hftbacktest keeps only their addresses
    backtest = ROIVectorMarketDepthBacktest([_asset(each) for each in by_asset])
    state = fresh_state()
    started = time.perf_counter()
    _see_each(backtest, state)
    seconds = time.perf_counter() - started
    backtest.close()
    expect_decisions(state, days)
    return len(records) / seconds / 1e6


def _trade_events(times: NDArray[Any], prices: Any, sizes: NDArray[Any]) -> NDArray[Any]:
    out = numpy.zeros(len(times), event_dtype)
    out["ev"] = TRADE_EVENT | EXCH_EVENT | LOCAL_EVENT | BUY_EVENT
    out["exch_ts"] = out["local_ts"] = times
    out["px"], out["qty"] = prices, sizes
    return out


def _asset(data: NDArray[Any]) -> Any:
    return (
        BacktestAsset()
        .data(data)
        .linear_asset(1.0)
        .constant_order_latency(0, 0)
        .risk_adverse_queue_model()
        .no_partial_fill_exchange()
        .trading_value_fee_model(0.0, 0.0)
        .tick_size(0.01)
        .lot_size(1.0)
        .roi_lb(0.0)
        .roi_ub(200.0)
        .last_trades_capacity(10_000)
    )


@njit(nogil=True)
def _take(backtest: Any, state: NDArray[numpy.int64]) -> None:
    for trade in backtest.last_trades(0):
        size = numpy.int64(trade.qty)
        state[trade.ival, 0] += 1
        state[trade.ival, 1] = digest(state[trade.ival, 1], size)
        state[trade.ival, 2] += size
    backtest.clear_last_trades(0)


@njit(nogil=True)
def _each(backtest: Any, state: NDArray[numpy.int64]) -> None:
    while backtest.wait_next_feed(False, _FOREVER_NS) == 2:
        _take(backtest, state)
    _take(backtest, state)


@njit(nogil=True)
def _bins(backtest: Any, state: NDArray[numpy.int64]) -> None:
    while backtest.elapse(_BIN_NS) == 0:
        _take(backtest, state)
    _take(backtest, state)


@njit(nogil=True)
def _see_each(backtest: Any, state: NDArray[numpy.float64]) -> None:
    while backtest.wait_next_feed(False, _FOREVER_NS) == 2:
        _see_last(backtest, state)
    _see_last(backtest, state)


@njit(nogil=True)
def _see_last(backtest: Any, state: NDArray[numpy.float64]) -> None:
    for asset in range(len(state)):
        for trade in backtest.last_trades(asset):
            see_compiled(asset, numpy.int64(round(trade.px * PRICE_SCALE)), state)
        backtest.clear_last_trades(asset)
