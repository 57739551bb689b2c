"""Ctrl-C while something runs that must not be interrupted midway."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # what `signal` wraps: its calls make enums, and take 40 times as long
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

_LOOK_AGAIN_S: Final = 0.02


def raise_behind_imports(_number: int, frame: FrameType | None) -> None:
    """Handle SIGINT: raise KeyboardInterrupt once the main thread imports nothing; until then look again at SIGALRM.

    Within an import it is not safe: some extension modules print it as an error of their own, or lose it.
    """
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            signal.signal(signal.SIGALRM, raise_behind_imports)
            signal.setitimer(signal.ITIMER_REAL, _LOOK_AGAIN_S)
            return
        frame = frame.f_back
    raise KeyboardInterrupt


_RAISING: Final = (signal.default_int_handler, raise_behind_imports)


@contextmanager
def interrupts_held(notify: Callable[[], None] | None = None) -> Iterator[list[int]]:
    """In the main thread, let Ctrl-C raise KeyboardInterrupt behind the block, where it would raise that within.

    Yields a list that is empty until it has come; `notify` is called when it comes, and must raise nothing.
    """
    is_main = threading.current_thread() is threading.main_thread()
    held = {
        number: handler
        for number in (signal.SIGINT, signal.SIGALRM)
        for handler in _RAISING
        if is_main and _signal.getsignal(number) is handler
    }
    came: list[int] = []

    def hold(number: int, _frame: FrameType | None) -> None:
        came.append(number)
        if notify is not None:
            notify()

    for number in held:
        _signal.signal(number, hold)
    try:
        yield came
    finally:
        for number, handler in held.items():
            _signal.signal(number, handler)
        if came:  # also where the block raised: that is its context
            held[signal.Signals(came[0])](came[0], sys._getframe())
