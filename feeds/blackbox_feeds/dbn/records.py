"""The records of Databento Binary Encoding, versions 1 to 3, as numpy structured dtypes.

Source: `databento-dbn` 0.72, whose classes name the fields and their widths. All integers are little-endian. A price is
an integer with 9 implied decimal places, a time is ns since 1970-01-01 UTC. The largest value of many integers means
"none"; it is the field's `absent`. The layouts are those of version 3: the source upgrades records of older ones.

    length 1, in units of 4 bytes | rtype 1 | publisher_id 2 | instrument_id 4 | ts_event 8 | ...
"""

from __future__ import annotations

from typing import Any, Final

import numpy

from blackbox.feed.schema.instrument_fields import InstrumentFields
from blackbox.feed.schema.schema import QuoteFields, Schema, TradeFields, optional, price, utc_time

PRICE_SCALE: Final = 1_000_000_000
"""A price field divided by this is in the currency's unit."""
RTYPE_AT: Final = 1
"""Offset of the type in a record."""
METADATA: Final = b"DBN"
"""First bytes of a file, and so of its metadata payload."""
METADATA_RTYPE: Final = METADATA[RTYPE_AT]
"""The metadata's byte at the offset of a record's type; no record has this type."""

_U4, _I4, _U8 = "<u4", "<i4", "<u8"
_PRICE = price("<i8", 9, absent=(1 << 63) - 1)
_TIME = utc_time(_U8, "ns", absent=(1 << 64) - 1)
_SIZE = optional(_U4, absent=(1 << 32) - 1)


def _or_none(kind: str) -> numpy.dtype[Any]:
    """Return an integer field in which the largest value means "no value"."""
    return optional(kind, absent=int(numpy.iinfo(kind).max))


_HEAD = (("length", "u1"), ("rtype", "u1"), ("publisher_id", "<u2"), ("instrument_id", _U4), ("ts_event", _TIME))


def _record(*fields: tuple[str, Any]) -> numpy.dtype[Any]:
    return numpy.dtype([*_HEAD, *fields])


def _level(number: int) -> tuple[tuple[str, Any], ...]:
    sides = ("bid_px", _PRICE), ("ask_px", _PRICE), ("bid_sz", _U4), ("ask_sz", _U4), ("bid_ct", _U4), ("ask_ct", _U4)
    return tuple((f"{name}_{number:02}", kind) for name, kind in sides)


_CONSOLIDATED = (
    ("bid_px_00", _PRICE),
    ("ask_px_00", _PRICE),
    ("bid_sz_00", _U4),
    ("ask_sz_00", _U4),
    ("bid_pb_00", "<u2"),
    ("_reserved1_00", "S2"),
    ("ask_pb_00", "<u2"),
    ("_reserved2_00", "S2"),
)
_TRADE = (
    ("price", _PRICE),
    ("size", _SIZE),
    ("action", "S1"),
    ("side", "S1"),
    ("flags", "u1"),
    ("depth", "u1"),
    ("ts_recv", _TIME),
    ("ts_in_delta", _I4),
    ("sequence", _U4),
)
_QUOTE = (
    ("price", _PRICE),
    ("size", _SIZE),
    ("_reserved1", "u1"),
    ("side", "S1"),
    ("flags", "u1"),
    ("_reserved2", "u1"),
    ("ts_recv", _TIME),
)
_MBP_1 = _record(*_TRADE, *_level(0))
_OHLCV = _record(("open", _PRICE), ("high", _PRICE), ("low", _PRICE), ("close", _PRICE), ("volume", _U8))
_BBO = _record(*_QUOTE, ("_reserved3", "S4"), ("sequence", _U4), *_level(0))
_CBBO = _record(*_QUOTE, ("_reserved3", "S8"), *_CONSOLIDATED)
_CMBP_1 = _record(*_TRADE[:5], ("_reserved1", "S1"), *_TRADE[6:8], ("_reserved2", "S4"), *_CONSOLIDATED)
_MBO = _record(
    ("order_id", _U8),
    ("price", _PRICE),
    ("size", _SIZE),
    ("flags", "u1"),
    ("channel_id", _or_none("u1")),
    ("action", "S1"),
    ("side", "S1"),
    ("ts_recv", _TIME),
    ("ts_in_delta", _I4),
    ("sequence", _U4),
)
_STATUS = _record(
    ("ts_recv", _TIME),
    ("action", "<u2"),
    ("reason", "<u2"),
    ("trading_event", "<u2"),
    ("is_trading", "S1"),
    ("is_quoting", "S1"),
    ("is_short_sell_restricted", "S1"),
    ("_reserved", "S7"),
)

