"""The watcher's threads: a page that cannot be requested, and an error of a thread."""

from __future__ import annotations

import pytest

from blackbox import Feed
from blackbox.services.monitor.heartbeats import Heartbeats
from blackbox.services.monitor.watch.watcher import Watcher
from blackbox.testing import wait_until


def test_a_host_that_cannot_be_a_name_is_reported_and_other_pages_are_still_requested() -> None:
    urls = (f"http://{'a' * 64}:80", "http://127.0.0.1:9")
    with Watcher((), urls) as watcher:
        wait_until(lambda: all(page.failure for page in watcher.snapshot().pages))
        assert [page.failure for page in watcher.snapshot().pages] == ["invalid", "refused"]


def test_a_snapshot_raises_the_error_that_ended_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(heartbeats: Heartbeats, seconds: float) -> None:
        raise RuntimeError("no more heartbeats")

    monkeypatch.setattr(Heartbeats, "listen", fail)

    def has_failed(watcher: Watcher) -> bool:
        try:
            watcher.snapshot()
        except RuntimeError as error:
            return str(error) == "no more heartbeats"
        return False

    with Watcher((Feed.local("watched", slices=1),)) as watcher:
        wait_until(lambda: has_failed(watcher))
