"""Write whole days into a feed's directory: each gets its name when it is complete, was read again and is durable.

Until then it lies in `<feed>/importing/<date>.<random>/`, where nobody looks for recordings. What a process that was
killed has left there is removed by the next one.
"""

from __future__ import annotations

import datetime
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from blackbox.archive.day import Lock, as_journal_error, make_directory, sync_directory
from blackbox.errors import JournalError

if TYPE_CHECKING:
    from blackbox.archive.column_writer import Written
    from blackbox.archive.recording import Recording

log = logging.getLogger("blackbox")

IMPORTING: Final = "importing"
_NEW: Final = "new"
_OLD: Final = "old"


class FreshDays:
    """Ownership of what is imported into a feed's directory; in a `with` block. Beside it a recorder may record.

    Attributes: `left`, the dates of what a killed process had left unfinished: it is removed.
    """

    def __init__(self, directory: Path, *, replace: bool) -> None:
        """Take it. `replace`: days that are there may be replaced, so no recorder may record.

        Raises JournalError when another process has it, or the directory cannot be written.
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
            log.warning("%s: removed what was left of an import of %s that was killed", place, date)

    def close(self) -> None:
        """Let go."""
        if self._locks:
            with suppress(OSError):  # it is not empty, or was not made
                (self.directory / IMPORTING).rmdir()
        for lock in self._locks:
            lock.close()
        self._locks.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def check_is_new(directory: Path, date: datetime.date, *, replace: bool) -> None:
    """Raise JournalError when a day is in a feed's directory and may not be replaced."""
    day = directory / date.isoformat()
    if not replace and (day.exists() or day.is_symlink()):
        raise JournalError(f"{day} exists, expected a day that is not there yet, or replace=True (--replace)")


def check_whole(recording: Recording, written: Written, progress: Callable[[int], object] | None = None) -> None:
    """Read all of a day that was written. Raise JournalError unless it holds what was put, and lacks what was skipped.

    `progress`: as `Recording.examine` has it; what it raises ends this.
    """
    damage, gaps, begins = recording.examine(progress)
    found = recording.summary().messages
    missing = sum(gap.count for gap in gaps)
    if damage or begins or (found, missing) != (written.messages, written.missing):
        wrong = damage or begins or f"{missing} missing, expected {written.missing}"
        raise JournalError(
            f"{found} messages were found in what was written, expected {written.messages}: {wrong!s:.500}; it was "
            "removed"
        )


@contextmanager
def fresh_day(directory: Path, date: datetime.date, *, replace: bool) -> Iterator[Path]:
    """Give an empty directory to write a day into. It becomes the day when the block is left without an error.

    For who holds `FreshDays`. Raises JournalError when the day is there already, or cannot be written.
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
    """Remove what was not finished, or was replaced. A day that was to be replaced, and was not, gets its name back."""
    day = directory / place.name.split(".")[0]
    if (place / _OLD).exists() and not day.exists():
        (place / _OLD).rename(day)
        sync_directory(directory)
    with suppress(FileNotFoundError):
        shutil.rmtree(place)