_PRICES_OF_DEFINITION = (
    "high_limit_price",
    "low_limit_price",
    "max_price_variation",
    "unit_of_measure_qty",
    "min_price_increment_amount",
    "price_ratio",
    "strike_price",
)
_DEFINITION = _record(
    ("ts_recv", _TIME),
    ("min_price_increment", _PRICE),
    ("display_factor", _PRICE),
    ("expiration", _TIME),
    ("activation", _TIME),
    *((name, _PRICE) for name in _PRICES_OF_DEFINITION),
    ("raw_instrument_id", _U8),
    ("leg_price", _PRICE),
    ("leg_delta", _PRICE),
    ("inst_attrib_value", _or_none("<i4")),
    ("underlying_id", _U4),
    ("market_depth_implied", _or_none("<i4")),
    ("market_depth", _or_none("<i4")),
    ("market_segment_id", _or_none("<u4")),
    ("max_trade_vol", _or_none("<u4")),
    ("min_lot_size", _or_none("<i4")),
    ("min_lot_size_block", _or_none("<i4")),
    ("min_lot_size_round_lot", _or_none("<i4")),
    ("min_trade_vol", _or_none("<u4")),
    ("contract_multiplier", _or_none("<i4")),
    ("decay_quantity", _or_none("<i4")),
    ("original_contract_size", _or_none("<i4")),
    ("leg_instrument_id", _U4),
    ("leg_ratio_price_numerator", _I4),
    ("leg_ratio_price_denominator", _I4),
    ("leg_ratio_qty_numerator", _I4),
    ("leg_ratio_qty_denominator", _I4),
    ("leg_underlying_id", _U4),
    ("appl_id", _or_none("<i2")),
    ("maturity_year", _or_none("<u2")),
    ("decay_start_date", _or_none("<u2")),
    ("channel_id", _or_none("<u2")),
    ("leg_count", "<u2"),
    ("leg_index", "<u2"),
    ("currency", "S4"),
    ("settl_currency", "S4"),
    ("secsubtype", "S6"),
    ("raw_symbol", "S71"),
    ("group", "S21"),
    ("exchange", "S5"),
    ("asset", "S11"),
    ("cfi", "S7"),
    ("security_type", "S7"),
    ("unit_of_measure", "S31"),
    ("underlying", "S21"),
    ("strike_price_currency", "S4"),
    ("leg_raw_symbol", "S71"),
    ("instrument_class", "S1"),
    ("match_algorithm", "S1"),
    ("main_fraction", _or_none("u1")),
    ("price_display_format", _or_none("u1")),
    ("sub_fraction", _or_none("u1")),
    ("underlying_product", _or_none("u1")),
    ("security_update_action", "S1"),
    ("maturity_month", _or_none("u1")),
    ("maturity_day", _or_none("u1")),
    ("maturity_week", _or_none("u1")),
    ("user_defined_instrument", "S1"),
    ("contract_multiplier_unit", _or_none("i1")),
    ("flow_schedule_type", _or_none("i1")),
    ("tick_rule", _or_none("u1")),
    ("leg_instrument_class", "S1"),
    ("leg_side", "S1"),
    ("_reserved", "S17"),
)
_IMBALANCE = _record(
    ("ts_recv", _TIME),
    ("ref_price", _PRICE),
    ("auction_time", _TIME),
    ("cont_book_clr_price", _PRICE),
    ("auct_interest_clr_price", _PRICE),
    ("ssr_filling_price", _PRICE),
    ("ind_match_price", _PRICE),
    ("upper_collar", _PRICE),
    ("lower_collar", _PRICE),
    ("paired_qty", _SIZE),
    ("total_imbalance_qty", _SIZE),
    ("market_imbalance_qty", _SIZE),
    ("unpaired_qty", _SIZE),
    ("auction_type", "S1"),
    ("side", "S1"),
    ("auction_status", "u1"),
    ("freeze_status", "u1"),
    ("num_extensions", "u1"),
    ("unpaired_side", "S1"),
    ("significant_imbalance", "S1"),
    ("_reserved", "S1"),
)
_STATISTICS = _record(
    ("ts_recv", _TIME),
    ("ts_ref", _TIME),
    ("price", _PRICE),
    ("quantity", _or_none("<i8")),
    ("sequence", _U4),
    ("ts_in_delta", _I4),
    ("stat_type", "<u2"),
    ("channel_id", _or_none("<u2")),
    ("update_action", "u1"),
    ("stat_flags", "u1"),
    ("_reserved", "S18"),
)
_MAPPING = _record(
    ("stype_in", _or_none("u1")),
    ("stype_in_symbol", "S71"),
    ("stype_out", _or_none("u1")),
    ("stype_out_symbol", "S71"),
    ("start_ts", _TIME),
    ("end_ts", _TIME),
)

