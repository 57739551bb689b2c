"""A publisher's side of ZMTP on a plain TCP socket, to send frames that no ZeroMQ socket would."""

from __future__ import annotations

import socket
from typing import Self

from blackbox.transport.wakeup import readable

_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
_READY = b"\x04\x1a\x05READY\x0bSocket-Type\x00\x00\x00\x04XPUB"
MORE, LONG = 1, 2


class PlainPublisher:
    """Listens on a tcp endpoint. `accept` returns a subscriber's socket for sending frames."""

    def __init__(self, endpoint: str) -> None:
        host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        self._listener = socket.create_server((host, int(port)))
        self._listener.settimeout(60)

    def accept(self) -> socket.socket:
        """Wait for a subscriber and complete its handshake."""
        peer, _ = self._listener.accept()
        peer.settimeout(60)
        peer.sendall(_GREETING + _READY)
        return peer

    @property
    def has_another(self) -> bool:
        """True if a further connection waits to be accepted."""
        return bool(readable(self._listener.fileno(), timeout=0))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()


def frame(body: bytes, flags: int = 0) -> bytes:
    """Return a frame with an eight-byte length."""
    return bytes([flags | LONG]) + len(body).to_bytes(8, "big") + body
