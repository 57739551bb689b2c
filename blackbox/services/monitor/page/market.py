"""Prices and books of chosen symbols, each received by its own subscriber."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import msgspec

from blackbox.block.batch.batch import Batch
from blackbox.errors import BlackBoxError, ConfigError
from blackbox.feed.feed import Feed
from blackbox.feed.schema.schema import load_schema
from blackbox.native.system.limits import start_thread
from blackbox.receive.slow_subscriber import SlowPolicy
from blackbox.services.monitor.page.ticks import Quote, TickReader, Trade
from blackbox.subscriber.subscriber import Subscriber

if TYPE_CHECKING:
    from blackbox.book.book import Level
    from blackbox.book.books import Books

log = logging.getLogger("blackbox")

MOST_SYMBOLS: Final = 16
"""Symbols that all browsers together may choose."""
MOST_SYMBOL_BYTES: Final = 64
_DEPTH: Final = 5
_POINTS: Final = 240
_MAX_LAG_S: Final = 0.5
_SNAPSHOT_S: Final = 5.0


class Instrument(msgspec.Struct, frozen=True, kw_only=True):
    """The present state of one symbol."""

    feed: str
    symbol: str
    state: str
    """waiting, live, or an error."""
    messages: int
    price: float | None
    size: float | None
    bids: list[tuple[float, float]]
    """Price and size of the best levels."""
    asks: list[tuple[float, float]]
    in_sync: bool | None
    """True if the book lacks no message; None: the feed has no books."""
    prices: list[tuple[int, float]]
    """Time (ms since 1970) and price, a point each half second at most."""


class Market:
    """The chosen symbols. `choose`, `release` and `instruments` belong to one thread.

    Each symbol has a subscriber that conflates rather than lags. A feed with archives begins with its resting orders.
    """

    def __init__(self, feeds: tuple[Feed, ...]) -> None:
        self._feeds = {feed.name: feed for feed in feeds}
        self._chosen: dict[tuple[str, str], _Symbol] = {}
        self._ending: list[_Symbol] = []
        """Released symbols whose threads have not ended; they count, so that no browser starts threads without end."""

    def choose(self, feed: str, symbol: str) -> None:
        """Begin to receive a symbol for one more browser. Raises ConfigError."""
        if feed not in self._feeds:
            raise ConfigError(f"feed was {feed!r}, expected one of {', '.join(self._feeds)}")
        if not symbol or len(symbol.encode()) > MOST_SYMBOL_BYTES:
            raise ConfigError(f"symbol had {len(symbol.encode())} bytes, expected 1 to {MOST_SYMBOL_BYTES}")
        if (feed, symbol) not in self._chosen:
            self._ending = [each for each in self._ending if not each.has_ended]
            if len(self._chosen) >= MOST_SYMBOLS:
                raise ConfigError(f"{MOST_SYMBOLS} symbols are shown, the most of all browsers: remove one first")
            if len(self._chosen) + len(self._ending) >= MOST_SYMBOLS:
                raise ConfigError(f"{len(self._ending)} removed symbols have not ended yet: try again")
            self._chosen[feed, symbol] = _Symbol(self._feeds[feed], symbol)
        self._chosen[feed, symbol].browsers += 1

    def release(self, feed: str, symbol: str) -> None:
        """End it for one browser."""
        found = self._chosen.get((feed, symbol))
        if found is not None:
            found.browsers -= 1
            if found.browsers <= 0:
                del self._chosen[feed, symbol]
                found.end()
                self._ending.append(found)

    def instruments(self) -> dict[tuple[str, str], Instrument]:
        """Return the present state of all chosen symbols."""
        return {key: each.state() for key, each in self._chosen.items()}

    def close(self) -> None:
        """End all subscribers."""
        for each in self._chosen.values():
            each.end()
        self._chosen.clear()


class _Symbol:
    """One symbol: its thread starts and ends the subscriber, whose worker writes what it reads."""

    def __init__(self, feed: Feed, symbol: str) -> None:
        self.browsers = 0
        self._feed, self._symbol = msgspec.structs.replace(feed, monitor=None), symbol
        self._schema = load_schema(feed.schema)
        self._ticks = TickReader(self._schema)
        self._state, self._messages = "waiting", 0
        self._trade: Trade | None = None
        self._quote: Quote | None = None
        self._points: deque[tuple[int, float]] = deque(maxlen=_POINTS)
        self._books: Books | None = None
        self._ending = threading.Event()
        self._subscriber: Subscriber | None = None
        self._thread = threading.Thread(target=self._run, name="blackbox-market", daemon=True)
        start_thread(self._thread)

    def end(self) -> None:
        """Request the end; the thread ends the subscriber."""
        self._ending.set()
        if self._subscriber is not None:
            self._subscriber.request_stop()

    @property
    def has_ended(self) -> bool:
        """True once its thread has ended."""
        return not self._thread.is_alive()

    def state(self) -> Instrument:
        """Return the present state, and note the price."""
        bids, asks, in_sync = self._book()
        price = self._price(bids, asks)
        now_ms = time.time_ns() // 1_000_000
        if price is not None:
            self._points.append((now_ms, price))
        return Instrument(
            feed=self._feed.name,
            symbol=self._symbol,
            state=self._state,
            messages=self._messages,
            price=price,
            size=None if self._trade is None else self._trade.size,
            bids=bids,
            asks=asks,
            in_sync=in_sync,
            prices=list(self._points),
        )

    def _price(self, bids: list[tuple[float, float]], asks: list[tuple[float, float]]) -> float | None:
        """Return the price of the last trade, else the middle of bid and ask."""
        if self._trade is not None:
            return self._trade.price
        return (bids[0][0] + asks[0][0]) / 2 if bids and asks else None

    def _book(self) -> tuple[list[tuple[float, float]], list[tuple[float, float]], bool | None]:
        if self._books is not None:
            scale, depth = 10.0**self._books.decimals, self._books.levels(self._symbol, _DEPTH)

            def plain(levels: list[Level]) -> list[tuple[float, float]]:
                return [(level.price / scale, float(level.shares)) for level in levels]

            return plain(depth.bids), plain(depth.asks), self._books.is_synced(self._symbol)
        quote = self._quote
        if quote is None:
            return [], [], None
        bids = [] if quote.bid is None else [(quote.bid, quote.bid_size or 0.0)]
        asks = [] if quote.ask is None else [(quote.ask, quote.ask_size or 0.0)]
        return bids, asks, None

    def _run(self) -> None:
        try:
            with self._started() as subscriber:
                self._state = "live"
                while not self._ending.wait(0.25) and not subscriber.is_finished:
                    pass
            self._state = "its publisher has closed"
        except BlackBoxError as error:
            self._state = str(error)

    def _started(self) -> Subscriber:
        """Return a started subscriber; one that begins with the resting orders if an archive has them.

        Raises BlackBoxError, also if it has ended meanwhile.
        """
        if self._feed.archives:
            try:
                subscriber = self._subscriber = self._new("drop")
                if self._books is not None:
                    return subscriber.start(_SNAPSHOT_S, snapshot="books")
            except BlackBoxError as error:
                log.info("%s of feed %r begins without its orders: %s", self._symbol, self._feed.name, error)
        subscriber = self._subscriber = self._new("conflate")
        if self._ending.is_set():
            subscriber.request_stop()
        return subscriber.start()

    def _new(self, action: Any) -> Subscriber:
        subscriber = Subscriber(self._feed, workers=1, slow=SlowPolicy(action, _MAX_LAG_S, start_grace=0))
        try:
            self._books = subscriber.book(symbols=[self._symbol], max_bytes=64 << 20)
        except ConfigError:
            self._books = None  # the schema has no books
        subscriber.on_batch(symbols=[self._symbol])(self._take)
        return subscriber

    def _take(self, batch: Batch) -> None:
        self._messages += len(batch)
        self._trade = self._ticks.trade(batch) or self._trade
        self._quote = self._ticks.quote(batch) or self._quote
