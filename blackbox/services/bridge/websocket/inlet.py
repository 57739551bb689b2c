"""Puts of browsers and other WebSocket clients to a hub: JSON objects, answered with positions or errors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from blackbox.block.position import Place
from blackbox.documents import DecodeError, Decoder
from blackbox.errors import BlackBoxError, BridgeError, ConfigError, HubError, NotStoredError
from blackbox.feed.feed import Feed
from blackbox.feed.routing.prefixes import Prefixes
from blackbox.feed.symbol_choice import TopicChoice
from blackbox.services.bridge.bridge import Say
from blackbox.services.bridge.websocket.server import (
    ConnectionClosed,
    LimitedServer,
    ServerConnection,
    address_of,
    names_of,
)
from blackbox.services.hub.client.client import HubClient
from blackbox.services.hub.client.json_form import MOST_ASKED_BYTES, Put, error_as_json, number_of, place_as_json
from blackbox.services.hub.client.put_checks import as_topics

IN_FLIGHT: Final = 1_000
"""Unanswered puts of one client, above which reading from it stops."""
_MOST_REQUESTS: Final = 4
"""Requests of one client that may wait to be read."""
_ROOM_S: Final = 0.002
_DECODER: Final = Decoder[Put]("json", Put, MOST_ASKED_BYTES)


class InletStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of a bridge since its start."""

    clients: int
    """Clients connected now."""
    put: int
    """Messages whose positions the hub has returned."""
    failed: int
    """Requests answered with an error."""
    refused: int
    """Clients refused because of the limit."""


