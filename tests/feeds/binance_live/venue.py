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

from blackbox.feed.source import Chunk
from tests.patience import PATIENCE_S

Script = Callable[[ServerConnection], None]


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


class Received:
    """Frames and gaps of a live source, read in a thread."""

    def __init__(self, source: BinanceWs) -> None:
        self.source = source
        self.frames: list[bytes] = []
        self.topics: list[bytes] = []
        self.gaps: list[tuple[int, int]] = []
        """(place among the frames, missing)."""
        self.error: BaseException | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            for chunk in self.source.chunks():
                with self._changed:
                    self._add(chunk)
                    self._changed.notify_all()
        except Exception as error:  # noqa: BLE001 - for the test
            self.error = error
        with self._changed:
            self._changed.notify_all()

    def _add(self, chunk: Chunk) -> None:
        self.gaps += [(len(self.frames) + row, count) for row, count in chunk.gaps]
        for index, start, length in zip(
            chunk.topic_index.tolist(), chunk.starts.tolist(), chunk.lengths.tolist(), strict=True
        ):
            self.topics.append(chunk.topics[index])
            self.frames.append(split(chunk.payloads[start : start + length].tobytes())[1])

    def wait(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            done = self._changed.wait_for(lambda: condition() or self.error is not None, PATIENCE_S)
        assert self.error is None, self.error
        assert done, f"{len(self.frames)} frames, {self.source.statistics()}"

    def __enter__(self) -> Received:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.source.stop()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


def source(port: int, streams: str, more: str = "") -> BinanceWs:
    return BinanceWs(f"127.0.0.1:{port}/stream?streams={streams}&rest=http://127.0.0.1:{port}{more}")