TYPED: Final = {
    "trades": (0x00, _record(*_TRADE)),
    "mbp-1": (0x01, _MBP_1),
    "mbp-10": (0x0A, _record(*_TRADE, *(field for number in range(10) for field in _level(number)))),
    "mbo": (0xA0, _MBO),
    "bbo-1s": (0xC3, _BBO),
    "bbo-1m": (0xC4, _BBO),
    "cmbp-1": (0xB1, _CMBP_1),
    "cbbo-1s": (0xC0, _CBBO),
    "cbbo-1m": (0xC1, _CBBO),
    "tcbbo": (0xC2, _CMBP_1),
    "ohlcv": (0x11, _OHLCV),
    "ohlcv-1s": (0x20, _OHLCV),
    "ohlcv-1m": (0x21, _OHLCV),
    "ohlcv-1h": (0x22, _OHLCV),
    "ohlcv-1d": (0x23, _OHLCV),
    "ohlcv-eod": (0x24, _OHLCV),
    "status": (0x12, _STATUS),
    "definition": (0x13, _DEFINITION),
    "imbalance": (0x14, _IMBALANCE),
    "statistics": (0x18, _STATISTICS),
    "symbol-mapping": (0x16, _MAPPING),
    "error": (0x15, _record(("err", "S302"), ("code", _or_none("u1")), ("is_last", _or_none("u1")))),
    "system": (0x17, _record(("msg", "S303"), ("code", _or_none("u1")))),
}
"""Databento's name of each type of record: its `rtype` and layout in version 3."""

NAMES: Final = {rtype: name for name, (rtype, _) in TYPED.items()}
"""The name of each `rtype`."""
NEWEST: Final = 3
_EARLIER: Final = {
    1: {"definition": 360, "statistics": 64, "symbol-mapping": 80, "error": 80, "system": 80},
    2: {"definition": 400, "statistics": 64},
    NEWEST: {},
}
"""By version: the lengths that differ from those of the newest version. Unit: bytes."""
VERSIONS: Final = tuple(_EARLIER)
SAME_IN_ALL_VERSIONS: Final = TYPED.keys() - _EARLIER[1].keys()
"""The types of record with the same layout in all versions."""


def lengths_of(version: int) -> dict[int, int]:
    """Return the length of each `rtype` in a version of DBN. Unit: bytes."""
    return {rtype: _EARLIER[version].get(name, dtype.itemsize) for name, (rtype, dtype) in TYPED.items()}


