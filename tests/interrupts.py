"""Ctrl-C that would not wake the main thread: it arrives just before a wait, or in another thread."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Final

import pytest

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