class WebSocketInlet:
    """Puts messages of its clients to a feed's hub; used in one event loop, from `serve` until that is cancelled.

    All share one hub client, with up to 16,384 puts of 64 MiB in flight. Puts of one client keep their order. A put
    with an `id` is stored once, however often and by whichever client it is sent.
    """

    def __init__(
        self,
        feed: Feed,
        host: str = "127.0.0.1",
        port: int = 0,
        prefix: Prefixes = b"",
        *,
        symbols: Iterable[str | bytes] | None = None,
        origins: Sequence[str] = (),
        most_clients: int = 1_000,
    ) -> None:
        """Store the settings; nothing is opened.

        Args:
            feed: the feed of the hub. Clients may put everything that this process may.
            host: the interface to listen on.
            port: 0: a free one, which `port` returns while it serves.
            prefix: topics that may be put.
            symbols: only topics of exactly these symbols.
            origins: pages that may connect, such as "https://desk.example"; non-browsers may too.
            most_clients: limit for connected clients.

        Raises ConfigError.
        """
        self.feed, self._topics = feed, TopicChoice.of(feed, prefix, symbols)
        self._client = HubClient(feed)
        self._server = LimitedServer(host, port, [*origins, None], most_clients)
        self._put = self._failed = 0
        self.waits = "The bridge has not started."
        """Why no client can put; empty: clients can."""

    @classmethod
    def of_url(
        cls,
        feed: Feed,
        url: str,
        prefix: Prefixes = b"",
        *,
        symbols: Iterable[str | bytes] | None = None,
        origins: str = "",
        most_clients: int = 1_000,
    ) -> WebSocketInlet:
        """Return a bridge that listens at ws://HOST:PORT; `origins` are separated by commas. Raises ConfigError."""
        origin_names = names_of(origins)
        return cls(feed, *address_of(url), prefix, symbols=symbols, origins=origin_names, most_clients=most_clients)

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._server.port

    async def carry(self, say: Say) -> None:
        """Serve until the task is cancelled: see `Bridge`."""

        def say_where() -> None:
            say(f"ws://{self._server.host}:{self.port} is carried into feed {self.feed.name!r}")

        try:
            await self.serve(say_where)
        finally:
            done = self.statistics()
            say(f"{done.put} messages put, {done.failed} requests failed, {done.refused} clients refused")

    def statistics(self) -> InletStatistics:
        """Return a snapshot of the counters."""
        return InletStatistics(
            clients=len(self._server.clients), put=self._put, failed=self._failed, refused=self._server.refused
        )

    async def serve(self, bound: Callable[[], None] = lambda: None) -> None:
        """Serve until the task is cancelled, also while the hub is unreachable; call `bound` once clients can connect.

        Raises EndpointError if it cannot listen; BridgeError if the hub accepts no more puts.
        """
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._client.start()
        try:
            async with self._server.open(self._serve_one, MOST_ASKED_BYTES, _MOST_REQUESTS):
                self.waits = ""
                bound()
                await self._over
        finally:
            self.waits = "The bridge has ended."
            self._client.end()

    async def _serve_one(self, connection: ServerConnection) -> None:
        answering = set[asyncio.Task[None]]()
        reading = asyncio.create_task(self._read(connection, answering))
        closed = asyncio.create_task(connection.wait_closed())  # ends even while reading is paused
        try:
            await asyncio.wait([reading, closed], return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                reading.result()
        finally:
            for task in (reading, closed, *answering):
                task.cancel()

    async def _read(self, connection: ServerConnection, answering: set[asyncio.Task[None]]) -> None:
        """Read requests of a client until it disconnects; each task in `answering` answers one."""
        room = asyncio.Semaphore(IN_FLIGHT)
        with suppress(ConnectionClosed):
            async for text in connection:
                await room.acquire()
                number, until, placed = await self._take(text)
                placed.add_done_callback(
                    lambda each: each.cancelled() or each.exception()
                )  # the client may have disconnected
                task = asyncio.create_task(self._answer(connection, number, until, placed))
                answering.add(task)
                task.add_done_callback(answering.discard)
                task.add_done_callback(lambda _: room.release())

    async def _take(self, text: str | bytes) -> tuple[int, float, asyncio.Future[Place]]:
        """Send a put once there is room: return its number, the deadline for the answer, and its position."""
        number, until = 0, self._loop.time()
        try:
            asked = _DECODER.decode(text)
            number, until = asked.number, until + asked.timeout_s
            return number, until, await self._put_soon(asked, until)
        except (BlackBoxError, DecodeError, ValueError) as error:
            placed: asyncio.Future[Place] = self._loop.create_future()
            placed.set_exception(error)
            return number or number_of(text), until, placed

    async def _put_soon(self, asked: Put, until: float) -> asyncio.Future[Place]:
        topics, put_id = as_topics(asked.topic), None if asked.id is None else asked.id.encode()
        for topic in topics:
            if not self._topics.has(topic):
                raise ConfigError(f"topic was {topic[:40]!r}, expected one {self._topics}")
        value, at = asked.value(), asked.expected()
        while True:
            try:
                future = self._client.put_soon(
                    topics, value, put_id, ts_event=asked.ts_event, timeout=0, if_at=at, ttl=asked.ttl_s
                )
            except NotStoredError:  # there is no room
                if self._loop.time() >= until:
                    raise
                await asyncio.sleep(_ROOM_S)
            else:
                return asyncio.wrap_future(future)

    async def _answer(
        self, connection: ServerConnection, number: int, until: float, placed: asyncio.Future[Place]
    ) -> None:
        answer: dict[str, Any]
        try:
            async with asyncio.timeout_at(until):
                answer = place_as_json(await placed)
            self._put += 1
        except (BlackBoxError, TimeoutError, DecodeError, ValueError) as error:
            if not str(error):  # asyncio's own has no text
                error = NotStoredError(f"the hub of feed {self.feed.name!r} did not answer in time")
            self._failed += 1
            self._look()
            answer = error_as_json(error)
        with suppress(ConnectionClosed):
            await connection.send(msgspec.json.encode({"number": number, **answer}), text=True)

    def _look(self) -> None:
        """End the bridge if the hub accepts no more puts from this client."""
        try:
            self._client.flush(0)
        except NotStoredError:
            pass
        except HubError as error:
            if not self._over.done():
                self._over.set_exception(BridgeError(f"the hub accepts no more puts from the bridge: {error}"))