F_SNAPSHOT: Final = 1 << 5
"""Flag of a record that belongs to a snapshot."""
F_BAD_TS_RECV: Final = 1 << 3
"""Flag of a record whose `ts_recv` is not exact. In a snapshot it is the time of the snapshot."""
F_MAYBE_BAD_BOOK: Final = 1 << 2
"""Flag of a record after messages that Databento has lost and cannot recover."""
TS_OUT_BYTES: Final = 8
"""Field that a live session may append to each record: the time at which it was sent."""


_TRADED: Final = ("action", "T")
_TRADES: Final = (
    TradeFields("trades", "price", "size"),
    TradeFields("mbp-1", "price", "size", _TRADED, rank=1),
    TradeFields("mbo", "price", "size", _TRADED, rank=2),
    TradeFields("mbp-10", "price", "size", _TRADED, rank=3),
    TradeFields("tcbbo", "price", "size", rank=4),
    TradeFields("cmbp-1", "price", "size", _TRADED, rank=5),
)
_BEST: Final = ("mbp-1", "mbp-10", "cmbp-1", "bbo-1s", "cbbo-1s", "tcbbo", "bbo-1m", "cbbo-1m")
"""The types with the best prices, the most frequent first."""
_QUOTES: Final = tuple(
    QuoteFields(name, "bid_px_00", "bid_sz_00", "ask_px_00", "ask_sz_00", rank) for rank, name in enumerate(_BEST)
)
_IDS: Final = {"publisher_id": "publisher_id", "instrument_id": "instrument_id"}
_CLASSES: Final = {
    "B": "bond",
    "C": "call",
    "F": "future",
    "I": "index",
    "K": "stock",
    "M": "mixed spread",
    "P": "put",
    "S": "future spread",
    "T": "option spread",
    "X": "FX spot",
    "Y": "commodity spot",
}
_ACTIONS: Final = {
    "0": "",
    "1": "pre-open",
    "2": "pre-cross",
    "3": "quoting",
    "4": "cross",
    "5": "rotation",
    "6": "new price indication",
    "7": "trading",
    "8": "halted",
    "9": "paused",
    "10": "suspended",
    "11": "pre-close",
    "12": "closed",
    "13": "post-close",
    "14": "",
    "15": "not available for trading",
}
"""Actions of status records. 0 (none) and 14 (a change of the short-sale restriction) leave the status as it was."""
_INSTRUMENTS: Final = (
    InstrumentFields(
        "definition",
        {
            **_IDS,
            "venue": "exchange",
            "name": "raw_symbol",
            "instrument_class": "instrument_class",
            "lot_size": "min_lot_size_round_lot",
            "tick_size": "min_price_increment",
            "contract_size": "unit_of_measure_qty",
            "currency": "currency",
            "strike_price": "strike_price",
            "underlying": "underlying",
            "activation": "activation",
            "expiration": "expiration",
        },
        meanings={"instrument_class": _CLASSES},
        deleted=("security_update_action", "D"),
    ),
    InstrumentFields("status", {**_IDS, "status": "action"}, part="status", meanings={"status": _ACTIONS}),
    InstrumentFields(
        "symbol-mapping",
        {
            "instrument_id": "instrument_id",
            "name": "stype_out_symbol",
            "mapped_from": "start_ts",
            "mapped_until": "end_ts",
        },
        part="mapping",
    ),
)


def _schema(name: str, number: int, *more: tuple[str, Any]) -> Schema:
    """Return a schema of all typed records, each with `more` fields at its end."""
    records = {
        chr(rtype): numpy.dtype([*((field, dtype[field]) for field in dtype.names or ()), *more])
        for rtype, dtype in TYPED.values()
    }
    names = {name: chr(rtype) for name, (rtype, _) in TYPED.items()}
    return Schema(name, number, records, RTYPE_AT, names, _TRADES, _QUOTES, instruments=_INSTRUMENTS)


SCHEMA = _schema("dbn", 6)
"""The schema `dbn`, number 6. Types have names, such as `mbo`, `mbp-1`, `mbp-10` and `trades`."""
SCHEMA_TS_OUT = _schema("dbn_ts_out", 7, ("ts_out", _TIME))
"""The schema `dbn_ts_out`, number 7: that of live sessions which append `ts_out` to each record."""
