"""The books of all symbols of a feed, in compiled code. Python runs once per batch, and once per new book.

    book = subscriber.book(b"")                  # callbacks registered after it can read it
    books = Books("itch50"); books.apply(batch)  # without a subscriber

One loop processes a batch's rows: type, topic -> symbol -> number -> book, the feed's `apply`. It returns to Python
if a book must be created or enlarged.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from itertools import islice, takewhile
from typing import Any, Final, NamedTuple

import numpy
from numpy.typing import NDArray

from blackbox.arguments import as_bytes
from blackbox.block.batch.batch import Batch
from blackbox.block.batch.batch_rows import read_only
from blackbox.block.batch.received_block import BatchFeed
from blackbox.block.form.format import FLAG_FIXED, BodyLayout, Header, has_value, layout_of, read_header
from blackbox.block.gap import Gap
from blackbox.block.position import is_restart
from blackbox.book.book import (
    COUNTERS,
    Level,
    best,
    counters,
    has_room,
    head_at,
    head_of,
    is_synced,
    level_columns,
    levels,
    lose_sync,
    new_book,
    note_lack,
    note_origin,
    order_columns,
    roomier,
    settle,
    show,
    warm_up_book,
)
from blackbox.book.feed import COMPLETE, load_book_feed
from blackbox.book.orders import BUY, SELL
from blackbox.book.unsure_keys import UnsureKeys
from blackbox.errors import ConfigError
from blackbox.feed.routing.compiled_symbol import CompiledSymbolRule, separator_at
from blackbox.feed.routing.key_rule import has_channels, key_of
from blackbox.feed.routing.symbol import SymbolRule
from blackbox.feed.schema.schema import RAW, load_schema
from blackbox.native.compile.jit import njit, warm_up
from blackbox.native.memory.intrinsics import bytes_at, call_for_integer, inner, int32s_at, int64s_at
from blackbox.native.memory.records import Field, Fields, SharedRecord, record_at
from blackbox.native.system.interrupts import interrupts_held
from blackbox.native.tables.name_table import Numbering, NumberingAt, number_of
from blackbox.receive.callbacks.callbacks import Callback

MAX_BYTES: Final = 1 << 30
MAX_SYMBOLS: Final = 1 << 20
_FIRST_ORDERS: Final = 1 << 7
_FIRST_LEVELS: Final = 1 << 5
_MEAN_SYMBOL_BYTES: Final = 32
_ALL_ROWS: Final = numpy.frombuffer(b"", numpy.int32)

LEVEL: Final = numpy.dtype([("price", "<i8"), ("shares", "<i8"), ("orders", "<i8")])
"""A level in `Books.tops`; a missing one has no shares."""


class _BooksState(SharedRecord):
    """State of the loop over rows."""

    apply = Field()
    schema_id = Field()
    chosen = Field()
    """Address of uint8[slices] in a replay of several feeds: 1 for the slices of the books' schema. Else 0."""
    conflated = Field()
    """True if the block stands for several, with unknown messages between its messages."""
    late = Field()
    """1 if a book that begins in the block lacks earlier messages."""
    type_offset = Field()
    types = Field()
    """Address of uint8[256]: 1 for the types that change books."""
    separator = Field()
    is_first = Field()
    """The feed's symbol rule."""
    numbering = Fields(len(NumberingAt._fields))
    books = Field()
    """Address of int64[symbols]: the address of each book; 0: there was no memory for it."""
    made = Field()
    """Number of addresses."""
    left_out = Field()
    """Messages of symbols without a book."""
    places = Field()
    """Address of int32[...], scratch memory for the topics of a block."""
    stuck = Field()
    """Number of the book that must be created or enlarged."""


_state_at = record_at(_BooksState)
_UNKNOWN: Final = -2


@inner
def _number(state: Any, topic: int, size: int) -> int:
    rule = CompiledSymbolRule(state.separator, state.is_first != 0)
    end = separator_at(rule, topic, size)
    n = state.numbering
    return number_of(NumberingAt(n[0], n[1], n[2], n[3], n[4], n[5]), topic, size if end < 0 else end)


@inner
def _payload(header: Header, layout: BodyLayout, body: int, row: int) -> tuple[int, int]:
    """Return address and size of a row's payload."""
    if header.flags & FLAG_FIXED:
        return body + layout.payloads + header.stride * row, header.stride
    ends = int32s_at(body + layout.payload_offsets + 4 * row, 2)
    start = numpy.int64(ends[0])
    return body + layout.payloads + start, numpy.int64(ends[1]) - start


