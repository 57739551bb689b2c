"""A thread that has files on the disk, so that nobody else waits for that."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from blackbox.native.limits import start_thread


class FileSync:
    """Syncs the same files again and again, in a thread of its own, from here to `close`. Raises LimitError."""

    def __init__(self, *paths: Path) -> None:
        """The files need not be there before `begin`."""
        self._paths = paths
        self._wanted, self._done = threading.Semaphore(0), threading.Event()
        self._done.set()
        self._error: OSError | None = None
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="blackbox-sync", daemon=True)
        start_thread(self._thread)

    def begin(self) -> None:
        """Begin to sync what is written by now, once `is_done`."""
        self._done.clear()
        self._wanted.release()

    def is_done(self) -> bool:
        """Whether what was begun is on the disk. Raises OSError when that was refused."""
        if self._error is not None:
            raise self._error
        return self._done.is_set()

    def close(self) -> None:
        """End."""
        self._is_over = True
        self._wanted.release()
        self._thread.join()

    def _run(self) -> None:
        while self._wanted.acquire() and not self._is_over:
            try:
                for path in self._paths:
                    with path.open("rb") as file:
                        os.fdatasync(file.fileno())
            except OSError as error:
                self._error = error
            self._done.set()
