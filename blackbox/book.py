"""A book of resting orders of one symbol, in compiled code: orders by reference, price levels of both sides.

All of it is one int64 array, so that it can be the state of a compiled callback:

    head | orders: hash table of reference, price and side, shares | bids: price, shares, orders | asks: ...

Levels stand in order, the best one last: what changes most is moved least. A book does not grow by itself: where there
is no room an order is left out and counted (`FORGOTTEN`). `has_room` tells it in time, `roomier` gives a larger book.

    book = new_book()
    add(book, reference, BUY, price, shares)       # then take, remove, replace; best(book, BUY), level(book, BUY, 1)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy
from numba import njit
from numpy.typing import NDArray

BUY: Final = 0
SELL: Final = 1

HEAD: Final = 24
ORDERS: Final = 0
"""Orders that rest."""
SLOT_BITS: Final = 1
LEVELS: Final = 2
"""How many levels of a side there is room for."""
DEPTH: Final = 3
"""Levels of the bids, and in the next word of the asks, that there are."""
ADDED: Final = 5
TAKEN: Final = 6
"""Executions and cancellations that were applied."""
REMOVED: Final = 7
REPLACED: Final = 8
UNKNOWN: Final = 9
"""Messages about an order that does not rest: nothing was changed."""
DUPLICATE: Final = 10
"""Orders added under a reference that rests already: the old one was removed first."""
TOO_MANY: Final = 11
"""Executions and cancellations of more shares than rest: the order was removed."""
FORGOTTEN: Final = 12
"""Orders for which there was no room."""
LOCKED: Final = 13
"""Messages after which bid and ask were equal."""
CROSSED: Final = 14
"""Messages after which the bid was above the ask."""
REFUSED: Final = 15
"""Messages that were not of the length that their type has."""
COUNTERS: Final = {
    "orders": ORDERS,
    "added": ADDED,
    "taken": TAKEN,
    "removed": REMOVED,
    "replaced": REPLACED,
    "unknown": UNKNOWN,
    "duplicate": DUPLICATE,
    "too_many": TOO_MANY,
    "forgotten": FORGOTTEN,
    "locked": LOCKED,
    "crossed": CROSSED,
    "refused": REFUSED,
}
"""What a book counts, and where in it."""

_SLOT_WORDS: Final = 3
_LEVEL_WORDS: Final = 3
_MIX = numpy.uint64(0x9E3779B97F4A7C15)


BOOK_GROUP: Final = "blackbox.books"
"""The entry-point group in which feeds register a `BookFeed`, by the name of their schema."""


class BookFeed(NamedTuple):
    """How a feed's payloads change a book."""

    types: str
    """The message types that do."""
    type_offset: int
    """Where in a payload the type stands."""
    decimals: int
    """A price of the book is the real one times 10 to the power of this."""
    run: Callable[..., tuple[int, int]]
    """Compiled: (book, data, offsets, first, last, depth, shown, rows, tops) to (the row at which it stopped, how many
    changes it wrote): see `feeds.itch50_book.run`."""


class Level(NamedTuple):
    """One price of one side."""

    price: int
    shares: int
    orders: int


def new_book(orders: int = 1 << 10, levels: int = 1 << 8) -> NDArray[numpy.int64]:
    """An empty book with room for at least so many orders, and so many levels of each side."""
    bits = max(4, (2 * orders - 1).bit_length())
    book = numpy.zeros(HEAD + (_SLOT_WORDS << bits) + 2 * _LEVEL_WORDS * levels, numpy.int64)
    book[SLOT_BITS], book[LEVELS] = bits, levels
    return book


def roomier(book: NDArray[numpy.int64]) -> NDArray[numpy.int64]:
    """A book with the same in it, and room for twice as many orders and levels."""
    larger = new_book(1 << int(book[SLOT_BITS]), 2 * int(book[LEVELS]))
    _copy(book, larger)
    return larger


def levels(book: NDArray[numpy.int64], side: int, depth: int) -> list[Level]:
    """The best `depth` levels of a side, the best one first."""
    return [Level(*map(int, level(book, side, place))) for place in range(min(depth, int(book[DEPTH + side])))]


@njit(inline="always")
def _home(book: NDArray[numpy.int64], reference: int) -> Any:
    return numpy.int64((numpy.uint64(reference) * _MIX) >> numpy.uint64(64 - book[SLOT_BITS]))


@njit(inline="always")
def _slot_at(slot: int) -> Any:
    return HEAD + _SLOT_WORDS * slot