@inner
def _is_chosen(chosen: int, header: Header, origins: int, row: int) -> bool:
    """Return True if a row is of the books' schema, in merged blocks of several feeds."""
    if chosen == 0:
        return True
    slice_id = header.slice_id if origins == 0 else int64s_at(origins + 24 * header.count, row + 1)[row]
    return bytes_at(chosen, slice_id + 1)[slice_id] != 0


@inner
def _note_origin(book: int, header: Header, origins: int, row: int) -> None:
    if origins == 0:
        note_origin(book, header.slice_id, header.epoch)
        return
    column = 8 * header.count
    note_origin(book, int64s_at(origins + 3 * column, row + 1)[row], int64s_at(origins + 4 * column, row + 1)[row])


@inner
def _begins_late(state: Any, book: int) -> bool:
    """Return True if the book begins with this message and lacks earlier ones."""
    is_late: bool = state.late != 0 and head_at(book).messages == 0
    return is_late


@njit(nogil=True, cache=True)
def _apply_rows(
    at: int, header_at: int, body: int, origins: int, rows: NDArray[numpy.int32], first: int, last: int
) -> int:
    """Apply the messages `first` to `last` - 1 of `rows` (none: of all rows of the block). Return where it stopped."""
    state = _state_at(at)
    header = read_header(header_at)
    if state.chosen == 0 and header.schema_id not in (0, state.schema_id):
        return last
    layout = layout_of(header)
    is_all = len(rows) == 0
    topic_index = int32s_at(body + layout.topic_index, header.count)
    topic_offsets = int32s_at(body + layout.topic_offsets, header.topics + 1)
    types = bytes_at(state.types, 256)
    books = int64s_at(state.books, state.made)
    places = int32s_at(state.places, header.topics)
    is_noted = last - first >= header.topics  # caching each topic's book pays off
    if is_noted:
        places[:] = _UNKNOWN
    for i in range(first, last):
        row = numpy.int64(i if is_all else rows[i])
        payload, size = _payload(header, layout, body, row)
        if size <= state.type_offset or types[bytes_at(payload, size)[state.type_offset]] == 0:
            continue
        if not has_value(header, layout, body, row) or not _is_chosen(state.chosen, header, origins, row):
            continue
        topic = numpy.int64(topic_index[row])
        number = numpy.int64(places[topic]) if is_noted else _UNKNOWN
        if number == _UNKNOWN:
            begin = numpy.int64(topic_offsets[topic])
            number = _number(state, body + layout.topics + begin, numpy.int64(topic_offsets[topic + 1]) - begin)
            if is_noted:
                places[topic] = number
        book = books[number] if 0 <= number < len(books) else 0
        if number >= len(books) or (book != 0 and not has_room(book)):
            state.stuck = number
            return i
        if book == 0:
            state.left_out += 1
            continue
        if _begins_late(state, book) or state.conflated != 0:
            note_lack(book)
        _note_origin(book, header, origins, row)
        if call_for_integer(state.apply, book, payload, size) == COMPLETE:
            settle(book)
    return last


@njit(nogil=True, cache=True)
def _show_all(books: NDArray[numpy.int64], depth: int, shown: NDArray[numpy.int64]) -> None:
    for number in range(len(books)):
        if books[number] != 0:
            show(books[number], depth, shown[number])


class Best(NamedTuple):
    """Best level of each side; None if the side is empty."""

    bid: Level | None
    ask: Level | None


