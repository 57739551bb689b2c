"""Large requests of a put log: in two files beside it, filled in turn, as SQLite would copy each several times."""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path
from typing import Final

import numpy

from blackbox.archive.day import sync_directory
from blackbox.native.xxh3 import xxh3

LARGE_BYTES: Final = 16 << 10
"""Requests from here on are large."""
_FILL_BYTES: Final = 64 << 20
"""Of a file, when the other one's turn comes, as soon as nothing in that is needed any more."""


class LargeRequests:
    """Requests by their numbers in the put log; where each is stands in its table `large`, in the same transactions.

    Owns the files, in the thread of the put log. Raises OSError or sqlite3.Error.
    """

    def __init__(self, path: Path, sql: sqlite3.Connection) -> None:
        """Open the files beside `path`, or make them, and sync what a hub before has left there."""
        self._sql = sql
        paths = [path.with_name(f"{path.name}.{each}") for each in "ab"]
        for each in paths:
            each.touch()
        self._files = [each.open("r+b", buffering=0) for each in paths]
        sync_directory(path.parent)
        self._file = self._end = 0
        """Where the next one goes."""
        self._newest = [0, 0]
        """The last one in each file; 0: none is needed any more."""
        self._unsynced = {0, 1}
        self.sync()
        for number, file, start, size in sql.execute("SELECT number, file, start, size FROM large ORDER BY number"):
            self._newest[file] = number
            self._file, self._end = file, start + size

    def add(self, number: int, text: bytes) -> None:
        """Write one, into a place of which nothing is needed any more."""
        if not self._newest[self._file]:
            self._end = 0
        elif self._end >= _FILL_BYTES and not self._newest[1 - self._file]:
            self._file, self._end = 1 - self._file, 0
            if self._files[self._file].seek(0, os.SEEK_END) > _FILL_BYTES:
                self._files[self._file].truncate(_FILL_BYTES)
        file, start = self._file, self._end
        self._unsynced.add(file)
        if os.pwrite(self._files[file].fileno(), text, start) != len(text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._newest[file], self._end = number, start + len(text)
        self._sql.execute("INSERT INTO large VALUES (?, ?, ?, ?, ?)", (number, file, start, len(text), _checksum(text)))

    def read(self, number: int) -> bytes | None:
        """Return one; None: there is none, or it was damaged by a power cut."""
        row = self._sql.execute("SELECT file, start, size, checksum FROM large WHERE number = ?", (number,)).fetchone()
        if row is None:
            return None
        file, start, size, checksum = row
        text = os.pread(self._files[file].fileno(), size, start)
        return text if len(text) == size and _checksum(text) == checksum else None

    def drop(self, number: int) -> None:
        """Forget those up to a number; call `reuse` once that is committed."""
        self._sql.execute("DELETE FROM large WHERE number <= ?", (number,))

    def reuse(self, number: int) -> None:
        """Write over those up to a number from now on."""
        self._newest = [0 if newest <= number else newest for newest in self._newest]

    def sync(self) -> None:
        """Have all on the disk."""
        while self._unsynced:
            os.fdatasync(self._files[min(self._unsynced)].fileno())
            self._unsynced.remove(min(self._unsynced))

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            file.close()


def _checksum(text: bytes) -> int:
    data = numpy.frombuffer(text, numpy.uint8)
    return int(xxh3(data.ctypes.data, len(data))) >> 1
