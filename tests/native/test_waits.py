"""Waits of the main thread: Ctrl-C ends them, their event ends them at once, and limits hold."""

from __future__ import annotations

import queue
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from types import FrameType
from typing import Final

import pytest

from blackbox.native.system import waits
from blackbox.native.system.waits import acquire, as_done, is_done_in, join, result_of, step_of, take
from blackbox.receive.stream import Stream
from blackbox.receive.stream_queue import StreamQueue
from blackbox.replay.clock import Clock, ManualClock
from blackbox.testing import wait_until

_LONG_S: Final = 20.0
"""Well above the time in which a wait notices a signal, and well below a test's time limit."""


def is_interrupted(wait: Callable[[], object], end: Callable[[], object]) -> bool:
    """Return True if Ctrl-C received by another thread ends `wait`. Otherwise call `end`, which must end it.

    Call it in the main thread.
    """
    is_over, has_waited_long = threading.Event(), threading.Event()
    main = threading.get_ident()

    def press() -> None:
        wait_until(lambda: is_over.is_set() or _is_within(sys._current_frames().get(main), wait), what="the wait")
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        if not is_over.wait(_LONG_S):
            has_waited_long.set()
            end()

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread = threading.Thread(target=press)
    try:
        with pytest.raises(KeyboardInterrupt):
            thread.start()
            wait()
            pytest.fail("the wait ended without Ctrl-C")
    finally:
        is_over.set()
        thread.join()
        signal.signal(signal.SIGINT, before)
    return not has_waited_long.is_set()


def _is_within(frame: FrameType | None, wait: Callable[[], object]) -> bool:
    """Return True if a thread is in a standard-library call made from `wait`."""
    if frame is None or frame.f_globals.get("__name__") not in ("threading", "queue", "concurrent.futures._base"):
        return False
    while frame is not None:
        if frame.f_code is wait.__code__:  # type: ignore[attr-defined]
            return True
        frame = frame.f_back
    return False


def stream() -> Stream:
    return Stream(StreamQueue(b"", 10, "wait"), False, lambda: None, lambda _stream: None)


def of_future() -> tuple[Callable[[], object], Callable[[], object]]:
    future: Future[int] = Future()
    return lambda: result_of(future), lambda: future.set_result(1)


def of_futures() -> tuple[Callable[[], object], Callable[[], object]]:
    future: Future[int] = Future()
    return lambda: list(as_done([future])), lambda: future.set_result(1)


def of_queue() -> tuple[Callable[[], object], Callable[[], object]]:
    items: queue.Queue[int] = queue.Queue()
    return lambda: take(items), lambda: items.put(1)


def of_thread() -> tuple[Callable[[], object], Callable[[], object]]:
    over = threading.Event()
    thread = threading.Thread(target=over.wait, daemon=True)
    thread.start()
    return lambda: join(thread), over.set


def of_stream() -> tuple[Callable[[], object], Callable[[], object]]:
    reading = stream()
    return lambda: list(reading), reading._queue.end


def of_get() -> tuple[Callable[[], object], Callable[[], object]]:
    reading = stream()
    return lambda: reading.get(1e6), reading._queue.end


def of_clock(clock: Clock, until_ns: int | None) -> tuple[Callable[[], object], Callable[[], object]]:
    over, changed = threading.Event(), threading.Condition()

    def wait() -> None:
        with changed:
            while not over.is_set():
                clock.wait(changed, until_ns)

    def end() -> None:
        with changed:
            over.set()
            changed.notify_all()

    return wait, end


WAITS: dict[str, Callable[[], tuple[Callable[[], object], Callable[[], object]]]] = {
    "future": of_future,
    "futures": of_futures,
    "queue": of_queue,
    "thread": of_thread,
    "stream": of_stream,
    "get of a stream": of_get,
    "clock": lambda: of_clock(Clock(), None),
    "clock with a time": lambda: of_clock(Clock(), 1 << 62),
    "clock moved by hand": lambda: of_clock(ManualClock(), 1),
}


@pytest.mark.parametrize("what", WAITS)
def test_ctrl_c_received_by_another_thread_ends_a_wait(what: str) -> None:
    assert is_interrupted(*WAITS[what]())


@pytest.mark.parametrize("left_s", [None, 0.0, -1.0, 1e-9, 1e9, float("inf")])
def test_a_step_is_short_and_never_exceeds_the_time_left(left_s: float | None) -> None:
    assert 0 <= step_of(left_s) <= waits.STEP_S
    assert left_s is None or step_of(left_s) <= max(0.0, left_s)


@pytest.mark.parametrize("timeout", [0.0, -1.0, 0.01])
def test_a_limit_ends_waits_for_futures_and_locks(timeout: float) -> None:
    assert not is_done_in(Future(), timeout)
    lock = threading.Lock()
    assert acquire(lock, timeout)
    assert not acquire(lock, timeout)


def test_the_error_of_a_future_is_raised_even_if_it_is_a_timeout() -> None:
    future: Future[int] = Future()
    future.set_exception(error := TimeoutError("its own"))
    assert is_done_in(future)
    with pytest.raises(TimeoutError) as raised:
        result_of(future)
    assert raised.value is error


def test_a_cancelled_future_is_done() -> None:
    future: Future[int] = Future()
    assert future.cancel()
    assert is_done_in(future)
    with pytest.raises(CancelledError):
        result_of(future)


def test_futures_are_yielded_once_each_as_they_complete() -> None:
    futures: list[Future[int]] = [Future() for _ in range(5)]
    futures[3].set_result(3)
    done = as_done(futures)
    assert next(done) is futures[3]
    futures[1].set_result(1)
    assert next(done) is futures[1]
    for number in (0, 2, 4):
        futures[number].set_result(number)
    assert sorted(each.result() for each in done) == [0, 2, 4]


def test_an_item_is_taken_at_once_and_an_unstarted_thread_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waits, "STEP_S", 1e6)  # waiting out a whole step would end the test
    items: queue.Queue[int] = queue.Queue()
    threading.Thread(target=items.put, args=(7,)).start()
    assert take(items) == 7
    future: Future[int] = Future()
    threading.Thread(target=future.set_result, args=(8,)).start()
    assert result_of(future) == 8
    join(threading.Thread())
