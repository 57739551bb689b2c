"""Write whole days into a feed's directory. A day is renamed into place once it is complete, checked and durable.

Until then it is in `<feed>/importing/<date>.<random>/`, where readers do not look for recordings. Each import removes
leftovers of imports that were killed.
"""

from __future__ import annotations

import datetime
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from blackbox.archive.files.day import Lock, as_journal_error, make_directory, sync_directory
from blackbox.errors import JournalError

if TYPE_CHECKING:
    from blackbox.archive.importing.column_writer import Written
    from blackbox.archive.recording import Recording

log = logging.getLogger("blackbox")

IMPORTING: Final = "importing"
_NEW: Final = "new"
_OLD: Final = "old"


class FreshDays:
    """Ownership of a feed's imports, in a `with` block. A recorder may record at the same time.

    Attributes: `left`, the dates of unfinished days of a killed import, which were removed.
    """

    def __init__(self, directory: Path, *, replace: bool) -> None:
        """Lock the directory. `replace` allows existing days to be replaced, so no recorder may record.

        Raises JournalError if another process owns it or it cannot be written.
        """
        self.directory = directory
        place = directory / IMPORTING
        self._locks: list[Lock] = []
        try:
            make_directory(directory)
            self._locks.append(Lock(directory, importing=True))
            if replace:
                self._locks.append(Lock(directory))
            place.mkdir(exist_ok=True)
            left = sorted(place.iterdir())
            self.left = [path.name.split(".")[0] for path in left]
            for path in left:
                _clear(path, directory)
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise as_journal_error(error, f"{directory} cannot be written") from error
            raise
        for date in self.left:
            log.warning("%s: removed an unfinished import of %s", place, date)

    def close(self) -> None:
        """Release the directory."""
        if self._locks:
            with suppress(OSError):  # it is not empty or does not exist
                (self.directory / IMPORTING).rmdir()
        for lock in self._locks:
            lock.close()
        self._locks.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check_is_new(directory: Path, date: datetime.date, *, replace: bool) -> None:
    """Raise JournalError if the day exists and must not be replaced."""
    day = directory / date.isoformat()
    if not replace and (day.exists() or day.is_symlink()):
        raise JournalError(f"{day} exists, expected a day that is not there yet, or replace=True (--replace)")


def check_whole(recording: Recording, written: Written, progress: Callable[[int], object] | None = None) -> None:
    """Read the whole day. Raise JournalError unless it has the messages written and lacks those skipped.

    `progress`: as in `Recording.examine`; an exception that it raises ends the check.
    """
    damage, gaps, begins = recording.examine(progress)
    found = recording.summary().messages
    missing = sum(gap.count for gap in gaps)
    if damage or begins or (found, missing) != (written.messages, written.missing):
        wrong = damage or begins or f"{missing} missing, expected {written.missing}"
        raise JournalError(f"the day had {found} messages, expected {written.messages}: {wrong!s:.500}; it was removed")


@contextmanager
def fresh_day(directory: Path, date: datetime.date, *, replace: bool) -> Iterator[Path]:
    """Yield an empty directory for a day. It becomes the day if the block ends without an error.

    Requires `FreshDays`. Raises JournalError if the day exists or cannot be written.
    """
    check_is_new(directory, date, replace=replace)
    day = directory / date.isoformat()
    try:
        place = Path(tempfile.mkdtemp(prefix=f"{date}.", dir=directory / IMPORTING))
        try:
            fresh = place / _NEW
            fresh.mkdir()
            yield fresh
            check_is_new(directory, date, replace=replace)
            if day.exists():
                day.rename(place / _OLD)
            fresh.rename(day)
            sync_directory(directory)
        finally:
            _clear(place, directory)
    except OSError as error:
        raise as_journal_error(error, f"{day} cannot be written") from error


def _clear(place: Path, directory: Path) -> None:
    """Remove unfinished and replaced days. A day whose replacement failed gets its name back."""
    day = directory / place.name.split(".")[0]
    if (place / _OLD).exists() and not day.exists():
        (place / _OLD).rename(day)
        sync_directory(directory)
    with suppress(FileNotFoundError):
        shutil.rmtree(place)
