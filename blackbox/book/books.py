"""The books of all symbols of a feed, in compiled code. Python runs once per batch, and once per new book.

    book = subscriber.book(b"")                  # callbacks registered after it can read it
    books = Books("itch50"); books.apply(batch)  # without a subscriber

`apply_rows` processes a batch's rows, and returns to Python if a book must be created or enlarged.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy
from numpy.typing import NDArray

from blackbox.block.batch.batch import Batch
from blackbox.block.batch.batch_rows import read_only
from blackbox.block.batch.plain_message import decimal_text
from blackbox.block.batch.received_block import BatchFeed
from blackbox.block.form.block import Block
from blackbox.block.gap import Gap
from blackbox.book.apply_rows import BooksState, apply_rows
from blackbox.book.book import (
    COUNTERS,
    Level,
    best,
    counters,
    head_of,
    is_synced,
    level_columns,
    levels,
    lose_sync,
    new_book,
    order_columns,
    warm_up_book,
)
from blackbox.book.continuity import Break, Continuity
from blackbox.book.feed import load_book_feed
from blackbox.book.orders import BUY, SELL
from blackbox.book.symbol_books import SymbolBooks
from blackbox.book.unsure_keys import UnsureKeys
from blackbox.errors import ConfigError
from blackbox.feed.routing.compiled_routing import CompiledSymbolRule
from blackbox.feed.routing.key_rule import has_channels, key_of
from blackbox.feed.routing.symbol import SymbolRule
from blackbox.feed.schema.schema import RAW, load_schema, schema_of
from blackbox.feed.symbol_choice import TopicChoice
from blackbox.native.compile.jit import warm_up
from blackbox.native.system.interrupts import interrupts_held
from blackbox.notebook import Cell, Rows, view
from blackbox.receive.callbacks.callbacks import TopicsCallback

MAX_BYTES: Final = 1 << 30
MAX_SYMBOLS: Final = 1 << 20
_ALL_ROWS: Final = numpy.frombuffer(b"", numpy.int32)

LEVEL: Final = numpy.dtype([("price", "<i8"), ("shares", "<i8"), ("orders", "<i8")])
"""A level in `Books.tops`; a missing one has no shares."""


class Best(NamedTuple):
    """Best level of each side; None if the side is empty."""

    bid: Level | None
    ask: Level | None


class Depth(NamedTuple):
    """Levels of both sides, best first."""

    bids: list[Level]
    asks: list[Level]


class _Origin(NamedTuple):
    """Feeds of the batches."""

    feeds: Sequence[BatchFeed]
    names: frozenset[str]
    """The feed of the books, once known."""
    chosen: NDArray[numpy.uint8]
    """For each feed 1 if it has the books' schema."""


_NO_ORIGIN: Final = _Origin((), frozenset(), numpy.empty(0, numpy.uint8))


