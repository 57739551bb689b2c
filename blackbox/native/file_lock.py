"""A file that one process owns at a time."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


class OwnedError(Exception):
    """Another process owns it; the text says which."""


class FileLock:
    """Ownership of a file: held while open, and let go by the system when its process dies."""

    def __init__(self, path: Path) -> None:
        """Take it. Raises OwnedError when another process has it, OSError."""
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, b"process %d\n" % os.getpid(), 0)
        except BlockingIOError:
            owner = os.pread(self._fd, 64, 0).decode(errors="replace").strip() or "another process"
            os.close(self._fd)
            raise OwnedError(owner) from None
        except BaseException as error:
            os.close(self._fd)
            if isinstance(error, OSError):
                raise OSError(error.errno, os.strerror(error.errno or 0), str(path)) from error
            raise

    def close(self) -> None:
        """Let go."""
        os.ftruncate(self._fd, 0)
        fcntl.flock(self._fd, fcntl.LOCK_UN)  # closing alone would not do while a forked process has the file too
        os.close(self._fd)
