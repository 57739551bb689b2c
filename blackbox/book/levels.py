"""The header of a book and the price levels of its two sides, in compiled code.

Levels are sorted with the best one last, so that frequent changes move little memory.
"""

from __future__ import annotations

from typing import Any, Final

import numpy
from numpy.typing import NDArray

from blackbox.book.orders import BUY
from blackbox.native.compile.jit import njit
from blackbox.native.memory.intrinsics import inner, int64s_at
from blackbox.native.memory.records import Field, Fields, SharedRecord, record_at


class BookHead(SharedRecord):
    """Header before the levels: sizes and counters."""

    room = Field()
    """Maximum number of levels of a side."""
    depth = Fields(2)
    """Number of bid levels, and of ask levels."""
    added = Field()
    taken = Field()
    """Executions and cancellations applied."""
    removed = Field()
    replaced = Field()
    unknown = Field()
    """Messages about an order (or level) that does not rest."""
    duplicate = Field()
    """Orders added under a reference that already rests; the old order was removed first."""
    too_many = Field()
    """Executions and cancellations of more shares than rest; the order was removed."""
    locked = Field()
    """Events after which bid and ask were equal."""
    crossed = Field()
    """Events after which the bid was above the ask."""
    refused = Field()
    """Messages with an invalid format."""
    unsynced = Field()
    """Number of times that messages may have been lost."""
    is_unsynced = Field()
    """1 after that, or after a message that shows that the book is wrong, until the book is cleared."""
    is_full = Field()
    """1 if it may not grow. Orders without room are forgotten."""
    messages = Field()
    """Messages applied, of the types that change books."""
    slice_id = Field()
    epoch = Field()
    """Slice and epoch of the last message."""
    is_snapshot = Field()
    """1 during a snapshot of the venue."""


class LevelRecord(SharedRecord):
    """A level in a book's memory."""

    price = Field()
    shares = Field()
    orders = Field()


head_at = record_at(BookHead)
level_at = record_at(LevelRecord)
HEAD_BYTES: Final = BookHead.dtype.itemsize
LEVEL_BYTES: Final = LevelRecord.dtype.itemsize
LEVEL_WORDS: Final = LEVEL_BYTES // 8


@njit(inline="always")
def orders_at(book: int) -> Any:
    """Return the address of a book's orders."""
    return book + HEAD_BYTES + 2 * LEVEL_BYTES * head_at(book).room


@njit(inline="always")
def side_at(book: int, side: int) -> Any:
    """Return the address of the levels of a side."""
    return book + HEAD_BYTES + side * LEVEL_BYTES * head_at(book).room


@inner
def find_level(book: int, side: int, price: int) -> int:
    """Return the index of a price among the levels of a side: bids rise, asks fall, so that the best is last."""
    start = side_at(book, side)
    low, high = 0, head_at(book).depth[side]
    if high > 0 and level_at(start + LEVEL_BYTES * (high - 1)).price == price:
        return high - 1
    while low < high:
        middle = (low + high) >> 1
        other = level_at(start + LEVEL_BYTES * middle).price
        if other < price if side == BUY else other > price:
            low = middle + 1
        else:
            high = middle
    return low


@inner
def open_level(book: int, side: int, price: int) -> Any:
    """Return the address of a level. A missing one is created without shares. There must be room."""
    head = head_at(book)
    place, many = find_level(book, side, price), head.depth[side]
    at = side_at(book, side) + LEVEL_BYTES * place
    found = level_at(at)
    if place == many or found.price != price:
        words = int64s_at(at, LEVEL_WORDS * (many - place + 1))
        for word in range(len(words) - 1, LEVEL_WORDS - 1, -1):
            words[word] = words[word - LEVEL_WORDS]
        found.price, found.shares, found.orders = price, 0, 0
        head.depth[side] = many + 1
    return at


@inner
def close_level(book: int, side: int, place: int) -> None:
    """Remove the level at an index."""
    head = head_at(book)
    many = head.depth[side] - 1
    words = int64s_at(side_at(book, side) + LEVEL_BYTES * place, LEVEL_WORDS * (many - place + 1))
    for word in range(len(words) - LEVEL_WORDS):
        words[word] = words[word + LEVEL_WORDS]
    head.depth[side] = many


@inner
def shrink_level(book: int, side: int, price: int, shares: int, gone: int) -> None:
    """Remove shares, and `gone` orders, from a level. A level without orders is removed."""
    place = find_level(book, side, price)
    found = level_at(side_at(book, side) + LEVEL_BYTES * place)
    if place == head_at(book).depth[side] or found.price != price:
        return  # removed by a feed that sets levels and adds orders
    found.shares -= shares
    found.orders -= gone
    if found.orders == 0:
        close_level(book, side, place)


@njit(nogil=True, cache=True)
def level(book: int, side: int, place: int) -> tuple[int, int, int]:
    """Return price, shares and orders of the level at `place` (0: the best); zeros if it does not exist."""
    many = head_at(book).depth[side]
    if place >= many:
        return 0, 0, 0
    found = level_at(side_at(book, side) + LEVEL_BYTES * (many - 1 - place))
    return found.price, found.shares, found.orders


@njit(nogil=True, cache=True)
def show(book: int, depth: int, shown: NDArray[numpy.int64]) -> bool:
    """Write the best `depth` levels to int64[2, depth, 3]. Return True if a price or its shares changed.

    Missing levels are zeros.
    """
    changed = False
    for side in range(2):
        for place in range(depth):
            price, shares, many = level(book, side, place)
            changed |= shown[side, place, 0] != price or shown[side, place, 1] != shares
            shown[side, place, 0], shown[side, place, 1], shown[side, place, 2] = price, shares, many
    return changed
