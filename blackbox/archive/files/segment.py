"""One segment of a slice in memory, with its index entries and damage."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec
import numpy
from numpy.typing import NDArray

from blackbox.archive.files.codec import decompress
from blackbox.archive.files.day import as_journal_error, index_path
from blackbox.archive.files.format import (
    ENTRY,
    ENTRY_BYTES,
    FILE_HEAD,
    FILE_HEAD_BYTES,
    INDEX_MAGIC,
    OFFSET_BLOCK_HEADER,
    RECORD,
    RECORD_HEAD_BYTES,
    SEGMENT_MAGIC,
    record_bytes,
)
from blackbox.archive.files.index_entry import ScanStop, good_entries, note, scan, seal_entry
from blackbox.archive.files.journal_record import next_record
from blackbox.archive.files.mapping import Mapping
from blackbox.block.form.format import HEADER_BYTES
from blackbox.block.form.layout import VERSION
from blackbox.block.form.validate import KEY_OF_TOPICS, check_block
from blackbox.errors import DamagedError, JournalError
from blackbox.native.tables.xxh3 import checksum_32
from blackbox.regular_file import read_regular

_SCAN_ENTRIES: Final = 256
"""Entries made at a time, from 16 MiB of records. The records' pages are then released."""
_SMALL_INDEX_BYTES: Final = 1 << 20
"""Maximum size of an index, plus four times its segment's size. Records cannot be small enough to exceed it."""
_ALL_KEYS: Final = 2**64 - 1
NO_TIME: Final = 2**63 - 1
"""The times of an entry with an unreadable record are minus this to this, so that every time range includes it."""
NO_GOOD_RECORD: Final = "no good record begins here"
"""Damage of bytes that should be a record."""


class Damage(msgspec.Struct, frozen=True, order=True):
    """A part of a recording that cannot be read."""

    path: Path
    """The file."""
    offset: int
    """Offset, bytes."""
    size: int
    """Size, bytes."""
    what: str
    """Description."""
    messages: int = 0
    """Number of messages lost, if known."""

    def __str__(self) -> str:
        lost = f", {self.messages} messages" if self.messages else ""
        return f"{self.path}: {self.what} ({self.size} bytes at {self.offset}{lost})"


class SegmentFile:
    """A segment's file as of opening, mapped read-only, without its entries.

    Attributes: `path`, `slice_id`, `number`; `memory` uint8 array of the file, at `address`. Addresses are valid while
    this or an array of its memory is kept.
    """

    def __init__(self, path: Path, slice_id: int, number: int) -> None:
        """Map a segment's file. Raises OSError."""
        self.path, self.slice_id, self.number = path, slice_id, number
        self._mapping = Mapping(path)
        self.memory = self._mapping.array()
        self.address = self._mapping.address

    def expect(self, *, read_through: bool) -> None:
        """Advise the system whether most of the file will be read."""
        self._mapping.expect(read_through=read_through)

    def lost(self) -> Damage | None:
        """Return the bytes lost since the file was opened; None if nothing was lost."""
        what = self._mapping.lost()
        return Damage(self.path, 0, len(self.memory), what) if what else None

    def release(self, start: int, stop: int) -> None:
        """Release the pages of bytes `[start, stop)`, both rounded down to 2 MiB. They can still be read."""
        self._mapping.release(start, min(stop, len(self.memory)))


