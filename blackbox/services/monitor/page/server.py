"""The web server of the page: its files, and a WebSocket that pushes the state to each browser."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from importlib.resources import files
from typing import Any, Final
from urllib.parse import urlsplit

from blackbox.analysis.report.style import STYLE
from blackbox.services.monitor.listening import NOT_OWN, is_own_host, listen_at, url_of
from blackbox.services.monitor.page.clients import MOST_ASKED_BYTES, Clients
from blackbox.services.monitor.page.market import Market
from blackbox.services.monitor.watch.watch import Watch

try:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import HTTPConnection, Request
    from starlette.responses import PlainTextResponse, Response
    from starlette.routing import Route, WebSocketRoute
    from starlette.websockets import WebSocket, WebSocketDisconnect
except ImportError as error:
    raise ImportError(f"the page needs starlette: pip install 'blackbox-md[monitor]' ({error})") from error

_PUSH_S: Final = 0.5
_FILES: Final = files("blackbox.services.monitor.page") / "files"
_TYPES: Final = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_REFUSED: Final = 1008
_TRY_LATER: Final = 1013


class PageServer:
    """Serves the page of a running watcher until its `run` is cancelled or a signal ends it.

    It has one event loop; a thread of the loop looks at the installation, twice a second. Nothing waits for a browser:
    one that is slow gets fewer states.
    """

    def __init__(self, watch: Watch, host: str, port: int, bound: Callable[[str], None] = lambda _: None) -> None:
        """`port` 0: a free one. `bound` is called with the page's URL."""
        self._watch, self._host, self._port, self._bound = watch, host, port, bound
        self.clients = Clients(Market(watch.watcher.feeds))
        self._server: _Server | None = None
        self._failure: BaseException | None = None

    @property
    def app(self) -> Starlette:
        """The web application."""
        return Starlette(
            routes=[
                Route("/", self._file("index.html", "html")),
                Route("/page.css", self._file("page.css", "css", before=STYLE)),
                Route("/page.js", self._file("page.js", "js")),
                Route("/chart.js", self._file("chart.js", "js")),
                WebSocketRoute("/state", self._talk),
            ],
            lifespan=self._living,
        )

    async def run(self) -> None:
        """Serve until cancelled. Raises EndpointError if it cannot listen."""
        with listen_at(self._host, self._port, "address of the page") as listener:
            self._bound(f"{url_of(self._host, listener.getsockname()[1])}/")
            config = uvicorn.Config(
                self.app,
                log_config=None,
                access_log=False,
                ws="websockets-sansio",
                ws_max_size=MOST_ASKED_BYTES,
                ws_per_message_deflate=False,
                timeout_graceful_shutdown=2,
                limit_concurrency=200,
            )
            self._server = _Server(config)
            serving = asyncio.ensure_future(self._server.serve(sockets=[listener]))
            try:
                await asyncio.shield(serving)
            except asyncio.CancelledError:
                self._server.should_exit = True
                await serving
                raise
            finally:
                self.clients.market.close()
            if self._failure is not None:
                raise self._failure

    @contextlib.asynccontextmanager
    async def _living(self, _: Starlette) -> AsyncIterator[None]:
        looking = asyncio.ensure_future(self._look())
        looking.add_done_callback(self._note_looked)
        try:
            yield
        finally:
            looking.cancel()

    async def _look(self) -> None:
        while True:
            self.clients.publish(await asyncio.to_thread(self._look_once))
            await asyncio.sleep(_PUSH_S)

    def _note_looked(self, task: asyncio.Task[None]) -> None:
        """End the server after an error, which `run` then raises."""
        if not task.cancelled() and self._server is not None:
            self._failure, self._server.should_exit = task.exception(), True

    def _look_once(self) -> Any:
        self._watch.look()
        return self._watch.view()

    def _file(self, name: str, kind: str, before: str = "") -> Callable[[Request], Any]:
        text = before + (_FILES / name).read_text("utf-8")

        async def answer(request: Request) -> Response:
            if not self._is_own(request):
                return PlainTextResponse(NOT_OWN, 421)
            return Response(text, media_type=_TYPES[kind], headers=_HEADERS)

        return answer

    def _is_own(self, connection: HTTPConnection) -> bool:
        return is_own_host(connection.headers.get("host", ""), self._host)

    async def _talk(self, browser: WebSocket) -> None:
        if not self._is_own(browser) or not is_own_origin(browser):
            await browser.close(_REFUSED)
            return
        await browser.accept()
        if not self.clients.has_room:
            await browser.close(_TRY_LATER, "too many browsers, try again later")
            return
        client = self.clients.enter()
        sending = asyncio.ensure_future(client.send_all(browser.send_text))
        receiving = asyncio.ensure_future(self._receive(browser, client.take))
        try:
            await asyncio.wait({sending, receiving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.clients.leave(client)
            for task in (sending, receiving):
                task.cancel()
            await asyncio.gather(sending, receiving, return_exceptions=True)
        with contextlib.suppress(RuntimeError, WebSocketDisconnect):  # it is closed already
            await browser.close()

    async def _receive(self, browser: WebSocket, take: Callable[[str], None]) -> None:
        with contextlib.suppress(WebSocketDisconnect):
            while True:
                take(await browser.receive_text())


class _Server(uvicorn.Server):
    """Leaves signals to the command."""

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        """Do nothing."""
        yield


def is_own_origin(connection: HTTPConnection) -> bool:
    """Return True if a WebSocket is opened by this server's page."""
    origin = connection.headers.get("origin", "")
    return urlsplit(origin).netloc == connection.headers.get("host", "") != ""
