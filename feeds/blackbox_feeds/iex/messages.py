"""Every message of IEX TOPS 1.6 and IEX DEEP 1.0 as a numpy structured dtype.

Sources: "Investors Exchange TOPS Specification" 1.66 and "Investors Exchange DEEP Specification"
1.08, which keep the wire versions 1.6 and 1.0. All integers are little-endian. Field names
are those of the specifications in snake_case. A price is a signed integer with 4 implied decimal
places; `timestamp` is ns since 1970-01-01 UTC.
"""

from __future__ import annotations

from typing import Any

import numpy

from blackbox.feed.schema.instrument_fields import InstrumentFields
from blackbox.feed.schema.schema import BreakFields, QuoteFields, Schema, TradeFields, price, utc_time

PRICE_SCALE = 10_000
"""A price field divided by this is in dollars."""

_U4 = "<u4"
_PRICE = price("<i8", 4)
_SIDE = price("<i8", 4, absent=0)
"""A side of a quote without interest has price and size 0."""
_TIMESTAMP = utc_time("<i8", "ns")
_EVENT_TIME = utc_time("<u4", "s")


def _message(second: str, *fields: tuple[str, Any]) -> numpy.dtype[Any]:
    """Return all messages but the system event: type, one byte, time, symbol, then `fields`."""
    head = [
        ("message_type", "S1"),
        (second, "u1" if second.endswith("flags") else "S1"),
        ("timestamp", _TIMESTAMP),
        ("symbol", "S8"),
    ]
    return numpy.dtype([*head, *fields])


_TRADE = (("size", _U4), ("price", _PRICE), ("trade_id", "<i8"))

_TRADES = (TradeFields("T", "price", "size", id="trade_id"),)
_BREAKS = (BreakFields("B", "trade_id", "price", "size"),)
_INSTRUMENTS = (
    InstrumentFields(
        "D", {"name": "symbol", "lot_size": "round_lot_size"}, constants={"venue": "IEXG", "currency": "USD"}
    ),
    InstrumentFields(
        "H",
        {"status": "trading_status"},
        part="status",
        meanings={"status": {"T": "trading", "H": "halted", "P": "paused", "O": "order acceptance"}},
    ),
)

_COMMON = {
    "S": numpy.dtype([("message_type", "S1"), ("system_event", "S1"), ("timestamp", _TIMESTAMP)]),
    "D": _message("flags", ("round_lot_size", _U4), ("adjusted_poc_price", _PRICE), ("luld_tier", "u1")),
    "H": _message("trading_status", ("reason", "S4")),
    "I": _message("retail_liquidity_indicator"),
    "O": _message("operational_halt_status"),
    "P": _message("short_sale_price_test_status", ("detail", "S1")),
    "T": _message("sale_condition_flags", *_TRADE),
    "X": _message("price_type", ("official_price", _PRICE)),
    "B": _message("sale_condition_flags", *_TRADE),
    "A": _message(
        "auction_type",
        ("paired_shares", _U4),
        ("reference_price", _PRICE),
        ("indicative_clearing_price", _PRICE),
        ("imbalance_shares", _U4),
        ("imbalance_side", "S1"),
        ("extension_number", "u1"),
        ("scheduled_auction_time", _EVENT_TIME),
        ("auction_book_clearing_price", _PRICE),
        ("collar_reference_price", _PRICE),
        ("lower_auction_collar", _PRICE),
        ("upper_auction_collar", _PRICE),
    ),
}

_PRICE_LEVEL = _message("event_flags", ("size", _U4), ("price", _PRICE))

TOPS16 = Schema(
    "iex_tops16",
    2,
    {
        **_COMMON,
        "Q": _message(
            "flags",
            ("bid_size", _U4),
            ("bid_price", _SIDE),
            ("ask_price", _SIDE),
            ("ask_size", _U4),
        ),
    },
    trades=_TRADES,
    breaks=_BREAKS,
    instruments=_INSTRUMENTS,
    quotes=(QuoteFields("Q", "bid_price", "bid_size", "ask_price", "ask_size"),),
)
"""The schema `iex_tops16`, number 2: top of book and last sale."""

DEEP10 = Schema(
    "iex_deep10",
    3,
    {
        **_COMMON,
        "E": _message("security_event"),
        "8": _PRICE_LEVEL,
        "5": _PRICE_LEVEL,
    },
    trades=_TRADES,
    breaks=_BREAKS,
    instruments=_INSTRUMENTS,
)
"""The schema `iex_deep10`, number 3: price levels (8 buy side, 5 sell side) and last sale."""

PROTOCOLS = {0x8003: TOPS16, 0x8004: DEEP10}
"""Message protocol id of the IEX-TP header to schema."""

SYSTEM_TYPES = "S"
"""The message types that carry no symbol."""
