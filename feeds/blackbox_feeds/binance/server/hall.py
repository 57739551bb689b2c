"""The clients of the server and the event loop that serves them, in one thread.

    playing thread  --frames of each group of clients-->  hall  --the same bytes-->  each client of the group

A group has the same streams and the same form of frames. A client that does not take its frames fills its queue. The
playing thread then waits. A client that takes too little of its queue in `PATIENCE_S` is disconnected and counted.

If the thread of the clients fails, their sockets are closed, and the playing thread gets the error.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

import msgspec

from blackbox.errors import EndpointError
from blackbox.feed.venue_url import Address
from blackbox_feeds.binance.server.connection import Connection
from blackbox_feeds.binance.server.rest import Rest
from blackbox_feeds.io.loop_thread import LoopThread

PATIENCE_S: Final = 2.0
_MOST_CLIENTS: Final = 1_000
_BATCHES_AHEAD: Final = 4
_PING_S: Final = 20.0
_PONG_S: Final = 60.0


class Group(NamedTuple):
    """Streams and form of the frames of some clients."""

    streams: frozenset[str]
    is_combined: bool


Batch = list[tuple[tuple[Connection, ...], bytes, int]]
"""Frames: the clients, the bytes for each, and the number of frames in them."""


class Counts(msgspec.Struct):
    """Counts of the server."""

    frames: int = 0
    """Frames sent, one for each client."""
    connections: int = 0
    too_many: int = 0
    """Clients that were disconnected at once because there were too many."""
    slow: int = 0
    """Clients that were disconnected because they did not take their frames."""
    silent: int = 0
    """Clients that were disconnected because they did not answer pings, or made no handshake."""


class Hall(LoopThread):
    """Owns the event loop, its thread and the listening socket. `rest` answers requests over HTTP.

    `open`, `stop`, `groups`, `send`, `disconnect_all` and `wait_for` are called by the playing thread. Those that wait
    or send raise the error of the thread.
    """

    def __init__(self, address: Address, rest: Rest, patience_s: float = PATIENCE_S) -> None:
        super().__init__("blackbox-venue", f"the server at {address}")
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
        self._is_open = threading.Event()

    def open(self) -> None:
        """Listen. Raises EndpointError."""
        self.start()
        self._is_open.wait()
        self._check()

    def _check(self) -> None:
        """Raise the error of the thread, if it has failed."""
        if self.error is not None:
            raise self.error

    def groups(self) -> dict[Group, tuple[Connection, ...]]:
        """Return the groups that have clients, with these."""
        with self._changed:
            return {group: tuple(clients) for group, clients in self._groups.items()}

    def send(self, batch: Batch) -> None:
        """Send frames to clients still connected, in the form they had then. Waits for slow ones within the limit."""
        self._check()
        if not batch or self._loop is None:
            return
        self._ahead.acquire()
        self._soon(partial(self._deliver, batch))
        # Every round, a client has taken some of its queue or is disconnected.
        while not self._wait(lambda: not any(each.is_full for each in self._group_of), self._patience_s):
            self._soon(self._drop_slow)

    def _wait(self, condition: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until a condition holds; return False after the timeout. Raises the error of the thread."""
        with self._changed:
            is_met = self._changed.wait_for(lambda: self.error is not None or condition(), timeout)
        self._check()
        return is_met

    def _deliver(self, batch: Batch) -> None:
        try:
            for clients, wire, frames in batch:
                for connection in clients:
                    if connection in self._connections:
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
        self._soon(partial(self._close_all, reason))

    def _close_all(self, reason: str) -> None:
        for connection in list(self._connections):
            connection.close(reason)

    def wait_for(self, clients: int, timeout: float | None) -> bool:
        """Wait until this many clients have subscribed; return False after the timeout."""
        return self._wait(lambda: len(self._group_of) >= clients, timeout)

    def wait_for_none(self, timeout: float) -> None:
        """Wait until everything is sent and every client has left, at most for this time."""
        self._wait(lambda: not self._connections, timeout)

    # The following run in the thread of the event loop.

    def add(self, connection: Connection) -> None:
        """Take a new connection, or end it if there are too many."""
        if len(self._connections) >= _MOST_CLIENTS:
            self.counts.too_many += 1
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

    async def _main(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            server = await loop.create_server(lambda: Connection(self), self._address.host, self._address.port)
        except OSError as error:
            raise EndpointError(error.errno, f"cannot listen at {self._address}: {error}") from None
        try:
            self.port = server.sockets[0].getsockname()[1]
            self._is_open.set()
            await self._ping()
        finally:
            server.close()
            for each in list(self._connections):
                each.abort()
            self.rest.close()

    def _ended(self) -> None:
        self._is_open.set()
        self._ahead.release()
        with self._changed:
            self._changed.notify_all()

    async def _ping(self) -> None:
        while True:
            await asyncio.sleep(_PING_S)
            payload = b"%d" % (time.time_ns() // 1_000_000)
            for each in list(self._connections):
                if asyncio.get_running_loop().time() - each.answered_at > _PING_S + _PONG_S:
                    self.counts.silent += 1
                    each.abort()
                else:
                    each.ping(payload)
