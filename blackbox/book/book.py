"""A book of resting orders of one symbol, in compiled code: orders by reference, price levels of both sides.

All of it is one int64 array, so that it can be the state of a compiled callback:

    BookHead | bids: Level, Level, ... | asks: ... | orders: see `blackbox.book.orders`

Levels stand in order, the best one last: what changes most is moved least. A book does not grow beyond its array: where
there is no room an order is left out and counted (`forgotten`). `has_room` tells it in time, `roomier` gives a larger
book.

    book = new_book()
    add(book, reference, BUY, price, shares)       # then take, remove, replace; best_levels(book, BUY, 5)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy
from numpy.typing import NDArray

from blackbox.book import orders
from blackbox.book.orders import BUY, SELL, UNKNOWN_PRICE, new_orders, order_at, table_of
from blackbox.native.intrinsics import inner, int64s_at
from blackbox.native.jit import njit
from blackbox.native.records import Field, Fields, SharedRecord, record_at

__all__ = ["BOOK_GROUP", "BUY", "COUNTERS", "SELL", "BookFeed", "Level", "add", "counters", "has_room", "head_of",
           "level", "levels", "new_book", "refuse", "remove", "replace", "roomier", "show", "take"]  # fmt: skip


class BookHead(SharedRecord):
    """What stands before the levels: how many there are, and what the book counts."""

    room = Field()
    """How many levels of a side there is room for."""
    depth = Fields(2)
    """Levels of the bids, and of the asks."""
    added = Field()
    taken = Field()
    """Executions and cancellations that were applied."""
    removed = Field()
    replaced = Field()
    unknown = Field()
    """Messages about an order that does not rest: nothing was changed."""
    duplicate = Field()
    """Orders added under a reference that rests already: the old one was removed first."""
    too_many = Field()
    """Executions and cancellations of more shares than rest: the order was removed."""
    locked = Field()
    """Messages after which bid and ask were equal."""
    crossed = Field()
    """Messages after which the bid was above the ask."""
    refused = Field()
    """Messages that were not of the length that their type has."""


class _Level(SharedRecord):
    price = Field()
    shares = Field()
    orders = Field()


_head_at = record_at(BookHead)
_level_at = record_at(_Level)
_HEAD_BYTES: Final = BookHead.dtype.itemsize
_LEVEL_BYTES: Final = _Level.dtype.itemsize
_LEVEL_WORDS: Final = _LEVEL_BYTES // 8

_COUNTED: Final = ("added", "taken", "removed", "replaced", "unknown", "duplicate", "too_many")
_SEEN: Final = ("locked", "crossed", "refused")
COUNTERS: Final = ("orders", *_COUNTED, "forgotten", *_SEEN)
"""What `counters` tells: `orders` that rest, `forgotten` ones for which there was no room, and counts of `BookHead`."""

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
    changes it wrote): see `blackbox_feeds.itch50.book.run`."""


class Level(NamedTuple):
    """One price of one side."""

    price: int
    shares: int
    orders: int


