"""Memory-map a file read-only, without an open descriptor; its pages can be released.

The file may shrink while it is mapped: a starting recorder cuts torn tails, and users overwrite files. Lost bytes are
read as zeros and reported by `Mapping.lost`.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import weakref
from pathlib import Path

import numpy
from numpy.typing import NDArray

from blackbox.native.memory.arrays import foreign_array
from blackbox.native.memory.lost_pages import LostPages
from blackbox.regular_file import open_regular

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_FAILED = ctypes.c_void_p(-1).value
_LARGE_PAGE = 2 << 20
_MAP_FIXED = 0x10
_PROT_NONE = 0


def _map(path: Path, address: int | None, size: int, access: int, flags: int, fd: int) -> int:
    mapped = _libc.mmap(address, size, access, flags, fd, 0)
    if mapped == _FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
    return int(mapped)


def _unmap(pages: LostPages, address: int, size: int) -> None:
    pages.forget()
    _libc.munmap(address, size)


class Mapping:
    """A whole file, mapped until the last array of it is freed.

    Attributes: `address` (0: the file is empty), `size` in bytes. Python's own `mmap` would hold one descriptor per
    file, and a day has hundreds of segments. The address is aligned to a large page, so that file systems with large
    pages map them whole, which avoids nearly all page faults.
    """

    def __init__(self, path: Path) -> None:
        """Map the file. Raises OSError."""
        fd, self.size = open_regular(path)
        try:
            self.address = 0
            self._path, self._file = path, os.fstat(fd)
            self._pages: LostPages | None = None
            if self.size:
                self.address = self._map_aligned(path, fd)
        finally:
            os.close(fd)

    def _map_aligned(self, path: Path, fd: int) -> int:
        size = -(-self.size // mmap.PAGESIZE) * mmap.PAGESIZE
        reserved = _map(path, None, size + _LARGE_PAGE, _PROT_NONE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
        address = -(-reserved // _LARGE_PAGE) * _LARGE_PAGE
        before = address - reserved
        if before:
            _libc.munmap(reserved, before)
        _libc.munmap(address + size, _LARGE_PAGE - before)
        try:
            _map(path, address, self.size, mmap.PROT_READ, mmap.MAP_SHARED | _MAP_FIXED, fd)
        except OSError:
            _libc.munmap(address, size)
            raise
        self._pages = LostPages(address, size)
        weakref.finalize(self, _unmap, self._pages, address, size).atexit = False
        return address

    def lost(self) -> str:
        """Return what was lost of the file since it was mapped, as far as detected; empty if nothing."""
        try:
            now = self._path.stat()
        except OSError:
            now = self._file  # a deleted file is still mapped, and one that was replaced
        if os.path.samestat(now, self._file) and now.st_size < self.size:
            return f"the file shrank to {now.st_size} bytes while it was read"
        pages = self._pages.count if self._pages is not None else 0
        return f"{pages} pages were lost while they were read" if pages else ""

    def array(self) -> NDArray[numpy.uint8]:
        """Return all bytes, read-only. The array keeps the mapping alive."""
        return foreign_array(self, self.address, self.size) if self.size else numpy.empty(0, numpy.uint8)

    def expect(self, *, read_through: bool) -> None:
        """Advise Linux whether most of the file will be read. If so, it is read in large pages where possible."""
        if sys.platform == "linux":
            _libc.madvise(self.address, self.size, mmap.MADV_HUGEPAGE if read_through else mmap.MADV_NOHUGEPAGE)

    def release(self, start: int, stop: int) -> None:
        """Release the pages of bytes `[start, stop)`, rounded down to large pages. They can still be read again.

        With `stop` at the end, the last page is included.
        """
        first, last = start // _LARGE_PAGE * _LARGE_PAGE, stop // _LARGE_PAGE * _LARGE_PAGE
        if stop >= self.size:
            last = self.size
        if last > first:
            _libc.madvise(self.address + first, last - first, mmap.MADV_DONTNEED)
