"""The TCP connections of a socket: what each has sent and taken, as the kernel counts it, and how to end one.

libzmq counts whole messages. What it holds of one that never ends, and of a peer that reads nothing, only the kernel
tells. Inproc has no connections; of ipc the kernel keeps no such counts, so file permissions guard it.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections import Counter
from contextlib import suppress
from enum import Enum
from itertools import count
from typing import Any, Final

import zmq
from zmq.utils.monitor import parse_monitor_message

_MOST_EVENTS: Final = 100_000
"""Connections that may come between two looks; libzmq's I/O thread then waits for the next look."""
_TCP_INFO: Final = struct.Struct("=Q Q 4x I I")
"""Of Linux's `struct tcp_info`, from `_INFO_AT`: bytes_acked, bytes_received, segs_in, notsent_bytes."""
_TRIES_AT: Final = 2
"""Of `tcpi_retransmits` and `tcpi_probes`, a byte each."""
_INFO_AT: Final = 120


_LOST_TRIES: Final = 4
"""Tries of the kernel without an answer after which a host counts as gone: some 3 s."""


class Failure(Enum):
    """Why a handshake failed, as far as this end can tell."""

    REFUSED = "refused"
    """The server has refused our key; or this is the server, and has refused the key of a peer."""
    MECHANISM = "mechanism"
    """One end speaks CURVE and the other does not."""
    MALFORMED = "malformed"
    """What came cannot be read: a client that has another key for its server, say."""
    LEFT = "left"
    """The other end hung up in the midst of it."""


_FAILURES: Final = {
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: Failure.REFUSED,
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: Failure.MALFORMED,
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: Failure.LEFT,
}


FAILURE_EVENTS: Final = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)


def failure_of(event: int, value: int) -> Failure | None:
    """Return what a socket's monitor tells of a handshake that failed; None: it tells something else."""
    failure = _FAILURES.get(zmq.Event(event))
    if failure is Failure.MALFORMED and value == zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH:
        return Failure.MECHANISM
    return failure


class Connection:
    """One connection: its descriptor, the address of its peer, and of TCP what the last look found."""

    __slots__ = ("ended", "fd", "local", "peer", "received", "segments", "taken", "unanswered", "unsent")

    def __init__(self, fd: int, local: Any, peer: Any) -> None:
        self.fd, self.local, self.peer = fd, local, peer
        self.ended = False
        """Whether `end` has disconnected it; libzmq may need a moment to notice."""
        self.received = 0
        """Bytes that came from the peer, ever."""
        self.taken = 0
        """Bytes that the peer has acknowledged, ever."""
        self.unsent = 0
        """Bytes that the kernel holds because the peer has no room for them now."""
        self.segments = 0
        """Segments that came from the peer's host, ever: answers of its kernel among them."""
        self.unanswered = 0
        """How often the kernel has tried again since the last answer."""

    @property
    def address(self) -> str:
        """The peer's address, as host:port."""
        return f"[{self.peer[0]}]:{self.peer[1]}" if ":" in self.peer[0] else f"{self.peer[0]}:{self.peer[1]}"

    def look(self) -> bool:
        """Read the kernel's counts. False: the connection has ended, its descriptor may be another's."""
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
        except OSError:
            return False
        finally:
            ours.detach()
        return True

    def is_answered(self) -> bool:
        """Whether the connection stands, and the peer's host answers, whatever its process does.

        While anything is unanswered the kernel sends no probes (TCP's keep-alive), and goes on trying for minutes.
        """
        return self.look() and self.unanswered < _LOST_TRIES

    def end(self) -> bool:
        """Disconnect the peer; libzmq then forgets what it held for it. False: the connection had ended already."""
        with suppress(OSError):
            fd = os.dup(self.fd)  # which cannot become another's between the question and the answer
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


def connection_to(endpoint: str, fd: int) -> Connection | None:
    """Return the connection to an endpoint, over tcp or ipc, that has a descriptor now; None: another thing has it."""
    with suppress(OSError, ValueError):
        found = _connection_on(fd)
        peer = found.peer
        is_it = peer == endpoint.removeprefix("ipc://") if isinstance(peer, str) else peer[1] == _port_of(endpoint)
        return found if is_it else None
    return None


def connection_on(fd: int) -> Connection | None:
    """Return the TCP connection that has a descriptor now; None: another thing has it."""
    with suppress(OSError, ValueError):
        found = _connection_on(fd)
        return None if isinstance(found.peer, str | bytes) else found
    return None


def _connection_on(fd: int) -> Connection:
    """Return what a descriptor is of. Raises OSError or ValueError: of no connection."""
    ours = socket.socket(fileno=fd)  # of the family that it has: with another one addresses are cut
    try:
        return Connection(fd, ours.getsockname(), ours.getpeername())
    finally:
        ours.detach()


def address_of(fd: int) -> str:
    """Return the address of who is at the other end of a descriptor; empty: it is no connection over tcp."""
    with suppress(OSError, ValueError):
        found = _connection_on(fd)
        return "" if isinstance(found.peer, str | bytes) else found.address
    return ""


def _port_of(endpoint: str) -> int:
    return int(endpoint.rpartition(":")[2])


_numbers = count()


class Connections:
    """The TCP connections of one ZeroMQ socket, of its own endpoints and to those of others.

    Made and closed in the socket's thread; one other thread may look. `news` is readable when there is a new one.
    `failures` counts the handshakes that have failed, `retries` the attempts to connect.
    """

    def __init__(self, of: zmq.Socket[bytes], *, counts_retries: bool = False) -> None:
        """Watch a socket that has not yet been bound or connected."""
        self._socket = of
        self._of: dict[int, Connection] = {}
        self.failures: Counter[Failure] = Counter()
        self.retries = 0
        place = f"inproc://blackbox-connections-{next(_numbers)}"  # one that has closed holds its place for a while
        events = zmq.EVENT_ACCEPTED | zmq.EVENT_CONNECTED | FAILURE_EVENTS
        of.monitor(place, events | zmq.EVENT_CONNECT_RETRIED if counts_retries else events)
        self.news: zmq.Socket[bytes] = of.context.socket(zmq.PAIR)
        self.news.rcvhwm = _MOST_EVENTS
        self.news.linger = 0
        self.news.connect(place)

    def look(self) -> list[Connection]:
        """Return the connections that there are now, the oldest first, with what the kernel counts of each."""
        while self.news.poll(0):
            event = parse_monitor_message(self.news.recv_multipart())
            if (failure := failure_of(event["event"], event["value"])) is not None:
                self.failures[failure] += 1
            elif event["event"] == zmq.EVENT_CONNECT_RETRIED:
                self.retries += 1
            else:
                self._add(event["event"], event["value"], event["endpoint"].decode())
        self._of = {fd: connection for fd, connection in self._of.items() if connection.look()}
        return list(self._of.values())

    def find(self, fd: int) -> Connection | None:
        """Return the connection that has a descriptor, as of the last look."""
        return self._of.get(fd)

    def _add(self, event: int, fd: int, endpoint: str) -> None:
        if not endpoint.startswith("tcp:"):
            return
        with suppress(OSError, ValueError, IndexError):
            found = _connection_on(fd)
            # The descriptor may be another's by now: the end at the endpoint has its port, or it is not this socket's.
            if _port_of(endpoint) == (found.local if event == zmq.EVENT_ACCEPTED else found.peer)[1]:
                self._of.pop(fd, None)
                self._of[fd] = found

    def close(self) -> None:
        """Watch no longer. The other thread must have ended."""
        with suppress(zmq.ZMQError):
            self._socket.monitor(None, 0)
        self.news.close()
