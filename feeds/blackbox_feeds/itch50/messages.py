"""Every message of NASDAQ TotalView-ITCH 5.0 as a numpy structured dtype.

Source: "Nasdaq TotalView-ITCH 5.0", sections 1.1 to 1.8. All integers are big-endian. Field names
are those of the specification in snake_case. A price is an integer with 4 implied decimal places,
the three levels of the MWCB decline message one with 8. `timestamp` is 48 bits wide, which numpy
has no integer for: it is six bytes, and `timestamps_ns` turns a whole column of them into int64.
"""

from __future__ import annotations

from typing import Any

import numpy
from numpy.typing import NDArray

from blackbox.feed.schema.instrument_fields import InstrumentFields
from blackbox.feed.schema.schema import SINCE_MIDNIGHT, BreakFields, OrderFields, Schema, TradeFields, price
from blackbox_feeds.io.dates import NEW_YORK

PRICE_SCALE = 10_000
"""A price field divided by this is in dollars."""
MWCB_PRICE_SCALE = 100_000_000
"""A level of the MWCB decline message (type V) divided by this is in points of the S&P 500."""

_U2 = ">u2"
_U4 = ">u4"
_U8 = ">u8"
_PRICE = price(_U4, 4)
_LEVEL = price(_U8, 8)
_TIMESTAMP = numpy.dtype(("u1", (6,)), metadata={SINCE_MIDNIGHT: NEW_YORK})


def _message(*fields: tuple[str, Any]) -> numpy.dtype[Any]:
    head = [
        ("message_type", "S1"),
        ("stock_locate", _U2),
        ("tracking_number", _U2),
        ("timestamp", _TIMESTAMP),
    ]
    return numpy.dtype([*head, *fields])


_ADD_ORDER = (
    ("order_reference_number", _U8),
    ("buy_sell_indicator", "S1"),
    ("shares", _U4),
    ("stock", "S8"),
    ("price", _PRICE),
)

# Appendix A: issue classification of the stock directory.
_CLASSES = {
    "A": "American depositary share",
    "B": "bond",
    "C": "common stock",
    "F": "depositary receipt",
    "I": "144A",
    "L": "limited partnership",
    "N": "notes",
    "O": "ordinary share",
    "P": "preferred stock",
    "Q": "other securities",
    "R": "right",
    "S": "shares of beneficial interest",
    "T": "convertible debenture",
    "U": "unit",
    "V": "units of beneficial interest",
    "W": "warrant",
}

