"""A file next to the days with the synced size of each slice's newest segment, to tell damage from a torn end.

A process that starts rewrites data that a killed process may not have synced.

The file is written after each sync and is not synced itself. After a power loss it may be too old, never too new.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

import numpy

from blackbox.archive.files.day import recorded_days, segment_numbers, segment_path, slice_directory
from blackbox.archive.files.format import FILE_HEAD, FILE_HEAD_BYTES
from blackbox.native.system.posix import sync_data
from blackbox.native.tables.xxh3 import xxh3

_NAME: Final = "synced"
_ENTRY: Final = struct.Struct("<qq")
_ENTRY_BYTES: Final = _ENTRY.size + 8
RECENT_DAYS: Final = 2
_PART_BYTES: Final = 4 << 20
_PAST_END: Final = 1 << 62


class SyncedFile:
    """The file, open from `open` to `close`."""

    def __init__(self) -> None:
        self._fd = -1

    def open(self, directory: Path) -> None:
        """Open or create it. Raises OSError."""
        self._fd = os.open(directory / _NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def note(self, slice_id: int, created_ns: int, size: int) -> None:
        """Store the synced size of the segment created at a time. Raises OSError."""
        entry = _ENTRY.pack(created_ns, size)
        os.pwrite(self._fd, entry + _checksum(entry), _ENTRY_BYTES * slice_id)

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Synced(NamedTuple):
    """A slice's entry in the file."""

    created_ns: int
    """Creation time of the last synced segment, ns since 1970."""
    size: int
    """Synced bytes of it."""


def read_synced(directory: Path, slice_id: int) -> Synced | None:
    """Return the entry of a slice; None if it is missing or damaged."""
    path = directory / _NAME
    entry = (path.read_bytes() if path.exists() else b"")[_ENTRY_BYTES * slice_id :][:_ENTRY_BYTES]
    if len(entry) < _ENTRY_BYTES or _checksum(entry[: _ENTRY.size]) != entry[_ENTRY.size :]:
        return None
    return Synced(*_ENTRY.unpack_from(entry))


def forget_synced(directory: Path) -> None:
    """Delete the sizes, before segments are cut."""
    (directory / _NAME).unlink(missing_ok=True)


def note_all(directory: Path, slices: int) -> None:
    """Store that the newest segments are synced. Requires that the system was started after they were written."""
    file = SyncedFile()
    file.open(directory)
    for slice_id in range(slices):
        for path in _newest_first(directory, slice_id)[:1]:
            file.note(slice_id, _created_ns(path), path.stat().st_size)
    file.close()


def sync_left(directory: Path, slices: Iterable[int]) -> None:
    """Sync the newest days after a kill, once data that may not be synced is written again. Raises OSError.

    After a failed write the system keeps the data in memory as if it were written, so that a sync alone would succeed.
    """
    for slice_id in slices:
        synced = read_synced(directory, slice_id)
        start = start_before = 0
        for path in _newest_first(directory, slice_id):
            if synced is not None and _created_ns(path) == synced.created_ns:
                start, start_before = synced.size, _PAST_END
            _write_again(path, start)
            start = start_before


def _write_again(path: Path, start: int) -> None:
    with path.open("r+b") as file:
        while part := os.pread(file.fileno(), _PART_BYTES, start):
            start += os.pwrite(file.fileno(), part, start)
        sync_data(file.fileno())


def _newest_first(directory: Path, slice_id: int) -> list[Path]:
    """Return the segments of a slice in the newest days."""
    return [
        segment_path(day, slice_id, number)
        for day in recorded_days(directory)[: -RECENT_DAYS - 1 : -1]
        for number in reversed(segment_numbers(slice_directory(day, slice_id)))
    ]


def _created_ns(path: Path) -> int:
    with path.open("rb") as file:
        head = numpy.frombuffer(file.read(FILE_HEAD_BYTES).ljust(FILE_HEAD_BYTES, b"\0"), FILE_HEAD)[0]
    return int(head["created"])


def _checksum(entry: bytes) -> bytes:
    words = numpy.frombuffer(entry, numpy.uint8)
    return int(numpy.uint64(xxh3(words.ctypes.data, len(words)))).to_bytes(8, "little")