@njit(nogil=True, cache=True)
def _find(book: NDArray[numpy.int64], reference: int) -> Any:
    """The slot of an order, or the empty one where it belongs. A slot is in use when it has shares."""
    mask = (1 << book[SLOT_BITS]) - 1
    slot = _home(book, reference)
    while book[_slot_at(slot) + 2] != 0 and book[_slot_at(slot)] != reference:
        slot = (slot + 1) & mask
    return slot


@njit(nogil=True, cache=True)
def _forget(book: NDArray[numpy.int64], hole: int) -> None:
    """Empty a slot. Orders behind it move up, so that a search may end at an empty one."""
    mask = (1 << book[SLOT_BITS]) - 1
    slot = hole
    while True:
        slot = (slot + 1) & mask
        if book[_slot_at(slot) + 2] == 0:
            break
        if (slot - _home(book, book[_slot_at(slot)])) & mask >= (slot - hole) & mask:
            for word in range(_SLOT_WORDS):
                book[_slot_at(hole) + word] = book[_slot_at(slot) + word]
            hole = slot
    book[_slot_at(hole) + 2] = 0
    book[ORDERS] -= 1


@njit(nogil=True, cache=True)
def _side_at(book: NDArray[numpy.int64], side: int) -> Any:
    return HEAD + (_SLOT_WORDS << book[SLOT_BITS]) + side * _LEVEL_WORDS * book[LEVELS]


@njit(nogil=True, cache=True)
def _place(book: NDArray[numpy.int64], side: int, price: int) -> Any:
    """Where a price stands among the levels of a side, or belongs: bids rise, asks fall, so that the best is last."""
    start = _side_at(book, side)
    low, high = 0, book[DEPTH + side]
    if high > 0 and book[start + _LEVEL_WORDS * (high - 1)] == price:
        return high - 1
    while low < high:
        middle = (low + high) >> 1
        other = book[start + _LEVEL_WORDS * middle]
        if other < price if side == BUY else other > price:
            low = middle + 1
        else:
            high = middle
    return low


@njit(nogil=True, cache=True)
def _grow_level(book: NDArray[numpy.int64], side: int, price: int, shares: int, orders: int) -> None:
    """Add to a level, which is made if it is not there. The caller knows that there is room."""
    place, many = _place(book, side, price), book[DEPTH + side]
    at = _side_at(book, side) + _LEVEL_WORDS * place
    if place == many or book[at] != price:
        end = _side_at(book, side) + _LEVEL_WORDS * many
        for word in range(end - 1, at - 1, -1):
            book[word + _LEVEL_WORDS] = book[word]
        book[at], book[at + 1], book[at + 2] = price, 0, 0
        book[DEPTH + side] = many + 1
    book[at + 1] += shares
    book[at + 2] += orders


@njit(nogil=True, cache=True)
def _shrink_level(book: NDArray[numpy.int64], side: int, price: int, shares: int, orders: int) -> None:
    """Take from a level, which goes when no order is left."""
    place = _place(book, side, price)
    at = _side_at(book, side) + _LEVEL_WORDS * place
    book[at + 1] -= shares
    book[at + 2] -= orders
    if book[at + 2] == 0:
        many = book[DEPTH + side] - 1
        for word in range(at, _side_at(book, side) + _LEVEL_WORDS * many):
            book[word] = book[word + _LEVEL_WORDS]
        book[DEPTH + side] = many


@njit(nogil=True, cache=True)
def _drop(book: NDArray[numpy.int64], slot: int) -> None:
    at = _slot_at(slot)
    _shrink_level(book, book[at + 1] & 1, book[at + 1] >> 1, book[at + 2], 1)
    _forget(book, slot)


@njit(nogil=True, cache=True)
def has_room(book: NDArray[numpy.int64]) -> bool:
    """Whether one more order fits, whatever its side and price."""
    deepest = max(book[DEPTH + BUY], book[DEPTH + SELL])
    return 2 * (book[ORDERS] + 1) <= (1 << book[SLOT_BITS]) and deepest < book[LEVELS]


@njit(nogil=True, cache=True)
def _rest(book: NDArray[numpy.int64], reference: int, side: int, price: int, shares: int) -> None:
    """Let an order rest under a reference that is free; one of no shares does not."""
    if shares <= 0:
        return
    if not has_room(book):
        book[FORGOTTEN] += 1
        return
    at = _slot_at(_find(book, reference))
    book[at], book[at + 1], book[at + 2] = reference, price << 1 | side, shares
    book[ORDERS] += 1
    _grow_level(book, side, price, shares, 1)


