"""A ZeroMQ peer implemented on a plain socket, so that it can send a publisher anything."""

from __future__ import annotations

import secrets
import socket
import struct
from contextlib import suppress
from urllib.parse import urlsplit

from blackbox import Feed
from blackbox.block.form.format import ACCEPT_KEY, CONFIRM_KEY
from tests import wire

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
OLD_GREETINGS = {
    "2.0": b"\xff" + bytes(8) + b"\x7f\x01\x02" + bytes(2),
    "1.0": b"\x01\x00",
}
"""Greetings of SUB sockets with earlier protocol versions, by version."""
READY = b"\x05READY\x0bSocket-Type\x00\x00\x00\x03SUB\x08Identity\x00\x00\x00\x00"
MORE = 1
COMMAND = 4
_LONG = 2


def frame(content: bytes, flags: int = 0) -> bytes:
    """Return a frame as sent on the wire."""
    if len(content) < 256:
        return bytes([flags, len(content)]) + content
    return bytes([flags | _LONG]) + struct.pack(">Q", len(content)) + content


def subscription(prefix: bytes) -> bytes:
    return frame(b"\1" + prefix)


def unsubscription(prefix: bytes) -> bytes:
    return frame(b"\0" + prefix)


def confirmation(nonce: bytes = b"") -> bytes:
    """Return a request for a confirmation."""
    return subscription(CONFIRM_KEY + (nonce or secrets.token_bytes(8)))


def withdrawal(nonce: bytes) -> bytes:
    """Return the withdrawal of a request for a confirmation."""
    return unsubscription(CONFIRM_KEY + nonce)


def acceptance(nonce: bytes, epoch: int, line: int = 0) -> bytes:
    return subscription(ACCEPT_KEY + nonce + struct.pack("<QB", epoch, line))


_PATIENCE_S = 60.0
_TAKES_NO_MORE_S = 5.0


class Peer:
    """One connection to a slice's publisher, after the handshake. It reads only in its read methods."""

    def __init__(self, feed: Feed, slice_id: int = 0, line: int = 0) -> None:
        place = urlsplit(feed.slices[slice_id].endpoints[line])
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
        self.socket.settimeout(_PATIENCE_S)
        self.socket.connect((place.hostname, place.port))
        host, port = self.socket.getsockname()
        self.address = f"{host}:{port}"
        self.socket.sendall(GREETING + frame(READY, COMMAND))
        self.read(64)
        self.read_frame()

    def send(self, *data: bytes, timeout: float = _TAKES_NO_MORE_S) -> bool:
        """Send raw bytes. Return False if the publisher has closed the connection or reads nothing for `timeout`."""
        self.socket.settimeout(timeout)
        try:
            self.socket.sendall(b"".join(data))
        except (ConnectionError, TimeoutError):
            return False
        finally:
            self.socket.settimeout(_PATIENCE_S)
        return True

    def read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            if not part:
                raise ConnectionError("the publisher closed the connection")
            data += part
        return data

    def read_frame(self) -> bytes:
        flags = self.read(1)[0]
        size = struct.unpack(">Q", self.read(8))[0] if flags & _LONG else self.read(1)[0]
        return self.read(size)

    def read_block(self) -> tuple[bytes, wire.Fields]:
        """Return the key and the header of the next block."""
        key, header, _ = self.read_frame(), self.read_frame(), self.read_frame()
        return key, wire.unpack(header)

    def ask(self, *before: bytes) -> bytes:
        """Send some changes, request a confirmation, read until it arrives, and return its nonce."""
        return self.answer(*before)[0]

    def answer(self, *before: bytes) -> tuple[bytes, wire.Fields]:
        """Do the same as `ask`, and also return the header of the confirmation."""
        nonce = secrets.token_bytes(8)
        self.send(*before, confirmation(nonce))
        while (block := self.read_block())[0] != CONFIRM_KEY + nonce:
            pass
        return nonce, block[1]

    def was_ended(self) -> bool:
        """Read until the publisher closes the connection; fail if it does not within 30 s."""
        with suppress(ConnectionError):
            while self.socket.recv(1 << 16):
                pass
        return True

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
