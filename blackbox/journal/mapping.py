"""A file in memory: read-only, without a descriptor kept open, and its pages can be given back."""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from pathlib import Path

import numpy
from numpy.typing import NDArray

from blackbox.foreign import foreign_array

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_FAILED = ctypes.c_void_p(-1).value
_PAGE = mmap.PAGESIZE


class Mapping:
    """All of a file as it is now, mapped until the last array of it is gone.

    Attributes: `address` (0: the file is empty), `size` bytes. Python's own `mmap` would hold one descriptor per file,
    and a day has hundreds of segments.
    """

    def __init__(self, path: Path) -> None:
        """Map it. Raises OSError."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.size = os.fstat(fd).st_size
            self.address = 0
            if self.size:
                place = _libc.mmap(None, self.size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
                if place == _FAILED:
                    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
                self.address = place
                weakref.finalize(self, _libc.munmap, place, self.size).atexit = False
        finally:
            os.close(fd)

    def array(self) -> NDArray[numpy.uint8]:
        """All bytes, read-only; keeps the mapping."""
        return foreign_array(self, self.address, self.size) if self.size else numpy.empty(0, numpy.uint8)

    def release(self, start: int, stop: int) -> None:
        """Give the whole pages of bytes `[start, stop)` back; who reads them again gets them from the file."""
        first, last = start // _PAGE * _PAGE, stop // _PAGE * _PAGE
        if last > first:
            _libc.madvise(self.address + first, last - first, mmap.MADV_DONTNEED)
