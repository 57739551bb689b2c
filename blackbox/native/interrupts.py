"""Ctrl-C while something runs that must not be interrupted midway."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # what `signal` wraps: its calls make enums, and take 40 times as long
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final, NoReturn

_IMPORT: Final = "<frozen importlib._bootstrap>"


def raise_behind_imports(_number: int, frame: FrameType | None) -> None:
    """Handle SIGINT: raise KeyboardInterrupt, within an import once the line that imports has ended.

    Within an import it is not safe: some extension modules print it as an error of their own, or lose it.
    """
    importer = None
    while frame is not None:
        if frame.f_code.co_filename == _IMPORT:
            importer = frame.f_back
        frame = frame.f_back
    if importer is None:
        raise KeyboardInterrupt
    importer.f_trace = _interrupt  # called at the next line of this frame, or when it returns
    sys.settrace(_trace_nothing)


def _interrupt(_frame: FrameType, _event: str, _argument: object) -> NoReturn:
    raise KeyboardInterrupt  # which also ends tracing


def _trace_nothing(_frame: FrameType, _event: str, _argument: object) -> None:
    """Trace no frame that is new."""


_RAISING: Final = (signal.default_int_handler, raise_behind_imports)


@contextmanager
def interrupts_held(notify: Callable[[], None] | None = None) -> Iterator[list[int]]:
    """In the main thread, let Ctrl-C raise KeyboardInterrupt behind the block, where it would raise that within.

    Yields a list that is empty until it has come; `notify` is called when it comes, and must raise nothing.
    """
    came: list[int] = []
    is_main = threading.current_thread() is threading.main_thread()
    handler = _signal.getsignal(signal.SIGINT) if is_main else None
    if handler not in _RAISING:
        yield came
        return

    def hold(number: int, _frame: FrameType | None) -> None:
        came.append(number)
        if notify is not None:
            notify()

    _signal.signal(signal.SIGINT, hold)
    try:
        yield came
    finally:
        _signal.signal(signal.SIGINT, handler)
        if came:  # also where the block raised: that is its context
            handler(came[0], sys._getframe())
