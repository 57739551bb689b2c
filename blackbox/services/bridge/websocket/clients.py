"""The bridge from a feed to browsers: JSON or bytes over WebSocket; each client subscribes to prefixes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, Final

import msgspec

from blackbox.block.batch.plain_message import as_object
from blackbox.block.gap import Gap
from blackbox.documents import DecodeError, Decoder
from blackbox.errors import BlackBoxError, ConfigError, NotConfirmedError, RightsError
from blackbox.feed.feed import Feed
from blackbox.feed.routing.prefixes import Prefixes, covering
from blackbox.feed.schema.schema import load_schema
from blackbox.feed.symbol_choice import TopicChoice, starts_by_slice
from blackbox.receive.slow_subscriber import SlowPolicy
from blackbox.receive.stream import Stream
from blackbox.receive.supervise.supervisor import SubscriberLife
from blackbox.services.bridge.binary_form import as_bytes, frame_of
from blackbox.services.bridge.bridge import Say
from blackbox.services.bridge.websocket.client_queue import ClientQueue
from blackbox.services.bridge.websocket.server import (
    ConnectionClosed,
    LimitedServer,
    ServerConnection,
    address_of,
    names_of,
)
from blackbox.subscriber.subscriber import Subscriber

_MOST_PREFIXES: Final = 1_000
"""Limit per client."""
_MOST_OF_ALL: Final = 10_000
"""Limit for all clients."""
_MOST_REQUEST_BYTES: Final = 64 << 10
_MOST_REQUESTS: Final = 16
"""Requests of one client that may wait to be read."""
_STREAM_MESSAGES: Final = 100_000
"""Messages under one prefix that may wait to be encoded."""
_MOST_BYTES: Final = 16 << 20
"""Bytes that may wait for one client, shared by its prefixes."""
_FRAME_BYTES: Final = 256 << 10
"""Approximate size of a frame."""
_MOST_ADDED: Final = 5_000
"""Messages queued for clients before the loop gets a turn."""
_CONFIRM_S: Final = 10.0
_ENCODE: Final = msgspec.json.Encoder().encode


_Topics = tuple[str, tuple[str, ...] | None]
"""Prefix and symbols."""


class Subscribe(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="do", tag="subscribe"):
    """Subscribe to messages under a prefix from now on."""

    prefix: Annotated[str, msgspec.Meta(max_length=1_024)]
    symbols: Annotated[tuple[str, ...], msgspec.Meta(max_length=1_000)] | None = None
    """Only these symbols; default: all."""
    binary: bool = False
    """True: in `binary_form` instead of JSON."""

    @property
    def topics(self) -> _Topics:
        """Return the topics. Clients with equal ones share a stream."""
        return self.prefix, self.symbols


class Unsubscribe(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="do", tag="unsubscribe"):
    """Unsubscribe from a prefix."""

    prefix: Annotated[str, msgspec.Meta(max_length=1_024)]


_ASKED: Final = Decoder[Subscribe | Unsubscribe]("json", Subscribe | Unsubscribe, _MOST_REQUEST_BYTES)


class BridgeStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of a bridge since its start."""

    clients: int
    """Clients connected now."""
    prefixes: int
    """Prefixes that clients want now, counted once per set of symbols."""
    sent: int
    """Messages sent to all clients."""
    passed_over: int
    """Messages dropped because clients were too slow."""
    refused: int
    """Clients refused because of the limit."""