@njit(nogil=True, cache=True)
def _free(book: NDArray[numpy.int64], reference: int) -> None:
    slot = _find(book, reference)
    if book[_slot_at(slot) + 2] != 0:
        book[DUPLICATE] += 1
        _drop(book, slot)


@njit(nogil=True, cache=True)
def _note(book: NDArray[numpy.int64]) -> None:
    bids, asks = book[DEPTH + BUY], book[DEPTH + SELL]
    if bids > 0 and asks > 0:
        bid = book[_side_at(book, BUY) + _LEVEL_WORDS * (bids - 1)]
        ask = book[_side_at(book, SELL) + _LEVEL_WORDS * (asks - 1)]
        book[LOCKED] += bid == ask
        book[CROSSED] += bid > ask


@njit(nogil=True, cache=True)
def add(book: NDArray[numpy.int64], reference: int, side: int, price: int, shares: int) -> None:
    """An order begins to rest, on side BUY or SELL."""
    book[ADDED] += 1
    _free(book, reference)
    _rest(book, reference, side, price, shares)
    _note(book)


@njit(nogil=True, cache=True)
def take(book: NDArray[numpy.int64], reference: int, shares: int) -> Any:
    """Some of an order's shares are executed or cancelled. Returns its price; -1 when it does not rest."""
    slot = _find(book, reference)
    at = _slot_at(slot)
    if book[at + 2] == 0:
        book[UNKNOWN] += 1
        return -1
    book[TAKEN] += 1
    price = book[at + 1] >> 1
    if shares < book[at + 2]:
        _shrink_level(book, book[at + 1] & 1, price, shares, 0)
        book[at + 2] -= shares
    else:
        book[TOO_MANY] += shares > book[at + 2]
        _drop(book, slot)
    _note(book)
    return price


@njit(nogil=True, cache=True)
def remove(book: NDArray[numpy.int64], reference: int) -> None:
    """An order rests no more."""
    slot = _find(book, reference)
    if book[_slot_at(slot) + 2] == 0:
        book[UNKNOWN] += 1
        return
    book[REMOVED] += 1
    _drop(book, slot)
    _note(book)


@njit(nogil=True, cache=True)
def replace(book: NDArray[numpy.int64], old: int, new: int, price: int, shares: int) -> None:
    """An order is replaced by one of the same side, under a new reference, with other price and shares."""
    slot = _find(book, old)
    at = _slot_at(slot)
    if book[at + 2] == 0:
        book[UNKNOWN] += 1
        return
    book[REPLACED] += 1
    side = book[at + 1] & 1
    _drop(book, slot)
    _free(book, new)
    _rest(book, new, side, price, shares)
    _note(book)


@njit(nogil=True, cache=True)
def level(book: NDArray[numpy.int64], side: int, place: int) -> tuple[int, int, int]:
    """Price, shares and orders of the level at `place` (0: the best one); zeros where there is none."""
    many = book[DEPTH + side]
    if place >= many:
        return 0, 0, 0
    at = _side_at(book, side) + _LEVEL_WORDS * (many - 1 - place)
    return book[at], book[at + 1], book[at + 2]


@njit(nogil=True, cache=True)
def show(book: NDArray[numpy.int64], depth: int, shown: NDArray[numpy.int64]) -> bool:
    """Write the best `depth` levels to int64[2, depth, 3]; tell whether a price, or the shares at one, was another.

    Absent levels are zeros: a level of no shares.
    """
    changed = False
    for side in range(2):
        for place in range(depth):
            price, shares, orders = level(book, side, place)
            changed |= shown[side, place, 0] != price or shown[side, place, 1] != shares
            shown[side, place, 0], shown[side, place, 1], shown[side, place, 2] = price, shares, orders
    return changed


@njit(nogil=True, cache=True)
def _copy(book: NDArray[numpy.int64], larger: NDArray[numpy.int64]) -> None:
    for word in range(DEPTH, HEAD):
        larger[word] = book[word]
    larger[ORDERS] = book[ORDERS]
    for slot in range(1 << book[SLOT_BITS]):
        if book[_slot_at(slot) + 2] != 0:
            at = _slot_at(_find(larger, book[_slot_at(slot)]))
            for word in range(_SLOT_WORDS):
                larger[at + word] = book[_slot_at(slot) + word]
    for side in range(2):
        start, target = _side_at(book, side), _side_at(larger, side)
        for word in range(_LEVEL_WORDS * book[DEPTH + side]):
            larger[target + word] = book[start + word]
