"""The WebSocket server of a bridge, with limits on the origin and number of its clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Final

from blackbox.errors import ConfigError, EndpointError
from blackbox.services.bridge.url import Url

try:
    from websockets.asyncio.server import ServerConnection, serve
    from websockets.exceptions import ConnectionClosed
    from websockets.typing import Origin
except ImportError as error:
    raise ImportError(f"this needs websockets: pip install 'blackbox-md[bridge]' ({error})") from error

__all__ = ["ConnectionClosed", "LimitedServer", "ServerConnection", "address_of", "names_of"]

_PING_S: Final = 20.0
"""Interval of pings to clients, and time for the answer."""
_EXPECTED: Final = "ws://HOST:PORT"
_CLOSE_S: Final = 1.0
"""Time for clients to receive the close frame."""


class LimitedServer:
    """A WebSocket server in one event loop. `refused` counts clients above the limit."""

    def __init__(self, host: str, port: int, origins: Sequence[str | None] | None, most_clients: int) -> None:
        """Open nothing yet. `origins`: allowed pages, None among them for non-browsers; None: all allowed.

        Raises ConfigError.
        """
        if not 1 <= most_clients <= 1 << 20:
            raise ConfigError(f"most_clients was {most_clients}, expected 1 to {1 << 20}")
        self.host, self.port = host, port
        self._origins = None if origins is None else [None if each is None else Origin(each) for each in origins]
        self._most_clients = most_clients
        self.clients = set[ServerConnection]()
        self.refused = 0

    @asynccontextmanager
    async def open(
        self, talk: Callable[[ServerConnection], Awaitable[None]], most_bytes: int, most_frames: int
    ) -> AsyncIterator[None]:
        """Accept clients until the block ends; each is served until it disconnects.

        At most `most_frames` of a client, each of `most_bytes` at most, wait to be read. Raises EndpointError.
        """
        try:
            server = await serve(
                partial(self._let_in, talk),
                self.host,
                self.port,
                origins=self._origins,
                max_size=most_bytes,
                max_queue=most_frames,
                ping_interval=_PING_S,
                ping_timeout=_PING_S,
                compression=None,  # it would cost more than everything else
            )
        except OSError as error:
            where = f"{self.host}:{self.port}"
            raise EndpointError(error.errno, f"cannot listen at {where}: {error.strerror}") from error
        async with server:
            self.port = next(iter(server.sockets)).getsockname()[1]
            try:
                yield
            finally:
                asyncio.get_running_loop().call_later(_CLOSE_S, self._hang_up)  # for clients that do not read

    async def _let_in(self, talk: Callable[[ServerConnection], Awaitable[None]], connection: ServerConnection) -> None:
        if len(self.clients) >= self._most_clients:
            self.refused += 1
            await connection.close(1013, f"limit of {self._most_clients} clients reached, try again later")
            return
        self.clients.add(connection)
        try:
            with suppress(ConnectionClosed):
                await talk(connection)
        finally:
            self.clients.discard(connection)

    def _hang_up(self) -> None:
        for connection in self.clients:
            connection.transport.abort()


def address_of(url: str) -> tuple[str, int]:
    """Return the host and the port of ws://HOST:PORT. Raises ConfigError."""
    found = Url.of(url, _EXPECTED)
    if found.user or found.password:
        raise ConfigError(f"URL of {found.scheme}:// had a user or password, expected none: {_EXPECTED}")
    if found.port is None or found.path:
        raise ConfigError(f"URL was {found.shown!r}, expected {_EXPECTED}")
    return found.host, found.port


def names_of(origins: str) -> list[str]:
    """Split origins at commas."""
    return origins.split(",") if origins else []
