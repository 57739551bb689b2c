"""Traded volume and value by topic, in compiled code, for the demo's VWAP.

VWAP of a symbol = sum(price * shares) / sum(shares) over its trades, which are:

- ITCH 5.0: executions of resting orders at their own price (type E; the price is that of the A, F or U that added the
  order), executions at another price if they are printable (C), and trades against hidden orders (P). Crosses (Q) are
  auctions and left out.
- IEX TOPS and DEEP: trade reports (T).

Broken trades (B) are not subtracted.
"""

from __future__ import annotations

from typing import Any, Final

import numpy
from numpy.typing import NDArray

from blackbox.book.orders import BUY, UNKNOWN_PRICE, new_orders, remove, rest, take
from blackbox.feed.schema.schema import load_schema
from blackbox.native.compile.jit import njit
from blackbox.native.memory.records import Field, Fields, SharedRecord, record_at
from blackbox.receive.callbacks.compiled_callback import CompiledBatch, big_endian, little_endian, topic_number

PRICE_SCALE: Final = 10_000
"""A price divided by this is in dollars, for ITCH and IEX."""
MAX_TOPICS: Final = 262_144
"""Most topics counted per slice, the limit of the demo's feed."""


class TradeSums(SharedRecord):
    """Sums for one slice. In the state of its callback, the resting orders follow."""

    unpriced = Field()
    """Executions of unknown orders, left out."""
    value = Fields(MAX_TOPICS)
    """By topic number, like the next two. Dollars times `PRICE_SCALE`."""
    shares = Fields(MAX_TOPICS)
    trades = Fields(MAX_TOPICS)


_sums_at = record_at(TradeSums)
_SUMS_BYTES: Final = TradeSums.dtype.itemsize


def new_state(most_orders: int) -> NDArray[numpy.int64]:
    """Return the state of a slice with room for `most_orders` resting orders."""
    return numpy.concatenate([numpy.zeros(_SUMS_BYTES // 8, numpy.int64), new_orders(most_orders)])


def sums_of(state: NDArray[numpy.int64]) -> TradeSums:
    """Return the sums in the state of a slice."""
    return TradeSums(state[: _SUMS_BYTES // 8])


def trades_by_topic(state: NDArray[numpy.int64]) -> list[tuple[int, int, int]]:
    """Return (value, shares, trades) of each topic number; a value is in dollars times `PRICE_SCALE`."""
    sums = sums_of(state)
    columns = numpy.array([sums.value, sums.shares, sums.trades])
    traded = numpy.flatnonzero(columns[2])
    return list(zip(*columns[:, : traded[-1] + 1 if len(traded) else 0].tolist(), strict=True))


def _offsets(schema: str, kind: str) -> dict[str, int]:
    fields: Any = load_schema(schema).dtype(kind).fields
    return {name: int(field[1]) for name, field in fields.items()}


# Constants for compiled code. A, F and P agree in all fields used here, and so do E, C, X and D.
_ADD, _REPLACE, _PRICED = _offsets("itch50", "A"), _offsets("itch50", "U"), _offsets("itch50", "C")
_REFERENCE, _ADD_SHARES, _ADD_PRICE = _ADD["order_reference_number"], _ADD["shares"], _ADD["price"]
_NEW_REFERENCE, _NEW_SHARES = _REPLACE["new_order_reference_number"], _REPLACE["shares"]
_NEW_PRICE = _REPLACE["price"]
_TAKEN, _PRINTABLE, _TAKEN_PRICE = _PRICED["executed_shares"], _PRICED["printable"], _PRICED["execution_price"]
_REPORT = _offsets("iex_deep10", "T")
_REPORT_SIZE, _REPORT_PRICE = _REPORT["size"], _REPORT["price"]
_A, _C, _D, _E, _F, _P, _T, _U, _X, _Y = b"ACDEFPTUXY"


@njit(inline="always")
def _start(batch: CompiledBatch, row: int) -> Any:
    return row * batch.stride if batch.stride >= 0 else numpy.int64(batch.offsets[row])


@njit(inline="always")
def _trade(sums: TradeSums, number: int, price: int, shares: int) -> None:
    if 0 <= number < MAX_TOPICS:
        sums.value[number] += price * shares
        sums.shares[number] += shares
        sums.trades[number] += 1


@njit(nogil=True, cache=True)
def itch_trades(batch: CompiledBatch, state: NDArray[numpy.int64]) -> None:
    """Follow the orders of a batch of ITCH 5.0 messages and add up its trades."""
    data = batch.payloads
    sums = _sums_at(state.ctypes.data)
    orders = state.ctypes.data + _SUMS_BYTES
    for row in batch.rows:
        at = _start(batch, row)
        kind = data[at]
        if kind in (_A, _F):
            price, shares = big_endian(data, at + _ADD_PRICE, 4), big_endian(data, at + _ADD_SHARES, 4)
            rest(orders, big_endian(data, at + _REFERENCE, 8), BUY, price, shares)  # the side does not matter
        elif kind == _D:
            remove(orders, big_endian(data, at + _REFERENCE, 8))
        elif kind in (_E, _C, _X):
            shares = big_endian(data, at + _TAKEN, 4)
            price = take(orders, big_endian(data, at + _REFERENCE, 8), shares)
            if kind == _C and data[at + _PRINTABLE] == _Y:
                _trade(sums, topic_number(batch, row), big_endian(data, at + _TAKEN_PRICE, 4), shares)
            elif kind == _E and price == UNKNOWN_PRICE:
                sums.unpriced += 1
            elif kind == _E:
                _trade(sums, topic_number(batch, row), price, shares)
        elif kind == _U:
            remove(orders, big_endian(data, at + _REFERENCE, 8))
            price, shares = big_endian(data, at + _NEW_PRICE, 4), big_endian(data, at + _NEW_SHARES, 4)
            rest(orders, big_endian(data, at + _NEW_REFERENCE, 8), BUY, price, shares)
        elif kind == _P:
            price, shares = big_endian(data, at + _ADD_PRICE, 4), big_endian(data, at + _ADD_SHARES, 4)
            _trade(sums, topic_number(batch, row), price, shares)


@njit(nogil=True, cache=True)
def iex_trades(batch: CompiledBatch, state: NDArray[numpy.int64]) -> None:
    """Add up the trade reports of a batch of IEX messages."""
    data = batch.payloads
    sums = _sums_at(state.ctypes.data)
    for row in batch.rows:
        at = _start(batch, row)
        if data[at] == _T:
            shares = little_endian(data, at + _REPORT_SIZE, 4)
            _trade(sums, topic_number(batch, row), little_endian(data, at + _REPORT_PRICE, 8), shares)
