"""Start writing dirty pages of a file to the disk early, on Linux."""

from __future__ import annotations

import ctypes
from typing import Any, Final

_SYNC_FILE_RANGE_WRITE: Final = 2
"""SYNC_FILE_RANGE_WRITE in linux/fs.h."""


def _call() -> Any:
    call = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if call is not None:
        call.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return call


_sync_file_range: Final = _call()


def begin_writing(fd: int, start: int, size: int) -> None:
    """Start writing `size` bytes of a file to the disk. Makes nothing durable; errors are ignored."""
    if _sync_file_range is not None:
        _sync_file_range(fd, start, size, _SYNC_FILE_RANGE_WRITE)
