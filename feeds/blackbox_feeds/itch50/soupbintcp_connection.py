"""One client's connection to a SoupBinTCP server: login, heartbeats, and the messages from its sequence on."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from enum import Enum
from typing import Final

from blackbox.life import Life
from blackbox_feeds.itch50 import soupbintcp
from blackbox_feeds.serving.sent_stream import SentStream

_READ_BYTES: Final = 1 << 16
_SEND_BYTES: Final = 1 << 20
"""Bytes of messages that are passed to the kernel at a time."""


class ConnectionLife(Life):
    """Stages of a connection."""

    LOGGING_IN = "logging in", "streaming", "closing", "closed"
    """Connected. STREAMING once a login is accepted, CLOSING once it is rejected."""
    STREAMING = "streaming", "closing", "closed"
    """It gets messages. CLOSING at the end of the session."""
    CLOSING = "closing", "closed"
    """Nothing more is sent. CLOSED once the client has closed too."""
    CLOSED = "closed"
    """The last stage."""


class Lost(Enum):
    """Reasons why the server closes a connection."""

    MALFORMED = "malformed"
    """A packet is invalid, or not allowed in this stage."""
    SILENT = "silent"
    """For 15 s the client has sent nothing, not even a heartbeat, or it has not logged in, or not left at the end."""
    SLOW = "slow"
    """The client has not taken waiting messages for 15 s, or so late that they are not kept any more."""


Judge = Callable[[soupbintcp.Login], soupbintcp.Accepted | bytes]
"""Accepts a login, or returns the code of its rejection."""


class Connection:
    """Belongs to the server's thread. `life` says what it does, `lost` why the server closed it."""

    def __init__(self, made: socket.socket, stream: SentStream, judge: Judge, now: float) -> None:
        made.setblocking(False)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = made
        self.life = ConnectionLife.LOGGING_IN
        self.lost: Lost | None = None
        self._stream, self._judge = stream, judge
        self._inbox, self._outbox = bytearray(), b""
        self._position = 0
        self._is_shut = False
        self._heard_at = self._sent_at = self._moved_at = now

    @property
    def is_blocked(self) -> bool:
        """True if the kernel's buffer is full."""
        return bool(self._outbox) or (self.life is ConnectionLife.STREAMING and self._position < self._stream.position)

    def read(self, now: float) -> None:
        """Read what has arrived, and act on whole packets."""
        try:
            data = self.socket.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._enter(ConnectionLife.CLOSED)
            return
        self._heard_at = now
        self._inbox += data
        while self.life in (ConnectionLife.LOGGING_IN, ConnectionLife.STREAMING) and len(self._inbox) >= 2:
            (size,) = soupbintcp.LENGTH.unpack_from(self._inbox)
            if len(self._inbox) < 2 + size:
                break
            packet = bytes(self._inbox[2 : 2 + size])
            del self._inbox[: 2 + size]
            self._take(packet[:1], packet[1:])
        if self.life is ConnectionLife.CLOSING:
            self._inbox.clear()

    def _take(self, kind: bytes, payload: bytes) -> None:
        if kind == soupbintcp.LOGIN_REQUEST and self.life is ConnectionLife.LOGGING_IN:
            self._log_in(payload)
        elif kind == soupbintcp.LOGOUT_REQUEST:
            self._enter(ConnectionLife.CLOSED)
        elif kind in (soupbintcp.CLIENT_HEARTBEAT, soupbintcp.DEBUG) or (
            kind == soupbintcp.UNSEQUENCED and self.life is ConnectionLife.STREAMING
        ):
            return
        else:
            self._lose(Lost.MALFORMED)

    def _log_in(self, payload: bytes) -> None:
        try:
            answer = self._judge(soupbintcp.Login.of(payload))
        except ValueError:
            self._lose(Lost.MALFORMED)
            return
        if isinstance(answer, bytes):
            self._outbox = soupbintcp.packet(soupbintcp.LOGIN_REJECTED, answer)
            self._enter(ConnectionLife.CLOSING)
            return
        position = self._stream.position_of(answer.sequence)
        assert position is not None
        self._outbox, self._position = answer.pack(), position
        self._enter(ConnectionLife.STREAMING)

    def write(self, now: float, *, has_ended: bool) -> None:
        """Write what the kernel takes. The caller holds the lock of the stream."""
        try:
            self._flush(now)
            if self.life is ConnectionLife.STREAMING and self._stream_messages(now):
                if has_ended:
                    self._outbox = soupbintcp.packet(soupbintcp.END_OF_SESSION)
                    self._enter(ConnectionLife.CLOSING)
                elif now - self._sent_at >= soupbintcp.HEARTBEAT_S:
                    self._outbox = soupbintcp.packet(soupbintcp.SERVER_HEARTBEAT)
                self._flush(now)
            if self.life is ConnectionLife.CLOSING and not self._is_shut:
                self._is_shut = True
                self.socket.shutdown(socket.SHUT_WR)  # closing it would discard what the client has not read
        except BlockingIOError:
            pass
        except OSError:
            self._enter(ConnectionLife.CLOSED)

    def _flush(self, now: float) -> None:
        """Write all control packets. Raises BlockingIOError if the kernel's buffer is full."""
        while self._outbox:
            self._outbox = self._outbox[self.socket.send(self._outbox) :]
            self._moved_at = self._sent_at = now

    def _stream_messages(self, now: float) -> bool:
        """Write messages. Return True if all were written, so that other packets may follow."""
        while True:
            found = self._stream.file_at(self._position)
            if found is None:
                self._lose(Lost.SLOW)
                return False
            fd, at, size = found
            if not size:
                self._moved_at = now
                return True
            self._position += os.sendfile(self.socket.fileno(), fd, at, min(size, _SEND_BYTES))
            self._moved_at = self._sent_at = now

    def check(self, now: float) -> None:
        """Close the connection if the client is silent or does not take its messages."""
        if self.is_blocked and now - self._moved_at >= soupbintcp.SILENCE_S:
            self._lose(Lost.SLOW)
        elif now - self._heard_at >= soupbintcp.SILENCE_S or (
            self.life is not ConnectionLife.STREAMING and now - self._sent_at >= soupbintcp.SILENCE_S
        ):
            self._lose(Lost.SILENT)

    def close(self) -> None:
        """Close the socket."""
        self.life = ConnectionLife.CLOSED
        self.socket.close()

    def _lose(self, why: Lost) -> None:
        if self.life is not ConnectionLife.CLOSED:
            self.lost = why
            self._enter(ConnectionLife.CLOSED)

    def _enter(self, life: ConnectionLife) -> None:
        if self.life is not life:
            self.life = self.life.enter(life, "connection")
