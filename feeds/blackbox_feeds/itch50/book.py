"""How ITCH 5.0 messages change a book.

A, F add an order; E, C and X take shares from one; D removes one; U replaces one. Other types do not change it: hidden
orders (P) and crosses (Q) are not in the book. Each message is a separate event.
"""

from __future__ import annotations

from typing import Final

import numpy
from numpy.typing import NDArray

from blackbox.book.book import add, refuse, remove, replace, take
from blackbox.book.feed import COMPLETE, IGNORED, BookFeed, Resting
from blackbox.book.orders import BUY, SELL
from blackbox.native.compile.jit import njit
from blackbox.native.memory.intrinsics import bytes_at
from blackbox_feeds.io.integers import big_32, big_64
from blackbox_feeds.itch50.messages import SCHEMA

_TYPES: Final = "AFECXDU"
_A, _F, _E, _C, _X, _D, _U = (ord(kind) for kind in _TYPES)
_B: Final = ord("B")


def _sizes() -> NDArray[numpy.int64]:
    sizes = numpy.zeros(256, numpy.int64)
    for kind in _TYPES:
        sizes[ord(kind)] = SCHEMA.records[kind].itemsize
    return sizes


_SIZES = _sizes()
"""Message size by type; 0 for types that do not change a book."""
_REFERENCE: Final = SCHEMA.offset("A", "order_reference_number")
_SIDE: Final = SCHEMA.offset("A", "buy_sell_indicator")
_SHARES: Final = SCHEMA.offset("A", "shares")
_PRICE: Final = SCHEMA.offset("A", "price")
_TAKEN: Final = SCHEMA.offset("E", "executed_shares")
_NEW: Final = SCHEMA.offset("U", "new_order_reference_number")
_NEW_SHARES: Final = SCHEMA.offset("U", "shares")
_NEW_PRICE: Final = SCHEMA.offset("U", "price")


@njit(nogil=True, cache=True)
def apply(book: int, payload: int, size: int) -> int:
    """Apply one message: see `BookFeed.apply`."""
    data = bytes_at(payload, size)
    kind = data[0] if size > 0 else numpy.uint8(0)
    expected = _SIZES[kind]
    if expected == 0:
        return IGNORED
    if size != expected:
        refuse(book)
        return IGNORED
    reference = big_64(data, _REFERENCE)
    if kind in (_A, _F):
        side = BUY if data[_SIDE] == _B else SELL
        add(book, reference, side, big_32(data, _PRICE), big_32(data, _SHARES))
    elif kind in (_E, _C, _X):
        take(book, reference, big_32(data, _TAKEN))
    elif kind == _D:
        remove(book, reference)
    else:
        replace(book, reference, big_64(data, _NEW), big_32(data, _NEW_PRICE), big_32(data, _NEW_SHARES))
    return COMPLETE


def rest(resting: Resting) -> NDArray[numpy.uint8]:
    """Make an A of each order, with locate and time of the symbol's last message: see `Rest`."""
    made = numpy.zeros(len(resting.orders), SCHEMA.records["A"])
    made["order_reference_number"] = resting.orders["reference"].view(numpy.uint64)
    made["buy_sell_indicator"] = numpy.where(resting.orders["side"] == BUY, b"B", b"S")
    made["shares"], made["price"] = resting.orders["shares"], resting.orders["price"]
    made["stock"] = resting.symbol.ljust(8)
    payloads = made.view(numpy.uint8).reshape(len(made), -1)
    payloads[:, 1:_REFERENCE] = numpy.frombuffer(resting.last, numpy.uint8)[1:_REFERENCE]
    payloads[:, 0] = _A
    return payloads


BOOK: Final = BookFeed(_TYPES, 0, 4, apply, rest)
"""The books registered for the schema `itch50`."""
