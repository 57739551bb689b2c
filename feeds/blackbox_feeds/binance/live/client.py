"""Connect to Binance's streams, in a thread with its own event loop, and put frames into an inbox as lines.

    frame from the venue  ->  "receive time in ns, space, frame, line end"  ->  Inbox  ->  the publishing thread

Binance ends each connection after 24 hours, or announces the end. Before that a second connection is opened and its
frames are held. After `OVERLAP_S` the first one is closed and read to its end; the held frames follow, without the
repetitions. A connection that is lost otherwise is opened again after a delay, and a mark says that frames may be
missing. Pings are answered by `websockets`, which also sends its own.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from functools import partial
from random import random
from time import time_ns
from typing import Any, Final, NamedTuple

import msgspec

from blackbox.documents import DecodeError, Decoder
from blackbox.errors import SourceError
from blackbox.feed.live_source import LiveStatistics
from blackbox_feeds.binance.libraries import check_libraries
from blackbox_feeds.binance.live.snapshots import Snapshots
from blackbox_feeds.live.inbox import InboxThread, Mark
from blackbox_feeds.live.retries import Retries

OVERLAP_S: Final = 3.0
RENEW_S: Final = 23.5 * 3600.0
"""Age at which a connection is replaced, less up to a quarter of an hour by chance."""
MOST_FRAME_BYTES: Final = 16 << 20
_MOST_HELD: Final = 1 << 18
_MOST_HELD_BYTES: Final = 64 << 20
"""Frames of a second connection, and their bytes, that are held until the first one ends; more are not read."""
_HANDSHAKE_S: Final = 10.0
_PING_S: Final = 20.0
_CLOSE_S: Final = 2.0
_AGAIN_S: Final = 2.0
_HEAD: Final = b'{"stream":"'
_MARKET: Final = b"!"
_SHUTDOWN: Final = b'{"stream":"!serverShutdown"'
_REJECTED: Final = frozenset({400, 401, 404, 405, 451})
"""HTTP statuses of a handshake that will not change: a wrong URL, or a country that Binance does not serve."""
_log = logging.getLogger(__name__)


class Target(NamedTuple):
    """The addresses of the venue, and the limit of silence."""

    url: str
    rest: str | None
    """URL of order books; None if no stream needs one."""
    stale_s: float
    """Time without a frame after which the connection counts as dead."""


class _Envelope(msgspec.Struct):
    stream: str
    data: msgspec.Raw


_ENVELOPE: Final = Decoder[_Envelope]("json", _Envelope, MOST_FRAME_BYTES)


class Link:
    """One connection. Its frames go to the inbox, or are held."""

    def __init__(self, connection: Any, held: list[bytes] | None) -> None:
        self.connection = connection
        self.held = held
        self.held_bytes = 0
        self.is_released = asyncio.Event()
        """Set when frames are no longer held."""
        self.is_ending = False
        """True if the venue announced that it ends the connection."""
        self.frames = 0
        self.began_at = asyncio.get_running_loop().time()


class Client(InboxThread):
    """Receives frames until it is stopped. `want` is called by the publishing thread."""

    def __init__(self, target: Target, counts: LiveStatistics) -> None:
        """`counts`: those of the source, which the connection adds to. Raises ConfigError without the libraries."""
        check_libraries("a live connection to Binance")
        super().__init__("blackbox-binance", f"the connection to {target.url}")
        self._target = target
        self._counts = counts
        self._malformed = 0
        self._room: asyncio.Event | None = None
        self._snapshots: Snapshots | None = None

    @property
    def malformed(self) -> int:
        """Frames that were no event of a stream, and answers that were no order book."""
        return self._malformed + (0 if self._snapshots is None else self._snapshots.malformed)

    def want(self, symbols: frozenset[str]) -> None:
        """Request the order books of exactly these symbols."""
        if self._snapshots is not None:
            self._soon(partial(self._snapshots.want, symbols))

    def _go_on(self) -> None:
        if self._room is not None:
            self._soon(self._room.set)

    async def _main(self) -> None:
        asking: asyncio.Task[None] | None = None
        if self._target.rest is not None:
            self._snapshots = Snapshots(self._target.rest, self.inbox.put)
            asking = asyncio.create_task(self._snapshots.run())
            asking.add_done_callback(self._end_if_failed)
        try:
            await self._stay_connected()
        finally:
            if asking is not None:
                asking.cancel()

    def _end_if_failed(self, task: asyncio.Task[None]) -> None:
        """End the thread with the error of a task that failed."""
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self._fail(error)

    async def _stay_connected(self) -> None:
        retries, has_connected = Retries(), False
        loop = asyncio.get_running_loop()
        while True:
            connection = await self._connect(is_first=not has_connected)
            if connection is not None:
                if has_connected:
                    self._counts.reconnects += 1
                    self.inbox.put(Mark.INTERRUPTED)
                has_connected = self._counts.connected = True
                began_at = loop.time()
                await self._serve(Link(connection, None))
                self._counts.connected = False
                retries.ended(loop.time() - began_at)
            await asyncio.sleep(retries.delay_s())

    async def _connect(self, *, is_first: bool) -> Any:
        """Return a connection, or None if it failed. Raises SourceError if the venue rejects the first one."""
        from websockets.asyncio.client import connect
        from websockets.exceptions import InvalidStatus, WebSocketException

        try:
            return await connect(
                self._target.url,
                compression=None,
                max_size=MOST_FRAME_BYTES,
                open_timeout=_HANDSHAKE_S,
                close_timeout=_CLOSE_S,
                ping_interval=_PING_S,
                ping_timeout=_PING_S,
            )
        except InvalidStatus as error:
            status = error.response.status_code
            if is_first and status in _REJECTED:
                body = bytes(error.response.body or b"")[:200]
                raise SourceError(f"{self._target.url} was rejected with HTTP status {status}: {body!r}") from None
            _log.warning("connection to %s: HTTP status %d", self._target.url, status)
        except (OSError, TimeoutError, WebSocketException, EOFError) as error:
            _log.warning("connection to %s: %s", self._target.url, str(error) or type(error).__name__)
        return None

    async def _serve(self, link: Link) -> None:
        """Receive until the connection is lost; replace it in time."""
        reading = asyncio.create_task(self._read(link))
        try:
            while True:
                await self._wait_for_end(link, reading)
                if reading.done():
                    return
                after = await self._replace(link, reading)
                if after is not None:
                    link, reading = after
        finally:
            reading.cancel()
            await link.connection.close()

    async def _wait_for_end(self, link: Link, reading: asyncio.Task[None]) -> None:
        """Wait until the connection has ended or needs a successor. End it if it is stale."""
        loop = asyncio.get_running_loop()
        renew_at = link.began_at + RENEW_S - 900.0 * random()
        seen, seen_at = -1, loop.time()
        while not reading.done() and not link.is_ending and loop.time() < renew_at:
            await asyncio.wait({reading}, timeout=min(1.0, self._target.stale_s / 4))
            if link.frames != seen or self.inbox.is_full:
                seen, seen_at = link.frames, loop.time()
            elif loop.time() - seen_at > self._target.stale_s:
                self._counts.stale += 1
                _log.warning("no frame from %s for %g s: connecting again", self._target.url, self._target.stale_s)
                link.connection.transport.abort()
                await asyncio.wait({reading})

    async def _replace(self, link: Link, reading: asyncio.Task[None]) -> tuple[Link, asyncio.Task[None]] | None:
        """Open a second connection, close the first one after an overlap, and return the second with its reader.

        Returns None if there is no second one; the caller may try again.
        """
        connection = await self._connect(is_first=False)
        if connection is None:
            await asyncio.wait({reading}, timeout=_AGAIN_S)
            return None
        held: list[bytes] = []
        successor = Link(connection, held)
        reads = asyncio.create_task(self._read(successor))
        try:
            await asyncio.wait({reading, reads}, timeout=OVERLAP_S, return_when=asyncio.FIRST_COMPLETED)
            if reads.done() and not reading.done():
                await asyncio.wait({reading}, timeout=_AGAIN_S)
                return None
            await link.connection.close()
            await asyncio.wait({reading}, timeout=_CLOSE_S)
        except BaseException:
            reads.cancel()
            await connection.close()
            raise
        if reading.cancel():
            self.inbox.put(Mark.INTERRUPTED)  # the inbox was full for too long: frames were left out
        self._counts.reconnects += 1
        self.inbox.put(Mark.OVERLAP)
        for line in held:
            self.inbox.put(line)
        self.inbox.put(Mark.END_OF_OVERLAP)
        successor.held = None
        successor.is_released.set()
        return successor, reads

    async def _read(self, link: Link) -> None:
        """Put frames into the inbox until the connection has ended. The hot loop: one turn per frame."""
        from websockets.exceptions import ConnectionClosed

        receive, inbox, counts = link.connection.recv, self.inbox, self._counts
        with suppress(ConnectionClosed):
            while True:
                frame: bytes = await receive(decode=False)
                link.frames += 1
                counts.packets += 1
                counts.bytes += len(frame)
                if frame[:11] != _HEAD or b"\n" in frame or frame[11:12] == _MARKET:
                    frame = self._examined(frame, link)
                    if not frame:
                        continue
                line = b"%d %b\n" % (time_ns(), frame)
                if link.held is not None:
                    link.held.append(line)
                    link.held_bytes += len(line)
                    if len(link.held) >= _MOST_HELD or link.held_bytes >= _MOST_HELD_BYTES:
                        await link.is_released.wait()
                    continue
                inbox.put(line)
                if inbox.is_full:
                    await self._wait_for_room()

    def _examined(self, frame: bytes, link: Link) -> bytes:
        """Return a frame that is not an ordinary one in one line, or nothing if it is no event of a stream."""
        if frame.startswith(_SHUTDOWN):
            link.is_ending = True
        if frame[:11] == _HEAD and b"\n" not in frame:
            return frame
        with suppress(DecodeError):
            _ENVELOPE.decode(frame)
            if b"\n" not in frame:
                return frame
        if frame.startswith((b'{"error"', b'{"code"')):
            _log.warning("%s answered: %s", self._target.url, frame[:200])
        self._malformed += 1
        return b""

    async def _wait_for_room(self) -> None:
        self._room = asyncio.Event()
        while self.inbox.is_full:
            self._room.clear()
            if self.inbox.is_full:
                await self._room.wait()
        self._room = None