def new_book(most_orders: int = 1 << 10, most_levels: int = 1 << 8) -> NDArray[numpy.int64]:
    """Return an empty book with room for at least so many orders, and so many levels of each side."""
    levels_of_both = numpy.zeros(_HEAD_BYTES // 8 + 2 * _LEVEL_WORDS * most_levels, numpy.int64)
    book = numpy.concatenate([levels_of_both, new_orders(most_orders)])
    head_of(book).room = most_levels
    return book


def roomier(book: NDArray[numpy.int64]) -> NDArray[numpy.int64]:
    """Return a book with the same in it, and room for twice as many orders and levels."""
    room = head_of(book).room
    larger = new_book(1 << table_of(book[_orders_word(room) :]).most_bits, 2 * room)
    _copy(book, larger)
    return larger


def head_of(book: NDArray[numpy.int64]) -> BookHead:
    """Return a view of the head of a book: its counts."""
    return BookHead(book[: _HEAD_BYTES // 8])


def counters(book: NDArray[numpy.int64]) -> dict[str, int]:
    """Return what a book has counted, by the names of `COUNTERS`."""
    head = head_of(book)
    table = table_of(book[_orders_word(head.room) :])
    told = {"orders": table.count, "forgotten": table.forgotten}
    return {name: int(told.get(name, getattr(head, name, 0))) for name in COUNTERS}


def levels(book: NDArray[numpy.int64], side: int, depth: int) -> list[Level]:
    """Return the best `depth` levels of a side, the best one first."""
    return [Level(*map(int, level(book, side, place))) for place in range(min(depth, head_of(book).depth[side]))]


def _orders_word(room: int) -> int:
    return _HEAD_BYTES // 8 + 2 * _LEVEL_WORDS * room


@njit(inline="always")
def _at(book: NDArray[numpy.int64]) -> Any:
    return book.ctypes.data


@njit(inline="always")
def _orders_at(book: int) -> Any:
    return book + _HEAD_BYTES + 2 * _LEVEL_BYTES * _head_at(book).room


@njit(inline="always")
def _side_at(book: int, side: int) -> Any:
    return book + _HEAD_BYTES + side * _LEVEL_BYTES * _head_at(book).room


@inner
def _place(book: int, side: int, price: int) -> int:
    """Where a price stands among the levels of a side, or belongs: bids rise, asks fall, so that the best is last."""
    start = _side_at(book, side)
    low, high = 0, _head_at(book).depth[side]
    if high > 0 and _level_at(start + _LEVEL_BYTES * (high - 1)).price == price:
        return high - 1
    while low < high:
        middle = (low + high) >> 1
        other = _level_at(start + _LEVEL_BYTES * middle).price
        if other < price if side == BUY else other > price:
            low = middle + 1
        else:
            high = middle
    return low


@inner
def _grow_level(book: int, side: int, price: int, shares: int) -> None:
    """Add an order to a level, which is made if it is not there. The caller knows that there is room."""
    head = _head_at(book)
    place, many = _place(book, side, price), head.depth[side]
    at = _side_at(book, side) + _LEVEL_BYTES * place
    found = _level_at(at)
    if place == many or found.price != price:
        words = int64s_at(at, _LEVEL_WORDS * (many - place + 1))
        for word in range(len(words) - 1, _LEVEL_WORDS - 1, -1):
            words[word] = words[word - _LEVEL_WORDS]
        found.price, found.shares, found.orders = price, 0, 0
        head.depth[side] = many + 1
    found.shares += shares
    found.orders += 1


@inner
def _shrink_level(book: int, side: int, price: int, shares: int, gone: int) -> None:
    """Take shares, and `gone` orders, from a level, which goes with its last order."""
    head = _head_at(book)
    place = _place(book, side, price)
    at = _side_at(book, side) + _LEVEL_BYTES * place
    found = _level_at(at)
    found.shares -= shares
    found.orders -= gone
    if found.orders == 0:
        many = head.depth[side] - 1
        words = int64s_at(at, _LEVEL_WORDS * (many - place + 1))
        for word in range(len(words) - _LEVEL_WORDS):
            words[word] = words[word + _LEVEL_WORDS]
        head.depth[side] = many


@inner
def _drop(book: int, at: int) -> None:
    """Remove the order at an address."""
    order = order_at(at)
    _shrink_level(book, order.side, order.price, order.shares, 1)
    orders.forget(_orders_at(book), at)


@inner
def _has_room(book: int) -> bool:
    head = _head_at(book)
    return max(head.depth[BUY], head.depth[SELL]) < head.room and orders.has_room_for_order(_orders_at(book))


@inner
def _rest(book: int, reference: int, side: int, price: int, shares: int) -> None:
    """Let an order rest under a reference that is free; one of no shares does not."""
    if shares <= 0:
        return
    if not _has_room(book):
        orders.order_table_at(_orders_at(book)).forgotten += 1
        return
    orders.rest(_orders_at(book), reference, side, price, shares)
    _grow_level(book, side, price, shares)


@inner
def _free(book: int, reference: int) -> None:
    at = orders.find(_orders_at(book), reference)
    if order_at(at).shares != 0:
        _head_at(book).duplicate += 1
        _drop(book, at)


@inner
def _note(book: int) -> None:
    head = _head_at(book)
    bids, asks = head.depth[BUY], head.depth[SELL]
    if bids > 0 and asks > 0:
        bid = _level_at(_side_at(book, BUY) + _LEVEL_BYTES * (bids - 1)).price
        ask = _level_at(_side_at(book, SELL) + _LEVEL_BYTES * (asks - 1)).price
        head.locked += bid == ask
        head.crossed += bid > ask


@njit(nogil=True, cache=True)
def has_room(book: NDArray[numpy.int64]) -> bool:
    """Return whether one more order fits, whatever its side and price."""
    return _has_room(_at(book))


@njit(nogil=True, cache=True)
def add(book: NDArray[numpy.int64], reference: int, side: int, price: int, shares: int) -> None:
    """Let an order rest, on side BUY or SELL."""
    at = _at(book)
    _head_at(at).added += 1
    _free(at, reference)
    _rest(at, reference, side, price, shares)
    _note(at)


@njit(nogil=True, cache=True)
def take(book: NDArray[numpy.int64], reference: int, shares: int) -> Any:
    """Execute or cancel some of an order's shares; return its price, or UNKNOWN_PRICE when it does not rest."""
    base = _at(book)
    head = _head_at(base)
    at = orders.find(_orders_at(base), reference)
    order = order_at(at)
    if order.shares == 0:
        head.unknown += 1
        return UNKNOWN_PRICE
    head.taken += 1
    price = order.price
    if shares < order.shares:
        _shrink_level(base, order.side, price, shares, 0)
        order.shares -= shares
    else:
        head.too_many += shares > order.shares
        _drop(base, at)
    _note(base)
    return price


@njit(nogil=True, cache=True)
def remove(book: NDArray[numpy.int64], reference: int) -> None:
    """Let an order rest no more."""
    base = _at(book)
    head = _head_at(base)
    at = orders.find(_orders_at(base), reference)
    if order_at(at).shares == 0:
        head.unknown += 1
        return
    head.removed += 1
    _drop(base, at)
    _note(base)


@njit(nogil=True, cache=True)
def replace(book: NDArray[numpy.int64], old: int, new: int, price: int, shares: int) -> None:
    """Replace an order by one of the same side, under a new reference, with other price and shares."""
    base = _at(book)
    head = _head_at(base)
    at = orders.find(_orders_at(base), old)
    order = order_at(at)
    if order.shares == 0:
        head.unknown += 1
        return
    head.replaced += 1
    side = order.side
    _drop(base, at)
    _free(base, new)
    _rest(base, new, side, price, shares)
    _note(base)


@njit(nogil=True, cache=True)
def refuse(book: NDArray[numpy.int64]) -> None:
    """Count a message that was not of the length that its type has."""
    _head_at(_at(book)).refused += 1


@inner
def _level(book: int, side: int, place: int) -> tuple[int, int, int]:
    many = _head_at(book).depth[side]
    if place >= many:
        return 0, 0, 0
    found = _level_at(_side_at(book, side) + _LEVEL_BYTES * (many - 1 - place))
    return found.price, found.shares, found.orders


@njit(nogil=True, cache=True)
def level(book: NDArray[numpy.int64], side: int, place: int) -> tuple[int, int, int]:
    """Return price, shares and orders of the level at `place` (0: the best one); zeros where there is none."""
    return _level(_at(book), side, place)


@njit(nogil=True, cache=True)
def show(book: NDArray[numpy.int64], depth: int, shown: NDArray[numpy.int64]) -> bool:
    """Write the best `depth` levels to int64[2, depth, 3]; return whether a price, or the shares at one, changed.

    Absent levels are zeros: a level of no shares.
    """
    base = _at(book)
    changed = False
    for side in range(2):
        for place in range(depth):
            price, shares, many = _level(base, side, place)
            changed |= shown[side, place, 0] != price or shown[side, place, 1] != shares
            shown[side, place, 0], shown[side, place, 1], shown[side, place, 2] = price, shares, many
    return changed


@njit(nogil=True, cache=True)
def _copy(book: NDArray[numpy.int64], larger: NDArray[numpy.int64]) -> None:
    source, target = _at(book), _at(larger)
    room = _head_at(target).room
    for word in range(_HEAD_BYTES // 8):
        larger[word] = book[word]
    _head_at(target).room = room
    for side in range(2):
        words = _LEVEL_WORDS * _head_at(source).depth[side]
        int64s_at(_side_at(target, side), words)[:] = int64s_at(_side_at(source, side), words)
    orders.copy_orders(_orders_at(source), _orders_at(target))
