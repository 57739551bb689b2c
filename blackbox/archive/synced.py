"""Size of each slice's newest segment on the disk, in a file next to the days, to tell damage from a torn end.

The file is written after each sync and is not synced itself, so after a power cut it may be older, never newer.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Final

import numpy

from blackbox.archive.day import recorded_days, segment_numbers, segment_path, slice_directory
from blackbox.archive.format import FILE_HEAD, FILE_HEAD_BYTES
from blackbox.archive.segment import Damage, Segment
from blackbox.errors import JournalError
from blackbox.native.xxh3 import xxh3

_NAME: Final = "synced"
_ENTRY: Final = struct.Struct("<qq")
_ENTRY_BYTES: Final = _ENTRY.size + 8
_LAST_DAYS: Final = 2


class SyncedFile:
    """The file, open from `open` to `close`."""

    def __init__(self) -> None:
        self._fd = -1

    def open(self, directory: Path) -> None:
        """Open or create it. Raises OSError."""
        self._fd = os.open(directory / _NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def note(self, slice_id: int, created_ns: int, size: int) -> None:
        """Note how many bytes of the segment created at a time are on the disk. Raises OSError."""
        entry = _ENTRY.pack(created_ns, size)
        os.pwrite(self._fd, entry + _checksum(entry), _ENTRY_BYTES * slice_id)

    def close(self) -> None:
        """Close it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def check_synced(directory: Path, slices: int, key_rule: int) -> None:
    """Raise JournalError if a segment cannot be read as far as it was synced."""
    path = directory / _NAME
    data = path.read_bytes() if path.exists() else b""
    for slice_id in range(slices):
        entry = data[_ENTRY_BYTES * slice_id :][:_ENTRY_BYTES]
        if len(entry) == _ENTRY_BYTES and _checksum(entry[: _ENTRY.size]) == entry[_ENTRY.size :]:
            created_ns, size = _ENTRY.unpack_from(entry)
            for day in recorded_days(directory)[-_LAST_DAYS:]:
                _check_slice(day, slice_id, key_rule, created_ns, size)


def forget_synced(directory: Path) -> None:
    """Forget the sizes, before segments are cut."""
    (directory / _NAME).unlink(missing_ok=True)


def _check_slice(day: Path, slice_id: int, key_rule: int, created_ns: int, size: int) -> None:
    for number in segment_numbers(slice_directory(day, slice_id))[::-1]:
        segment = segment_path(day, slice_id, number)
        with segment.open("rb") as file:
            head = numpy.frombuffer(file.read(FILE_HEAD_BYTES).ljust(FILE_HEAD_BYTES, b"\0"), FILE_HEAD)[0]
        if head["created"] == created_ns:
            whole = Segment(segment, slice_id, number, key_rule).whole_bytes
            if whole < size:
                damage = Damage(segment, whole, size - whole, "bytes that were on the disk cannot be read")
                raise JournalError(f"{damage}: restore the file, or remove the bytes from there on")
            return


def _checksum(entry: bytes) -> bytes:
    words = numpy.frombuffer(entry, numpy.uint8)
    return int(numpy.uint64(xxh3(words.ctypes.data, len(words)))).to_bytes(8, "little")
