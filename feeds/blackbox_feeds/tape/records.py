"""A row of a consolidated-tape CSV as a fixed binary record, from which the very row can be written again.

Source: the README of QuantConnect/Lean's `Data/equity`, ticks. A price is an integer with 4 implied decimal places; a
quote's price of 0 means that the row says nothing about that side. Prices may be below 0.

     0 type 1 | exchange 1 | suspicious 1 | line_end 1 | time_ms 4 | date 4 | condition 8 |
    20 T: size 4     | price 8     | symbol 12                                              44 bytes
    20 Q: bid_size 4 | bid_price 8 | ask_price 8 | ask_size 4 | symbol 12                   56 bytes
"""

from __future__ import annotations

from typing import Any, Final

import numpy

from blackbox.feed.schema import QuoteFields, Schema, TradeFields, price

PRICE_SCALE: Final = 10_000
"""A price field divided by this is in dollars."""
SYMBOL_BYTES: Final = 12
"""The longest symbol."""
NO_LINE_END, LF, CR_LF = range(3)
"""`line_end`: what stands behind the row."""
TYPES: Final = {"trade": "T", "quote": "Q"}
"""What the names of files and topics call a record, and its type."""

_HEAD = (
    ("type", "S1"),
    ("exchange", "S1"),
    ("suspicious", "u1"),
    ("line_end", "u1"),
    ("time_ms", "<u4"),  # since midnight in New York, by the clock on the wall
    ("date", "<u4"),  # there: year * 10,000 + month * 100 + day
    ("condition", "S8"),  # flags as the row has them, hexadecimal
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
"""The columns of a row, in order, by the fields that hold them."""

NUMBER, SIGNED, TEXT = range(3)
"""What a column holds."""
LARGEST: Final = {"time_ms": 86_399_999, "suspicious": 1}
"""The largest number of a column; of others what the field holds, but 10 ** 18 - 1 at most."""


def layout(kind: str) -> numpy.ndarray[Any, numpy.dtype[numpy.int64]]:
    """int64[columns, 4]: of each column of a row its kind, its field's offset and bytes, its largest.

    The kinds are NUMBER, SIGNED and TEXT. The largest of a text is its length; a SIGNED one has its largest on both
    sides of 0.
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
