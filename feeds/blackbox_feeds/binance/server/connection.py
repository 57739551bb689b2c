"""One client of the server: its HTTP request or WebSocket connection, on uvloop's transports."""

from __future__ import annotations

import asyncio
import math
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import parse_qs, urlsplit

from blackbox_feeds.binance.server.rest import fault
from blackbox_feeds.binance.server.session import Session

if TYPE_CHECKING:
    from websockets.http11 import Request

    from blackbox_feeds.binance.server.hall import Hall

QUEUE_BYTES: Final = 8 << 20
"""Bytes that wait for one client before it counts as slow."""
_LOW_BYTES: Final = 1 << 20
_LEAST_BYTES: Final = 1 << 18
"""Bytes that a client with a full queue must take before the server's patience ends."""
_MOST_REQUEST_BYTES: Final = 1 << 16
_GONE: Final = 1001
_CLOSE_S: Final = 5.0


class Connection(asyncio.Protocol):
    """Answers one client. All methods run in the event loop of the hall."""

    def __init__(self, hall: Hall) -> None:
        from websockets.server import ServerProtocol

        self.hall = hall
        self.session: Session | None = None
        """Its subscriptions; None before the handshake, and for requests over HTTP."""
        self.is_full = False
        self.answered_at = asyncio.get_running_loop().time()
        """When the last pong came; before, when it connected. Infinite while a request over HTTP has no answer."""
        self._protocol = ServerProtocol(max_size=_MOST_REQUEST_BYTES)
        self._transport: asyncio.Transport | None = None
        self._is_closing = False
        self._left = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transports have no common base
        self._transport.set_write_buffer_limits(QUEUE_BYTES, _LOW_BYTES)
        self.hall.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """Forget the client."""
        self.is_full = False
        self._is_closing = True
        self.hall.remove(self)

    def pause_writing(self) -> None:
        """Let the playing thread wait."""
        self.is_full = True
        self._left = self._waiting()
        self.hall.note_room()

    def resume_writing(self) -> None:
        """Let the playing thread go on."""
        self.is_full = False
        self.hall.note_room()

    def has_progressed(self) -> bool:
        """Return True if the client has taken enough of its full queue since the last call."""
        before, self._left = self._left, self._waiting()
        return before - self._left >= _LEAST_BYTES

    def _waiting(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def data_received(self, data: bytes) -> None:
        """Process a handshake, a request, or frames."""
        from websockets.frames import Frame, Opcode
        from websockets.http11 import Request

        self._protocol.receive_data(data)
        for event in self._protocol.events_received():
            if isinstance(event, Request):
                self._begin(event)
            elif isinstance(event, Frame) and self.session is not None:
                if event.opcode is Opcode.PONG:
                    self.answered_at = asyncio.get_running_loop().time()
                elif event.opcode is Opcode.TEXT and event.fin:
                    self._protocol.send_text(self.session.answer(bytes(event.data)))
                    self.hall.regroup(self)
        self._flush()

    def eof_received(self) -> None:
        """Close the connection."""
        self._protocol.receive_eof()
        self._flush()

    def _begin(self, request: Request) -> None:
        try:
            parts = urlsplit(request.path)
        except ValueError:
            self.send_http(400, fault(-1100, "Illegal characters found in the path."))
            return
        session = Session.of_path(request.path)
        if session is None:
            self.answered_at = math.inf
            parameters = {name: values[-1] for name, values in parse_qs(parts.query).items()}
            self.hall.rest.answer(self, parts.path, parameters)
            return
        response = self._protocol.accept(request)
        self._protocol.send_response(response)
        if response.status_code == 101:  # switching protocols
            self.session = session
            self.hall.regroup(self)

    def send_http(self, status: int, body: bytes) -> None:
        """Send an answer in JSON, and close the connection."""
        if self._transport is None or self._transport.is_closing():
            return
        self.answered_at = asyncio.get_running_loop().time()
        reason = HTTPStatus(status).phrase
        self._transport.write(
            b"HTTP/1.1 %d %b\r\nContent-Type: application/json;charset=UTF-8\r\nContent-Length: %d\r\n"
            b"Connection: close\r\n\r\n%b" % (status, reason.encode(), len(body), body)
        )
        self._transport.close()

    def write(self, wire: bytes) -> None:
        """Send WebSocket frames."""
        if self._transport is not None and not self._is_closing:
            self._transport.write(wire)

    def ping(self, payload: bytes) -> None:
        """Send a ping."""
        if self.session is not None and self._protocol.state.name == "OPEN":
            self._protocol.send_ping(payload)
            self._flush()

    def close(self, reason: str) -> None:
        """Say goodbye after everything is sent. The client's answer ends the connection, or else a timeout."""
        if self._transport is None or self._is_closing:
            return
        self._is_closing = True
        if self.session is None or self._protocol.state.name != "OPEN":
            self._transport.close()
            return
        self._protocol.send_close(_GONE, reason)
        self._flush()
        asyncio.get_running_loop().call_later(_CLOSE_S, self.abort)

    def abort(self) -> None:
        """End the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def _flush(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        for data in self._protocol.data_to_send():
            if data:
                transport.write(data)
            else:
                transport.close()
                return
