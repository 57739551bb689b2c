"""Apply the messages of a feed to one book."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy
from numpy.typing import NDArray

from blackbox.book.book import Level, counters, lose_sync, new_book, roomier
from blackbox.book.feed import BookFeed, run
from blackbox.book.orders import BUY


def applied(feed: BookFeed, payloads: Sequence[bytes]) -> tuple[NDArray[numpy.int64], int]:
    """Return the book after all payloads, and the number of changes of a side's best level."""
    data: Any = numpy.frombuffer(b"".join(payloads) or b"\0", numpy.uint8)
    offsets = numpy.cumsum([0, *map(len, payloads)], dtype=numpy.int64)
    book, shown = new_book(16, 4), numpy.zeros((2, 1, 3), numpy.int64)
    if not feed.begins_empty:
        lose_sync(book.ctypes.data)
    rows, tops = numpy.empty(len(payloads), numpy.int64), numpy.empty((len(payloads), 2, 1, 3), numpy.int64)
    synced = numpy.empty(len(payloads), numpy.bool_)
    at = changes = 0
    while True:
        at, many = run(feed.address, book, data, offsets, at, len(payloads), 1, shown, rows, tops, synced)
        changes += many
        if at == len(payloads):
            return book, changes
        book = roomier(book)


def applications(book: NDArray[numpy.int64]) -> dict[str, int]:
    """Return the counters above 0, except `unsynced`."""
    return {name: many for name, many in counters(book).items() if many and name != "unsynced"}


def levels_of(orders: Iterable[tuple[int, int, int]], side: int) -> list[Level]:
    """Return the levels of a side's orders, each given as side, price and shares: the best first."""
    shares: Counter[int] = Counter()
    many: Counter[int] = Counter()
    for its, price, rest in orders:
        if its == side:
            shares[price] += rest
            many[price] += 1
    return [Level(price, shares[price], many[price]) for price in sorted(shares, reverse=side == BUY)]
