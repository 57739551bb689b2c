"""The strategy of all back-tests, over three symbols of the tape: IBM and BAC, each by its ratio to SPY.

Prices are integers in 1e-4 dollars, so that every engine decides the same. The state is float64[symbols, 5] or lists.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy
from blackbox_feeds.tape import SCHEMA, Tape
from numba import njit
from numpy.typing import NDArray

from bench.measure.contest import expect
from bench.rivals.servers import Missing
from bench.workload.recorded import record
from blackbox import Feed, Publisher, Recording

SYMBOLS: Final = ("SPY", "IBM", "BAC")
SPY: Final = 0
TOPICS: Final = tuple(f"{symbol}.trade".encode() for symbol in SYMBOLS)
_DATA: Final = Path(__file__).resolve().parents[3] / "shared" / "data" / "lean"
_DAYS: Final = ("20131007", "20131008", "20131009")
_PRICE, _MEAN, _SEEN, _IS_HIGH, _CROSSED, _PAID = 0, 0, 1, 2, 3, 4


def see(symbol: int, price: int, state: Any) -> None:
    """Process a trade: keep SPY's price; count and sum crossings of another symbol's ratio over its running mean."""
    mine = state[symbol]
    if symbol == SPY:
        mine[_PRICE] = price
        return
    spy = state[SPY][_PRICE]
    if spy == 0:
        return
    ratio = price / spy
    mine[_SEEN] += 1
    mine[_MEAN] += (ratio - mine[_MEAN]) / mine[_SEEN]
    is_high = ratio > mine[_MEAN]
    if is_high != mine[_IS_HIGH]:
        mine[_IS_HIGH] = is_high
        mine[_CROSSED] += 1
        mine[_PAID] += price


see_compiled = njit(see, nogil=True)


def fresh_state() -> NDArray[numpy.float64]:
    """Return the state before the first trade."""
    return numpy.zeros((len(SYMBOLS), 5))


@cache
def tape_trades(days: int) -> tuple[NDArray[Any], NDArray[numpy.int32], NDArray[numpy.int64]]:
    """Return the trades of `days` days in order: records, index of each one's symbol, times.

    The tape has times in milliseconds. Equal times are spread a nanosecond apart, because engines order them
    differently. Raises Missing if the files are missing.
    """
    files = [[_DATA / f"{symbol.lower()}_{day}_trade.zip" for day in _DAYS[:days]] for symbol in SYMBOLS]
    if not all(path.exists() for paths in files for path in paths):
        raise Missing(f"trades of the tape were not found: {files[0][0]}")
    dtype = SCHEMA.dtype("T")
    chunks = [(number, chunk) for number, paths in enumerate(files) for chunk in Tape(paths).chunks()]
    records = numpy.concatenate([numpy.asarray(chunk.payloads).reshape(-1).view(dtype) for _, chunk in chunks])
    symbols = numpy.concatenate([numpy.full(len(chunk.ts_event), number, numpy.int32) for number, chunk in chunks])
    times = numpy.concatenate([chunk.ts_event for _, chunk in chunks])
    order = numpy.argsort(times, kind="stable")
    rows = numpy.arange(len(order))
    return records[order], symbols[order], numpy.maximum.accumulate(times[order] - rows) + rows


@cache
def record_tape(days: int, slices: int) -> Recording:
    """Record the trades with a publisher and a recorder."""
    records, symbols, times = tape_trades(days)
    payloads = records.view(numpy.uint8).reshape(len(records), records.dtype.itemsize)
    feed = Feed.local(f"tape-{days}-{slices}", slices=slices, schema="tape")

    def publish(publisher: Publisher) -> None:
        publisher.publish_many(TOPICS, symbols, payloads, times)

    return Recording.open(record(feed, len(records), publish))


def expect_decisions(state: Any, days: int) -> None:
    """Raise Lost unless the strategy's final state equals that of a plain loop over the trades."""
    expect("state of the strategy", numpy.asarray(state).tolist(), _plain_state(days).tolist())


@cache
def _plain_state(days: int) -> NDArray[numpy.float64]:
    records, symbols, _ = tape_trades(days)
    state = fresh_state()
    _see_all(symbols, numpy.ascontiguousarray(records["price"]), state)
    expect("decisions above 0", bool((state[1:, _CROSSED] > 0).all()), True)
    return state


@njit(nogil=True)
def _see_all(symbols: NDArray[numpy.int32], prices: NDArray[numpy.int64], state: NDArray[numpy.float64]) -> None:
    for row in range(len(symbols)):
        see_compiled(symbols[row], prices[row], state)
