"""Serve the page from a thread of a program that does something else."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Final, NamedTuple

from blackbox.native.system.limits import start_thread
from blackbox.native.system.waits import result_of
from blackbox.services.monitor.page.server import PageServer
from blackbox.services.monitor.watch.watch import Watch
from blackbox.services.monitor.watch.watcher import Watcher

_END_S: Final = 10.0


class Served(NamedTuple):
    """A page that is being served."""

    url: str
    server: PageServer


@contextmanager
def page_in_thread(watcher: Watcher, host: str = "127.0.0.1", port: int = 0) -> Iterator[Served]:
    """Watch, and serve the page until the block is left; port 0 is a free one.

    Raises EndpointError if it cannot listen, and the errors of the watcher.
    """
    bound: Future[Served] = Future()
    stop: Future[None] = Future()

    async def serve() -> None:
        server = PageServer(Watch(watcher), host, port, lambda url: bound.set_result(Served(url, server)))
        running = asyncio.ensure_future(server.run())
        await asyncio.wait({running, asyncio.wrap_future(stop)}, return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            running.cancel()
        (result,) = await asyncio.gather(running, return_exceptions=True)
        if isinstance(result, Exception):
            raise result

    def run() -> None:
        try:
            asyncio.run(serve())
        except Exception as error:
            if bound.done():
                raise
            bound.set_exception(error)

    with watcher:
        thread = threading.Thread(target=run, name="blackbox-page", daemon=True)
        start_thread(thread)
        try:
            yield result_of(bound)
        finally:
            stop.set_result(None)
            thread.join(_END_S)
