"""TCP connections of a socket: the kernel's counters of each, and a way to end one.

libzmq counts whole messages only. Only the kernel shows an unfinished message, or a peer that reads nothing. Inproc has
no connections; the kernel keeps no such counters for ipc, which file permissions guard.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import sys
import termios
from collections import Counter
from contextlib import suppress
from enum import Enum
from typing import Any, Final

import zmq

from blackbox.transport.inproc import new_endpoint

_EVENT: Final = struct.Struct("=Hi")
"""First frame of a message of a socket's monitor: event and value."""
_MOST_EVENTS: Final = 100_000
"""Monitor events queued between two calls of `look`; when full, libzmq's I/O thread waits."""
_TCP_INFO: Final = struct.Struct("=Q Q 4x I I")
"""Part of Linux's `struct tcp_info` from `_INFO_AT`: bytes_acked, bytes_received, segs_in, notsent_bytes."""
_TRIES_AT: Final = 2
"""Offset of `tcpi_retransmits` and `tcpi_probes`, a byte each."""
_INFO_AT: Final = 120
_COUNT: Final = struct.Struct("=i")


_LOST_TRIES: Final = 4
"""Unanswered retries of the kernel after which a host counts as gone: about 3 s."""


class Failure(Enum):
    """Reason for a failed handshake, as far as this end can see."""

    REFUSED = "refused"
    """The server rejected our key; or this is the server, and it rejected a peer's key."""
    MECHANISM = "mechanism"
    """One end speaks CURVE and the other does not."""
    MALFORMED = "malformed"
    """The data cannot be read: the client may have another key for its server."""
    LEFT = "left"
    """The other end closed the connection during the handshake."""


_FAILURES: Final = {
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: Failure.REFUSED,
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: Failure.MALFORMED,
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: Failure.LEFT,
}


FAILURE_EVENTS: Final = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)


def failure_of(event: int, value: int) -> Failure | None:
    """Return the handshake failure that a monitor event reports; None: another event."""
    failure = _FAILURES.get(zmq.Event(event))
    if failure is Failure.MALFORMED and value == zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH:
        return Failure.MECHANISM
    return failure


def queued_bytes(of: socket.socket, request: int = termios.TIOCOUTQ) -> int:
    """Return the bytes in a connection's send queue: not acknowledged, or with ipc not read. Raises OSError.

    `request`: another number that the kernel keeps of the queue.
    """
    count: int = _COUNT.unpack(fcntl.ioctl(of, request, bytes(_COUNT.size)))[0]
    return count


class Connection:
    """One TCP connection: its descriptor, its peer's address, and the counters of the last `look`."""

    __slots__ = ("ended", "fd", "handed", "local", "peer", "received", "segments", "taken", "unanswered", "unsent")

    def __init__(self, fd: int, local: Any, peer: Any) -> None:
        self.fd, self.local, self.peer = fd, local, peer
        self.ended = False
        """True once `end` has disconnected it; libzmq may notice a moment later."""
        self.received = 0
        """Bytes received from the peer so far."""
        self.taken = 0
        """Bytes acknowledged by the peer so far."""
        self.handed = 0
        """Bytes handed to the kernel so far: those acknowledged, and those that wait for that."""
        self.unsent = 0
        """Bytes held by the kernel because the peer has no room."""
        self.segments = 0
        """Segments received from the peer's host so far, including its kernel's answers."""
        self.unanswered = 0
        """Retries of the kernel since the last answer."""

    @property
    def address(self) -> str:
        """Address of the peer, as host:port."""
        return _text_of(self.peer)

    @property
    def local_address(self) -> str:
        """Address of this end, as host:port; empty: ipc."""
        return "" if isinstance(self.local, str | bytes) else _text_of(self.local)

    def look(self) -> bool:
        """Read the kernel's counters. Return False if the connection has ended; its descriptor may be reused."""
        try:
            ours = socket.socket(fileno=self.fd)
        except OSError:
            return False
        try:
            if not self._is_on(ours):
                return False
            if sys.platform == "linux" and not isinstance(self.peer, str):
                info = ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_AT + _TCP_INFO.size)
                if len(info) >= _INFO_AT + _TCP_INFO.size:
                    self.taken, self.received, self.segments, self.unsent = _TCP_INFO.unpack_from(info, _INFO_AT)
                    self.unanswered = sum(info[_TRIES_AT : _TRIES_AT + 2])
                    self.handed = self.taken + queued_bytes(ours)
        except OSError:
            return False
        finally:
            ours.detach()
        return True

    def is_answered(self) -> bool:
        """Return True if the connection is open and the peer's host answers, whatever its process does.

        While data is unacknowledged the kernel sends no keep-alive probes and retransmits for minutes.
        """
        return self.look() and self.unanswered < _LOST_TRIES

    def end(self) -> bool:
        """Disconnect the peer; libzmq then drops its queue. Return False if the connection had already ended."""
        with suppress(OSError):
            fd = os.dup(self.fd)  # a duplicate cannot be reused between the check and the shutdown
            try:
                ours = socket.socket(fileno=fd)
            except OSError:
                os.close(fd)
                raise
            with ours:
                if not self.ended and self._is_on(ours):
                    self.ended = True
                    ours.shutdown(socket.SHUT_RDWR)
                    return True
        return False

    def _is_on(self, ours: socket.socket) -> bool:
        with suppress(OSError):
            return bool(ours.getpeername() == self.peer and ours.getsockname() == self.local)
        return False


