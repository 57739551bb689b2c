"""A scripted venue: a WebSocket server whose connections follow a script. The same port answers for order books."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from typing import Any

from blackbox_feeds.binance import split
from blackbox_feeds.binance.live.source import BinanceWs
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.sync.server import Server, ServerConnection, serve

from tests.feeds.reader import Reader

Script = Callable[[ServerConnection], object]


def combined(stream: str, data: dict[str, Any]) -> bytes:
    """A frame as Binance sends it."""
    return json.dumps({"stream": stream, "data": data}, separators=(",", ":")).encode()


def trade(number: int) -> bytes:
    return combined("a@trade", {"e": "trade", "E": 1_723_161_255_343, "s": "A", "t": number, "p": "1.5", "q": "2"})


def candle(number: int) -> bytes:
    return combined("a@kline_1m", {"e": "kline", "E": 1_723_161_255_343 + number, "s": "A", "k": {"n": number}})


def depth(first: int, last: int) -> bytes:
    data = {"e": "depthUpdate", "E": 1_723_161_255_343, "s": "A", "U": first, "u": last, "b": [["1.0", "2"]], "a": []}
    return combined("a@depth", data)


class Venue:
    """Runs one script after the other, one per connection; the last one again for later connections."""

    def __init__(self, *scripts: Script) -> None:
        self.scripts = scripts
        self.connected = 0
        self.targets: list[str] = []
        self.books: list[bytes | int] = []
        """Answers to requests of order books, the last one again: a body, or an HTTP status."""
        self.requests: list[str] = []
        self._lock = threading.Lock()
        self._server: Server | None = None

    def start(self, port: int = 0) -> int:
        self._server = serve(
            self._serve,
            "127.0.0.1",
            port,
            process_request=self._http,
            compression=None,
            max_size=None,
            ping_interval=None,
        )
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        found: int = self._server.socket.getsockname()[1]
        return found

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()

    def _http(self, connection: ServerConnection, request: Request) -> Response | None:
        if "/depth" not in request.path:
            self.targets.append(request.path)
            return None
        with self._lock:
            answer = self.books.pop(0) if len(self.books) > 1 else self.books[0]
            self.requests.append(request.path)
        status, body = (answer, b"{}") if isinstance(answer, int) else (200, answer)
        headers = Headers({"Content-Length": str(len(body)), "Retry-After": "1", "Connection": "close"})
        return Response(status, HTTPStatus(status).phrase, headers, body)

    def _serve(self, connection: ServerConnection) -> None:
        with self._lock:
            script = self.scripts[min(self.connected, len(self.scripts) - 1)]
            self.connected += 1
        with suppress(ConnectionClosed):
            script(connection)


def wait_for_close(connection: ServerConnection) -> None:
    """Answer pings until the client closes the connection."""
    with suppress(ConnectionClosed):
        while True:
            connection.recv()


def sends(*frames: bytes, then: Script = wait_for_close) -> Script:
    """Send frames as texts."""

    def script(connection: ServerConnection) -> None:
        for frame in frames:
            connection.send(frame, text=True)
        then(connection)

    return script


@contextmanager
def running(venue: Venue) -> Iterator[int]:
    port = venue.start()
    try:
        yield port
    finally:
        venue.stop()


class Received(Reader):
    """Frames of a live source."""

    source: BinanceWs

    @property
    def frames(self) -> list[bytes]:
        return [split(payload)[1] for *_, payload in self.messages]


def source(port: int, streams: str, more: str = "") -> BinanceWs:
    return BinanceWs(f"127.0.0.1:{port}/stream?streams={streams}&rest=http://127.0.0.1:{port}{more}")