class Books:
    """The order book of every symbol in the given messages. Prices are integers with `decimals` implied decimals.

    A symbol's first message creates its book. Books grow as they fill, up to `max_bytes` in total. Above it, they
    count `forgotten` orders of a book that cannot grow, and `left_out` messages of symbols without a book. Any thread
    may read at any time, and sees each batch, or turn of it, as a whole.
    """

    def __init__(
        self,
        schema: str,
        *,
        prefix: bytes = b"",
        symbol_rule: SymbolRule | None = None,
        max_symbols: int = MAX_SYMBOLS,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        """Create empty books for the messages of a schema whose topics start with `prefix`.

        A book is not synced if the prefix excludes messages of its symbol. Raises ConfigError if the schema has no
        registered books.
        """
        self._feed = feed = load_book_feed(schema)  # kept alive, because the loop calls it
        self.decimals = feed.decimals
        self._lock = threading.Lock()
        self._types = numpy.zeros(256, numpy.uint8)
        self._types[list(feed.message_types.encode("latin-1"))] = 1
        self._places = numpy.empty(0, numpy.int32)
        self._origin = _NO_ORIGIN
        self._images: dict[int, int] = {}
        """Messages still to come of each slice's image, which stands for all earlier messages of the run."""
        self._prefix = prefix
        self.played_prefixes: tuple[bytes, ...] = (b"",)
        """Prefixes of the topics that a replay plays."""
        self._key_rule = 0
        """Key rule of the blocks."""
        self._unsure = UnsureKeys()
        self._continuity = Continuity()
        self._symbol_rule = symbol_rule or SymbolRule()
        rule = CompiledSymbolRule.of(self._symbol_rule)
        self._state = state = BooksState()
        state.apply, state.schema_id, state.type_offset = feed.address, load_schema(schema).schema_id, feed.type_offset
        state.types, state.separator, state.is_first = self._types.ctypes.data, rule.separator, int(rule.first)
        self._books = SymbolBooks(state, max_symbols, max_bytes)
        warm_up(apply_rows, 0, 0, 0, 0, _ALL_ROWS, 0, 0)
        warm_up_book()

    def __repr__(self) -> str:
        return f"<Books of {len(self.symbols):,} symbols>"

    def _repr_html_(self) -> str:
        tops = self.tops()
        facts: dict[str, Cell] = {
            "feed": ", ".join(self._origin.names) or None,
            "schema": schema_of(self._state.schema_id).name,
            "symbols": len(tops),
            "synced": "yes" if self.synced else "no",
        }
        columns = ("symbol", "bid", "bid size", "ask", "ask size")
        return view("Books", facts, Rows(columns, map(self._row_of, tops), len(tops), "symbols"))

    def _row_of(self, top: Any) -> list[Cell]:
        cells: list[Cell] = []
        for price, size, _orders in (top["bids"][0].tolist(), top["asks"][0].tolist()):
            cells += [decimal_text(price, self.decimals), size] if size else [None, None]
        return [bytes(top["symbol"]), *cells]

    def apply(self, batch: Batch) -> None:
        """Apply the messages of a batch."""
        self(batch, 0, len(batch))

    def __call__(self, batch: Batch, start: int, count: int) -> None:
        """Apply `count` messages of a batch from `start` on, for callers that pass messages in turn."""
        rows = _ALL_ROWS if batch.rows is None else read_only(batch.rows)
        received, last = batch._received_block, start + count
        with self._lock:
            known = self._origin.feeds
            if received.feeds is not known and received.feeds != known:  # each recorded batch has its own tuple
                self._choose(received.feeds)
            if (rule := batch.block.key_rule) != self._key_rule & 0xFF:
                self._key_rule = ord(self._symbol_rule.separator) << 8 | rule if has_channels(rule) else rule
            slice_id = batch.block.slice_id
            left = self._images.get(slice_id)
            takes_image = received.is_image and left is not None
            self._state.conflated = int(received.conflated or received.is_image > takes_image)
            is_late = received.is_late and left is None
            self._state.late = int(is_late or not (self._feed.begins_empty or takes_image))
            if start < last and not received.is_delivered and not received.is_image:
                found = self._continuity.follow(batch, start, last)
                if found is not None:
                    self._lose_after(batch, found)
            if batch.block.topic_count > len(self._places):
                with interrupts_held():  # an interrupt would leave the address of freed memory
                    self._places = numpy.empty(2 * batch.block.topic_count, numpy.int32)
                    self._state.places = self._places.ctypes.data
            while (start := apply_rows(self._state.address, *received.addresses, rows, start, last)) < last:
                with interrupts_held():
                    made = self._books.make_room()
                    if made is not None and self._lacks(made[0]):
                        lose_sync(made[1].ctypes.data)
            if left:
                self._images[slice_id] = max(0, left - count) if received.is_image else 0
            if received.is_image:  # its snapshot has synced the books
                slices = None, slice_id
                for symbol in {*map(self._symbol_rule.symbol_of, batch.block.topics)}:
                    book = self._books.find(symbol)
                    if book is not None and self._unsure.may_lack(self._start_of(symbol), slices):
                        lose_sync(book.ctypes.data)

    def _lose_after(self, batch: Batch, found: Break) -> None:
        """Lose sync where a batch does not follow the earlier ones.

        A new epoch empties the books of its slice, as in a subscriber and a replay.
        """
        slice_id = batch.block.slice_id
        if found.is_new_epoch:
            self._empty_slice(slice_id)
        if found.is_restart:
            self._lose(slice_id)
        if found.is_gap:
            self._lose(slice_id, batch.block.key)

    def _choose(self, feeds: Sequence[BatchFeed]) -> None:
        """Select the slices of the books' schema, if there are several feeds.

        Raises ConfigError if several feeds have it, because orders of two feeds could be confused, or if none has it,
        because the feed that carries it as plain bytes is unknown.
        """
        mine = [feed.schema is not None and feed.schema.schema_id == self._state.schema_id for feed in feeds]
        names = sorted(self._origin.names | {feed.name for feed, is_mine in zip(feeds, mine, strict=True) if is_mine})
        if len(names) > 1:
            raise ConfigError(f"books were given messages of the feeds {names}, expected one: replay them apart")
        if len(feeds) > 1 and not any(mine):
            found = sorted({(feed.name, feed.schema.name if feed.schema else RAW.name) for feed in feeds})
            told = ", ".join(f"{name!r} ({schema})" for name, schema in found)
            raise ConfigError(
                f"books of schema {schema_of(self._state.schema_id).name!r} were given messages of the feeds {told}, "
                "expected one of that schema: replay a feed of plain bytes alone"
            )
        self._origin = _Origin(feeds, frozenset(names), numpy.array(mine, numpy.uint8))
        self._state.chosen = self._origin.chosen.ctypes.data if len(feeds) > 1 else 0

    def _lacks(self, symbol: bytes) -> bool:
        """Return True if a symbol's first messages may be missing. Its slice is not known yet."""
        start = symbol + self._symbol_rule.separator.encode()
        is_whole = start.startswith(self._prefix) and start.startswith(self.played_prefixes)
        return not is_whole or self._unsure.may_lack(self._start_of(symbol))

    def clear(self, slice_id: int | None = None) -> None:
        """Empty the books of one slice, or remove all symbols."""
        with self._lock, interrupts_held():
            if slice_id is not None:
                self._empty_slice(slice_id)
            else:
                self._origin = _NO_ORIGIN
                self._unsure.clear()
                self._continuity.clear()
                self._books.clear()

    def _empty_slice(self, slice_id: int) -> None:
        self._images.pop(slice_id, None)
        self._unsure.clear(slice_id)
        self._books.empty_slice(slice_id)

    def expect_image(self, slice_id: int, count: int) -> None:
        """Expect a slice to begin with an image of books of `count` messages. Other images do not sync books."""
        with self._lock:
            self._images[slice_id] = count

    def resting(self, symbol: str | bytes) -> tuple[NDArray[Any], bool]:
        """Return a copy of a symbol's orders, or levels, as in `Resting`, and True during a snapshot."""
        with self._lock:
            if (book := self._books.find(symbol)) is None:
                return order_columns(new_book(1, 1)), False
            orders = order_columns(book)
            return orders if len(orders) else level_columns(book), bool(head_of(book).is_snapshot)

    def lose_sync(self, slice_id: int | None = None, key: bytes = b"") -> None:
        """Mark messages as lost: of one slice or any, of a key or all.

        Books created later may lack messages too.
        """
        with self._lock:
            self._lose(slice_id, key)

    def _lose(self, slice_id: int | None, key: bytes = b"") -> None:
        self._unsure.add(slice_id, key)
        if has_channels(self._key_rule) and key:
            books = (book for symbol, book in self._books if key_of(self._key_rule, symbol) == key)
        else:
            books = self._books.sharing(key)
        for book in books:
            if slice_id in (None, head_of(book).slice_id):
                lose_sync(book.ctypes.data)

    def _start_of(self, symbol: bytes) -> bytes:
        """Return a prefix of the keys of a symbol's messages."""
        return key_of(self._key_rule, symbol) if has_channels(self._key_rule) else symbol

    @property
    def symbols(self) -> list[bytes]:
        """The symbols that have a book, in order of their first messages."""
        with self._lock:
            return [symbol for symbol, _ in self._books.filled()]

    @property
    def synced(self) -> bool:
        """True if no book is known to lack messages.

        A book lacks messages if it began after the publisher's first message, or after a gap; if a message did not fit
        it (`unknown`, `duplicate`, `too_many`, `forgotten`, `refused` of `counters`); until all messages of an image
        are applied; and during a snapshot. A snapshot, or a clear by the venue, makes it complete again.
        """
        with self._lock:
            is_begun = self._state.left_out == 0 and not any(self._images.values())
            return is_begun and all(is_synced(book) for _, book in self._books.filled())

    @property
    def lacks_messages(self) -> bool:
        """True if a book is known to lack messages. Unlike `synced`, it ignores unfinished snapshots."""
        with self._lock:
            return self._state.left_out > 0 or any(head_of(book).is_unsynced for _, book in self._books.filled())

    def is_synced(self, symbol: str | bytes) -> bool:
        """Return True if a symbol has a book that is not known to lack messages: see `synced`."""
        with self._lock:
            book = self._books.find(symbol)
            return book is not None and is_synced(book) and not self._images.get(head_of(book).slice_id)

    def best(self, symbol: str | bytes) -> Best:
        """Return a symbol's best bid and ask."""
        with self._lock:
            if (book := self._books.address(symbol)) == 0:
                return Best(None, None)
            bid, bid_shares, bids, ask, ask_shares, asks = best(book)
        return Best(
            Level(bid, bid_shares, bids) if bid_shares else None, Level(ask, ask_shares, asks) if ask_shares else None
        )

    def levels(self, symbol: str | bytes, depth: int) -> Depth:
        """Return a symbol's best `depth` levels of each side."""
        with self._lock:
            book = self._books.find(symbol)
            return Depth([], []) if book is None else Depth(levels(book, BUY, depth), levels(book, SELL, depth))

    def orders(self, symbol: str | bytes) -> NDArray[Any]:
        """Return a symbol's orders as a structured array: reference, side (0: buy, 1: sell), price, shares.

        Empty if the venue sends levels only.
        """
        with self._lock:
            book = self._books.find(symbol)
            return order_columns(new_book(1, 1) if book is None else book)

    def tops(self, depth: int = 1) -> NDArray[Any]:
        """Return the best `depth` levels of all books: symbol, bids (depth,), asks (depth,), each level a `LEVEL`."""
        if depth < 1:
            raise ConfigError(f"depth was {depth}, expected 1 or more")
        with self._lock:
            names, shown = self._books.tops(depth)
        sides = shown.view(LEVEL).reshape(len(names), 2, depth)
        longest = max(map(len, names), default=1)
        found = numpy.empty(
            len(names), [("symbol", f"S{longest}"), ("bids", LEVEL, (depth,)), ("asks", LEVEL, (depth,))]
        )
        found["symbol"] = names
        found["bids"], found["asks"] = sides[:, 0], sides[:, 1]
        return found

    def counters(self, symbol: str | bytes | None = None) -> dict[str, int]:
        """Return the counters of a symbol's book, or of all.

        `messages` applied, and `COUNTERS`: resting `orders`; `added`, `taken` (executed or cancelled), `removed`,
        `replaced`; `unknown`: about an order or level that does not rest; `duplicate`: added under a resting reference;
        `too_many`: more shares taken than rest; `forgotten`: no room; `locked`, `crossed`: events after which bid and
        ask were equal, or the bid was above; `refused`: invalid format; `unsynced`: number of times that messages were
        found missing. The sum of all also has `left_out`: messages of symbols without a book, for lack of memory.
        """
        total = dict.fromkeys(("messages", *COUNTERS), 0)
        with self._lock:
            if symbol is None:
                books = [book for _, book in self._books.filled()]
            else:
                books = [] if (found := self._books.find(symbol)) is None else [found]
            for book in books:
                told = {**counters(book), "messages": head_of(book).messages}
                total = {name: many + told[name] for name, many in total.items()}
            if symbol is None:
                total["left_out"] = self._state.left_out
        return total


class BookCallback(TopicsCallback):
    """The callback that a subscriber registers for its books."""

    function: Books

    def __init__(self, prefix: bytes, books: Books) -> None:
        super().__init__("book", prefix, books)

    def expect_image(self, slice_id: int, blocks: Iterable[Block]) -> None:
        """Expect a slice to begin with its messages of an image of books."""
        chosen = TopicChoice(self.prefixes, self.symbols)
        found = (numpy.array([*map(chosen.has, each.topics)])[each.topic_index] for each in blocks)
        self.function.expect_image(slice_id, sum(map(numpy.count_nonzero, found)))

    def lose(self, gap: Gap) -> None:
        """Mark messages of a gap as lost."""
        self.function.lose_sync(gap.slice_id, gap.key)

    def reset(self, slice_id: int | None = None) -> None:
        """Empty the books of one slice, or all."""
        self.function.clear(slice_id)

    def restart(self, slice_id: int) -> None:
        """Mark messages of a slice as lost."""
        self.function.lose_sync(slice_id)
