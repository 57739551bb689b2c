"""Serve a recorded day of ITCH by SoupBinTCP: `blackbox replay DAY --serve soupbintcp://HOST:PORT`.

The playing thread stores messages; the thread `blackbox-venue` sends them to clients, each from its own sequence on. A
client that connects late, or again, catches up from the store.
"""

from __future__ import annotations

import errno
import hmac
import logging
import math
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Final

import msgspec
import zmq

from blackbox.archive.recording import Recording
from blackbox.errors import ConfigError, NoSubscriberError
from blackbox.feed.venue_url import Address
from blackbox.native.system.waits import step_of
from blackbox.replay.play.venue_server import VenueMessages, VenueServer
from blackbox.transport.server_thread import ServerLife, ServerThread
from blackbox.transport.wakeup import Pipe
from blackbox_feeds.io.ipv4 import bound
from blackbox_feeds.itch50.moldudp64_server import session_of
from blackbox_feeds.itch50.soupbintcp import NO_SESSION, NOT_AUTHORIZED, SEQUENCED, Accepted, Login
from blackbox_feeds.itch50.soupbintcp_connection import Connection, ConnectionLife
from blackbox_feeds.serving.sent_stream import Framing, SentStream, check_linger

log = logging.getLogger("blackbox")

PASSWORD_VARIABLE: Final = "BLACKBOX_VENUE_PASSWORD"
_MOST_CONNECTIONS: Final = 256
_MOST_PASSWORD_BYTES: Final = 4_096
_STEP_S: Final = 0.25
"""Longest wait of the server's thread, which checks heartbeats."""
_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_HURRY_S: Final = 2.0
"""Time for clients to take the end of the session when the user stops the replay."""


class SoupOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the URL."""

    session: str | None = None
    """Name of the session, 10 ASCII characters. Default: the day and 01."""
    user: str | None = None
    """Only this user may log in, with the password of `password_file` or of the environment. Default: everyone."""
    password_file: str | None = None
    linger: float = 5.0
    """Seconds after the end of the session in which clients may still connect and catch up."""
    store: str | None = None
    keep_mib: int = 16_384
    """Directory and most MiB of the messages that clients can catch up with. Default: /var/tmp."""


class SoupBinTcpServer(VenueServer):
    """Sends ITCH messages to SoupBinTCP clients."""

    schemas: ClassVar[frozenset[str]] = frozenset(("itch50",))
    Options = SoupOptions

    def __init__(self, address: Address, recordings: Sequence[Recording], options: SoupOptions) -> None:
        self._session = session_of(recordings, options.session).decode()
        self._login = _login_of(options)
        check_linger(options.linger)
        self._address, self._linger = address, options.linger
        self._stream = SentStream(Framing(is_big_endian=True, type=SEQUENCED[0]), options.store, options.keep_mib)
        self._changed = threading.Condition()
        """Guards the stream and what follows, up to `_counts`."""
        self._has_ended = False
        self._connections: list[Connection] = []
        self._counts: Counter[str] = Counter()
        self._fresh = Pipe()
        self._listener: socket.socket | None = None
        self._accept_at = 0.0
        """When to accept clients again, after the system could not; 0.0: now."""
        self._thread = ServerThread("blackbox-venue", "the venue server", self._serve)

    def open(self) -> None:
        """Listen for clients."""
        self._listener = bound(self._address, "address of soupbintcp://", socket.SOCK_STREAM)
        self._listener.listen(_MOST_CONNECTIONS)
        self._thread.start()

    def wait_for(self, clients: int, timeout: float | None) -> None:
        """Wait until this number of clients is logged in. Raises NoSubscriberError."""
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        with self._changed:
            while (found := self._streaming()) < clients:
                left = deadline - time.monotonic()
                self._thread.check()
                if left <= 0:
                    raise NoSubscriberError(
                        f"{found} clients were logged in at {self._address} after {timeout:g} s, expected {clients}"
                    )
                self._changed.wait(step_of(left))

    def send(self, messages: VenueMessages) -> None:
        """Store messages, and wake the server's thread."""
        self._thread.check()
        with self._changed:
            self._stream.append(messages)
        self._fresh.poke()

    def end(self, *, at_once: bool) -> None:
        """Send the end of the session after the last message; wait until all clients have it."""
        with self._changed:
            self._has_ended = True
        self._fresh.poke()
        now = time.monotonic()
        least, most = (now, now + _HURRY_S) if at_once else (now + self._linger, math.inf)
        with self._changed:
            while self._thread.life is ServerLife.SERVING:  # slow and silent clients are disconnected
                now = time.monotonic()
                if now >= most or (now >= least and not self._connections):
                    break
                self._changed.wait(step_of())
        self._thread.check()

    def close(self) -> None:
        """Close all connections and delete the stored messages."""
        self._thread.end()
        for connection in self._connections:
            connection.close()
        if self._listener is not None:
            self._listener.close()
        self._stream.close()

    def counts(self) -> dict[str, int]:
        """Return the counters: clients by what became of them."""
        with self._changed:
            return {"messages": self._stream.next - 1, "clients": 0} | dict(self._counts)

    def _streaming(self) -> int:
        return sum(each.life is ConnectionLife.STREAMING for each in self._connections)

    # The thread

    def _serve(self) -> None:
        assert self._listener is not None
        self._thread.begin()
        poller = self._thread.watch(self._listener, self._fresh.reader)
        while (ready := self._thread.poll(poller, _STEP_S)) is not None:
            if self._fresh.reader in ready:
                with suppress(BlockingIOError):
                    os.read(self._fresh.reader, 65_536)
            if self._listener.fileno() in ready:
                self._accept(poller)
            elif 0.0 < self._accept_at <= time.monotonic():
                self._accept_at = 0.0
                poller.register(self._listener, zmq.POLLIN)
            with self._changed:
                self._advance(poller, ready)
        self._thread.begin_to_end()

    def _accept(self, poller: zmq.Poller) -> None:
        assert self._listener is not None
        try:
            made, _ = self._listener.accept()
        except OSError as error:
            if error.errno in _EXHAUSTED:  # the client keeps waiting, and would end each wait at once
                poller.unregister(self._listener)
                self._accept_at = time.monotonic() + _STEP_S
                if not self._counts["accept_failed"]:
                    log.warning("clients of %s cannot be accepted now: %s", self._address, error.strerror)
                with self._changed:
                    self._counts["accept_failed"] += 1
            return  # else it has gone again
        with self._changed:
            if len(self._connections) >= _MOST_CONNECTIONS:
                made.close()
                self._counts["too_many"] += 1
                return
            self._connections.append(Connection(made, self._stream, self._judge, time.monotonic()))
        poller.register(made, zmq.POLLIN)

    def _advance(self, poller: zmq.Poller, ready: Collection[object]) -> None:
        """Read, write and check every connection, and forget those that are closed."""
        now = time.monotonic()
        before = self._streaming()
        for each in tuple(self._connections):
            if each.socket.fileno() in ready:
                each.read(now)
            if each.life is not ConnectionLife.CLOSED:
                each.write(now, has_ended=self._has_ended)
            if each.life is not ConnectionLife.CLOSED:
                each.check(now)
            if each.life is ConnectionLife.CLOSED:
                poller.unregister(each.socket)
                each.close()
                self._connections.remove(each)
                if each.lost is not None:
                    self._counts[each.lost.value] += 1
            else:
                poller.modify(each.socket, zmq.POLLIN | (zmq.POLLOUT if each.is_blocked else 0))
        if self._streaming() != before or not self._connections:
            self._changed.notify_all()

    def _judge(self, login: Login) -> Accepted | bytes:
        """Accept a login, or return the code of its rejection."""
        given = f"{login.user}\0{login.password}".encode()
        if self._login is not None and not hmac.compare_digest(given, self._login):
            self._counts["rejected"] += 1
            return NOT_AUTHORIZED
        stream = self._stream
        sequence = login.sequence or stream.next
        if login.session not in ("", self._session) or not stream.first <= sequence <= stream.next:
            self._counts["rejected"] += 1
            return NO_SESSION
        self._counts["clients"] += 1
        return Accepted(self._session, sequence)


def _login_of(options: SoupOptions) -> bytes | None:
    """Return user and password to expect; None: everyone may log in. Raises ConfigError."""
    password = os.environ.get(PASSWORD_VARIABLE)
    if options.user is None:
        for name, given in (("password_file", options.password_file), (PASSWORD_VARIABLE, password)):
            if given is not None:
                raise ConfigError(f"{name} was given without a user, expected user= too")
        return None
    password = password or ""
    if options.password_file is not None:
        try:
            with Path(options.password_file).open(encoding="ascii") as file:
                password = file.readline(_MOST_PASSWORD_BYTES).rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"password_file {options.password_file!r} cannot be read: {error}") from error
    try:
        Login(options.user, password).pack()
    except ValueError as error:
        raise ConfigError(f"user or password does not fit into a login: {error}") from error
    return "\0".join(text.strip(" ") for text in (options.user, password)).encode()  # as a login is read
