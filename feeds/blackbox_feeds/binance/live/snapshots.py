"""Request order books over REST: which one is due next, and the request itself."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from email.message import Message
from http.client import HTTPResponse
from typing import Annotated, Final, NamedTuple

import msgspec

from blackbox.documents import DecodeError, Decoder
from blackbox.errors import LimitError
from blackbox.native.system.limits import start_thread
from blackbox_feeds.binance.live.streams import SNAPSHOT, snapshot_request
from blackbox_feeds.live.retries import Retries

_STEP_S: Final = 10.0
"""Longest wait for a connection, or for the next bytes."""
_TOTAL_S: Final = 30.0
"""Longest time of a request, from its start to the whole answer."""
_MOST_WAITING: Final = 4
"""Requests that may still wait for a server that did not answer in time."""
_PIECE_BYTES: Final = 1 << 16
_MOST_BYTES: Final = 16 << 20
_TOO_MANY_REQUESTS: Final = (418, 429)
_WAIT_AFTER_REFUSAL_S: Final = 60.0
_LONGEST_WAIT_S: Final = 600.0
_FIRST_S: Final = 1.0
_log = logging.getLogger(__name__)


class SnapshotQueue:
    """Decides which order book to request, and when. Without I/O: times are seconds of one clock."""

    def __init__(self) -> None:
        self._wanted: dict[str, float] = {}
        self._earliest: dict[str, float] = {}
        self._retries: dict[str, Retries] = {}
        self._paused_until = 0.0

    def want(self, symbols: Collection[str], now: float) -> None:
        """Request the order books of exactly these symbols, each at most once per delay of its retries."""
        self._wanted = {
            symbol: self._wanted.get(symbol, max(now, self._earliest.get(symbol, now))) for symbol in sorted(symbols)
        }

    def due(self, now: float) -> tuple[str | None, float | None]:
        """Return (symbol to request now, None), or (None, seconds until the next one is due), or (None, None)."""
        if not self._wanted:
            return None, None
        symbol = min(self._wanted, key=self._wanted.__getitem__)
        wait = max(self._wanted[symbol], self._paused_until) - now
        return (symbol, None) if wait <= 0 else (None, wait)

    def requested(self, symbol: str, now: float) -> None:
        """Process a request that ended, well or not: another one is made after a delay, if it is still wanted."""
        retries = self._retries.setdefault(symbol, Retries(_FIRST_S))
        if symbol in self._earliest:
            retries.ended(now - self._earliest[symbol])
        self._earliest[symbol] = now + retries.delay_s()
        if symbol in self._wanted:
            self._wanted[symbol] = self._earliest[symbol]

    def refused(self, now: float, seconds: float) -> None:
        """Make no request for some seconds, because Binance demands it."""
        self._paused_until = max(self._paused_until, now + min(max(seconds, 1.0), _LONGEST_WAIT_S))


class Answer(NamedTuple):
    """The end of one request: the body, or the fault and how long to wait."""

    body: bytes = b""
    fault: str = ""
    wait_s: float = 0.0
    is_malformed: bool = False
    """True if the answer came, but is no order book."""


class _OrderBook(msgspec.Struct):
    lastUpdateId: Annotated[int, msgspec.Meta(ge=0)]  # noqa: N815 - Binance's name
    bids: list[list[str]]
    asks: list[list[str]]


_ORDER_BOOK: Final = Decoder[_OrderBook]("json", _OrderBook, _MOST_BYTES)


def request(url: str) -> Answer:
    """Request an order book. Blocks at most `_TOTAL_S` + `_STEP_S`, unless the server is slow with its headers."""
    until = time.monotonic() + _TOTAL_S
    try:
        # The scheme was checked with the options.
        with urllib.request.urlopen(urllib.request.Request(url), timeout=_STEP_S) as answer:
            body = b"".join(_pieces(answer, until)).strip()
    except urllib.error.HTTPError as error:
        wait = _retry_after(error.headers) if error.code in _TOO_MANY_REQUESTS else 0.0
        return Answer(fault=f"HTTP status {error.code}", wait_s=wait)
    except (OSError, ValueError) as error:  # includes timeouts, and answers that are not HTTP
        return Answer(fault=str(error) or type(error).__name__)
    except Exception as error:  # noqa: BLE001 - http.client raises its own errors for malformed answers
        return Answer(fault=repr(error))
    with suppress(DecodeError):
        _ORDER_BOOK.decode(body)
        if b"\n" not in body:
            return Answer(body)
    fault = f"the answer was {body[:80]!r} of {len(body)} bytes, expected an order book in one line"
    return Answer(fault=fault, is_malformed=True)


def _pieces(answer: HTTPResponse, until: float) -> Iterator[bytes]:
    """Yield the body, or a little more than allowed. Raises OSError after a time, and for an answer that was cut."""
    total = 0
    while total <= _MOST_BYTES and (piece := answer.read1(_PIECE_BYTES)):
        if time.monotonic() > until:
            raise TimeoutError(f"the answer took longer than {_TOTAL_S:g} s")
        total += len(piece)
        yield piece
    if answer.length and total <= _MOST_BYTES:
        raise OSError(f"the answer ended {answer.length} bytes early")


def _retry_after(headers: Message) -> float:
    try:
        return float(headers.get("Retry-After", _WAIT_AFTER_REFUSAL_S))
    except ValueError:
        return _WAIT_AFTER_REFUSAL_S


class Snapshots:
    """Requests order books in the event loop that owns it, one at a time, each in its own thread."""

    def __init__(self, url: str, put: Callable[[bytes], None]) -> None:
        """`put` receives each order book as a line."""
        self._url, self._put = url, put
        self._queue = SnapshotQueue()
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._waiting = 0
        self.malformed = 0
        """Answers that were no order book; it is requested again."""

    def want(self, symbols: frozenset[str]) -> None:
        """Request exactly these order books."""
        self._queue.want(symbols, self._loop.time())
        self._changed.set()

    async def run(self) -> None:
        """Request what is wanted, until it is cancelled."""
        while True:
            self._changed.clear()
            symbol, wait = self._queue.due(self._loop.time())
            if symbol is None:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), wait)
                continue
            answer = await self._request(snapshot_request(self._url, symbol))
            now = self._loop.time()
            if answer.wait_s:
                self._queue.refused(now, answer.wait_s)
            self._queue.requested(symbol, now)
            self.malformed += answer.is_malformed
            if answer.fault:
                _log.warning("order book of %s at %s: %s", symbol, self._url, answer.fault)
                continue
            head = b'%d {"stream":"%b@%b","data":' % (time.time_ns(), symbol.encode(), SNAPSHOT.encode())
            self._put(head + answer.body + b"}\n")

    async def _request(self, url: str) -> Answer:
        """Return the answer, or a fault in time. A daemon thread waits, so that the end of the process does not."""
        if self._waiting >= _MOST_WAITING:
            return Answer(fault=f"{self._waiting} earlier requests still wait for an answer")
        answered: asyncio.Future[Answer] = self._loop.create_future()

        def settle(answer: Answer) -> None:
            self._waiting -= 1
            if not answered.done():
                answered.set_result(answer)

        def work() -> None:
            answer = request(url)
            with suppress(RuntimeError):  # the loop has ended meanwhile
                self._loop.call_soon_threadsafe(settle, answer)

        try:
            start_thread(threading.Thread(target=work, name="blackbox-snapshot", daemon=True))
        except LimitError as error:
            return Answer(fault=str(error))
        self._waiting += 1
        try:
            async with asyncio.timeout(_TOTAL_S):
                return await answered
        except TimeoutError:
            return Answer(fault=f"no whole answer came in {_TOTAL_S:g} s")
