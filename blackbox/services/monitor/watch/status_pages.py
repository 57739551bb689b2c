"""Request status pages by HTTP, all at the same time, each within a time limit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from blackbox.documents import DecodeError
from blackbox.feed.monitor import check_watched
from blackbox.services.monitor.serve.status import ProcessStatus, decode_statuses
from blackbox.services.monitor.watch.snapshot import Failure, Page

EVERY_S: Final = 1.0
"""Time between two requests for a page."""
_ANSWER_S: Final = 1.5
MOST_PAGE_BYTES: Final = 16 << 20
_MOST_PARTS: Final = 64


class PageError(Exception):
    """A page was not answered."""

    def __init__(self, failure: Failure, why: str) -> None:
        super().__init__(why)
        self.failure: Failure = failure


async def follow(url: str, say: Callable[[Page], None]) -> None:
    """Request a page every second until cancelled, and report it after each request."""
    page = Page(url)
    while True:
        began = time.monotonic()
        try:
            parts = await request(url)
            page = Page(url, parts, time.monotonic_ns())
        except PageError as error:
            page = page._replace(failure=error.failure, why=str(error))
        say(page)
        await asyncio.sleep(max(0.0, began + EVERY_S - time.monotonic()))


async def request(url: str) -> tuple[ProcessStatus, ...]:
    """Return the statuses of a page. Raises PageError, also if the answer is too large or takes too long."""
    host, port, path = check_watched(url)
    try:
        async with asyncio.timeout(_ANSWER_S):
            answer = await _get(host, port, path)
    except TimeoutError:
        raise PageError("silent", f"no answer in {_ANSWER_S:g} s") from None
    except UnicodeError as error:  # a host that cannot be a name
        raise PageError("invalid", str(error)) from None
    except OSError as error:
        raise PageError("refused", error.strerror or str(error)) from None
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


async def _get(host: str, port: int, path: str) -> bytes:
    """Return head and body: by HTTP/1.0 the body ends with the connection. Raises OSError, PageError."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        name = f"[{host}]" if ":" in host else host
        writer.write(f"GET {path} HTTP/1.0\r\nHost: {name}:{port}\r\nConnection: close\r\n\r\n".encode())
        await writer.drain()
        parts, size = [], 0
        while data := await reader.read(1 << 16):
            parts.append(data)
            size += len(data)
            if size > MOST_PAGE_BYTES:
                raise PageError("invalid", f"the answer is larger than {MOST_PAGE_BYTES >> 20} MiB")
        return b"".join(parts)
    finally:
        writer.close()
