"""Signals while a subscriber runs in the main thread: the first one stops it, a further one terminates it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


def stop_signals() -> tuple[signal.Signals, ...]:
    """Return the stopping signals: SIGINT, SIGTERM, and SIGHUP unless it is ignored, as under nohup."""
    hung_up = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
    return (signal.SIGINT, signal.SIGTERM, *hung_up)


@contextmanager
def stopping_at_signals(stop: Callable[[int], None], terminate: Callable[[], None]) -> Iterator[set[int]]:
    """Call `stop` with the first signal, `terminate` for each further one; yield the set of received signals.

    Only in the main thread: elsewhere signals are not handled.
    """
    came: set[int] = set()
    if threading.current_thread() is not threading.main_thread():
        yield came
        return

    def handle(number: int, _frame: FrameType | None) -> None:
        is_first = not came
        came.add(number)  # first: another one may come while `stop` waits
        stop(number) if is_first else terminate()

    before = {number: signal.signal(number, handle) for number in stop_signals()}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: not set by Python
