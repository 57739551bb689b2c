"""Puts awaited one by one: the waiting thread owns the socket, and the end of its wait ends no other put."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType

import pytest

from blackbox import Feed, Hub, HubClient
from blackbox.errors import HubError, NotStoredError
from blackbox.services.hub.client.put_sender import Sender
from blackbox.testing import wait_until
from tests.hub.hubs import hub_feed, published


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGUSR1)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def begun(feed: Feed, directory: Path) -> HubClient:
    """Return a client that has put a message to a hub that has ended since; no put is pending."""
    client = HubClient(feed)
    with Hub(feed, directory):
        client.start()
        client.put(b"A.x", b"0")
        wait_until(lambda: not client._sender._driver.is_there)
    return client


def once_it_waits(client: HubClient, do: Callable[[], None]) -> threading.Thread:
    """Call a function in another thread once a put is pending."""

    def run() -> None:
        wait_until(lambda: len(client._sender._requests) > 0)
        do()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def press(number: int) -> Callable[[], None]:
    main = threading.main_thread().ident
    assert main is not None
    return lambda: signal.pthread_kill(main, number)


def payloads(directory: Path, feed: Feed) -> list[bytes | None]:
    return [payload for *_, payload in published(directory, feed)]


def test_ctrl_c_ends_the_wait_at_once_and_the_put_stays_pending(tmp_path: Path) -> None:
    feed = hub_feed()
    with begun(feed, tmp_path) as client:
        before = time.monotonic()
        pressed = once_it_waits(client, press(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            client.put(b"A.x", b"1", timeout=200)
        assert time.monotonic() - before < 30.0
        pressed.join()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        with Hub(feed, tmp_path):
            client.put(b"A.x", b"2")
    assert payloads(tmp_path, feed) == [b"0", b"1", b"2"]


def test_a_put_that_timed_out_stays_pending(tmp_path: Path) -> None:
    feed = hub_feed()
    with begun(feed, tmp_path) as client:
        for timeout in (0.0, 0.2):
            with pytest.raises(NotStoredError, match="did not answer in time that it has the put of b'A.x'"):
                client.put(b"A.x", b"%g" % timeout, timeout=timeout)
        with Hub(feed, tmp_path):
            client.flush()
    assert payloads(tmp_path, feed) == [b"0", b"0", b"0.2"]


@pytest.mark.parametrize("by_signal", [False, True])
def test_closing_a_client_ends_its_waiting_put(tmp_path: Path, by_signal: bool) -> None:
    client = begun(hub_feed(), tmp_path)
    signal.signal(signal.SIGUSR1, lambda *_: client.end())
    closing = once_it_waits(client, press(signal.SIGUSR1) if by_signal else client.end)
    with pytest.raises(HubError, match="was closed before the hub had answered"):
        client.put(b"A.x", b"1", timeout=200)
    closing.join()


@pytest.mark.own_process
def test_a_forked_process_does_not_use_its_parent_s_socket(tmp_path: Path) -> None:
    feed = hub_feed()
    with Hub(feed, tmp_path), HubClient(feed) as client:
        client.put(b"A.x", b"0")
        wait_until(lambda: not client._sender._driver.is_there)
        child = os.fork()
        if child == 0:
            try:
                client.put(b"A.x", b"1", timeout=0.1)
            except NotStoredError:
                os._exit(7)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert client.put(b"A.x", b"2").sequence == 1


def test_a_put_left_without_a_driver_makes_room_for_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ctrl_c(*_: object) -> None:
        raise KeyboardInterrupt

    feed = hub_feed()
    with Hub(feed, tmp_path), HubClient(feed, in_flight=1) as client:
        client.put(b"A.x", b"0")
        wait_until(lambda: not client._sender._driver.is_there)
        with monkeypatch.context() as patch:
            patch.setattr(Sender, "_stand_in", ctrl_c)  # Ctrl-C just before the real call
            with pytest.raises(KeyboardInterrupt):
                client.put(b"A.x", b"1")
        assert client.put(b"A.x", b"2").sequence == 2
    assert payloads(tmp_path, feed) == [b"0", b"1", b"2"]


def test_abandoned_questions_are_not_asked_again(tmp_path: Path) -> None:
    client = begun(hub_feed(), tmp_path)
    for _ in range(5):
        with pytest.raises(NotStoredError):
            client.published_count(0.01)
    assert not client._sender._questions
    client.end()


def test_an_error_raised_by_a_signal_during_a_put_ends_the_client(tmp_path: Path) -> None:
    def fail(_number: int, _frame: FrameType | None) -> None:
        raise ZeroDivisionError("of the signal")

    signal.signal(signal.SIGUSR1, fail)
    client = begun(hub_feed(), tmp_path)
    pressed = once_it_waits(client, press(signal.SIGUSR1))
    with pytest.raises(ZeroDivisionError, match="of the signal"):
        client.put(b"A.x", b"1", timeout=200)
    pressed.join()
    wait_until(lambda: client._sender._failure is not None)
    with pytest.raises(HubError, match="failed: ZeroDivisionError"):
        client.put(b"A.x", b"2")
    client.end()


def test_concurrent_puts_are_stored_once_in_the_order_of_their_thread(tmp_path: Path) -> None:
    feed, threads, count = hub_feed(slices=1), 5, 200

    def put(client: HubClient, thread: int) -> None:
        for number in range(count):
            if thread == 0:
                client.put_soon(b"A.0", b"%d" % number)
            else:
                client.put(b"A.%d" % thread, b"%d" % number)

    with Hub(feed, tmp_path), HubClient(feed) as client, ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(put, client, thread) for thread in range(threads)]:
            done.result(200)
        client.flush()
    found = published(tmp_path, feed)
    assert len(found) == threads * count
    for thread in range(threads):
        mine = [payload for *_, topic, payload in found if topic == b"A.%d" % thread]
        assert mine == [b"%d" % number for number in range(count)]
