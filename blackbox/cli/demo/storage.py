"""The directory of the demo's recording: its free space, and the size of the recording."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from blackbox.archive.files.day import session_date
from blackbox.archive.recording import Recording
from blackbox.cli.demo.session import SessionSummary
from blackbox.errors import JournalError
from blackbox.feed.feed import Feed

_COLUMN_BYTES = 20
"""Bytes of a message in addition to its payload: time, topic, offset, and its share of headers and indexes."""
_SLACK_BYTES = 64 << 20


class Storage:
    """A directory for one recording of the demo's feed."""

    def __init__(self, directory: Path, feed: Feed) -> None:
        """Raise JournalError if the directory already holds a recording of today, which this one would extend."""
        self.directory = directory
        self._days = directory / feed.name
        day = self._days / session_date(feed, time.time_ns()).isoformat()
        if day.exists():
            raise JournalError(f"{day} already holds a recording: choose another directory, or remove it")
        self._before = set(self._days.glob("*"))

    def check_room(self, session: SessionSummary) -> None:
        """Raise JournalError if the disk has too little space for the session."""
        needed = session.payload_bytes + _COLUMN_BYTES * session.messages + _SLACK_BYTES
        there = next(path for path in (self.directory, *self.directory.absolute().parents) if path.exists())
        free = shutil.disk_usage(there).free
        if free < needed:
            raise JournalError(
                f"{self.directory}: recording {session.messages:,} messages takes some {needed / 1e6:,.0f} MB, but "
                f"only {free / 1e6:,.0f} MB are free: choose another directory by --out, or a lower --count"
            )

    def days(self) -> list[Path]:
        """Return the recorded days' directories: one, or two around midnight."""
        return sorted(path for path in self._days.glob("*-*-*") if path not in self._before)

    def stored_bytes(self) -> int:
        """Return the size of these directories."""
        return sum(path.stat().st_size for day in self.days() for path in day.rglob("*") if path.is_file())

    def seconds(self) -> float:
        """Return the seconds from the arrival of the first block until the last one was written."""
        ranges = [Recording.open(day).time_range("ts_recv") for day in self.days()]
        written = (path.stat().st_mtime_ns for day in self.days() for path in day.rglob("*.journal"))
        # The system rounds the time of a write down by up to 10 ms.
        return (max(*written, *(last for _, last in ranges)) - min(first for first, _ in ranges)) / 1e9


@contextmanager
def open_storage(directory: Path | None, feed: Feed) -> Iterator[Storage]:
    """Use a directory, which is kept; or a temporary directory, which is always removed at the end."""
    if directory is not None:
        yield Storage(directory, feed)
        return
    with tempfile.TemporaryDirectory(prefix="blackbox-demo-", ignore_cleanup_errors=True) as name:
        yield Storage(Path(name), feed)
