"""Ctrl-C: a command is ended in order; before and behind one, when nothing is open, the process ends at once.

KeyboardInterrupt in the midst of an import is not safe: some extension modules print it as an error of their own.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

INTERRUPTED: Final = 128 + signal.SIGINT
TEXT: Final = "interrupted"


def _end(_number: int, _frame: FrameType | None) -> None:
    os.write(2, f"{TEXT}\n".encode())
    os._exit(INTERRUPTED)


def end_at_once() -> None:
    """Let Ctrl-C end the process, with one line, unless it is ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


@contextmanager
def raised() -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt while the block runs, unless it is ignored."""
    before = signal.getsignal(signal.SIGINT)
    if before is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        if before is _end:
            signal.signal(signal.SIGINT, _end)
