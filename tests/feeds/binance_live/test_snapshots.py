"""Requests of order books end in time, whatever the server does, and a part of an answer is no answer."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from blackbox_feeds.binance.live import snapshots as snapshots_module
from blackbox_feeds.binance.live.snapshots import Snapshots, request

from tests.patience import PATIENCE_S

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n"


@contextmanager
def server(head: bytes, *, drips: bool) -> Iterator[str]:
    """Yield the URL of a server that sends `head`, then ends, or sends bytes until the client or the test ends."""
    is_over = threading.Event()

    def answer(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.recv(65_536)
            connection.sendall(head)
            while drips and not is_over.wait(0.005):
                connection.sendall(b"x")

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=answer, args=[listener.accept()[0]], daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/api/v3/depth"
        is_over.set()
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_a_body_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots_module, "_TOTAL_S", 0.1)
    monkeypatch.setattr(snapshots_module, "_STEP_S", PATIENCE_S)
    with server(HEAD + b"\r\n{", drips=True) as url:
        assert request(url).fault == "the answer took longer than 0.1 s"


def test_a_body_that_was_cut_is_no_order_book() -> None:
    with server(HEAD + b'\r\n{"lastUpdateId":9}', drips=False) as url:
        answer = request(url)
    assert (answer.body, answer.fault) == (b"", "the answer ended 999982 bytes early")


def test_headers_that_never_end_are_given_up_and_few_requests_wait_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots_module, "_TOTAL_S", 0.1)
    monkeypatch.setattr(snapshots_module, "_STEP_S", PATIENCE_S)

    async def work() -> None:
        with server(HEAD + b"X: ", drips=True) as url:
            asking = Snapshots(url, lambda _: None)
            faults = [(await asking._request(url)).fault for _ in range(5)]
        assert faults == ["no whole answer came in 0.1 s"] * 4 + ["4 earlier requests still wait for an answer"]
        while asking._waiting:  # noqa: ASYNC110 - until the threads have ended
            await asyncio.sleep(0.01)
        monkeypatch.setattr(snapshots_module, "_TOTAL_S", PATIENCE_S)
        assert "refused" in (await asking._request(url)).fault

    asyncio.run(work())


def test_without_free_threads_a_request_has_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def work() -> None:
        asking = Snapshots("http://127.0.0.1:1", lambda _: None)
        answer = await asking._request("http://127.0.0.1:1")
        assert answer.fault.startswith("thread blackbox-snapshot: can't start new thread")
        assert asking._waiting == 0

    monkeypatch.setattr(threading.Thread, "start", fail)
    asyncio.run(work())
