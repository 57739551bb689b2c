"""A book of resting orders of one symbol, in compiled code: orders by reference, price levels of both sides.

A book is one int64 array, so that it can be the state of a compiled callback:

    BookHead | bids: LevelRecord, ... | asks: ... | orders
    see `blackbox.book.levels`                     see `blackbox.book.orders`

A book does not grow beyond its array: without room an order is left out and counted (`forgotten`). `has_room` checks
this in advance, `roomier` returns a larger book.

    book = new_book()
    at = book.ctypes.data                          # changes take its address
    add(at, reference, BUY, price, shares)         # then take, remove, replace, put
    set_level(at, BUY, price, shares)              # if a venue sends levels, not orders
    settle(at)                                     # after an event of the venue; levels(book, BUY, 5)
"""

from __future__ import annotations

from itertools import takewhile
from operator import itemgetter
from typing import Any, Final, NamedTuple

import numpy
from numpy.typing import NDArray

from blackbox.book import orders
from blackbox.book.levels import (
    HEAD_BYTES,
    LEVEL_BYTES,
    LEVEL_WORDS,
    BookHead,
    LevelRecord,
    close_level,
    find_level,
    head_at,
    level,
    level_at,
    open_level,
    orders_at,
    shrink_level,
    side_at,
)
from blackbox.book.orders import (
    BUY,
    ORDER_BYTES,
    SELL,
    TABLE_BYTES,
    UNKNOWN_PRICE,
    Order,
    OrderTable,
    order_at,
    table_of,
)
from blackbox.native.compile.jit import njit, warm_up
from blackbox.native.memory.intrinsics import copy_bytes, inner

_COUNTED: Final = ("added", "taken", "removed", "replaced", "unknown", "duplicate", "too_many")
_SEEN: Final = ("locked", "crossed", "refused", "unsynced")
COUNTERS: Final = ("orders", *_COUNTED, "forgotten", *_SEEN)
"""Names of the values of `counters`: resting `orders`, `forgotten` ones without room, and counters of `BookHead`."""


class Level(NamedTuple):
    """A price level of one side."""

    price: int
    shares: int
    orders: int
    """0 if the venue does not send it."""


def new_book(most_orders: int = 1 << 10, most_levels: int = 1 << 8) -> NDArray[numpy.int64]:
    """Return an empty book with room for at least `most_orders`, and for `most_levels` of each side."""
    start = HEAD_BYTES // 8 + 2 * LEVEL_WORDS * most_levels
    book = numpy.zeros(start + orders.words_for(most_orders), numpy.int64)  # pages are touched only when they fill
    head_of(book).room = most_levels
    orders.begin(book[start:], most_orders)
    return book


def roomier(book: NDArray[numpy.int64]) -> NDArray[numpy.int64]:
    """Return a copy with room for twice as many orders and levels."""
    room = head_of(book).room
    larger = new_book(1 << orders_of(book).most_bits, 2 * room)
    _copy(book.ctypes.data, larger.ctypes.data)
    return larger


