"""Puts as futures: their condition is made late, and no thread that waits for one misses its result."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait

import pytest

from blackbox.block.position import Place
from blackbox.errors import HubError
from blackbox.services.hub.client.put_queue import Put

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
    assert wait([put], 30.0).done == {put}
    assert (put.result(), put.exception(), called) == (PLACE, None, [put])


def test_a_put_that_is_done_needs_no_wait() -> None:
    put, called = new(), list[Future[Place]]()
    put.set_result(PLACE)
    put.add_done_callback(called.append)
    assert [each.result() for each in as_completed([put], 0.0)] == [PLACE]
    assert (put.done(), called) == (True, [put])


def test_an_error_is_raised_by_each_way_to_wait() -> None:
    put, error = new(), HubError("refused")
    put.set_exception(error)
    assert put.exception() is error
    with pytest.raises(HubError, match="refused"):
        put.result()


def test_a_task_awaits_a_put() -> None:
    async def awaited() -> Place:
        put = new()
        threading.Timer(0.05, put.set_result, [PLACE]).start()
        return await asyncio.wrap_future(put)

    assert asyncio.run(awaited()) == PLACE


def test_threads_that_begin_to_wait_while_results_arrive_get_all() -> None:
    puts = [new() for _ in range(2_000)]
    with ThreadPoolExecutor(4) as pool:
        waits = [pool.submit(lambda: [put.result(30.0) for put in puts]) for _ in range(2)]
        waits += [pool.submit(lambda: [put.result() for put in as_completed(puts, 30.0)]) for _ in range(2)]
        for put in puts:
            put.set_result(PLACE)
        assert [each.result() for each in waits] == [[PLACE] * len(puts)] * 4
