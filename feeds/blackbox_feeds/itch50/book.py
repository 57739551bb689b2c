"""The order book of one symbol from ITCH 5.0 messages, in compiled code.

A, F add an order; E, C and X take shares from one; D removes one; U replaces one. All else leaves the book as it is:
trades of hidden orders (P) and crosses (Q) were never in it.

    book = Itch50Book()
    book.apply(batch)                       # all messages of one symbol, in their order
    book.bids(5), book.asks(5), book.counters()
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy
from numpy.typing import NDArray

from blackbox.book.book import (
    BUY,
    SELL,
    BookFeed,
    Level,
    add,
    counters,
    has_room,
    levels,
    new_book,
    refuse,
    remove,
    replace,
    roomier,
    show,
    take,
)
from blackbox.native.jit import njit
from blackbox_feeds.io.integers import big_32, big_64
from blackbox_feeds.itch50.messages import SCHEMA

if TYPE_CHECKING:
    from blackbox.block.batch import Batch

_TYPES: Final = "AFECXDU"
_A, _F, _E, _C, _X, _D, _U = (ord(kind) for kind in _TYPES)
_B: Final = ord("B")


def _sizes() -> NDArray[numpy.int64]:
    sizes = numpy.zeros(256, numpy.int64)
    for kind in _TYPES:
        sizes[ord(kind)] = SCHEMA.records[kind].itemsize
    return sizes


def _at(kind: str, field: str) -> int:
    fields = SCHEMA.records[kind].fields
    assert fields is not None
    return int(fields[field][1])


_SIZES = _sizes()
"""By type: bytes; 0 of those that leave the book as it is."""
_REFERENCE = _at("A", "order_reference_number")
_SIDE, _SHARES, _PRICE = _at("A", "buy_sell_indicator"), _at("A", "shares"), _at("A", "price")
_TAKEN = _at("E", "executed_shares")
_NEW, _NEW_SHARES, _NEW_PRICE = _at("U", "new_order_reference_number"), _at("U", "shares"), _at("U", "price")


@njit(nogil=True, cache=True)
def apply_message(book: NDArray[numpy.int64], data: NDArray[numpy.uint8], start: int, size: int) -> bool:
    """Apply the message of `size` bytes at `data[start]`; return whether it is of a type that changes books."""
    kind = data[start] if size > 0 else numpy.uint8(0)
    expected = _SIZES[kind]
    if expected == 0:
        return False
    if size != expected:
        refuse(book)
        return False
    reference = big_64(data, start + _REFERENCE)
    if kind in (_A, _F):
        side = BUY if data[start + _SIDE] == _B else SELL
        add(book, reference, side, big_32(data, start + _PRICE), big_32(data, start + _SHARES))
    elif kind in (_E, _C, _X):
        take(book, reference, big_32(data, start + _TAKEN))
    elif kind == _D:
        remove(book, reference)
    else:
        price, shares = big_32(data, start + _NEW_PRICE), big_32(data, start + _NEW_SHARES)
        replace(book, reference, big_64(data, start + _NEW), price, shares)
    return True


@njit(nogil=True, cache=True)
def run(
    book: NDArray[numpy.int64],
    data: NDArray[numpy.uint8],
    offsets: NDArray[numpy.int64],
    first: int,
    last: int,
    depth: int,
    shown: NDArray[numpy.int64],
    rows: NDArray[numpy.int64],
    tops: NDArray[numpy.int64],
) -> tuple[int, int]:
    """Apply the messages `first` to `last` - 1, and write each change of the best `depth` levels.

    Message i is `data[offsets[i]:offsets[i + 1]]`. A change of a price, or of the shares at one, is a place in `rows`
    (the message) and in `tops` (int64[n, 2, depth, 3]: bids and asks, the best first: price, shares, orders); both have
    room for `last` - `first`. `shown`, int64[2, depth, 3], holds the last ones from call to call. Returns where it
    stopped, which is before `last` when the book should be made roomier, and how many changes it wrote.
    """
    many = 0
    for row in range(first, last):
        if not has_room(book):
            return row, many
        if apply_message(book, data, offsets[row], offsets[row + 1] - offsets[row]) and show(book, depth, shown):
            rows[many] = row
            tops[many] = shown
            many += 1
    return last, many


BOOK: Final = BookFeed(_TYPES, 0, 4, run)
"""What is registered as the books of the schema `itch50`."""


class Itch50Book:
    """The book of one symbol, for Python: it grows as it must.

    Prices are integers with 4 implied decimal places. Not for several threads at a time.
    """

    def __init__(self) -> None:
        self.state = new_book()
        """For compiled code: see `blackbox.book.book`. Another array after it had to grow."""
        self._shown = numpy.zeros((2, 1, 3), numpy.int64)
        self._symbol: bytes | None = None

    def apply(self, batch: Batch) -> int:
        """Apply the messages of a batch, which are all of one symbol; return how often the best levels changed.

        Raises ValueError when they are of several symbols, or of another one than those before.
        """
        symbols = {batch.topics[topic].rpartition(b".")[0] for topic in numpy.unique(batch.topic_index).tolist()}
        if self._symbol is None and len(symbols) == 1:
            (self._symbol,) = symbols
        if symbols - {self._symbol}:
            wanted = sorted({*symbols, self._symbol} - {None})
            raise ValueError(
                f"a book was given messages of the symbols {wanted}, expected those of one: a book for each, and a "
                f"callback on its prefix, such as {wanted[0] + b'.'!r}"
            )
        return self.apply_payloads(batch.payloads().reshape(-1), batch.payload_offsets())

    def apply_payloads(self, data: NDArray[numpy.uint8], offsets: NDArray[numpy.int64]) -> int:
        """Apply messages: number i is `data[offsets[i]:offsets[i + 1]]`."""
        count = len(offsets) - 1
        rows, tops = numpy.empty(count, numpy.int64), numpy.empty((count, 2, 1, 3), numpy.int64)
        at, changes = 0, 0
        while True:
            at, many = run(self.state, data, offsets, at, count, 1, self._shown, rows, tops)
            changes += many
            if at == count:
                return changes
            self.state = roomier(self.state)

    def bids(self, depth: int = 1) -> list[Level]:
        """Return the best `depth` levels to buy, the best one first."""
        return levels(self.state, BUY, depth)

    def asks(self, depth: int = 1) -> list[Level]:
        """Return the best `depth` levels to sell, the best one first."""
        return levels(self.state, SELL, depth)

    def counters(self) -> dict[str, int]:
        """Return what was applied and what could not be, by the names of `blackbox.book.book.COUNTERS`."""
        return counters(self.state)
