"""A TCP proxy that loses connections as a host without power does: no byte passes any more, and nothing is closed."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Self
from urllib.parse import urlsplit

import msgspec

from blackbox import Feed


class BlackHole:
    """Forwards from an endpoint of its own to `endpoint`, until it is told to lose what is connected."""

    def __init__(self, endpoint: str) -> None:
        there = urlsplit(endpoint)
        self._to = there.hostname, there.port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0
        """How many were let through so far."""
        self.sent_up = 0
        """Bytes that those who connect here have sent."""
        self._lets_in = threading.Event()
        self._lets_in.set()
        self._is_lost = threading.Event()
        """Of the connections that there are now."""
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def feed(self, feed: Feed) -> Feed:
        """The feed as it is reached through here."""
        (feed_slice,) = feed.slices
        return msgspec.structs.replace(feed, slices=(msgspec.structs.replace(feed_slice, endpoints=(self.endpoint,)),))

    def lose(self) -> None:
        """Forward nothing on any connection, and let none in."""
        self._lets_in.clear()
        self._is_lost.set()

    def recover(self) -> None:
        """Let connections in again. Those that were lost stay so: nobody knows of them any more."""
        self._is_lost = threading.Event()
        self._lets_in.set()

    def _start(self, work: object, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near = self._listener.accept()[0]
                self._sockets.append(near)
                self._lets_in.wait()
                with suppress(ConnectionError):
                    far = socket.create_connection(self._to)
                    self._sockets.append(far)
                    self.connections += 1
                    self._start(self._forward, near, far, self._is_lost, True)
                    self._start(self._forward, far, near, self._is_lost, False)

    def _forward(self, source: socket.socket, sink: socket.socket, is_lost: threading.Event, is_up: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if is_lost.is_set():
                    return
                self.sent_up += len(data) * is_up
                sink.sendall(data)
        if not is_lost.is_set():
            for each in (source, sink):
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lets_in.set()
        for each in (self._listener, *self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for each in (self._listener, *self._sockets):
            each.close()
