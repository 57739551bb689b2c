"""The order books of a synthetic session, as far as needed to write consistent messages.

Each symbol has up to 64 resting orders and a price level, the middle: bids are at or below it, asks above it, so the
book is never crossed. The level moves a tick at a time; an order in its way is executed instead. Prices are in ticks of
one cent.

Orders are those of `blackbox.book.orders`, but in an array instead of a table by reference: the writer picks one by a
random index. A book is one row of int64, so that everything about a symbol is close in memory:

    SymbolBook | Order * 64
"""

from __future__ import annotations

import numpy
from numpy.typing import NDArray

from blackbox.book.orders import BUY, ORDER_BYTES, SELL, Order, order_at
from blackbox.native.compile.jit import njit
from blackbox.native.memory.intrinsics import copy_bytes, inner
from blackbox.native.memory.records import Field, SharedRecord, record_at
from blackbox_feeds.synthetic.random import below

POOL = 64
"""Resting orders per symbol."""

_LOW, _HIGH = 200, 400_000
_TURN = 16


class SymbolBook(SharedRecord):
    """The data before the orders of a symbol."""

    live = Field()
    """Resting orders."""
    middle = Field()
    """The best price that a bid may have. Unit: ticks."""
    drift = Field()
    """Ticks by which the level moves next."""
    name = Field()
    """Eight ASCII bytes as an integer."""
    locate = Field()


class Numbers(SharedRecord):
    """The last numbers given out in a session."""

    reference = Field()
    match = Field()


symbol_book_at = record_at(SymbolBook)
numbers_at = record_at(Numbers)
_HEAD_BYTES = SymbolBook.dtype.itemsize


def new_books(
    names: NDArray[numpy.int64],
    locates: NDArray[numpy.int64],
    random: NDArray[numpy.uint64],
) -> NDArray[numpy.int64]:
    """Return empty books at random price levels; `names` are eight ASCII bytes each as an integer."""
    books = numpy.zeros((len(names), (_HEAD_BYTES + ORDER_BYTES * POOL) // 8), numpy.int64)
    for words, name, locate in zip(books, names.tolist(), locates.tolist(), strict=True):
        book = SymbolBook(words[: _HEAD_BYTES // 8])
        book.name, book.locate, book.drift = name, locate, 1
        # The lesser of two draws: more cheap stocks than expensive ones.
        book.middle = 500 + min(below(random, 60_000), below(random, 60_000))
    return books


@njit(inline="always")
def order_in(book: int, place: int) -> Order:
    """Return the order at an index of the book at an address."""
    return order_at(book + _HEAD_BYTES + ORDER_BYTES * place)


@inner
def remove_order(book: int, place: int) -> None:
    """Remove an order; the last one takes its index."""
    head = symbol_book_at(book)
    head.live -= 1
    orders = book + _HEAD_BYTES
    copy_bytes(orders + ORDER_BYTES * place, orders + ORDER_BYTES * head.live, ORDER_BYTES)


@inner
def some_shares(random: NDArray[numpy.uint64]) -> int:
    """Return an order's size: mostly round lots, some odd ones."""
    if below(random, 8) == 0:
        return 1 + below(random, 99)
    return 100 * (1 + min(below(random, 10), below(random, 10)))


@inner
def some_price(book: int, side: int, random: NDArray[numpy.uint64]) -> int:
    """Return a valid price for a new order."""
    away = min(below(random, 12), below(random, 12))
    middle = symbol_book_at(book).middle
    return middle - away if side == BUY else middle + 1 + away


@inner
def best_order(book: int, side: int) -> int:
    """Return the index of the best, and then oldest, order of a side, or -1."""
    best = -1
    for place in range(symbol_book_at(book).live):
        order = order_in(book, place)
        if order.side != side:
            continue
        other = order_in(book, max(best, 0))
        if best < 0:
            best = place
        elif order.price == other.price:
            if order.reference < other.reference:
                best = place
        elif (order.price > other.price) == (side == BUY):
            best = place
    return best


@inner
def walk(book: int, random: NDArray[numpy.uint64]) -> int:
    """Move the level by a tick; return the index of the order in its way, or -1."""
    head = symbol_book_at(book)
    if below(random, _TURN) == 0:
        head.drift = -head.drift
    if head.middle <= _LOW:
        head.drift = 1
    elif head.middle >= _HIGH:
        head.drift = -1
    up = head.drift > 0
    best = best_order(book, SELL if up else BUY)
    if best >= 0 and order_in(book, best).price == (head.middle + 1 if up else head.middle):
        return best
    head.middle += head.drift
    return -1