class _Browser:
    """One client."""

    def __init__(self, connection: ServerConnection, limit: int) -> None:
        self.connection = connection
        self.prefixes: dict[str, Subscribe] = {}
        """Its request for each prefix."""
        self.confirmed: set[str] = set()
        """Prefixes confirmed to it. Messages of others wait, as the answer is sent first."""
        self._waiting: dict[str, ClientQueue] = {}
        self._limit, self._notes = limit, list[bytes]()
        self._has_more = asyncio.Event()

    def add(self, prefix: str, topic: bytes, text: bytes) -> None:
        self._of(prefix).add(topic, text)
        self._has_more.set()

    def pass_over(self, prefix: str, count: int) -> None:
        self._of(prefix).lose(count)
        self._has_more.set()

    def _of(self, prefix: str) -> ClientQueue:
        if prefix not in self._waiting:
            self._waiting[prefix] = ClientQueue(self._limit, _MOST_BYTES // max(1, len(self.prefixes)))
        return self._waiting[prefix]

    def leave(self, prefix: str) -> None:
        """Drop the queue of a prefix."""
        self.prefixes.pop(prefix, None)
        self.confirmed.discard(prefix)
        self._waiting.pop(prefix, None)

    def tell(self, **note: Any) -> None:
        """Send a notice that is not a message; of many waiting ones only the last are kept."""
        self._notes.append(_ENCODE(note))
        del self._notes[: -self._limit]
        self._has_more.set()

    async def send(self, count: Callable[[int, int], None]) -> None:
        """Send queued messages until the connection ends."""
        while True:
            await self._has_more.wait()
            self._has_more.clear()
            notes, self._notes = self._notes, []
            for note in notes:
                await self.connection.send(note, text=True)
            waiting = [
                (prefix, self.prefixes[prefix].binary, self._waiting.pop(prefix).take())
                for prefix in self.confirmed & self._waiting.keys()
            ]
            for prefix, is_binary, (texts, passed_over) in waiting:
                name = _ENCODE(prefix)
                if passed_over:
                    await self.connection.send(b'{"prefix":%b,"passed_over":%d}' % (name, passed_over), text=True)
                for some in _parts(texts):
                    if is_binary:
                        await self.connection.send(frame_of(prefix.encode(), some))
                    else:
                        text = b'{"prefix":%b,"messages":[%b]}' % (name, b",".join(some))
                        await self.connection.send(text, text=True)
                count(len(texts), passed_over)


def _parts(texts: list[bytes]) -> Iterator[list[bytes]]:
    """Yield texts in parts that each fit into a frame."""
    part, size = list[bytes](), 0
    for text in texts:
        if part and size + len(text) > _FRAME_BYTES:
            yield part
            part, size = [], 0
        part.append(text)
        size += len(text)
    if part:
        yield part


class WebSocketBridge:
    """Serves a feed to WebSocket clients; used in one event loop, from `serve` until that is cancelled.

    Each subscription of a client is a separate stream: with overlapping prefixes a message is sent under both. A slow
    client gets the newest message of each topic and delays no other.
    """

    def __init__(
        self,
        feed: Feed,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        origins: Sequence[str] | None = None,
        limit: int = 10_000,
        most_clients: int = 1_000,
    ) -> None:
        """Store the settings; nothing is opened.

        Args:
            feed: the feed to serve. Clients may read everything that this process may.
            host: the interface to listen on.
            port: 0: a free one, which `port` returns while it serves.
            origins: pages that may connect, such as "https://desk.example"; None: any, and non-browsers.
            limit: messages that wait for one client under one prefix before only the newest of each topic is kept.
            most_clients: limit for connected clients.
        """
        if not 1 <= limit <= 1 << 20:
            raise ConfigError(f"limit was {limit}, expected 1 to {1 << 20}")
        self.feed, self._limit = feed, limit
        self._server = LimitedServer(host, port, origins, most_clients)
        self._schema = load_schema(feed.schema)
        self._wanted: dict[_Topics, dict[_Browser, None]] = {}
        """Clients that want each set of topics."""
        self._readers: dict[_Topics, tuple[Stream, asyncio.Task[None]]] = {}
        self._turns: dict[tuple[int, ...], asyncio.Lock] = {}
        """Clients awaiting confirmation, by slices."""
        self._sent = self._passed_over = 0

    @classmethod
    def of_url(
        cls,
        feed: Feed,
        url: str,
        prefix: Prefixes = b"",
        *,
        origins: str = "",
        limit: int = 10_000,
        most_clients: int = 1_000,
    ) -> WebSocketBridge:
        """Return a bridge that listens at ws://HOST:PORT; `origins` are separated by commas. Raises ConfigError."""
        if any(prefixes := covering(prefix)):
            raise ConfigError(f"prefix was {prefixes[0]!r}, expected none with {url}: each client sends its own")
        origin_names = names_of(origins) or None
        return cls(feed, *address_of(url), origins=origin_names, limit=limit, most_clients=most_clients)

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._server.port

    async def carry(self, say: Say) -> None:
        """Serve until the task is cancelled: see `Bridge`."""
        try:
            await self.serve(lambda: say(f"feed {self.feed.name!r} is served at ws://{self._server.host}:{self.port}"))
        finally:
            done = self.statistics()
            say(f"{done.sent} messages sent, {done.passed_over} dropped, {done.refused} clients refused")

    def statistics(self) -> BridgeStatistics:
        """Return a snapshot of the counters."""
        return BridgeStatistics(
            clients=len(self._server.clients),
            prefixes=len(self._wanted),
            sent=self._sent,
            passed_over=self._passed_over,
            refused=self._server.refused,
        )

    async def serve(self, bound: Callable[[], None] = lambda: None) -> None:
        """Serve until the task is cancelled; call `bound` once clients can connect.

        Raises EndpointError if it cannot listen; the error that ended the subscriber.
        """
        self._loop = asyncio.get_running_loop()
        self._failed: asyncio.Future[None] = self._loop.create_future()
        # One worker: several would each report a gap.
        with Subscriber(self.feed, workers=1, slow=SlowPolicy("warn"), on_gap="tell") as self._subscriber:
            self._subscriber.on_gap(b"")(lambda gap: self._loop.call_soon_threadsafe(self._tell_gap, gap))
            async with self._server.open(self._serve_one, _MOST_REQUEST_BYTES, _MOST_REQUESTS):
                bound()
                try:
                    await self._failed
                finally:
                    for _, reader in self._readers.values():
                        reader.cancel()
                    self._subscriber.request_stop()  # ends the waits for confirmation

    # Clients

    async def _serve_one(self, connection: ServerConnection) -> None:
        browser = _Browser(connection, self._limit)
        sending = asyncio.ensure_future(browser.send(self._count))
        try:
            async for text in connection:
                await self._do(browser, text)
        finally:
            for prefix in list(browser.prefixes):
                self._leave(browser, prefix)
            sending.cancel()
            with suppress(asyncio.CancelledError, ConnectionClosed):
                await sending

    def _count(self, sent: int, passed_over: int) -> None:
        self._sent += sent
        self._passed_over += passed_over

    async def _do(self, browser: _Browser, text: str | bytes) -> None:
        try:
            asked = _ASKED.decode(text)
            if isinstance(asked, Unsubscribe):
                self._leave(browser, asked.prefix)
                browser.tell(unsubscribed=asked.prefix)
            else:
                await self._join(browser, asked)
                browser.confirmed.add(asked.prefix)
                browser.tell(subscribed=asked.prefix)
        except (BlackBoxError, DecodeError, ValueError) as error:
            browser.tell(error=type(error).__name__, why=str(error))

    async def _join(self, browser: _Browser, asked: Subscribe) -> None:
        """Subscribe a client to a prefix.

        Raises NotConfirmedError, RightsError, ConfigError if that is not possible.
        """
        prefix, topics = asked.prefix, asked.topics
        if (before := browser.prefixes.get(prefix)) is not None:
            if before != asked:
                raise ConfigError(f"prefix {prefix!r} was subscribed with other settings: unsubscribe first")
            return
        if len(browser.prefixes) >= _MOST_PREFIXES:
            raise ConfigError(f"prefix {prefix!r} exceeded the limit of {_MOST_PREFIXES} per client")
        if topics not in self._readers:
            if len(self._readers) >= _MOST_OF_ALL:
                raise ConfigError(f"prefix {prefix!r} exceeded the limit of {_MOST_OF_ALL} for all clients")
            stream = self._subscriber.stream(
                prefix, symbols=asked.symbols, limit=_STREAM_MESSAGES, when_full="drop_oldest", batches=True
            )
            self._wanted[topics] = {}
            reader = asyncio.ensure_future(self._read(prefix, stream, self._wanted[topics]))
            reader.add_done_callback(partial(self._note_end, topics, stream))
            self._readers[topics] = stream, reader
        stream, _ = self._readers[topics]
        browser.prefixes[prefix] = asked
        self._wanted[topics][browser] = None
        try:
            await self._wait_confirmed(topics, stream)
            if stream.failure is not None:
                raise stream.failure
        except BlackBoxError:
            self._leave(browser, prefix)
            raise

    async def _wait_confirmed(self, topics: _Topics, stream: Stream) -> None:
        """Wait in a thread, shared by all clients that wait for the same slices, or until the stream is refused.

        Raises NotConfirmedError.
        """
        prefix, symbols = topics
        slices = starts_by_slice(self.feed, TopicChoice.of(self.feed, prefix, symbols).starts)
        turn = self._turns.setdefault(tuple(sorted(slices)), asyncio.Lock())
        try:
            await asyncio.wait_for(turn.acquire(), _CONFIRM_S)
        except TimeoutError:
            raise NotConfirmedError(f"publishers had not confirmed {prefix!r} in {_CONFIRM_S} s") from None
        wait = partial(self._subscriber.wait_confirmed, _CONFIRM_S, prefix, symbols=symbols)
        try:
            while stream.failure is None:
                try:
                    return await asyncio.to_thread(wait)
                except RightsError:  # for this stream, or for an overlapping one: the stream knows
                    if self._subscriber.state is not SubscriberLife.RUNNING:
                        raise
        finally:
            turn.release()

    def _note_end(self, topics: _Topics, stream: Stream, reader: asyncio.Task[None]) -> None:
        """End the bridge with the subscriber's error. Send a refusal of only these topics to their clients."""
        error = None if reader.cancelled() else reader.exception()
        if error is not None and error is stream.failure:
            prefix = topics[0]
            known, _ = self._readers.get(topics, (None, None))
            for browser in list(self._wanted[topics]) if known is stream else ():
                if prefix in browser.confirmed:  # others get it as the answer to their request
                    self._leave(browser, prefix)
                    browser.tell(unsubscribed=prefix, error=type(error).__name__, why=str(error))
        elif error is not None and not self._failed.done():
            self._failed.set_exception(error)

    def _leave(self, browser: _Browser, prefix: str) -> None:
        asked = browser.prefixes.get(prefix)
        browser.leave(prefix)
        if asked is None:
            return
        wanted = self._wanted.get(asked.topics, {})
        wanted.pop(browser, None)
        if not wanted and asked.topics in self._readers:
            del self._wanted[asked.topics]
            stream, reader = self._readers.pop(asked.topics)
            reader.cancel()
            stream.close()

    # The feed

    async def _read(self, prefix: str, stream: Stream, wanted: dict[_Browser, None]) -> None:
        """Send messages under a prefix to all clients that want it."""
        dropped = added = 0
        async for batch in stream:
            schema = batch.schema or self._schema
            for message in batch:
                text = binary = b""
                for browser in wanted:
                    is_binary = browser.prefixes[prefix].binary
                    if is_binary:
                        binary = binary or as_bytes(message)
                    else:
                        text = text or _ENCODE(as_object(message, schema))
                    browser.add(prefix, message.topic, binary if is_binary else text)
                added += len(wanted)
                if added >= _MOST_ADDED:
                    added = 0
                    await asyncio.sleep(0)
            if stream.dropped != dropped:
                for browser in wanted:
                    browser.pass_over(prefix, stream.dropped - dropped)
                dropped = stream.dropped

    def _tell_gap(self, gap: Gap) -> None:
        told = {"slice": gap.slice_id, "epoch": gap.epoch, "sequence": gap.sequence, "count": gap.count}
        for browser in {each: None for wanted in self._wanted.values() for each in wanted if each.confirmed}:
            browser.tell(gap=told)
