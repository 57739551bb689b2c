"""hftbacktest's feed loop: one asset, no latency, no orders; its own compiled loop over the events of an array."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import numpy
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

from bench.rivals.trades import expect_trades, trades
from bench.workload.messages import TOPICS
from bench.workload.tally import digest

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FOREVER_NS: Final = 10**15
_BIN_NS: Final = 1_000_000
"""Of `elapse`: a thousand trades at a time."""


def events(messages: int) -> NDArray[Any]:
    """The trades as its events."""
    records = trades(messages)
    out = numpy.zeros(messages, event_dtype)
    out["ev"] = TRADE_EVENT | EXCH_EVENT | LOCAL_EVENT | BUY_EVENT
    out["exch_ts"] = out["local_ts"] = records["ts_event"]
    out["px"] = 100.0
    out["qty"] = records["size"]
    out["ival"] = records["instrument_id"]
    return out


def feed_loop(data: NDArray[Any], by_bins: bool) -> float:
    """M events/s of `wait_next_feed`, an event at a time, or of `elapse`, a bin of a millisecond at a time."""
    asset = (
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
    backtest = ROIVectorMarketDepthBacktest([asset])
    state = numpy.zeros((TOPICS, 3), numpy.int64)
    started = time.perf_counter()
    (_bins if by_bins else _each)(backtest, state)
    seconds = time.perf_counter() - started
    backtest.close()
    expect_trades(state, len(data))
    return len(data) / seconds / 1e6


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
