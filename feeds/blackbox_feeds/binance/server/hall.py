"""The clients of the server and the event loop that serves them, in one thread.

    playing thread  --frames of each group of clients-->  hall  --the same bytes-->  each client of the group

A group has the same streams and the same form of frames. A client that does not take its frames fills its queue. The
playing thread then waits. A client that takes too little of its queue in `PATIENCE_S` is disconnected and counted.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Final, NamedTuple

import msgspec

from blackbox.errors import EndpointError
from blackbox.feed.venue_url import Address
from blackbox_feeds.binance.server.connection import Connection
from blackbox_feeds.binance.server.rest import Rest

PATIENCE_S: Final = 2.0
_MOST_CLIENTS: Final = 1_000
_BATCHES_AHEAD: Final = 4
_PING_S: Final = 20.0
_PONG_S: Final = 60.0


class Group(NamedTuple):
    """Streams and form of the frames of some clients."""

    streams: frozenset[str]
    is_combined: bool


class Counts(msgspec.Struct):
    """Counts of the server."""

    frames: int = 0
    """Frames sent, one for each client."""
    connections: int = 0
    slow: int = 0
    """Clients that were disconnected because they did not take their frames."""
    silent: int = 0
    """Clients that were disconnected because they did not answer pings."""


class Hall:
    """Owns the event loop, its thread and the listening socket. `rest` answers requests over HTTP.

    `open`, `close`, `groups`, `send`, `disconnect_all` and `wait_for` are called by the playing thread.
    """

    def __init__(self, address: Address, rest: Rest, patience_s: float = PATIENCE_S) -> None:
        self._address = address
        self._patience_s = patience_s
        self.port = address.port
        """The port at which it listens."""
        self.rest = rest
        self.counts = Counts()
        self._connections: set[Connection] = set()
        self._groups: dict[Group, set[Connection]] = {}
        self._group_of: dict[Connection, Group] = {}
        self._changed = threading.Condition()
        self._ahead = threading.Semaphore(_BATCHES_AHEAD)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._done: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="blackbox-venue", daemon=True)
        self._error: OSError | None = None
        self._is_open = threading.Event()

    def open(self) -> None:
        """Listen. Raises EndpointError."""
        self._thread.start()
        self._is_open.wait()
        if self._error is not None:
            self._thread.join()
            raise EndpointError(self._error.errno, f"cannot listen at {self._address}: {self._error}")

    def close(self) -> None:
        """Disconnect all clients, and end the thread. Does nothing if it never ran."""
        loop, done = self._loop, self._done
        if loop is not None and done is not None:
            loop.call_soon_threadsafe(done.set)
            self._thread.join()
        self._loop = None

    def groups(self) -> list[Group]:
        """Return the groups that have clients."""
        with self._changed:
            return list(self._groups)

    def send(self, batch: list[tuple[Group, bytes, int]]) -> None:
        """Send frames: of each group the bytes and their number. Waits for slow clients within the limit."""
        loop = self._loop
        if loop is None or not batch:
            return
        self._ahead.acquire()
        loop.call_soon_threadsafe(self._deliver, batch)
        self._wait_for_room(loop)

    def _wait_for_room(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wait until no queue is full. Every round, a client has taken some of its queue or is disconnected."""
        with self._changed:
            while not self._changed.wait_for(lambda: not self._full(), self._patience_s):
                loop.call_soon_threadsafe(self._drop_slow)

    def _full(self) -> bool:
        return any(each.is_full for each in list(self._group_of))

    def _deliver(self, batch: list[tuple[Group, bytes, int]]) -> None:
        try:
            for group, wire, frames in batch:
                for connection in list(self._groups.get(group, ())):
                    connection.write(wire)
                    self.counts.frames += frames
        finally:
            self._ahead.release()

    def _drop_slow(self) -> None:
        for connection in list(self._group_of):
            if connection.is_full and not connection.has_progressed():
                self.counts.slow += 1
                connection.abort()

    def disconnect_all(self, reason: str) -> None:
        """Close all connections after what they were sent."""
        loop = self._loop
        if loop is not None:
            loop.call_soon_threadsafe(self._close_all, reason)

    def _close_all(self, reason: str) -> None:
        for connection in list(self._connections):
            connection.close(reason)

    def wait_for(self, clients: int, timeout: float) -> bool:
        """Wait until this many clients have subscribed; return False after the timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self._group_of) >= clients, timeout)

    def wait_for_none(self, timeout: float) -> None:
        """Wait until everything is sent and every client has left, at most for this time."""
        with self._changed:
            self._changed.wait_for(lambda: not self._connections, timeout)

    # The following run in the event loop.

    def now(self) -> float:
        """Return the time of the event loop in seconds."""
        return asyncio.get_running_loop().time()

    def add(self, connection: Connection) -> None:
        """Take a new connection, or end it if there are too many."""
        if len(self._connections) >= _MOST_CLIENTS:
            connection.abort()
            return
        self.counts.connections += 1
        with self._changed:
            self._connections.add(connection)

    def remove(self, connection: Connection) -> None:
        """Forget a connection."""
        with self._changed:
            self._connections.discard(connection)
            self._leave(connection)
            self._changed.notify_all()

    def note_room(self) -> None:
        """Wake the playing thread: a client's queue has filled or emptied."""
        with self._changed:
            self._changed.notify_all()

    def regroup(self, connection: Connection) -> None:
        """Move a connection to the group of its streams."""
        session = connection.session
        if session is None or connection not in self._connections:
            return
        group = Group(frozenset(session.streams), session.is_combined)
        if self._group_of.get(connection) == group:
            return
        with self._changed:
            self._leave(connection)
            if group.streams:
                self._group_of[connection] = group
                self._groups.setdefault(group, set()).add(connection)
            self._changed.notify_all()

    def _leave(self, connection: Connection) -> None:
        group = self._group_of.pop(connection, None)
        if group is not None:
            self._groups[group].discard(connection)
            if not self._groups[group]:
                del self._groups[group]

    def _run(self) -> None:
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            try:
                runner.run(self._serve())
            finally:
                self._is_open.set()

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            server = await loop.create_server(lambda: Connection(self), self._address.host, self._address.port)
        except OSError as error:
            self._error = error
            return
        self.port = server.sockets[0].getsockname()[1]
        self._done = asyncio.Event()
        self._loop = loop
        self._is_open.set()
        pings = asyncio.ensure_future(self._ping())
        try:
            await self._done.wait()
        finally:
            pings.cancel()
            server.close()
            for each in list(self._connections):
                each.abort()
            self.rest.close()

    async def _ping(self) -> None:
        while True:
            await asyncio.sleep(_PING_S)
            payload = b"%d" % (time.time_ns() // 1_000_000)
            for each in list(self._group_of):
                if self.now() - each.answered_at > _PING_S + _PONG_S:
                    self.counts.silent += 1
                    each.abort()
                else:
                    each.ping(payload)
