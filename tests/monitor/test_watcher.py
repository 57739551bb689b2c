"""The watcher's threads: pages that cannot be requested, names that are looked up for long, an error of a thread."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import Counter, deque
from contextlib import suppress
from typing import Any

import pytest

from blackbox import Feed, Publisher
from blackbox.feed.monitor import MOST_WATCHED, check_watched
from blackbox.services.monitor.heartbeats import Heartbeats
from blackbox.services.monitor.serve.metrics import serve_metrics
from blackbox.services.monitor.watch import status_pages
from blackbox.services.monitor.watch.snapshot import Page
from blackbox.services.monitor.watch.watcher import Watcher
from blackbox.testing import wait_until


def test_a_host_that_cannot_be_a_name_is_reported_and_other_pages_are_still_requested() -> None:
    urls = (f"http://{'a' * 64}:80", "http://127.0.0.1:9")
    with Watcher((), urls) as watcher:
        wait_until(lambda: all(page.failure for page in watcher.snapshot().pages))
        assert [page.failure for page in watcher.snapshot().pages] == ["unreachable", "refused"]


def test_a_name_that_is_looked_up_for_long_delays_no_other_name_and_has_one_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate, asked, look_up = threading.Event(), Counter[str](), socket.getaddrinfo

    def slow(host: str, *arguments: Any, **more: Any) -> Any:
        asked[host] += 1
        if host.startswith("slow"):
            gate.wait()
            raise socket.gaierror("no such name")
        return look_up(host, *arguments, **more)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    monkeypatch.setattr(status_pages, "_ANSWER_S", 0.5)
    names = [f"slow{number}" for number in range(MOST_WATCHED - 1)]
    with Publisher(Feed.local("watched", slices=1)) as publisher, serve_metrics(publisher, "127.0.0.1:0") as server:
        urls = (f"http://localhost:{server.port}", *(f"http://{name}:80" for name in names))
        with Watcher((), urls) as watcher:
            wait_until(lambda: asked["localhost"] > 2 and bool(watcher.snapshot().pages[0].parts))
            wait_until(lambda: all(page.failure == "unreachable" for page in watcher.snapshot().pages[1:]))
            assert watcher.snapshot().pages[1].why == "no address for slow0 in 0.5 s"
            assert {asked[name] for name in names} == {1}
            gate.set()
            wait_until(lambda: watcher.snapshot().pages[1].why == "no such name")


def test_an_address_that_does_not_answer_leaves_time_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    connect = asyncio.open_connection

    async def addresses(_: status_pages.Host) -> list[str]:
        return ["127.0.0.2", "127.0.0.3", "127.0.0.1"]

    async def slow(host: str, port: int) -> Any:
        return await (connect(host, port) if host == "127.0.0.1" else asyncio.sleep(3_600))

    monkeypatch.setattr(status_pages.Host, "addresses", addresses)
    monkeypatch.setattr(asyncio, "open_connection", slow)
    monkeypatch.setattr(status_pages, "_ANSWER_S", 1.0)

    def is_answered() -> bool:
        with suppress(status_pages.PageError):  # a busy machine may take longer
            return bool(asyncio.run(status_pages.request(page, status_pages.Host("localhost"))))
        return False

    with Publisher(Feed.local("watched", slices=1)) as publisher, serve_metrics(publisher, "127.0.0.1:0") as server:
        page = check_watched(f"http://localhost:{server.port}")
        wait_until(is_answered, what="an answer of the last address")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"HTTP/1.1 500 Internal Server Error\r\n\r\n", "HTTP status 500"),
        (b"SSH-2.0-OpenSSH\r\n", "the answer is not HTTP"),
        (b"HTTP/1.1 200 OK\r\n\r\n{}", "not a status"),
    ],
)
def test_a_page_with_another_answer_is_invalid(answer: bytes, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_pages, "_ANSWER_S", 60.0)  # the next request is not answered
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with Watcher((), (url, f"recorder={url}")) as watcher:
            client, _ = server.accept()
            with client:
                client.recv(1 << 16)
                client.sendall(answer)
            found = deque[Page](maxlen=1)

            def has_failed() -> bool:
                found.extend(watcher.snapshot().pages)
                return found[0].failure != ""

            wait_until(has_failed)
    page = found[0]
    assert (page.failure, page.name, page.why[: len(why)]) == ("invalid", "recorder", why)


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