class Depth(NamedTuple):
    """Levels of both sides, best first."""

    bids: list[Level]
    asks: list[Level]


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
        self._schema = schema
        self._feed = feed = load_book_feed(schema)  # kept alive, because the loop calls it
        self.decimals = feed.decimals
        self._max_bytes, self._bytes = max_bytes, 0
        self._lock = threading.Lock()
        self._books: list[NDArray[numpy.int64] | None] = []
        self._numbers: dict[bytes, int] = {}
        self._sorted: list[bytes] = []
        """Keys with lost messages."""
        self._numbering = Numbering(max_symbols, _MEAN_SYMBOL_BYTES)
        self._addresses = numpy.zeros(max_symbols, numpy.int64)
        self._types = numpy.zeros(256, numpy.uint8)
        self._types[list(feed.message_types.encode("latin-1"))] = 1
        self._places = numpy.empty(0, numpy.int32)
        self._feeds: Sequence[BatchFeed] = ()
        self._names: set[str] = set()
        """The feed of the books, once known."""
        self._takes_images = False
        self._prefix = prefix
        self.played_prefixes: tuple[bytes, ...] = (b"",)
        """Prefixes of the topics that a replay plays."""
        self._key_rule = 0
        """Key rule of the blocks."""
        self._unsure = UnsureKeys()
        self._epochs: dict[int, int] = {}
        """Epoch of each slice, and"""
        self._following: dict[tuple[int, int, bytes], int] = {}
        """Ends of the last messages by slice, epoch and key, for batches not delivered by a subscriber or replay."""
        self._symbol_rule = symbol_rule or SymbolRule()
        rule = CompiledSymbolRule.of(self._symbol_rule)
        self._state = state = _BooksState()
        state.apply, state.schema_id, state.type_offset = feed.address, load_schema(schema).schema_id, feed.type_offset
        state.types, state.books = self._types.ctypes.data, self._addresses.ctypes.data
        state.separator, state.is_first = rule.separator, int(rule.first)
        for place, word in enumerate(self._numbering.at):
            state.numbering[place] = word
        warm_up(_apply_rows, 0, 0, 0, 0, _ALL_ROWS, 0, 0)
        warm_up_book()

    def __repr__(self) -> str:
        return f"<Books of {len(self.symbols):,} symbols>"

    def apply(self, batch: Batch) -> None:
        """Apply the messages of a batch."""
        self(batch, 0, len(batch))

    def __call__(self, batch: Batch, start: int, count: int) -> None:
        """Apply `count` messages of a batch from `start` on, for callers that pass messages in turn."""
        rows = _ALL_ROWS if batch.rows is None else read_only(batch.rows)
        received, last = batch._received_block, start + count
        with self._lock:
            if (
                received.feeds is not self._feeds and received.feeds != self._feeds
            ):  # each recorded batch has its own tuple
                self._choose(received.feeds)
            if (rule := batch.block.key_rule) != self._key_rule & 0xFF:
                self._key_rule = ord(self._symbol_rule.separator) << 8 | rule if has_channels(rule) else rule
            takes_image = received.is_image and self._takes_images
            self._state.conflated = int(received.conflated or received.is_image > takes_image)
            self._state.late = int(received.is_late or not (self._feed.begins_empty or takes_image))
            if not received.is_delivered and not received.is_image:
                self._check_numbers(batch, start, last)
            if batch.block.topic_count > len(self._places):
                with interrupts_held():  # an interrupt would leave the address of freed memory
                    self._places = numpy.empty(2 * batch.block.topic_count, numpy.int32)
                    self._state.places = self._places.ctypes.data
            while (start := _apply_rows(self._state.address, *received.addresses, rows, start, last)) < last:
                with interrupts_held():
                    self._make_room()
            if received.is_image:  # its snapshot has synced the books
                slices = None, batch.block.slice_id
                for symbol in {*map(self._symbol_rule.symbol_of, batch.block.topics)}:
                    book = self._find(symbol)
                    if book is not None and self._unsure.may_lack(self._start_of(symbol), slices):
                        lose_sync(book.ctypes.data)

    def _check_numbers(self, batch: Batch, start: int, last: int) -> None:
        """Lose sync unless the messages of a batch directly follow the earlier ones or the start of the epoch.

        A new epoch empties the books of its slice, as in a subscriber and a replay.
        """
        block = batch.block
        if start < last:
            before = self._epochs.get(block.slice_id, block.epoch)
            self._epochs[block.slice_id] = block.epoch
            if before != block.epoch:
                self._clear_slice(block.slice_id)
                if is_restart(before, block.epoch):
                    self._lose(block.slice_id)
            stream = block.slice_id, block.epoch, block.key
            first, end = int(batch.sequence[start]), int(batch.sequence[last - 1]) + 1
            previous = block.previous if first == block.sequence else first
            if previous != self._following.get(stream, 0) or end - first != last - start:
                self._lose(block.slice_id, block.key)
            self._following[stream] = end

    def _choose(self, feeds: Sequence[BatchFeed]) -> None:
        """Select the slices of the books' schema, if there are several feeds.

        Raises ConfigError if several feeds have it, because orders of two feeds could be confused, or if none has it,
        because the feed that carries it as plain bytes is unknown.
        """
        mine = [feed.schema is not None and feed.schema.schema_id == self._state.schema_id for feed in feeds]
        names = sorted(self._names | {feed.name for feed, is_mine in zip(feeds, mine, strict=True) if is_mine})
        if len(names) > 1:
            raise ConfigError(f"books were given messages of the feeds {names}, expected one: replay them apart")
        if len(feeds) > 1 and not any(mine):
            found = sorted({(feed.name, feed.schema.name if feed.schema else RAW.name) for feed in feeds})
            told = ", ".join(f"{name!r} ({schema})" for name, schema in found)
            raise ConfigError(
                f"books of schema {self._schema!r} were given messages of the feeds {told}, expected one of that "
                "schema: replay a feed of plain bytes alone"
            )
        self._feeds, self._names = feeds, set(names)
        self._chosen = numpy.array(mine, numpy.uint8)
        self._state.chosen = self._chosen.ctypes.data if len(feeds) > 1 else 0

    def _make_room(self) -> None:
        """Create or enlarge the next book, or mark it as full."""
        number = min(self._state.stuck, self._state.made)  # lower if an error left a symbol without a book
        old = self._books[number] if number < self._state.made else None
        book = new_book(_FIRST_ORDERS, _FIRST_LEVELS) if old is None else roomier(old)
        more = book.nbytes - (0 if old is None else old.nbytes)
        has_memory = self._bytes + more <= self._max_bytes
        if old is None:
            symbol = self._numbering.names(number)[0]
            self._numbers[symbol] = number
            insort(self._sorted, symbol)
            self._books.append(None)
            self._state.made += 1
        elif not has_memory:
            head_of(old).is_full = 1
        if has_memory:
            self._bytes += more
            self._put(number, book)
        if old is None and self._lacks(symbol):
            lose_sync(book.ctypes.data)

    def _lacks(self, symbol: bytes) -> bool:
        """Return True if a symbol's first messages may be missing. Its slice is not known yet."""
        start = symbol + self._symbol_rule.separator.encode()
        is_whole = start.startswith(self._prefix) and start.startswith(self.played_prefixes)
        return not is_whole or self._unsure.may_lack(self._start_of(symbol))

    def _put(self, number: int, book: NDArray[numpy.int64]) -> None:
        self._books[number] = book
        self._addresses[number] = book.ctypes.data

    def clear(self, slice_id: int | None = None) -> None:
        """Empty the books of one slice, or remove all symbols."""
        with self._lock, interrupts_held():
            if slice_id is not None:
                self._clear_slice(slice_id)
            else:
                self._addresses[: self._state.made] = 0
                self._state.made = self._state.left_out = self._bytes = 0
                self._feeds, self._names = (), set()
                self._unsure.clear()
                self._following.clear()
                self._epochs.clear()
                self._numbering.clear()
                self._numbers.clear()
                self._sorted.clear()
                self._books.clear()

    def _clear_slice(self, slice_id: int) -> None:
        self._unsure.clear(slice_id)
        for number, book in enumerate(self._books):
            if book is not None and head_of(book).slice_id == slice_id:
                fresh = new_book(_FIRST_ORDERS, _FIRST_LEVELS)
                head_of(fresh).slice_id = slice_id  # losses before its first message count too
                self._bytes += fresh.nbytes - book.nbytes
                self._put(number, fresh)

    def expect_image(self) -> None:
        """Accept images of books, which the next messages continue. Other images do not sync books."""
        self._takes_images = True

    def resting(self, symbol: str | bytes) -> tuple[NDArray[Any], bool]:
        """Return a copy of a symbol's orders, or levels, as in `Resting`, and True during a snapshot."""
        with self._lock:
            if (book := self._find(symbol)) is None:
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
        for symbol in self._symbols_of(key):
            book = self._books[self._numbers[symbol]]
            if book is not None and slice_id in (None, head_of(book).slice_id):
                lose_sync(book.ctypes.data)

    def _symbols_of(self, key: bytes) -> Iterator[bytes]:
        """Yield the symbols whose messages may have a key."""
        if has_channels(self._key_rule) and key:
            yield from (symbol for symbol in self._sorted if key_of(self._key_rule, symbol) == key)
            return
        for size in range(len(key)):
            if key[:size] in self._numbers:
                yield key[:size]
        first = bisect_left(self._sorted, key)
        yield from takewhile(lambda symbol: symbol.startswith(key), islice(self._sorted, first, None))

    def _start_of(self, symbol: bytes) -> bytes:
        """Return a prefix of the keys of a symbol's messages."""
        return key_of(self._key_rule, symbol) if has_channels(self._key_rule) else symbol

    def _kept(self) -> list[NDArray[numpy.int64]]:
        return [book for book in self._books if book is not None and head_of(book).messages]

    def _find(self, symbol: str | bytes) -> NDArray[numpy.int64] | None:
        """Return a symbol's book; None before its first message."""
        number = self._numbers.get(as_bytes("symbol", symbol))
        book = None if number is None else self._books[number]
        return book if book is not None and head_of(book).messages else None

    @property
    def symbols(self) -> list[bytes]:
        """The symbols that have a book, in order of their first messages."""
        with self._lock:
            books = [(symbol, self._books[number]) for symbol, number in self._numbers.items()]
            return [symbol for symbol, book in books if book is not None and head_of(book).messages]

    @property
    def synced(self) -> bool:
        """True if no book is known to lack messages.

        A book lacks messages if it began after the publisher's first message, or after a gap; if a message did not fit
        it (`unknown`, `duplicate`, `too_many`, `forgotten`, `refused` of `counters`); and during a snapshot. A
        snapshot, or a clear by the venue, makes it complete again.
        """
        with self._lock:
            return self._state.left_out == 0 and all(map(is_synced, self._kept()))

    @property
    def lacks_messages(self) -> bool:
        """True if a book is known to lack messages. Unlike `synced`, it ignores unfinished snapshots."""
        with self._lock:
            return self._state.left_out > 0 or any(head_of(book).is_unsynced for book in self._kept())

    def is_synced(self, symbol: str | bytes) -> bool:
        """Return True if a symbol has a book that is not known to lack messages: see `synced`."""
        with self._lock:
            book = self._find(symbol)
            return book is not None and is_synced(book)

    def best(self, symbol: str | bytes) -> Best:
        """Return a symbol's best bid and ask."""
        name = as_bytes("symbol", symbol)
        with self._lock:
            book = self._addresses.item(self._numbers[name]) if name in self._numbers else 0
            if book == 0:
                return Best(None, None)
            bid, bid_shares, bids, ask, ask_shares, asks = best(book)
        return Best(
            Level(bid, bid_shares, bids) if bid_shares else None, Level(ask, ask_shares, asks) if ask_shares else None
        )

    def levels(self, symbol: str | bytes, depth: int) -> Depth:
        """Return a symbol's best `depth` levels of each side."""
        with self._lock:
            book = self._find(symbol)
            return Depth([], []) if book is None else Depth(levels(book, BUY, depth), levels(book, SELL, depth))

    def orders(self, symbol: str | bytes) -> NDArray[Any]:
        """Return a symbol's orders as a structured array: reference, side (0: buy, 1: sell), price, shares.

        Empty if the venue sends levels only.
        """
        with self._lock:
            book = self._find(symbol)
            return order_columns(new_book(1, 1) if book is None else book)

    def tops(self, depth: int = 1) -> NDArray[Any]:
        """Return the best `depth` levels of all books: symbol, bids (depth,), asks (depth,), each level a `LEVEL`."""
        if depth < 1:
            raise ConfigError(f"depth was {depth}, expected 1 or more")
        with self._lock:
            shown = numpy.zeros((self._state.made, 2, depth, 3), numpy.int64)
            _show_all(self._addresses[: self._state.made], depth, shown)
            kept = [n for n, book in enumerate(self._books) if book is not None and head_of(book).messages]
            names = list(self._numbers)
        longest = max((len(names[number]) for number in kept), default=1)
        sides = shown[kept].view(LEVEL).reshape(len(kept), 2, depth)
        found = numpy.empty(
            len(kept), [("symbol", f"S{longest}"), ("bids", LEVEL, (depth,)), ("asks", LEVEL, (depth,))]
        )
        found["symbol"] = [names[number] for number in kept]
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
            found = self._find(symbol) if symbol is not None else None
            for book in self._kept() if symbol is None else [] if found is None else [found]:
                told = {**counters(book), "messages": head_of(book).messages}
                total = {name: many + told[name] for name, many in total.items()}
            if symbol is None:
                total["left_out"] = self._state.left_out
        return total


class BookCallback(Callback):
    """The callback that a subscriber registers for its books."""

    function: Books

    def __init__(self, prefix: bytes, books: Books) -> None:
        super().__init__("book", prefix, books)

    def lose(self, gap: Gap) -> None:
        """Mark messages of a gap as lost."""
        self.function.lose_sync(gap.slice_id, gap.key)

    def reset(self, slice_id: int | None = None) -> None:
        """Empty the books of one slice, or all."""
        self.function.clear(slice_id)

    def restart(self, slice_id: int) -> None:
        """Mark messages of a slice as lost."""
        self.function.lose_sync(slice_id)