SCHEMA = Schema(
    "itch50",
    1,
    {
        # 1.1 system event
        "S": _message(("event_code", "S1")),
        # 1.2.1 stock directory
        "R": _message(
            ("stock", "S8"),
            ("market_category", "S1"),
            ("financial_status_indicator", "S1"),
            ("round_lot_size", _U4),
            ("round_lots_only", "S1"),
            ("issue_classification", "S1"),
            ("issue_sub_type", "S2"),
            ("authenticity", "S1"),
            ("short_sale_threshold_indicator", "S1"),
            ("ipo_flag", "S1"),
            ("luld_reference_price_tier", "S1"),
            ("etp_flag", "S1"),
            ("etp_leverage_factor", _U4),
            ("inverse_indicator", "S1"),
        ),
        # 1.2.2 stock trading action
        "H": _message(("stock", "S8"), ("trading_state", "S1"), ("reserved", "S1"), ("reason", "S4")),
        # 1.2.3 Reg SHO short sale price test restricted indicator
        "Y": _message(("stock", "S8"), ("reg_sho_action", "S1")),
        # 1.2.4 market participant position
        "L": _message(
            ("mpid", "S4"),
            ("stock", "S8"),
            ("primary_market_maker", "S1"),
            ("market_maker_mode", "S1"),
            ("market_participant_state", "S1"),
        ),
        # 1.2.5 market-wide circuit breaker: decline levels, status
        "V": _message(("level_1", _LEVEL), ("level_2", _LEVEL), ("level_3", _LEVEL)),
        "W": _message(("breached_level", "S1")),
        # 1.2.6 IPO quoting period update
        "K": _message(
            ("stock", "S8"),
            ("ipo_quotation_release_time", _U4),
            ("ipo_quotation_release_qualifier", "S1"),
            ("ipo_price", _PRICE),
        ),
        # 1.2.7 LULD auction collar
        "J": _message(
            ("stock", "S8"),
            ("auction_collar_reference_price", _PRICE),
            ("upper_auction_collar_price", _PRICE),
            ("lower_auction_collar_price", _PRICE),
            ("auction_collar_extension", _U4),
        ),
        # 1.2.8 operational halt
        "h": _message(("stock", "S8"), ("market_code", "S1"), ("operational_halt_action", "S1")),
        # 1.3 add order, without and with attribution
        "A": _message(*_ADD_ORDER),
        "F": _message(*_ADD_ORDER, ("attribution", "S4")),
        # 1.4 order executed, executed with price, cancel, delete, replace
        "E": _message(("order_reference_number", _U8), ("executed_shares", _U4), ("match_number", _U8)),
        "C": _message(
            ("order_reference_number", _U8),
            ("executed_shares", _U4),
            ("match_number", _U8),
            ("printable", "S1"),
            ("execution_price", _PRICE),
        ),
        "X": _message(("order_reference_number", _U8), ("cancelled_shares", _U4)),
        "D": _message(("order_reference_number", _U8)),
        "U": _message(
            ("original_order_reference_number", _U8),
            ("new_order_reference_number", _U8),
            ("shares", _U4),
            ("price", _PRICE),
        ),
        # 1.5 trade (non-cross), cross trade, broken trade
        "P": _message(*_ADD_ORDER, ("match_number", _U8)),
        "Q": _message(
            ("shares", _U8),
            ("stock", "S8"),
            ("cross_price", _PRICE),
            ("match_number", _U8),
            ("cross_type", "S1"),
        ),
        "B": _message(("match_number", _U8)),
        # 1.6 net order imbalance indicator
        "I": _message(
            ("paired_shares", _U8),
            ("imbalance_shares", _U8),
            ("imbalance_direction", "S1"),
            ("stock", "S8"),
            ("far_price", _PRICE),
            ("near_price", _PRICE),
            ("current_reference_price", _PRICE),
            ("cross_type", "S1"),
            ("price_variation_indicator", "S1"),
        ),
        # 1.7 retail price improvement indicator
        "N": _message(("stock", "S8"), ("interest_flag", "S1")),
        # 1.8 direct listing with capital raise price discovery
        "O": _message(
            ("stock", "S8"),
            ("open_eligibility_status", "S1"),
            ("minimum_allowable_price", _PRICE),
            ("maximum_allowable_price", _PRICE),
            ("near_execution_price", _PRICE),
            ("near_execution_time", _U8),
            ("lower_price_range_collar", _PRICE),
            ("upper_price_range_collar", _PRICE),
        ),
    },
    trades=(
        TradeFields("P", "price", "shares", id="match_number"),
        TradeFields("E", None, "executed_shares", order="order_reference_number", id="match_number"),
        TradeFields("C", "execution_price", "executed_shares", only=("printable", "Y"), id="match_number"),
        TradeFields("Q", "cross_price", "shares", id="match_number"),
    ),
    # 1.5.3: a match number is day-unique; the message may break an execution, a trade or a cross.
    breaks=(BreakFields("B", "match_number"),),
    # 1.3: order reference numbers are day-unique.
    orders=(
        OrderFields("A", "order_reference_number", "price"),
        OrderFields("F", "order_reference_number", "price"),
        OrderFields("U", "new_order_reference_number", "price"),
    ),
    instruments=(
        InstrumentFields(
            "R",
            {
                "instrument_id": "stock_locate",
                "name": "stock",
                "instrument_class": "issue_classification",
                "lot_size": "round_lot_size",
            },
            constants={"currency": "USD"},
            meanings={"instrument_class": _CLASSES},
        ),
        InstrumentFields(
            "H",
            {"instrument_id": "stock_locate", "status": "trading_state"},
            part="status",
            meanings={"status": {"T": "trading", "H": "halted", "P": "paused", "Q": "quotation only"}},
        ),
    ),
)
"""The schema `itch50`, number 1."""

SYSTEM_TYPES = "SVW"
"""The message types about the whole market, without a stock."""


def timestamps_ns(records: NDArray[Any]) -> NDArray[numpy.int64]:
    """Return the `timestamp` column of ITCH records as int64 ns since midnight New York.

    `records` is an array of any shape of one of the dtypes of `SCHEMA`, or its six-byte
    `timestamp` column itself (shape (..., 6)).
    """
    six_bytes = records["timestamp"] if records.dtype.names else records
    wide = numpy.zeros((*six_bytes.shape[:-1], 8), numpy.uint8)
    wide[..., 2:] = six_bytes
    return wide.view(">i8")[..., 0].astype(numpy.int64)
