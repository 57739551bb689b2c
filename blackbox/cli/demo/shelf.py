"""Where the demo's recording lies while it is needed: is there room for it, how large did it get."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from blackbox.cli.demo.session import Prepared
from blackbox.errors import JournalError
from blackbox.feed import Feed
from blackbox.journal.day import session_date
from blackbox.recording import Recording

_COLUMN_BYTES = 20
"""Of a message beside its payload: time, topic, offset, and its share of heads and indexes."""
_SLACK_BYTES = 64 << 20


class Shelf:
    """A directory for one recording of the demo's feed."""

    def __init__(self, directory: Path, feed: Feed) -> None:
        """Raises JournalError when another recording is there already: this one would become a part of it."""
        self.directory = directory
        self._days = directory / feed.name
        day = self._days / session_date(feed, time.time_ns()).isoformat()
        if day.exists():
            raise JournalError(f"{day} holds a recording already: choose another directory, or remove it")
        self._before = set(self._days.glob("*"))

    def check_room(self, prepared: Prepared) -> None:
        """Raises JournalError when the session does not fit."""
        needed = prepared.payload_bytes + _COLUMN_BYTES * prepared.messages + _SLACK_BYTES
        there = next(path for path in (self.directory, *self.directory.absolute().parents) if path.exists())
        free = shutil.disk_usage(there).free
        if free < needed:
            raise JournalError(
                f"{self.directory}: recording {prepared.messages:,} messages takes some {needed / 1e6:,.0f} MB, but "
                f"only {free / 1e6:,.0f} MB are free: choose another directory by --recordings, or fewer --messages"
            )

    def days(self) -> list[Path]:
        """The directories of what was recorded: one, but around midnight."""
        return sorted(path for path in self._days.glob("*-*-*") if path not in self._before)

    def stored_bytes(self) -> int:
        """What they take on disk."""
        return sum(path.stat().st_size for day in self.days() for path in day.rglob("*") if path.is_file())

    def seconds(self) -> float:
        """From the first block's coming to the last one's being written."""
        ranges = [Recording.open(day).time_range("ts_recv") for day in self.days()]
        written = (path.stat().st_mtime_ns for day in self.days() for path in day.rglob("*.journal"))
        # The system notes when a file was written to the next 10 ms or so, back from now.
        return (max(*written, *(last for _, last in ranges)) - min(first for first, _ in ranges)) / 1e9


@contextmanager
def open_shelf(directory: Path | None, feed: Feed) -> Iterator[Shelf]:
    """A shelf in a directory, which stays; or in a temporary one, which is removed in the end, come what may."""
    if directory is not None:
        yield Shelf(directory, feed)
        return
    with tempfile.TemporaryDirectory(prefix="blackbox-demo-", ignore_cleanup_errors=True) as name:
        yield Shelf(Path(name), feed)
