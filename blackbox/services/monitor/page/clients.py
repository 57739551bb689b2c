"""Browsers of the page: each gets the newest state when it has taken the one before. One event loop; no sockets."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final, Literal

import msgspec

from blackbox.documents import DecodeError, Decoder
from blackbox.errors import BlackBoxError, ConfigError
from blackbox.services.monitor.page.market import Instrument, Market
from blackbox.services.monitor.watch.view import View

MOST_CLIENTS: Final = 100
MOST_ASKED_BYTES: Final = 4_096
SEND_S: Final = 20.0
"""Time for a browser to take a state; after that it is disconnected."""
_MOST_SYMBOLS: Final = 4
_MOST_POINTS: Final = 600
"""Points kept of rate and lag: five minutes."""

_Name = Annotated[str, msgspec.Meta(max_length=64)]


class Chosen(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request of a browser: a symbol to show or to remove."""

    do: Literal["show", "remove"]
    feed: _Name
    symbol: _Name


_ASKED: Final = Decoder[Chosen]("json", Chosen, MOST_ASKED_BYTES)


class Clients:
    """All browsers, and the newest state."""

    def __init__(self, market: Market) -> None:
        self.market = market
        self._clients: set[Client] = set()
        self._view: msgspec.Raw | None = None
        """The newest state as JSON."""
        self._history: deque[tuple[int, float, int | None]] = deque(maxlen=_MOST_POINTS)
        """Time (ms since 1970), messages per second and largest lag (ns)."""
        self._instruments: dict[tuple[str, str], Instrument] = {}

    def publish(self, view: View) -> None:
        """Make a state the newest one."""
        self._view = msgspec.Raw(msgspec.json.encode(view))
        lags = [each.lag_ns for each in view.processes if each.lag_ns is not None]
        self._history.append((view.now_ns // 1_000_000, view.messages_per_second, max(lags, default=None)))
        self._instruments = self.market.instruments()
        for client in self._clients:
            client.wake()

    @property
    def has_room(self) -> bool:
        """True if another browser may connect."""
        return len(self._clients) < MOST_CLIENTS

    @property
    def count(self) -> int:
        """Browsers connected now."""
        return len(self._clients)

    def enter(self) -> Client:
        """Add a browser."""
        client = Client(self)
        self._clients.add(client)
        if self._view is not None:
            client.wake()
        return client

    def leave(self, client: Client) -> None:
        """Remove a browser, and release its symbols."""
        self._clients.discard(client)
        for feed, symbol in client.symbols:
            self.market.release(feed, symbol)
        client.symbols.clear()

    def text_for(self, client: Client) -> bytes | None:
        """Return the newest state as JSON; None before the first one."""
        if self._view is None:
            return None
        instruments = [self._instruments[each] for each in client.symbols if each in self._instruments]
        state: dict[str, Any] = {"view": self._view, "instruments": instruments, "error": client.error}
        state |= {"browsers": self.count, "passed_over": client.passed_over}
        if not client.has_history:
            client.has_history = True
            state["history"] = list(self._history)[:-1]
        return msgspec.json.encode(state)


class Client:
    """One browser: what it shows, and whether a newer state waits for it."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self.symbols: dict[tuple[str, str], None] = {}
        self.error = ""
        self.passed_over = 0
        self.has_history = False
        """True once it was sent the rates and lags before its first state."""
        self._has_news = asyncio.Event()

    def wake(self) -> None:
        """Note that a newer state exists; an earlier one that still waits is passed over."""
        if self._has_news.is_set():
            self.passed_over += 1
        self._has_news.set()

    def take(self, text: str) -> None:
        """Do what the browser asks; an error is part of its next state."""
        self.error = ""
        try:
            asked = _ASKED.decode(text)
            key = asked.feed, asked.symbol
            if asked.do == "remove" and key in self.symbols:
                del self.symbols[key]
                self._clients.market.release(*key)
            elif asked.do == "show" and key not in self.symbols:
                if len(self.symbols) >= _MOST_SYMBOLS:
                    raise ConfigError(f"{_MOST_SYMBOLS} symbols are shown, the most of a browser: remove one first")
                self._clients.market.choose(*key)
                self.symbols[key] = None
        except (DecodeError, BlackBoxError) as error:
            self.error = str(error)

    async def send_all(self, send: Callable[[str], Awaitable[None]]) -> None:
        """Send states until the connection ends. Raises TimeoutError if the browser does not take one in time."""
        while True:
            await self._has_news.wait()
            self._has_news.clear()
            text = self._clients.text_for(self)
            if text is not None:
                async with asyncio.timeout(SEND_S):
                    await send(text.decode())
