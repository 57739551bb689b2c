"""Watch feeds and status pages in threads, and return snapshots."""

from __future__ import annotations

import asyncio
import copy
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from blackbox.archive.consumer_positions import owned_consumers
from blackbox.errors import ConfigError, PositionError
from blackbox.feed.feed import Feed
from blackbox.feed.monitor import MOST_WATCHED, StatusPage, check_watched
from blackbox.native.system.limits import start_thread
from blackbox.native.system.waits import result_of
from blackbox.services.monitor.heartbeats import Heartbeats
from blackbox.services.monitor.watch.snapshot import ConsumerPosition, Line, Page, Snapshot
from blackbox.services.monitor.watch.status_pages import follow

MOST_FEEDS: Final = 16
_LISTEN_S: Final = 0.25
_END_S: Final = 5.0
_POSITIONS_S: Final = 2.0
_MOST_CONSUMERS: Final = 1_000


class Watcher:
    """Watches in a `with` block: one thread for the heartbeats of each feed, one for all status pages.

    Watching costs a publisher one connection per line, which gets heartbeats only, and each process one HTTP request a
    second. `snapshot` may be called by any thread.
    """

    def __init__(self, feeds: Sequence[Feed], urls: Iterable[str] = (), positions: Path | None = None) -> None:
        """Store the settings. `urls`: in addition to those of the feeds' `[monitor]`. `positions`: a directory.

        Raises ConfigError for too many feeds or URLs, two feeds of one name, or an invalid URL.
        """
        of_feeds = [url for feed in feeds if feed.monitor is not None for url in feed.monitor.watch]
        found = dict[str, StatusPage]()
        for page in map(check_watched, (*of_feeds, *urls)):
            if page.name or page.url not in found:
                found[page.url] = page
        self.pages = tuple(found.values())
        if len(feeds) > MOST_FEEDS or len(self.pages) > MOST_WATCHED:
            many = f"{len(feeds)} feeds and {len(self.pages)} pages"
            raise ConfigError(f"{many} were to be watched, expected at most {MOST_FEEDS} and {MOST_WATCHED}")
        names = [feed.name for feed in feeds]
        if len(set(names)) < len(names):
            raise ConfigError(f"feeds were {', '.join(names)}, expected each name once")
        self.feeds = tuple(feeds)
        self._positions, self._read_at = positions, 0.0
        self._consumers: tuple[ConsumerPosition, ...] = ()
        self._lock = threading.Lock()
        self._lines: dict[str, tuple[Line, ...]] = {}
        self._pages = {each.url: Page(each.url, name=each.name) for each in self.pages}
        self._began_ns = time.monotonic_ns()
        self._ending = threading.Event()
        self._error: BaseException | None = None
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        """Start the threads. Raises EndpointError, ConfigError for a key, or LimitError."""
        try:
            opened = [self._start(f"blackbox-watch-{feed.name}", self._listen, feed) for feed in self.feeds]
            opened += [self._start("blackbox-watch-pages", self._request)] if self.pages else []
            for each in opened:
                result_of(each)
        except BaseException:
            self._end()
            raise
        self._began_ns = time.monotonic_ns()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _start(self, name: str, work: Callable[..., None], *arguments: object) -> Future[None]:
        opened: Future[None] = Future()

        def run() -> None:
            try:
                work(opened, *arguments)
            except BaseException as error:  # noqa: BLE001 - `snapshot` raises it
                if opened.done():
                    self._error = error
                else:
                    opened.set_exception(error)

        thread = threading.Thread(target=run, name=name, daemon=True)
        start_thread(thread)
        self._threads.append(thread)
        return opened

    def _end(self) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join(_END_S)

    def snapshot(self) -> Snapshot:
        """Return the present state; everything in it is unchanging. Raises the error that ended a thread, if any."""
        if self._error is not None:
            raise self._error
        self._read_positions()
        with self._lock:
            lines = tuple(line for lines in self._lines.values() for line in lines)
            pages = tuple(self._pages.values())
        return Snapshot(time.monotonic_ns(), time.time_ns(), self._began_ns, lines, pages, self._consumers)

    def _read_positions(self) -> None:
        """Read the stored positions of consumers, every two seconds; a damaged file is left out."""
        if self._positions is None or time.monotonic() < self._read_at:
            return
        self._read_at = time.monotonic() + _POSITIONS_S
        found = []
        for name, file in list(owned_consumers(self._positions).items())[:_MOST_CONSUMERS]:
            try:
                kept = file.read()
            except PositionError:
                continue
            if kept is not None:
                found += [ConsumerPosition(name, kept.feed, n, *at, kept.kept_ns) for n, at in kept.slices.items()]
        self._consumers = tuple(found)

    # The threads

    def _listen(self, opened: Future[None], feed: Feed) -> None:
        with Heartbeats(feed) as heartbeats:
            while not self._ending.is_set():
                lines = tuple(Line(feed.name, feed.heartbeat_ns, copy.copy(each)) for each in heartbeats.lines)
                with self._lock:
                    self._lines[feed.name] = lines
                if not opened.done():
                    opened.set_result(None)
                heartbeats.listen(_LISTEN_S)

    def _request(self, opened: Future[None]) -> None:
        asyncio.run(self._request_all(opened))

    async def _request_all(self, opened: Future[None]) -> None:
        tasks = [asyncio.ensure_future(follow(each, self._note)) for each in self.pages]
        opened.set_result(None)
        while not self._ending.is_set():
            done, _ = await asyncio.wait(tasks, timeout=_LISTEN_S, return_when=asyncio.FIRST_EXCEPTION)
            for each in done:
                each.result()  # raises: a page's task ends by an error only
        for each in tasks:
            each.cancel()

    def _note(self, page: Page) -> None:
        with self._lock:
            self._pages[page.url] = page
