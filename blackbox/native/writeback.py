"""Have the system write its page cache to the disk early, where it can be asked to: on Linux."""

from __future__ import annotations

import ctypes
from typing import Any, Final

_SYNC_FILE_RANGE_WRITE: Final = 2
"""As linux/fs.h has it."""


def _call() -> Any:
    call = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if call is not None:
        call.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return call


_sync_file_range: Final = _call()


def begin_writing(fd: int, start: int, size: int) -> None:
    """Have the disk begin to write so many bytes of a file. This makes nothing durable, and what fails is no error."""
    if _sync_file_range is not None:
        _sync_file_range(fd, start, size, _SYNC_FILE_RANGE_WRITE)
