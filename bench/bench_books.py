"""Order books of a synthetic ITCH session, all symbols, from Python: updates a second.

    replay      recording ==in time order==> Subscriber.replay, book(b"")
    kernel      the recording's blocks, in memory ==> Books.apply, a call a block
    order-book  the same messages, unpacked in advance ==a Python call a message==> a dict of orders, levels in C

An update adds, executes, cancels or replaces an order. All must end with the same best levels for each symbol.
"""

from __future__ import annotations

import importlib
import struct
import time
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from blackbox_feeds.synthetic import Synthetic

from bench.measure.contest import Contest, expect
from bench.rivals.rival import need
from bench.rivals.servers import Missing
from bench.workload.recorded import record
from blackbox import Feed, Publisher, Recording, Subscriber
from blackbox.book.books import Books

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

_MESSAGES: Final = 2_000_000
_FEW: Final = 200_000
_REPLAY: Final = "Subscriber.replay, book(prefix)"
Tops = dict[bytes, tuple[tuple[int, int], tuple[int, int]]]
"""Price and shares of the best bid and ask by symbol; zeros for an empty side."""


@cache
def _recording(messages: int, symbols: int) -> Recording:
    feed = Feed.local(f"books-{messages}-{symbols}", slices=1, schema="itch50")

    def publish(publisher: Publisher) -> None:
        Synthetic(messages, symbols=symbols).publish(publisher)

    return Recording.open(record(feed, messages, publish))


def _tops(books: Books) -> Tops:
    best = {symbol: books.best(symbol) for symbol in books.symbols}
    return {symbol: (bid[:2] if bid else (0, 0), ask[:2] if ask else (0, 0)) for symbol, (bid, ask) in best.items()}


def _checked(books: Books, messages: int, symbols: int) -> int:
    expect("best levels", _tops(books), _expected(messages, symbols))
    return books.counters()["messages"]


@cache
def _expected(messages: int, symbols: int) -> Tops:
    books = Books("itch50")
    for batch in _recording(messages, symbols).batches():
        books.apply(batch)
    return _tops(books)


def _replay(messages: int, symbols: int) -> float:
    recording = _recording(messages, symbols)
    subscriber = Subscriber(recording.feed)
    books = subscriber.book(b"")
    statistics = subscriber.replay(recording)
    return _checked(books, messages, symbols) / statistics.seconds / 1e6


def _kernel(messages: int, symbols: int) -> float:
    batches = list(_recording(messages, symbols).batches())
    books = Books("itch50")
    started = time.perf_counter()
    for batch in batches:
        books.apply(batch)
    seconds = time.perf_counter() - started
    return _checked(books, messages, symbols) / seconds / 1e6


@cache
def _unpacked(messages: int, symbols: int) -> list[tuple[Any, ...]]:
    """Type, symbol and fields of each update."""
    add, take, replace = struct.Struct(">QcI8sI"), struct.Struct(">QI"), struct.Struct(">QQII")
    found: list[tuple[Any, ...]] = []
    for batch in _recording(messages, symbols).batches():
        for topic, payload in zip(batch.topics_per_message(), batch.payload_list(), strict=True):
            data, symbol = bytes(payload), topic.rpartition(b".")[0]
            kind = data[:1]
            if kind in b"AF":
                reference, side, shares, _, price = add.unpack_from(data, 11)
                found.append((b"A", symbol, reference, side == b"B", price, shares))
            elif kind in b"ECX":
                found.append((b"E", symbol, *take.unpack_from(data, 11)))
            elif kind == b"D":
                found.append((b"E", symbol, int.from_bytes(data[11:19]), 1 << 40))
            elif kind == b"U":
                found.append((b"U", symbol, *replace.unpack_from(data, 11)))
    return found


def _in_c(order_book: Any, messages: int, symbols: int) -> float:
    """Keep orders in a dict and price levels in a C book per symbol, the usual way to use this library."""
    updates = _unpacked(messages, symbols)
    sides: dict[bytes, tuple[Any, Any]] = {}
    orders: dict[int, list[Any]] = {}
    started = time.perf_counter()

    def rest(symbol: bytes, reference: int, is_bid: bool, price: int, shares: int) -> None:
        if symbol not in sides:
            book = order_book.OrderBook()
            sides[symbol] = book.asks, book.bids
        levels = sides[symbol][is_bid]
        orders[reference] = [levels, price, shares, is_bid]
        levels[price] = levels[price] + shares if price in levels else shares

    def take(reference: int, shares: int) -> Any:
        order = orders[reference]
        levels, price, left, is_bid = order
        shares = min(shares, left)
        if levels[price] == shares:
            del levels[price]
        else:
            levels[price] -= shares
        if shares == left:
            del orders[reference]
        else:
            order[2] = left - shares
        return is_bid

    for kind, symbol, *fields in updates:
        if kind == b"A":
            rest(symbol, *fields)
        elif kind == b"E":
            take(*fields)
        else:
            old, new, shares, price = fields
            rest(symbol, new, take(old, 1 << 40), price, shares)
    seconds = time.perf_counter() - started
    none = 0, 0
    found = {
        symbol: (bids.index(0) if len(bids) else none, asks.index(0) if len(asks) else none)
        for symbol, (asks, bids) in sides.items()
    }
    expect("best levels", found, _expected(messages, symbols))
    return len(updates) / seconds / 1e6


def _contest(benchmark: BenchmarkFixture, messages: int, symbols: int) -> None:
    contest = Contest(f"Order books of {symbols:,} symbols, from Python", "M updates/s", topology=__doc__)
    contest.add(_REPLAY, lambda: _replay(messages, symbols))
    contest.add("Books.apply, blocks in memory", lambda: _kernel(messages, symbols))
    try:
        need("order-book:order_book")
    except Missing as why:
        contest.skip("order-book (C)", str(why))
    else:
        module = importlib.import_module("order_book")
        contest.add("order-book (C), a call a message", lambda: _in_c(module, _FEW, symbols), "rival", versus=_REPLAY)
    contest.run(benchmark)


def test_books_of_few_symbols(benchmark: BenchmarkFixture) -> None:
    """M updates/s; all books fit into the cache."""
    _contest(benchmark, _MESSAGES, 50)


def test_books_of_many_symbols(benchmark: BenchmarkFixture) -> None:
    """M updates/s; each message's book is fetched from memory."""
    _contest(benchmark, _MESSAGES, 5_000)
