"""Waits in short steps, so that Ctrl-C ends them.

Python runs signal handlers in the main thread, after the current call. A signal that arrives just before a wait, or
that the system delivers to another thread, does not interrupt that call, so a wait without a limit might never end. In
steps it ends within STEP_S; the event itself still ends it at once.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Collection, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from math import inf
from typing import Any, Final, TypeVar

T = TypeVar("T")

STEP_S: Final = 0.2
"""Longest single wait, in seconds."""


def step_of(left_s: float | None = None) -> float:
    """Return the next step of a wait in seconds, with `left_s` seconds left; None: no limit. Call it in a loop."""
    return STEP_S if left_s is None else max(0.0, min(STEP_S, left_s))


def is_done_in(future: Future[Any], timeout: float | None = None) -> bool:
    """Wait until a future is done, or for `timeout` seconds; return True if it is done."""
    until = inf if timeout is None else time.monotonic() + timeout
    while not future.done() and (left := until - time.monotonic()) > 0:
        with suppress(TimeoutError):
            future.exception(step_of(left))
    return future.done()


def result_of(future: Future[T]) -> T:
    """Wait without a limit for a future and return its result, or raise its error."""
    is_done_in(future)
    return future.result()


def as_done(futures: Collection[Future[T]]) -> Iterator[Future[T]]:
    """Yield futures as they complete, without a limit."""
    left = set(futures)
    while left:
        done, left = wait(left, STEP_S, FIRST_COMPLETED)
        yield from done


def take(items: queue.Queue[T]) -> T:
    """Remove and return the next item of a queue, waiting without a limit."""
    while True:
        with suppress(queue.Empty):
            return items.get(timeout=STEP_S)


def join(thread: threading.Thread) -> None:
    """Wait until a thread has ended, without a limit."""
    while thread.is_alive():
        thread.join(STEP_S)


def acquire(lock: threading.Lock, timeout: float) -> bool:
    """Acquire a lock within `timeout` seconds; return False on timeout."""
    until = time.monotonic() + timeout
    while not (is_held := lock.acquire(timeout=step_of(left := until - time.monotonic()))) and left > 0:
        pass
    return is_held
