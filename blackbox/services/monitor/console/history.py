"""History of conditions on disk: JSON lines in files of bounded size and number."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

import msgspec

from blackbox.documents import DecodeError, Decoder
from blackbox.errors import BlackBoxError
from blackbox.native.system.file_lock import FileLock, OwnedError
from blackbox.services.monitor.watch.conditions import Condition

_NAME: Final = "history.jsonl"
_FILE_BYTES: Final = 4 << 20
_FILES: Final = 8
"""Files kept, the present one included."""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """A condition that began or ended."""

    at_ns: int
    """ns since 1970."""
    change: Literal["raised", "cleared"]
    condition: Condition


_EVENT: Final = Decoder[Event]("json", Event)


class HistoryError(BlackBoxError):
    """The history cannot be read or written."""


class History:
    """Appends events to a directory's newest file, and begins another when that is full. Owned by one process.

    Events survive a killed console: each is passed to the system at once. An incomplete last line is cut at the start.
    """

    def __init__(self, directory: Path, file_bytes: int = _FILE_BYTES, files: int = _FILES) -> None:
        """Open it; the directory is created if missing. Raises HistoryError."""
        self._directory, self._file_bytes, self._files = directory, file_bytes, files
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._lock = FileLock(directory / "lock")
            self._file = self._open()
        except OwnedError as owned:
            raise HistoryError(f"history {directory} was {owned}'s, expected no other console") from None
        except OSError as error:
            raise self._failed(error) from error

    def _path(self, age: int) -> Path:
        return self._directory / (_NAME if age == 0 else f"{_NAME}.{age}")

    def _open(self) -> int:
        """Open the newest file and cut an incomplete last line."""
        file = os.open(self._path(0), os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        data = os.pread(file, self._file_bytes + (1 << 20), 0)
        os.ftruncate(file, data.rfind(b"\n") + 1)
        return file

    def append(self, event: Event) -> None:
        """Append an event. Raises HistoryError, as on a full disk; the events before it stay readable."""
        line = msgspec.json.encode(event) + b"\n"
        try:
            size = os.fstat(self._file).st_size
            if size and size + len(line) > self._file_bytes:
                self._rotate()
                size = 0
            if os.write(self._file, line) < len(line):
                os.ftruncate(self._file, size)
                raise OSError(28, os.strerror(28))
        except OSError as error:
            raise self._failed(error) from error

    def _rotate(self) -> None:
        if self._path(0).exists():  # else it was renamed before, and the next one could not be opened
            free = next((age for age in range(1, self._files) if not self._path(age).exists()), self._files - 1)
            for age in range(free, 0, -1):
                self._path(age - 1).replace(self._path(age))
        full, self._file = self._file, self._open()
        os.close(full)

    def events(self) -> Iterator[Event]:
        """Yield the events, oldest first. Lines that cannot be decoded are left out. Raises HistoryError."""
        for age in range(self._files - 1, -1, -1):
            try:
                lines = self._path(age).read_bytes().splitlines()
            except FileNotFoundError:
                continue
            except OSError as error:
                raise self._failed(error) from error
            for line in lines:
                try:
                    yield _EVENT.decode(line)
                except DecodeError:
                    continue

    def still_raised(self) -> list[Condition]:
        """Return the conditions that began and did not end."""
        found: dict[tuple[str, str], Condition] = {}
        for event in self.events():
            key = event.condition.kind, event.condition.who
            found.pop(key, None)
            if event.change == "raised":
                found[key] = event.condition
        return list(found.values())

    def close(self) -> None:
        """Close the file and release the directory."""
        os.close(self._file)
        self._lock.close()

    def _failed(self, error: OSError) -> HistoryError:
        return HistoryError(f"history {self._directory}: {error.strerror or error}")
