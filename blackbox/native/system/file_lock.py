"""A lock file that one process owns at a time."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import threading
from pathlib import Path
from typing import Final

_here: dict[tuple[int, int], int] = {}
"""PID of the owner of each lock file, by device and inode. A forked child inherits its parent's entries."""
_changes = threading.Lock()
os.register_at_fork(after_in_child=_changes._at_fork_reinit)  # type: ignore[attr-defined]  # no public name


_FLOCK: Final = struct.Struct("@hhqqi4x")
"""`struct flock` of 64-bit Linux: type, whence, start, length, PID."""


class OwnedError(Exception):
    """Another process owns the file; the message names it."""


class FileLock:
    """Ownership of a file until `close`; the system releases it when the process dies.

    It is a POSIX lock (`lockf`), which forked children do not inherit: the parent may be killed before them. POSIX
    locks do not exclude threads of the same process; `_here` does.
    """

    def __init__(self, path: Path) -> None:
        """Take the lock. Raises OwnedError if another process, or this one, owns it; OSError."""
        with _changes:  # a second close would release the lock of another owner in this process
            self._take(path)

    def _take(self, path: Path) -> None:
        me = os.getpid()
        try:
            found = path.stat()
            if _here.get((found.st_dev, found.st_ino)) == me:
                raise OwnedError(f"process {me}")
        except FileNotFoundError:
            pass
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, b"process %d\n" % me, 0)
            made = os.fstat(self._fd)
            self._place = made.st_dev, made.st_ino
            _here[self._place] = me
        except BaseException as error:
            owner = os.pread(self._fd, 64, 0).decode(errors="replace").strip() or "another process"
            os.close(self._fd)
            if isinstance(error, OSError):
                if error.errno in (errno.EAGAIN, errno.EACCES):
                    raise OwnedError(owner) from None
                raise OSError(error.errno, os.strerror(error.errno or 0), str(path)) from error
            raise

    def close(self) -> None:
        """Release the lock; in a forked child only close the file."""
        with _changes:
            if _here.get(self._place) == os.getpid():
                del _here[self._place]
                os.ftruncate(self._fd, 0)
            os.close(self._fd)


def owner_of(path: Path) -> str | None:
    """Return who owns a lock file, such as "process 17"; None if no process does. Takes no lock. Raises OSError."""
    with _changes:  # closing the file would release a lock that another thread takes meanwhile
        try:
            found = path.stat()
            owner = _here.get((found.st_dev, found.st_ino))
            if owner == os.getpid():  # to open and close the file would release this process's lock
                return f"process {owner}"
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            kind, *_, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, asked))
        finally:
            os.close(fd)
    return None if kind == fcntl.F_UNLCK else f"process {pid}"
