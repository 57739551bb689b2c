"""Ctrl-C: a running command is ended cleanly; before and after it, when nothing is open, the process ends at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from blackbox.native.system.interrupts import raise_behind_imports

INTERRUPTED: Final = 128 + signal.SIGINT
TEXT: Final = "interrupted"


def _end(_number: int, _frame: FrameType | None) -> None:
    os.write(2, f"{TEXT}\n".encode())
    os._exit(INTERRUPTED)


def end_at_once() -> None:
    """Let Ctrl-C end the process with one line, unless it is ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


@contextmanager
def raised() -> Iterator[None]:
    """Let Ctrl-C, unless ignored, raise KeyboardInterrupt during the block; within an import, after the import."""
    if signal.getsignal(signal.SIGINT) is not _end:
        yield
        return
    signal.signal(signal.SIGINT, raise_behind_imports)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, _end)
