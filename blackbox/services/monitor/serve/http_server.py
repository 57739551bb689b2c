"""An HTTP server in its own thread, for scrapers and tools: `/metrics`, `/status`, `/healthz`, `/readyz`."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from blackbox.native.system.limits import start_thread
from blackbox.services.monitor.listening import NOT_OWN, address_of, is_own_host, listen_at, url_of
from blackbox.services.monitor.serve.collector import Exposition
from blackbox.services.monitor.serve.watched import Watched

log = logging.getLogger("blackbox")

_MOST_CONNECTIONS: Final = 64
"""Further connections are closed at once."""
_MOST_HEAD_BYTES: Final = 16 << 10
_LONGEST_S: Final = 60.0
"""Time after which a connection is closed between two requests, so that idle clients do not use up all connections."""
_END_S: Final = 2

Answer = Callable[[Watched, Request], Response]


class HttpServer:
    """Serves the status of `watched` from `start` until `stop`. The port is bound by the constructor."""

    def __init__(self, watched: Watched, address: str) -> None:
        """Bind `address`, see `address_of`.

        Raises ConfigError for an invalid address, EndpointError if it is in use or cannot be bound.
        """
        self.host, port = address_of(address, "127.0.0.1")
        self._socket = listen_at(self.host, port, "metrics address")
        self.port: int = self._socket.getsockname()[1]
        exposition = Exposition(watched)

        def metrics(_: Watched, request: Request) -> Response:
            text, content_type = exposition.text(request.headers.get("accept", ""))
            return Response(text, media_type=content_type)

        answers: dict[str, Answer] = {
            "/metrics": metrics,
            "/status": _status,
            "/healthz": _health,
            "/readyz": _readiness,
        }

        def route(path: str, answer: Answer) -> Route:
            async def endpoint(request: Request) -> Response:  # in the loop's thread: one answer at a time
                if not is_own_host(request.headers.get("host", ""), self.host):
                    return PlainTextResponse(NOT_OWN, 421)
                return answer(watched, request)

            return Route(path, endpoint, methods=["GET"])

        config = uvicorn.Config(
            Starlette(routes=[route(*each) for each in answers.items()]),
            http=_Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            h11_max_incomplete_event_size=_MOST_HEAD_BYTES,
            timeout_keep_alive=int(_LONGEST_S),
            timeout_graceful_shutdown=_END_S,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="blackbox-monitor", daemon=True)

    @property
    def url(self) -> str:
        """Address as a URL, without a path."""
        return url_of(self.host, self.port)

    def start(self) -> None:
        """Start the thread. Raises LimitError if no thread can be started."""
        start_thread(self._thread)

    def stop(self) -> None:
        """Answer the current requests, and end; at most two seconds."""
        self._server.should_exit = True
        if self._thread.ident is not None:
            self._thread.join(2 * _END_S)
        self._socket.close()

    def _run(self) -> None:
        try:
            self._server.run(sockets=[self._socket])
        except Exception:  # the process must go on with its work
            log.exception("the server of metrics at %s has failed", self.url)


class _Connection(H11Protocol):
    """A connection with limits on its number and its age."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        if len(self.connections) > _MOST_CONNECTIONS:
            transport.abort()
            return
        self._age_task = self.loop.call_later(_LONGEST_S, self._end)

    def connection_lost(self, exc: Exception | None) -> None:
        with suppress(AttributeError):  # it was refused
            self._age_task.cancel()
        super().connection_lost(exc)

    def _end(self) -> None:
        if getattr(self.cycle, "response_complete", True):  # there is no cycle before the first request
            self.transport.close()
        else:
            self._age_task = self.loop.call_later(_LONGEST_S, self.transport.abort)


def _status(watched: Watched, _: Request) -> Response:
    return Response(msgspec.json.encode(watched.look().statuses), media_type="application/json")


def _health(watched: Watched, _: Request) -> Response:
    seen = watched.look()
    reasons = [reason for each in seen.statuses if not each.healthy for reason in each.reasons]
    return _text(seen.is_healthy, "healthy", reasons)


def _readiness(watched: Watched, _: Request) -> Response:
    seen = watched.look()
    return _text(seen.is_ready, "ready", seen.reasons or ["The process has not begun its work."])


def _text(is_fine: bool, word: str, reasons: list[str]) -> Response:
    """Answer 200 and a word, or 503 and the reasons, one per line."""
    lines = [word] if is_fine else reasons
    return PlainTextResponse("".join(f"{line}\n" for line in lines), 200 if is_fine else 503)
