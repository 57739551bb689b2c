"""The page of feeds, for tests and pictures."""

from __future__ import annotations

from contextlib import AbstractContextManager

from blackbox import Feed
from blackbox.services.monitor.page.background import Served, page_in_thread
from blackbox.services.monitor.watch.watcher import Watcher

__all__ = ["Served", "page"]


def page(*feeds: Feed, urls: tuple[str, ...] = ()) -> AbstractContextManager[Served]:
    """Serve a page in a thread on a free port of 127.0.0.1."""
    return page_in_thread(Watcher(feeds, urls))
