"""Open files by a path from a user: only regular files, which cannot block on a writer and have an end."""

from __future__ import annotations

import errno
import os
import stat
from typing import Final

_KINDS: Final = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_regular(path: str | os.PathLike[str]) -> tuple[int, int]:
    """Open a file for reading; return its descriptor and size. Raises OSError, also if it is not regular."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            kind = _KINDS.get(stat.S_IFMT(found.st_mode), "no file")
            raise OSError(errno.EINVAL, f"it is {kind}, expected a regular file", str(path))
    except BaseException:
        os.close(fd)
        raise
    return fd, found.st_size


def read_regular(path: str | os.PathLike[str], most_bytes: int) -> bytes:
    """Return all bytes of a file. Raises OSError, also if it is not regular or has more than `most_bytes`."""
    fd, size = open_regular(path)
    with os.fdopen(fd, "rb") as file:
        if size > most_bytes:
            raise OSError(errno.EFBIG, f"it has {size} bytes, expected at most {most_bytes}", str(path))
        return file.read(most_bytes)
