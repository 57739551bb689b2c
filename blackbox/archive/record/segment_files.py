"""The open files of a segment that is being written."""

from __future__ import annotations

import errno
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from blackbox.archive.files.day import index_path, segment_path, sync_directory
from blackbox.archive.files.format import INDEX_MAGIC, SEGMENT_MAGIC
from blackbox.archive.record.crash_recovery import file_head, remove_empty
from blackbox.native.system.posix import sync_data

_NOTHING_FD: Final = -1


class SegmentFiles:
    """The open files of a segment.

    Attributes: `synced_writes`, value of `JournalState.writes` when the last sync began, -1 before; `sync_begun`, bytes
    that the system has been asked to write; `is_noted`, True if `closed.json` counts the segment.
    """

    def __init__(self, day: Path, slice_id: int, number: int) -> None:
        """Create a segment and its index. Raises OSError, leaving neither."""
        self.day, self.number, self.path = day, number, segment_path(day, slice_id, number)
        self.fd = self.index_fd = _NOTHING_FD
        self.synced_writes, self.sync_begun, self.is_noted = -1, 0, False
        created_ns = self.created_ns = time.time_ns()
        made: list[Path] = []
        try:
            # The segment first, so that a recorder killed in between leaves no index without one.
            for name, magic, how in (("fd", SEGMENT_MAGIC, os.O_EXCL), ("index_fd", INDEX_MAGIC, os.O_TRUNC)):
                path = self.path if name == "fd" else index_path(self.path)
                setattr(self, name, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | how, 0o644))
                made.append(path)
                head = file_head(magic, slice_id, number, created_ns)
                if os.write(getattr(self, name), head) != len(head):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            sync_data(self.fd)  # a segment with a name has its head, even after a power loss
            sync_directory(self.path.parent)
        except BaseException as error:
            self.close()
            for path in made:
                path.unlink(missing_ok=True)
            if isinstance(error, OSError) and error.filename is None:
                raise OSError(error.errno, os.strerror(error.errno or 0), str(self.path)) from error
            raise

    def sync(self) -> None:
        """Sync the segment. Raises OSError naming it."""
        try:
            sync_data(self.fd)
        except OSError as error:
            raise OSError(error.errno, os.strerror(error.errno or 0), str(self.path)) from error

    @property
    def is_there(self) -> bool:
        """True if the segment still has its name. A file without a name is lost when it is closed."""
        try:
            return os.path.samestat(self.path.stat(), os.fstat(self.fd))
        except OSError:
            return False

    def close(self) -> None:
        """Close both files. An empty segment is removed."""
        if self.fd != _NOTHING_FD and self.is_there:
            with suppress(OSError):  # it keeps its reserved space
                os.ftruncate(self.fd, os.fstat(self.fd).st_size)
            with suppress(OSError):  # the next recorder removes the empty segment
                remove_empty(self.path)
        for name in ("fd", "index_fd"):
            if getattr(self, name) != _NOTHING_FD:
                os.close(getattr(self, name))
                setattr(self, name, _NOTHING_FD)
