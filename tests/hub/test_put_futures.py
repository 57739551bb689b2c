"""Puts as futures: their condition is made late, and no thread that waits for one misses its result."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from pathlib import Path

import pytest

from blackbox import Hub, HubClient
from blackbox.block.position import Place
from blackbox.errors import HubError
from blackbox.services.hub.client.put_queue import Put
from tests.hub.hubs import hub_feed

PLACE = Place(0, 1, 2)


def new() -> Put:
    return Put(b"A.x", b"1", 0)


def test_a_put_calls_and_wakes_as_any_future() -> None:
    put, called = new(), list[Future[Place]]()
    assert not put.done()
    assert not put.cancel()
    assert put.running()
    put.add_done_callback(called.append)
    with pytest.raises(TimeoutError):
        put.result(0.0)
    threading.Timer(0.05, put.set_result, [PLACE]).start()
    assert wait([put], 60.0).done == {put}
    assert (put.result(), put.exception(), called) == (PLACE, None, [put])


def test_a_put_that_has_failed_needs_no_wait_and_raises_its_error() -> None:
    put, called, error = new(), list[Future[Place]](), HubError("refused")
    put.set_exception(error)
    put.add_done_callback(called.append)
    assert list(as_completed([put], 0.0)) == called == [put]
    assert put.exception() is error
    with pytest.raises(HubError, match="refused"):
        put.result()


def test_threads_that_begin_to_wait_while_results_arrive_get_all() -> None:
    puts = [new() for _ in range(2_000)]
    with ThreadPoolExecutor(4) as pool:
        waits = [pool.submit(lambda: [put.result(200) for put in puts]) for _ in range(2)]
        waits += [pool.submit(lambda: [put.result() for put in as_completed(puts, 60.0)]) for _ in range(2)]
        for put in puts:
            put.set_result(PLACE)
        assert [each.result() for each in waits] == [[PLACE] * len(puts)] * 4


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.put_soon(b"A.x", b"2"),
        lambda client: client.put(b"A.x", b"2"),
        lambda client: client.flush(),
        lambda client: client.published_count(),
    ],
    ids=["no room", "put", "flush", "question"],
)
def test_a_callback_of_a_put_may_not_wait_for_an_answer(tmp_path: Path, call: Callable[[HubClient], object]) -> None:
    raised = Future[BaseException]()
    with HubClient(hub_feed(slices=1), in_flight=1) as client:

        def called(_: Future[Place]) -> None:
            with pytest.raises(HubError) as error:
                call(client)
            raised.set_result(error.value)

        client.put_soon(b"A.x", b"1").add_done_callback(called)  # the hub is away, so it is not done yet
        with Hub(client.feed, tmp_path):
            assert "which this thread receives" in str(raised.result(200))


def test_a_callback_of_a_put_may_end_the_client(tmp_path: Path) -> None:
    ended = Future[None]()
    client = HubClient(hub_feed(slices=1)).start()

    def called(_: Future[Place]) -> None:
        client.end()
        ended.set_result(None)

    client.put_soon(b"A.x", b"1").add_done_callback(called)
    with Hub(client.feed, tmp_path):
        ended.result(200)
