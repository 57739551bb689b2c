"""A row of a consolidated-tape CSV as a fixed binary record, from which the identical row can be written.

Source: the README of QuantConnect/Lean's `Data/equity`, ticks. A price is an integer with 4 implied decimal places; a
quote's price of 0 means that the row has no data for that side. Prices may be negative.

     0 type 1 | exchange 1 | suspicious 1 | line_end 1 | time_ms 4 | date 4 | condition 8 |
    20 T: size 4     | price 8     | symbol 12                                              44 bytes
    20 Q: bid_size 4 | bid_price 8 | ask_price 8 | ask_size 4 | symbol 12                   56 bytes
"""

from __future__ import annotations

from typing import Any, Final

import numpy

from blackbox.feed.schema.schema import QuoteFields, Schema, TradeFields, price

PRICE_SCALE: Final = 10_000
"""A price field divided by this is in dollars."""
SYMBOL_BYTES: Final = 12
"""The longest symbol."""
NO_LINE_END, LF, CR_LF = range(3)
"""`line_end`: how the row ends."""
TYPES: Final = {"trade": "T", "quote": "Q"}
"""The word for each kind of record in names of files and topics, with its type character."""

_HEAD = (
    ("type", "S1"),
    ("exchange", "S1"),
    ("suspicious", "u1"),
    ("line_end", "u1"),
    ("time_ms", "<u4"),  # since midnight in New York, local time
    ("date", "<u4"),  # local date: year * 10,000 + month * 100 + day
    ("condition", "S8"),  # flags as in the row, hexadecimal
)
_PRICE = price("<i8", 4)
_SIDE = price("<i8", 4, absent=0)
_SYMBOL = ("symbol", f"S{SYMBOL_BYTES}")

SCHEMA = Schema(
    "tape",
    4,
    {
        "T": numpy.dtype([*_HEAD, ("size", "<u4"), ("price", _PRICE), _SYMBOL]),
        "Q": numpy.dtype(
            [
                *_HEAD,
                ("bid_size", "<u4"),
                ("bid_price", _SIDE),
                ("ask_price", _SIDE),
                ("ask_size", "<u4"),
                _SYMBOL,
            ]
        ),
    },
    trades=(TradeFields("T", "price", "size", only=("suspicious", 0)),),
    quotes=(QuoteFields("Q", "bid_price", "bid_size", "ask_price", "ask_size", one_sided=True),),
)
"""The schema `tape`, number 4: trades (T) and quotes (Q)."""

COLUMNS: Final = {
    "T": ("time_ms", "price", "size", "exchange", "condition", "suspicious"),
    "Q": ("time_ms", "bid_price", "bid_size", "ask_price", "ask_size", "exchange", "condition", "suspicious"),
}
"""The columns of a row, in order, by field name."""

NUMBER, SIGNED, TEXT = range(3)
"""Kinds of columns."""
LARGEST: Final = {"time_ms": 86_399_999, "suspicious": 1}
"""Largest number of a column; by default the limit of the field, at most 10 ** 18 - 1."""


def layout(kind: str) -> numpy.ndarray[Any, numpy.dtype[numpy.int64]]:
    """Return int64[columns, 4]: for each column of a row its kind, its field's offset and size, and its largest value.

    The kinds are NUMBER, SIGNED and TEXT. The largest value of a TEXT is its longest length. For SIGNED it is a limit
    in both directions.
    """
    dtype: Any = SCHEMA.records[kind]
    rows = []
    for name in COLUMNS[kind]:
        field, offset = dtype.fields[name]
        size = field.itemsize
        number = field.kind in "iu"
        largest = LARGEST.get(name, min(2 ** (8 * size) - 1, 10**18 - 1)) if number else size
        rows.append(({"u": NUMBER, "i": SIGNED}.get(field.kind, TEXT), offset, size, largest))
    return numpy.array(rows, numpy.int64)