def _text_of(address: Any) -> str:
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def connection_to(endpoint: str, fd: int) -> Connection | None:
    """Return the tcp or ipc connection to an endpoint on a descriptor; None: the descriptor was reused."""
    with suppress(OSError, ValueError):
        found = _connection_on(fd)
        peer = found.peer
        is_it = peer == endpoint.removeprefix("ipc://") if isinstance(peer, str) else peer[1] == _port_of(endpoint)
        return found if is_it else None
    return None


def connection_on(fd: int) -> Connection | None:
    """Return the TCP connection on a descriptor; None: the descriptor was reused."""
    with suppress(OSError, ValueError):
        found = _connection_on(fd)
        return None if isinstance(found.peer, str | bytes) else found
    return None


def _connection_on(fd: int) -> Connection:
    """Return the connection on a descriptor. Raises OSError or ValueError for another kind of file."""
    ours = socket.socket(fileno=fd)  # detects the family: with another one addresses are truncated
    try:
        return Connection(fd, ours.getsockname(), ours.getpeername())
    finally:
        ours.detach()


def address_of(fd: int) -> str:
    """Return the peer's address of a descriptor; empty: not a TCP connection."""
    found = connection_on(fd)
    return "" if found is None else found.address


def _port_of(endpoint: str) -> int:
    return int(endpoint.rpartition(":")[2])


def event_of(frames: list[bytes]) -> tuple[int, int, str]:
    """Return event, value and endpoint of a message of a socket's monitor. `zmq.utils.monitor` imports asyncio."""
    head, endpoint = frames
    event, value = _EVENT.unpack(head)
    return event, value, endpoint.decode()


class Connections:
    """TCP connections of one ZeroMQ socket, both accepted and outgoing.

    Created and closed in the socket's thread; one other thread may call `look`. `news` is readable after a new
    connection. `failures` counts failed handshakes, `retries` the attempts to connect.
    """

    def __init__(self, of: zmq.Socket[bytes], *, counts_retries: bool = False) -> None:
        """Monitor a socket that is not yet bound or connected."""
        self._socket = of
        self._of: dict[int, Connection] = {}
        self.failures: Counter[Failure] = Counter()
        self.retries = 0
        endpoint = new_endpoint("connections")
        events = zmq.EVENT_ACCEPTED | zmq.EVENT_CONNECTED | FAILURE_EVENTS
        of.monitor(endpoint, events | zmq.EVENT_CONNECT_RETRIED if counts_retries else events)
        self.news: zmq.Socket[bytes] = of.context.socket(zmq.PAIR)
        self.news.rcvhwm = _MOST_EVENTS
        self.news.linger = 0
        self.news.connect(endpoint)

    def look(self) -> list[Connection]:
        """Return the open connections, oldest first, with the kernel's counters of each."""
        while self.news.poll(0):
            event, value, endpoint = event_of(self.news.recv_multipart())
            if (failure := failure_of(event, value)) is not None:
                self.failures[failure] += 1
            elif event == zmq.EVENT_CONNECT_RETRIED:
                self.retries += 1
            else:
                self._add(event, value, endpoint)
        self._of = {fd: connection for fd, connection in self._of.items() if connection.look()}
        return list(self._of.values())

    def find(self, fd: int) -> Connection | None:
        """Return the connection on a descriptor as of the last `look`."""
        return self._of.get(fd)

    def _add(self, event: int, fd: int, endpoint: str) -> None:
        if not endpoint.startswith("tcp:"):
            return
        with suppress(OSError, ValueError, IndexError):
            found = _connection_on(fd)
            # The descriptor may have been reused: a connection of this socket has the endpoint's port at one end.
            if _port_of(endpoint) == (found.local if event == zmq.EVENT_ACCEPTED else found.peer)[1]:
                self._of.pop(fd, None)
                self._of[fd] = found

    def close(self) -> None:
        """Stop monitoring. The other thread must have ended."""
        with suppress(zmq.ZMQError):
            self._socket.monitor(None, 0)
        self.news.close()
