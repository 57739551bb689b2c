"""Delay Ctrl-C while code runs that must not be interrupted."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the functions under `signal`, without its enums: 40 times faster
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final, NoReturn

_IMPORT: Final = "<frozen importlib._bootstrap>"


def raise_behind_imports(_number: int, frame: FrameType | None) -> None:
    """Handle SIGINT: raise KeyboardInterrupt; during an import, after the line that imports.

    Inside an import it is not safe: some extension modules print or lose the exception.
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
    raise KeyboardInterrupt  # also ends tracing


def _trace_nothing(_frame: FrameType, _event: str, _argument: object) -> None:
    """Trace no new frame."""


_RAISING: Final = (signal.default_int_handler, raise_behind_imports)


@contextmanager
def interrupts_held(notify: Callable[[], None] | None = None) -> Iterator[list[int]]:
    """In the main thread, delay the KeyboardInterrupt of Ctrl-C until the block has ended.

    Yields a list that is empty until Ctrl-C is pressed. `notify` is called at that moment and must not raise.
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
        if came:  # also if the block raised, whose error becomes the context
            handler(came[0], sys._getframe())