class Segment(SegmentFile):
    """A segment and its index entries, as of opening.

    Attributes: `entries` ENTRY array, from the index and from records that the index lacks; `whole_bytes`, the end of
    the last valid record; `torn_bytes` after it; `damage` found while opening it.
    Immutable: `refreshed` returns a newer one.
    """

    def __init__(self, path: Path, slice_id: int, number: int, key_rule: int, known: Segment | None = None) -> None:
        """Open a segment's file. `known` is an earlier state of the same segment.

        Raises JournalError if it cannot be read, is not a segment, or is another segment than expected.
        """
        self.damage: list[Damage] = []
        self.key_rule = key_rule
        try:
            # The index first, because records are appended before their entry.
            index = _read(index_path(path), _SMALL_INDEX_BYTES + 4 * path.stat().st_size)
            super().__init__(path, slice_id, number)
        except OSError as error:
            raise as_journal_error(error, f"segment {path} cannot be read") from error
        self._index_bytes = len(index)
        self.entries: NDArray[Any] = numpy.empty(0, ENTRY)
        self.whole_bytes, self.torn_bytes = 0, len(self.memory)
        if len(self.memory) >= FILE_HEAD_BYTES:
            self._check_head()
            self._find_entries(self._indexed(index), known)
        else:
            self._indexed(index)  # reports missing records

    def __repr__(self) -> str:
        return f"Segment({str(self.path)!r}, entries={len(self.entries)}, bytes={len(self.memory)})"

    def refreshed(self) -> Segment:
        """Return this segment, or a new one if the file has changed."""
        try:
            size = self.path.stat().st_size
        except OSError as error:
            raise as_journal_error(error, f"segment {self.path} cannot be read") from error
        index = index_path(self.path)
        index_bytes = index.stat().st_size if index.exists() else 0
        if (size, index_bytes) == (len(self.memory), self._index_bytes):
            return self
        return Segment(self.path, self.slice_id, self.number, self.key_rule, self)

    def _check_head(self) -> None:
        head = self.memory[:FILE_HEAD_BYTES].view(FILE_HEAD)[0]
        for name, expected in (
            ("magic", SEGMENT_MAGIC),
            ("version", VERSION),
            ("slice", self.slice_id),
            ("segment", self.number),
        ):
            if head[name] != expected:
                raise DamagedError(f"{self.path}: {name} was {head[name].item()!r}, expected {expected!r}")
        if head["checksum"] != checksum_32(self.address, FILE_HEAD_BYTES - 4):
            self.damage.append(
                Damage(self.path, 0, FILE_HEAD_BYTES, "the checksum of the segment's head did not match")
            )

    def _find_entries(self, entries: NDArray[Any], known: Segment | None) -> None:
        size = len(self.memory)
        if known is not None and len(known.entries) > 1:
            # Without its last entry, which may have grown.
            closed = known.entries[: good_entries(known.entries.ctypes.data, len(known.entries) - 1, size)]
            if _end_of(closed) > _end_of(entries):
                entries = closed
                self.damage += [damage for damage in known.damage if damage.offset < _end_of(closed)]
        starts, stops = entries["start"], entries["stop"]
        before = numpy.concatenate(([FILE_HEAD_BYTES], stops[:-1])) if len(entries) else starts
        parts, done = [], 0
        for index in numpy.flatnonzero(starts > before).tolist():
            parts += [entries[done:index], *self._scan(int(before[index]), int(starts[index]))]
            done = index
            if self.whole_bytes < starts[index]:
                self._report(self.whole_bytes, int(starts[index]))
        parts.append(entries[done:])
        parts += self._scan(_end_of(entries), size)
        self.torn_bytes = size - self.whole_bytes
        self.entries = numpy.concatenate(parts)

    def _indexed(self, index: bytes) -> NDArray[Any]:
        """Return the index's entries before the first damaged one and within the segment."""
        path = index_path(self.path)
        count = (len(index) - FILE_HEAD_BYTES) // ENTRY_BYTES
        if count <= 0:
            return numpy.empty(0, ENTRY)
        memory = numpy.frombuffer(index, numpy.uint8)
        head = memory[:FILE_HEAD_BYTES].view(FILE_HEAD)[0]
        checksum = checksum_32(memory.ctypes.data, FILE_HEAD_BYTES - 4)
        right = (INDEX_MAGIC, VERSION, self.slice_id, self.number, checksum)
        if tuple(head[name] for name in ("magic", "version", "slice", "segment", "checksum")) != right:
            self.damage.append(Damage(path, 0, FILE_HEAD_BYTES, "the index's head is damaged"))
            return numpy.empty(0, ENTRY)
        entries = memory[FILE_HEAD_BYTES : FILE_HEAD_BYTES + ENTRY_BYTES * count].view(ENTRY)
        whole = good_entries(entries.ctypes.data, count, NO_TIME)
        good = good_entries(entries.ctypes.data, whole, len(self.memory))
        if good < whole:
            cut = int(entries["stop"][whole - 1]) - len(self.memory)
            what = "the segment ends before the last records in its index"
            self.damage.append(Damage(self.path, len(self.memory), cut, what))
        if whole < count:
            offset = FILE_HEAD_BYTES + ENTRY_BYTES * whole
            self.damage.append(Damage(path, offset, len(index) - offset, "the index is damaged"))
        return entries[:good]

    def _scan(self, start: int, stop: int) -> list[NDArray[Any]]:
        """Return entries of the records in bytes `[start, stop)`. Set `whole_bytes` to the end of the last record."""
        found = []
        offset, count, why = start, 0, ScanStop.NO_RECORD
        table = numpy.zeros(_SCAN_ENTRIES, ENTRY)
        self.whole_bytes = start
        while offset < stop:
            count, offset, why = scan(self.address, stop, offset, table.ctypes.data, count, len(table), self.key_rule)
            if why == ScanStop.NO_ROOM or (why != ScanStop.NO_RECORD and count == len(table)):
                # Keep the last entry, because more records may belong to it.
                found.append(_sealed(table[: count - 1]))
                self.release(start, offset)
                table[0], count = table[count - 1], 1
            elif why != ScanStop.NO_RECORD:
                count, offset = self._note_one(offset, why, table, count)
                self.whole_bytes = offset
            else:
                self.whole_bytes = offset
                offset = next_record(self.address, stop, offset + 1) if offset < stop else stop
                if offset < 0:
                    break
                if offset > self.whole_bytes:
                    self._report(self.whole_bytes, offset)
        self.release(start, stop)
        return [*found, _sealed(table[:count])]

    def _note_one(self, offset: int, why: int, table: NDArray[Any], count: int) -> tuple[int, int]:
        """Add a record that `scan` could not. An entry with a damaged body matches any key and time."""
        head = self.memory[offset : offset + RECORD_HEAD_BYTES].view(RECORD)[0]
        following = offset + record_bytes(int(head["stored_bytes"]))
        body = self._unpacked(offset, head) if why == ScanStop.PACKED else None
        if body is not None:
            count, _ = note(
                self.address + offset, body.ctypes.data, offset, table.ctypes.data, count, len(table), self.key_rule
            )
            return count, following
        entry = numpy.zeros((), ENTRY)
        entry["start"], entry["stop"], entry["records"] = offset, following, 1
        entry["messages"] = head["count"] - head["first_row"]
        for name in ("ts_out", "ts_recv"):
            entry[f"min_{name}"] = entry[f"max_{name}"] = head[name]
        entry["min_ts_event"], entry["max_ts_event"] = -NO_TIME, NO_TIME
        entry["epoch"], entry["keys"] = head["epoch"], _ALL_KEYS
        entry["min_sequence"] = head["sequence"] + head["first_row"]
        entry["max_sequence"] = head["sequence"] + head["count"] - 1
        table[count] = entry
        return count + 1, following

    def _unpacked(self, offset: int, head: Any) -> NDArray[numpy.uint8] | None:
        start = offset + RECORD_HEAD_BYTES
        stored = self.memory[start : start + int(head["stored_bytes"])]
        if head["stored_checksum"] != checksum_32(self.address + start, len(stored)):
            return None
        try:
            body = decompress(int(head["codec"]), stored, int(head["body_bytes"]))
        except JournalError as error:
            if isinstance(error.__cause__, ImportError):
                raise
            return None
        address = body.ctypes.data
        fault = check_block(
            self.address + offset + OFFSET_BLOCK_HEADER,
            HEADER_BYTES,
            address,
            len(body),
            address,
            KEY_OF_TOPICS,
            self.key_rule,
        )
        return None if fault else body

    def _report(self, start: int, stop: int) -> None:
        self.damage.append(Damage(self.path, start, stop - start, NO_GOOD_RECORD))


def open_end(segments: list[Segment]) -> list[Segment]:
    """Return the segments that may still grow: the last one with records, and the empty ones after it."""
    last = max((index for index, segment in enumerate(segments) if len(segment.entries)), default=0)
    return segments[last:]


def _sealed(entries: NDArray[Any]) -> NDArray[Any]:
    """Return a copy of the entries with checksums."""
    sealed = entries.copy()
    for index in range(len(sealed)):
        seal_entry(sealed.ctypes.data + ENTRY_BYTES * index)
    return sealed


def _end_of(entries: NDArray[Any]) -> int:
    return int(entries["stop"][-1]) if len(entries) else FILE_HEAD_BYTES


def _read(index: Path, most_bytes: int) -> bytes:
    try:
        return read_regular(index, most_bytes)
    except FileNotFoundError:
        return b""