def head_of(book: NDArray[numpy.int64]) -> BookHead:
    """Return a view of the head of a book, with its counters."""
    return BookHead(book[: HEAD_BYTES // 8])


def counters(book: NDArray[numpy.int64]) -> dict[str, int]:
    """Return the counters of a book, by the names of `COUNTERS`."""
    head = head_of(book)
    table = orders_of(book)
    told = {"orders": table.count, "forgotten": table.forgotten}
    return {name: int(told.get(name, getattr(head, name, 0))) for name in COUNTERS}


def levels(book: NDArray[numpy.int64], side: int, depth: int) -> list[Level]:
    """Return the best `depth` levels of a side, the best one first."""
    at = book.ctypes.data
    found = (Level(*level(at, side, place)) for place in range(min(depth, head_of(book).room)))
    return list(takewhile(itemgetter(1), found))


def orders_of(book: NDArray[numpy.int64]) -> OrderTable:
    """Return a view of the head of a book's orders."""
    return table_of(book[HEAD_BYTES // 8 + 2 * LEVEL_WORDS * head_of(book).room :])


def order_columns(book: NDArray[numpy.int64]) -> NDArray[Any]:
    """Return the resting orders as a structured array sorted by reference: reference, side, price, shares."""
    start = HEAD_BYTES // 8 + 2 * LEVEL_WORDS * head_of(book).room + TABLE_BYTES // 8
    slots = book[start : start + (ORDER_BYTES // 8 << orders_of(book).bits)].view(Order.dtype)
    resting = slots[slots["shares"] != 0]
    return resting[numpy.argsort(resting["reference"], kind="stable")]


def is_synced(book: NDArray[numpy.int64]) -> bool:
    """Return False if the book is known to lack messages, or during a snapshot."""
    head = head_of(book)
    return not (head.is_unsynced or head.is_snapshot)


def level_columns(book: NDArray[numpy.int64]) -> NDArray[Any]:
    """Return the levels set by the venue, as in `order_columns`, with reference 0."""
    room, start, found = head_of(book).room, HEAD_BYTES // 8, []
    for side in (BUY, SELL):
        first = start + LEVEL_WORDS * room * side
        rows = book[first : first + LEVEL_WORDS * int(head_of(book).depth[side])].view(LevelRecord.dtype)
        rows = rows[rows["orders"] == 0]
        levels_of_side = numpy.zeros(len(rows), Order.dtype)
        levels_of_side["side"], levels_of_side["price"], levels_of_side["shares"] = side, rows["price"], rows["shares"]
        found.append(levels_of_side)
    return numpy.concatenate(found)


@inner
def _drop(book: int, at: int) -> None:
    """Remove the order at an address."""
    order = order_at(at)
    shrink_level(book, order.side, order.price, order.shares, 1)
    orders.forget(orders_at(book), at)


@inner
def _fits(book: int) -> bool:
    head = head_at(book)
    return max(head.depth[BUY], head.depth[SELL]) < head.room and orders.has_room_for_order(orders_at(book))


@inner
def _rest(book: int, reference: int, side: int, price: int, shares: int) -> None:
    """Add an order under a free reference. An order without shares is not added."""
    if shares <= 0:
        return
    if not _fits(book):
        _forget(book)
        return
    orders.rest(orders_at(book), reference, side, price, shares)
    level = level_at(open_level(book, side, price))
    level.shares += shares
    level.orders += 1


@inner
def note_lack(book: int) -> None:
    """Count once that the book lacks messages."""
    head = head_at(book)
    if head.is_unsynced == 0:
        head.unsynced += 1
        head.is_unsynced = 1


@inner
def _forget(book: int) -> None:
    orders.order_table_at(orders_at(book)).forgotten += 1
    note_lack(book)


@inner
def _miss(book: int) -> None:
    head_at(book).unknown += 1
    note_lack(book)


@inner
def _free(book: int, reference: int) -> None:
    at = orders.find(orders_at(book), reference)
    if order_at(at).shares != 0:
        head_at(book).duplicate += 1
        note_lack(book)
        _drop(book, at)


@njit(nogil=True, cache=True)
def has_room(book: int) -> bool:
    """Return True if one more order of any side and price fits, or if the book may not grow."""
    return head_at(book).is_full != 0 or _fits(book)


@njit(nogil=True, cache=True)
def settle(book: int) -> None:
    """Count a locked or crossed book at the end of an event."""
    head = head_at(book)
    bids, asks = head.depth[BUY], head.depth[SELL]
    if bids > 0 and asks > 0:
        bid = level_at(side_at(book, BUY) + LEVEL_BYTES * (bids - 1)).price
        ask = level_at(side_at(book, SELL) + LEVEL_BYTES * (asks - 1)).price
        head.locked += bid == ask
        head.crossed += bid > ask


@njit(nogil=True, cache=True)
def add(book: int, reference: int, side: int, price: int, shares: int) -> None:
    """Add an order on side BUY or SELL."""
    head_at(book).added += 1
    _free(book, reference)
    _rest(book, reference, side, price, shares)


@njit(nogil=True, cache=True)
def take(book: int, reference: int, shares: int) -> Any:
    """Execute or cancel some of an order's shares. Return its price, or UNKNOWN_PRICE if it does not rest."""
    head = head_at(book)
    at = orders.find(orders_at(book), reference)
    order = order_at(at)
    if order.shares == 0:
        _miss(book)
        return UNKNOWN_PRICE
    head.taken += 1
    price = order.price
    if shares < order.shares:
        shrink_level(book, order.side, price, shares, 0)
        order.shares -= shares
    else:
        if shares > order.shares:
            head.too_many += 1
            note_lack(book)
        _drop(book, at)
    return price


@njit(nogil=True, cache=True)
def remove(book: int, reference: int) -> None:
    """Remove an order."""
    head = head_at(book)
    at = orders.find(orders_at(book), reference)
    if order_at(at).shares == 0:
        _miss(book)
        return
    head.removed += 1
    _drop(book, at)


@njit(nogil=True, cache=True)
def replace(book: int, old: int, new: int, price: int, shares: int) -> None:
    """Replace an order by one of the same side with another reference, price and shares."""
    head = head_at(book)
    at = orders.find(orders_at(book), old)
    order = order_at(at)
    if order.shares == 0:
        _miss(book)
        return
    head.replaced += 1
    side = order.side
    _drop(book, at)
    _free(book, new)
    _rest(book, new, side, price, shares)


@njit(nogil=True, cache=True)
def put(book: int, reference: int, side: int, price: int, shares: int) -> None:
    """Add an order, replacing one with the same reference."""
    head = head_at(book)
    at = orders.find(orders_at(book), reference)
    if order_at(at).shares == 0:
        head.added += 1
    else:
        head.replaced += 1
        _drop(book, at)
    _rest(book, reference, side, price, shares)


@njit(nogil=True, cache=True)
def rests(book: int, reference: int) -> bool:
    """Return True if an order rests under a reference. Otherwise count it as unknown."""
    found = order_at(orders.find(orders_at(book), reference)).shares != 0
    if not found:
        _miss(book)
    return found


@njit(nogil=True, cache=True)
def set_level(book: int, side: int, price: int, shares: int) -> None:
    """Set the shares at a price, with an unknown number of orders. Without shares the level is removed."""
    head = head_at(book)
    place, many = find_level(book, side, price), head.depth[side]
    found = level_at(side_at(book, side) + LEVEL_BYTES * place)
    if place < many and found.price == price:
        if shares > 0:
            head.replaced += 1
            found.shares = shares
        else:
            head.removed += 1
            close_level(book, side, place)
    elif shares <= 0:
        _miss(book)
    elif many == head.room:
        _forget(book)
    else:
        head.added += 1
        level_at(open_level(book, side, price)).shares = shares


@njit(nogil=True, cache=True)
def clear(book: int) -> None:
    """Remove all orders and levels, but keep the counters. The book is then in sync."""
    head = head_at(book)
    head.depth[BUY] = head.depth[SELL] = 0
    head.is_unsynced = 0
    orders.clear(orders_at(book))


@inner
def enter_snapshot(book: int, belongs: bool, ends: bool) -> None:
    """Track whether a message belongs to a snapshot, and ends it. The first message of a snapshot clears the book."""
    head = head_at(book)
    if belongs and head.is_snapshot == 0:
        clear(book)
    head.is_snapshot = belongs and not ends


@njit(nogil=True, cache=True)
def refuse(book: int) -> None:
    """Count a message with an invalid format. The book then lacks its change."""
    head_at(book).refused += 1
    note_lack(book)


@inner
def note_origin(book: int, slice_id: int, epoch: int) -> None:
    """Store the slice and epoch of a message. A new epoch means that messages may be missing."""
    head = head_at(book)
    if head.epoch != epoch and head.messages > 0:
        lose_sync(book)
        head.is_snapshot = 0
    head.slice_id, head.epoch = slice_id, epoch
    head.messages += 1


@njit(nogil=True, cache=True)
def lose_sync(book: int) -> None:
    """Count that messages may have been lost."""
    head = head_at(book)
    head.unsynced += 1
    head.is_unsynced = 1


@njit(nogil=True, cache=True)
def best(book: int) -> tuple[int, int, int, int, int, int]:
    """Return `level` of the best bid and of the best ask."""
    return level(book, BUY, 0) + level(book, SELL, 0)


@njit(nogil=True, cache=True)
def _copy(source: int, target: int) -> None:
    room = head_at(target).room
    copy_bytes(target, source, HEAD_BYTES)
    head_at(target).room = room
    for side in range(2):
        copy_bytes(side_at(target, side), side_at(source, side), LEVEL_BYTES * head_at(source).depth[side])
    orders.copy_orders(orders_at(source), orders_at(target))


def warm_up_book() -> None:
    """Compile the functions that Python calls while messages arrive."""
    warm_up(best, 0)
    warm_up(level, 0, 0, 0)
    warm_up(lose_sync, 0)
    warm_up(_copy, 0, 0)
