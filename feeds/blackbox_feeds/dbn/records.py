"""The records of Databento Binary Encoding, versions 1 to 3, as numpy structured dtypes.

Source: `databento-dbn` 0.72, whose classes name the fields and their widths. All integers are little-endian. A price is
an integer with 9 implied decimal places, a time is ns since 1970-01-01 UTC; 2 ** 63 - 1 as a price and 2 ** 64 - 1 as
a time mean that there is none.

    length 1, in units of 4 bytes | rtype 1 | publisher_id 2 | instrument_id 4 | ts_event 8 | ...
"""

from __future__ import annotations

from typing import Any, Final

import numpy

from blackbox.feed.schema import QuoteFields, Schema, TradeFields, price, utc_time

PRICE_SCALE: Final = 1_000_000_000
"""A price field divided by this is in the currency's unit."""
RTYPE_AT: Final = 1
"""Where in a record its type is."""
METADATA: Final = b"DBN"
"""What a file, and so the payload of its metadata, starts with."""
METADATA_RTYPE: Final = METADATA[RTYPE_AT]
"""What stands in the metadata where a record has its type; no record has this one."""

_U4, _I4, _U8 = "<u4", "<i4", "<u8"
_PRICE = price("<i8", 9, absent=(1 << 63) - 1)
_TIME = utc_time(_U8, "ns", absent=(1 << 64) - 1)
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
    ("size", _U4),
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
    ("size", _U4),
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
    ("size", _U4),
    ("flags", "u1"),
    ("channel_id", "u1"),
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
}
"""Databento's name of each type of record that is the same in all versions: its `rtype` and layout."""

UNTYPED: Final = {
    "definition": (0x13, (360, 400, 520)),
    "imbalance": (0x14, (112,)),
    "error": (0x15, (80, 320)),
    "symbol-mapping": (0x16, (80, 176)),
    "system": (0x17, (80, 320)),
    "statistics": (0x18, (64, 80)),
}
"""The other types: `rtype` and the lengths that they have in the versions. They are delivered as they are."""

NAMES: Final = {rtype: name for name, (rtype, _) in (TYPED | UNTYPED).items()}
"""The name of each `rtype`."""
LENGTHS: Final = {rtype: (dtype.itemsize,) for rtype, dtype in TYPED.values()} | dict(UNTYPED.values())
"""The lengths that records of each `rtype` may have. Unit: bytes."""
F_SNAPSHOT: Final = 1 << 5
"""Of the flags of a record: it is of a snapshot."""
TS_OUT_BYTES: Final = 8
"""What a live session may append to each record: the time at which it was sent."""


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
"""The types that tell the best prices, the most often first."""
_QUOTES: Final = tuple(
    QuoteFields(name, "bid_px_00", "bid_sz_00", "ask_px_00", "ask_sz_00", rank) for rank, name in enumerate(_BEST)
)


def _schema(name: str, number: int, *more: tuple[str, Any]) -> Schema:
    """Return a schema of all typed records, each with `more` fields at its end."""
    records = {
        chr(rtype): numpy.dtype([*((field, dtype[field]) for field in dtype.names or ()), *more])
        for rtype, dtype in TYPED.values()
    }
    names = {name: chr(rtype) for name, (rtype, _) in TYPED.items()}
    return Schema(name, number, records, RTYPE_AT, names, _TRADES, _QUOTES)


SCHEMA = _schema("dbn", 6)
"""The schema `dbn`, number 6. Types have names, such as `mbo`, `mbp-1`, `mbp-10` and `trades`."""
SCHEMA_TS_OUT = _schema("dbn_ts_out", 7, ("ts_out", _TIME))
"""The schema `dbn_ts_out`, number 7: that of live sessions which append `ts_out` to each record."""
