"""The order books of a synthetic session, just enough of them to write messages that make sense.

Each symbol has up to 64 resting orders and a price level, the middle: bids rest at or below it,
asks above it, so the book is never crossed. The level walks: it moves a tick when no order is in
its way, else that order is executed. Prices are in ticks of one cent; an order's price is kept
positive for a bid, negative for an ask, so that the best order of either side has the greatest.

A book is one row of int64 words, so that compiled functions pass one array and what belongs to a
symbol lies together in memory:

    0 live | 1 middle | 2 drift | 3 name | 4 locate | 8 { reference, price << 32 | shares } * 64
"""

from __future__ import annotations

import numpy
from numba import njit
from numpy.typing import NDArray

from feeds.synthetic_random import below

POOL = 64
"""Resting orders per symbol."""
LIVE, MIDDLE, DRIFT, NAME, LOCATE = range(5)
ORDERS = 8
"""Where the orders start in a book."""

LAST_REFERENCE, LAST_MATCH = range(2)
"""Words of the session's own state: the last numbers given out."""

_LOW, _HIGH = 200, 400_000
_TURN = 16
_SHARES_MASK = 0xFFFFFFFF


def new_books(
    names: NDArray[numpy.int64],
    locates: NDArray[numpy.int64],
    random: NDArray[numpy.uint64],
) -> NDArray[numpy.int64]:
    """Empty books at random price levels; `names` are eight ASCII bytes each as an integer."""
    books = numpy.zeros((len(names), ORDERS + 2 * POOL), numpy.int64)
    books[:, NAME] = names
    books[:, LOCATE] = locates
    books[:, DRIFT] = 1
    for book in books:
        # The lesser of two draws: more cheap stocks than dear ones.
        book[MIDDLE] = 500 + min(below(random, 60_000), below(random, 60_000))
    return books


@njit(nogil=True, cache=True)
def price_of(book: NDArray[numpy.int64], place: int) -> int:
    """An order's price in ticks, negative for an ask."""
    return book[ORDERS + 2 * place + 1] >> 32


@njit(nogil=True, cache=True)
def shares_of(book: NDArray[numpy.int64], place: int) -> int:
    """An order's shares."""
    return book[ORDERS + 2 * place + 1] & _SHARES_MASK


@njit(nogil=True, cache=True)
def set_order(book: NDArray[numpy.int64], place: int, reference: int, price: int, shares: int) -> None:
    """Write an order."""
    book[ORDERS + 2 * place] = reference
    book[ORDERS + 2 * place + 1] = price << 32 | shares


@njit(nogil=True, cache=True)
def remove_order(book: NDArray[numpy.int64], place: int) -> None:
    """Forget an order; the last one takes its place."""
    book[LIVE] -= 1
    last = ORDERS + 2 * book[LIVE]
    book[ORDERS + 2 * place] = book[last]
    book[ORDERS + 2 * place + 1] = book[last + 1]


@njit(nogil=True, cache=True)
def some_shares(random: NDArray[numpy.uint64]) -> int:
    """An order's size: mostly round lots, some odd ones."""
    if below(random, 8) == 0:
        return 1 + below(random, 99)
    return 100 * (1 + min(below(random, 10), below(random, 10)))


@njit(nogil=True, cache=True)
def some_price(book: NDArray[numpy.int64], bid: bool, random: NDArray[numpy.uint64]) -> int:
    """A price at which a new order may rest, negative for an ask."""
    away = min(below(random, 12), below(random, 12))
    return book[MIDDLE] - away if bid else -(book[MIDDLE] + 1 + away)


@njit(nogil=True, cache=True)
def best_order(book: NDArray[numpy.int64], bid: bool) -> int:
    """The place of the best, and then oldest, order of a side, or -1."""
    best = -1
    best_price = 0
    for place in range(book[LIVE]):
        price = price_of(book, place)
        if (price > 0) != bid or (best >= 0 and price < best_price):
            continue
        if best < 0 or price > best_price or book[ORDERS + 2 * place] < book[ORDERS + 2 * best]:
            best = place
            best_price = price
    return best


@njit(nogil=True, cache=True)
def walk(book: NDArray[numpy.int64], random: NDArray[numpy.uint64]) -> int:
    """Move the level by a tick; returns the place of the order that is in the way, or -1."""
    if below(random, _TURN) == 0:
        book[DRIFT] = -book[DRIFT]
    if book[MIDDLE] <= _LOW:
        book[DRIFT] = 1
    elif book[MIDDLE] >= _HIGH:
        book[DRIFT] = -1
    up = book[DRIFT] > 0
    best = best_order(book, not up)
    touch = -(book[MIDDLE] + 1) if up else book[MIDDLE]
    if best >= 0 and price_of(book, best) == touch:
        return best
    book[MIDDLE] += book[DRIFT]
    return -1
