"""A venue for tests: it sends datagrams over a bad network to a client, and answers its requests."""

from __future__ import annotations

import random
import socket
import struct
import threading
from collections.abc import Sequence
from typing import Self

from blackbox_feeds.iex.iextp import GapFillRequest
from blackbox_feeds.live.datagram_source import DatagramSource

from blackbox.testing import wait_until
from tests.feeds.build import iex, iex_tp, itch, mold
from tests.feeds.reader import Reader


class Protocol:
    """MoldUDP64 or IEX-TP."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_mold = name == "moldudp64"
        self.server_option = "rerequest" if self.is_mold else "gapfill"

    def message(self, number: int) -> bytes:
        kinds = "AEDU" if self.is_mold else "8T5B"
        kind = kinds[number % len(kinds)]
        stock = f"S{number % 7}"
        return itch(kind, number % 7, number, stock) if self.is_mold else iex(kind, number, stock)

    def messages(self, count: int) -> list[bytes]:
        return [self.message(number) for number in range(1, count + 1)]

    def datagram(self, first: int, messages: Sequence[bytes], session: int = 1, sent_ns: int = 0) -> bytes:
        if self.is_mold:
            return mold(first, messages, b"%010d" % session)
        return iex_tp(first, messages, sent_ns, session=session)

    def wanted(self, request: bytes) -> list[tuple[int, int]]:
        """Return the ranges of a request: first message and the one after the last."""
        if self.is_mold:
            assert len(request) == 20
            session, first, count = struct.unpack(">10sQH", request)
            assert session == b"0000000001"
            return [(first, first + count)]
        found = GapFillRequest.of(request)
        assert found.stream[1:] == (1, 1)
        return [(first, last + 1) for first, last in found.ranges]


class Answers:
    """A server that answers requests, some of them not at once."""

    def __init__(self, protocol: Protocol, messages: Sequence[bytes], loss: float = 0.0) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.requests = 0
        self._protocol, self._messages, self._loss = protocol, messages, loss
        self._random = random.Random(3)
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.socket.sendto(b"end", self.socket.getsockname())
        self._thread.join()
        self.socket.close()

    def _run(self) -> None:
        while True:
            request, client = self.socket.recvfrom(65_535)
            if request == b"end":
                return
            self.requests += 1
            for first, last in self._protocol.wanted(request):
                end = min(last, first + 20, len(self._messages) + 1)
                if first < end and self._random.random() >= self._loss:
                    self.socket.sendto(self._protocol.datagram(first, self._messages[first - 1 : end - 1]), client)


class Client(Reader):
    """Reads a source that receives on open sockets; its error is raised at the end of the `with` block."""

    def __init__(self, source: DatagramSource) -> None:
        super().__init__(source)
        self.sockets = source._sockets

    def __enter__(self) -> Self:
        super().__enter__()
        many = len(self.sockets._lines) + (self.sockets._server is not None)
        try:
            wait_until(lambda: len(self.sockets._open) == many or not self.is_alive(), 300)  # it may have to compile
        except BaseException:
            self.source.stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        if self.error is not None:
            raise self.error

    def wait_for(self, count: int) -> None:
        """Wait until `count` messages and gaps were found."""
        self.wait(lambda: len(self.found) >= count)


class Line:
    """Sends datagrams to a port, slowly enough for a small buffer of the kernel."""

    def __init__(self, source: DatagramSource, *ports: int) -> None:
        self._source, self.ports = source, ports
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._sent = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._socket.close()

    def send(self, datagram: bytes, port: int | None = None) -> None:
        self.send_uncounted(datagram, port)
        self._sent += 1
        if self._sent % 50 == 0:
            self.wait()

    def send_uncounted(self, datagram: bytes, port: int | None = None) -> None:
        """Send a datagram that may be lost, as while the client joins again: `wait` does not expect it."""
        self._socket.sendto(datagram, ("127.0.0.1", self.ports[0] if port is None else port))

    def wait(self) -> None:
        """Wait until all was received, or dropped by the kernel."""

        def is_received() -> bool:
            now = self._source.statistics()
            return now.packets + now.kernel_drops >= self._sent

        wait_until(is_received)
