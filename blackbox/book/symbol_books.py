"""Books by symbol, in bounded memory, for the compiled loop and for Python."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import islice, takewhile
from typing import Final

import numpy
from numpy.typing import NDArray

from blackbox.arguments import as_bytes
from blackbox.book.apply_rows import BooksState, show_all
from blackbox.book.book import head_of, new_book, roomier
from blackbox.native.tables.name_table import Numbering

_FIRST_ORDERS: Final = 1 << 7
_FIRST_LEVELS: Final = 1 << 5
_MEAN_SYMBOL_BYTES: Final = 32

Book = NDArray[numpy.int64]


class SymbolBooks:
    """The books of all symbols, numbered in order of their first messages. Not thread-safe.

    A book grows as it fills, until all books together would exceed the limit; then it is marked as full. Above the
    limit a new symbol gets a number but no book. The loop reads numbers and addresses from a `BooksState`.
    """

    def __init__(self, state: BooksState, max_symbols: int, max_bytes: int) -> None:
        self._state = state
        self._max_bytes, self._bytes = max_bytes, 0
        self._books: list[Book | None] = []
        self._numbers: dict[bytes, int] = {}
        self._sorted: list[bytes] = []
        """The symbols in alphabetical order."""
        self._numbering = Numbering(max_symbols, _MEAN_SYMBOL_BYTES)
        self._addresses = numpy.zeros(max_symbols, numpy.int64)
        state.books = self._addresses.ctypes.data
        for place, word in enumerate(self._numbering.at):
            state.numbering[place] = word

    def __iter__(self) -> Iterator[tuple[bytes, Book]]:
        """Iterate over the symbols that have a book, perhaps an empty one, and their books."""
        pairs = zip(self._numbers, self._books, strict=True)
        return ((symbol, book) for symbol, book in pairs if book is not None)

    def filled(self) -> Iterator[tuple[bytes, Book]]:
        """Yield the symbols whose books have messages, and these books."""
        return ((symbol, book) for symbol, book in self if head_of(book).messages)

    def find(self, symbol: str | bytes) -> Book | None:
        """Return a symbol's book; None before its first message."""
        number = self._numbers.get(as_bytes("symbol", symbol))
        book = None if number is None else self._books[number]
        return book if book is not None and head_of(book).messages else None

    def address(self, symbol: str | bytes) -> int:
        """Return the address of a symbol's book; 0: it has none."""
        number = self._numbers.get(as_bytes("symbol", symbol))
        return 0 if number is None else self._addresses.item(number)

    def sharing(self, start: bytes) -> Iterator[Book]:
        """Yield the books of symbols that start with `start`, or that `start` begins with."""
        first = bisect_left(self._sorted, start)
        shorter = (start[:size] for size in range(len(start)) if start[:size] in self._numbers)
        longer = takewhile(lambda symbol: symbol.startswith(start), islice(self._sorted, first, None))
        found = (self._books[self._numbers[symbol]] for symbol in (*shorter, *longer))
        return (book for book in found if book is not None)

    def make_room(self) -> tuple[bytes, Book] | None:
        """Create or enlarge the book at which the loop has stopped, or mark it as full.

        Return a symbol that is new, and its book.
        """
        number = min(self._state.stuck, self._state.made)  # lower if an error left a symbol without a book
        old = self._books[number] if number < self._state.made else None
        book = new_book(_FIRST_ORDERS, _FIRST_LEVELS) if old is None else roomier(old)
        more = book.nbytes - (0 if old is None else old.nbytes)
        has_memory = self._bytes + more <= self._max_bytes
        if old is None:
            symbol = self._numbering.name(number)
            self._numbers[symbol] = number
            insort(self._sorted, symbol)
            self._books.append(None)
            self._state.made += 1
        elif not has_memory:
            head_of(old).is_full = 1
        if has_memory:
            self._bytes += more
            self._put(number, book)
        return (symbol, book) if old is None else None

    def _put(self, number: int, book: Book) -> None:
        self._books[number] = book
        self._addresses[number] = book.ctypes.data

    def empty_slice(self, slice_id: int) -> None:
        """Empty the books of a slice."""
        for number, book in enumerate(self._books):
            if book is not None and head_of(book).slice_id == slice_id:
                fresh = new_book(_FIRST_ORDERS, _FIRST_LEVELS)
                head_of(fresh).slice_id = slice_id  # losses before its first message count too
                self._bytes += fresh.nbytes - book.nbytes
                self._put(number, fresh)

    def clear(self) -> None:
        """Remove all symbols."""
        self._addresses[: self._state.made] = 0
        self._state.made = self._state.left_out = self._bytes = 0
        self._numbering.clear()
        self._numbers.clear()
        self._sorted.clear()
        self._books.clear()

    def tops(self, depth: int) -> tuple[list[bytes], NDArray[numpy.int64]]:
        """Return the symbols whose books have messages, and the best levels of each, int64[n, 2, depth, 3]."""
        shown = numpy.zeros((self._state.made, 2, depth, 3), numpy.int64)
        show_all(self._addresses[: self._state.made], depth, shown)
        names = [symbol for symbol, _ in self.filled()]
        return names, shown[[self._numbers[symbol] for symbol in names]]
