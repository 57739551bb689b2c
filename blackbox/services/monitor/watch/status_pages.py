"""Request status pages by HTTP, all at the same time, each within a time limit."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Final

from blackbox.documents import DecodeError
from blackbox.errors import LimitError
from blackbox.feed.monitor import StatusPage
from blackbox.native.system.limits import start_thread
from blackbox.services.monitor.serve.status import MOST_STATUS_BYTES, ProcessStatus, decode_statuses
from blackbox.services.monitor.watch.snapshot import Failure, Page

EVERY_S: Final = 1.0
"""Time between two requests for a page."""
_ANSWER_S: Final = 1.5
_POLL_S: Final = 0.01
_MOST_PARTS: Final = 64


class PageError(Exception):
    """A page was not answered."""

    def __init__(self, failure: Failure, why: str) -> None:
        super().__init__(why)
        self.failure: Failure = failure


class Host:
    """The host of a page. Each name has its thread for look-ups, and one look-up at a time.

    A slow name server therefore delays neither requests to other hosts nor the end of the process.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._looking: Future[list[str]] | None = None

    async def addresses(self) -> list[str]:
        """Return its IP addresses. Raises OSError or UnicodeError for an unknown name, or LimitError."""
        with suppress(ValueError):
            return [str(ipaddress.ip_address(self._name))]
        if self._looking is None:
            looking: Future[list[str]] = Future()
            start_thread(threading.Thread(target=self._look_up, args=(looking,), name="blackbox-name", daemon=True))
            self._looking = looking
        while not self._looking.done():  # noqa: ASYNC110 - the thread may end after the loop
            await asyncio.sleep(_POLL_S)
        looking, self._looking = self._looking, None
        return looking.result()

    def _look_up(self, found: Future[list[str]]) -> None:
        try:
            addresses = [str(each[4][0]) for each in socket.getaddrinfo(self._name, None, type=socket.SOCK_STREAM)]
            found.set_result(addresses)
        except BaseException as error:  # noqa: BLE001 - the request raises it
            found.set_exception(error)


async def follow(watched: StatusPage, say: Callable[[Page], None]) -> None:
    """Request a page every second until cancelled, and report it after each request."""
    page, host = Page(watched.url, name=watched.name), Host(watched.host)
    while True:
        began = time.monotonic()
        try:
            parts = await request(watched, host)
            page = page._replace(parts=parts, answered_ns=time.monotonic_ns(), failure="", why="")
        except PageError as error:
            page = page._replace(failure=error.failure, why=str(error))
        say(page)
        await asyncio.sleep(max(0.0, began + EVERY_S - time.monotonic()))


async def request(watched: StatusPage, host: Host) -> tuple[ProcessStatus, ...]:
    """Return the statuses of a page. Raises PageError, also if the answer is too large or takes too long."""
    is_found = False
    try:
        async with asyncio.timeout(_ANSWER_S):
            addresses = await host.addresses()
            is_found = True
            answer = await _get(addresses, watched)
    except TimeoutError:
        if not is_found:
            raise PageError("unreachable", f"no address for {watched.host} in {_ANSWER_S:g} s") from None
        raise PageError("silent", f"no answer in {_ANSWER_S:g} s") from None
    except (UnicodeError, LimitError) as error:  # a host that cannot be a name, or no thread to look it up
        raise PageError("unreachable", str(error)) from None
    except ConnectionResetError as error:
        raise PageError("invalid", error.strerror or str(error)) from None
    except OSError as error:
        failure: Failure = "refused" if isinstance(error, ConnectionRefusedError) else "unreachable"
        raise PageError(failure, error.strerror or str(error)) from None
    head, _, body = answer.partition(b"\r\n\r\n")
    words = head.partition(b"\r\n")[0].split(None, 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/1."):
        raise PageError("invalid", "the answer is not HTTP")
    if words[1] != b"200":
        raise PageError("invalid", f"HTTP status {words[1].decode(errors='replace')[:3]}")
    try:
        return decode_statuses(body)[:_MOST_PARTS]
    except (DecodeError, RecursionError, UnicodeError) as error:
        raise PageError("invalid", f"not a status: {error}") from None


async def _get(addresses: list[str], watched: StatusPage) -> bytes:
    """Return head and body: by HTTP/1.0 the body ends with the connection. Raises OSError, PageError.

    An address that does not answer leaves time for the next ones.
    """
    for place, address in enumerate(addresses, 1):
        try:
            async with asyncio.timeout(None if place == len(addresses) else _ANSWER_S / (len(addresses) + 1)):
                reader, writer = await asyncio.open_connection(address, watched.port)
            break
        except OSError:
            if place == len(addresses):
                raise
    try:
        name = f"[{watched.host}]" if ":" in watched.host else watched.host
        head = f"GET {watched.path} HTTP/1.0\r\nHost: {name}:{watched.port}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode())
        await writer.drain()
        parts, size = [], 0
        while data := await reader.read(1 << 16):
            parts.append(data)
            size += len(data)
            if size > MOST_STATUS_BYTES:
                raise PageError("invalid", f"the answer is larger than {MOST_STATUS_BYTES >> 20} MiB")
        return b"".join(parts)
    finally:
        writer.close()
