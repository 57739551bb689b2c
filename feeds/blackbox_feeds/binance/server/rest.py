"""Answer requests over HTTP from the recording: order books, and the clock."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from blackbox_feeds.binance.server.connection import Connection

NOT_YET: Final = 503
"""Status of an order book without a snapshot so far."""
_SPOT_LEVELS, _LEVELS, _MOST_LEVELS = 100, 500, 5_000
_WAIT_S: Final = 10.0
_POLL_S: Final = 0.05
_log = logging.getLogger(__name__)


def fault(code: int, text: str) -> bytes:
    """Return an error as Binance sends it."""
    return msgspec.json.encode({"code": code, "msg": text})


class Rest:
    """Answers requests in the event loop of the connections.

    Order books are read in a thread of their own, one at a time. A request before the first snapshot waits for it, as
    for a slow server, because programs ask once.
    """

    def __init__(self, book: Callable[[str, int], tuple[int, bytes]]) -> None:
        """`book` returns status and body for a symbol and a number of levels."""
        self._book = book
        self._reader = ThreadPoolExecutor(1, "blackbox-books")
        self._tasks: set[asyncio.Future[None]] = set()
        self.requests = 0
        """Requests so far."""

    def answer(self, connection: Connection, path: str, parameters: dict[str, str]) -> None:
        """Answer one request, now or later."""
        self.requests += 1
        name = path.rpartition("/")[2]
        if name == "ping":
            connection.send_http(200, b"{}")
        elif name == "time":
            connection.send_http(200, b'{"serverTime":%d}' % (time.time_ns() // 1_000_000))
        elif name == "depth":
            task = asyncio.ensure_future(self._answer_depth(connection, path, parameters))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            connection.send_http(404, fault(-1000, f"{path} is not answered from the recording"))

    async def _answer_depth(self, connection: Connection, path: str, parameters: dict[str, str]) -> None:
        text = parameters.get("limit", str(_SPOT_LEVELS if path.startswith("/api/") else _LEVELS))
        if not (text.isascii() and text.isdecimal() and len(text) < 6 and 0 < int(text) <= _MOST_LEVELS):
            connection.send_http(400, fault(-1130, "Data sent for parameter 'limit' is not valid."))
            return
        symbol, loop = parameters.get("symbol", ""), asyncio.get_running_loop()
        until = loop.time() + _WAIT_S
        while True:
            try:
                status, body = await loop.run_in_executor(self._reader, self._book, symbol, int(text))
            except Exception as error:  # noqa: BLE001 - the next request may have an answer
                _log.warning("order book of %s cannot be read: %r", symbol, error)
                status, body = 500, fault(-1000, "the order book of this symbol cannot be read")
            if status != NOT_YET or loop.time() >= until:
                connection.send_http(status, body)
                return
            await asyncio.sleep(_POLL_S)

    def close(self) -> None:
        """Answer no more."""
        for task in list(self._tasks):
            task.cancel()
        self._reader.shutdown(wait=False, cancel_futures=True)
