"""One segment of a slice, in memory, and what is known of its records."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec
import numpy
from numpy.typing import NDArray

from blackbox.archive.codec import decompress
from blackbox.archive.day import as_journal_error, index_path
from blackbox.archive.format import (
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
from blackbox.archive.index_entry import NO_RECORD, NO_ROOM, PACKED, good_entries, note, scan, seal_entry
from blackbox.archive.journal_record import next_record
from blackbox.archive.mapping import Mapping
from blackbox.block.format import HEADER_BYTES
from blackbox.block.layout import VERSION
from blackbox.block.validate import KEY_OF_TOPICS, check_block
from blackbox.errors import DamagedError, JournalError
from blackbox.native.xxh3 import checksum_32
from blackbox.regular_file import read_regular

_SCAN_ENTRIES: Final = 256
"""Entries that are made at once: 16 MiB of records, whose pages are then given back."""
_SMALL_INDEX_BYTES: Final = 1 << 20
"""An index may have so many bytes, and four times its segment's, which grows: there are no smaller records."""
_ALL_KEYS: Final = 2**64 - 1
NO_TIME: Final = 2**63 - 1
"""The times of an entry whose record cannot be read: minus this as the least, this as the largest, so that any range of
times includes it."""
NO_GOOD_RECORD: Final = "no good record begins here"
"""What is wrong with bytes that stand where a record should."""


class Damage(msgspec.Struct, frozen=True, order=True):
    """A part of a recording that cannot be read."""

    path: Path
    """The file."""
    offset: int
    """Where it begins. Unit: bytes."""
    size: int
    """How far it goes. Unit: bytes."""
    what: str
    """What is wrong."""
    messages: int = 0
    """Messages that are lost with it, where that is known."""

    def __str__(self) -> str:
        lost = f", {self.messages} messages" if self.messages else ""
        return f"{self.path}: {self.what} ({self.size} bytes at {self.offset}{lost})"


class SegmentFile:
    """One segment's file as it was when it was opened, mapped read-only and not read yet.

    Attributes: `path`, `slice_id`, `number`; `memory` uint8 array of the file, at `address`. Addresses are valid as
    long as this, or an array of its memory, is kept.
    """

    def __init__(self, path: Path, slice_id: int, number: int) -> None:
        """Map a segment's file. Raises OSError."""
        self.path, self.slice_id, self.number = path, slice_id, number
        self._mapping = Mapping(path)
        self.memory = self._mapping.array()
        self.address = self._mapping.address

    def expect(self, *, read_through: bool) -> None:
        """Tell the system whether most of the file will be read."""
        self._mapping.expect(read_through=read_through)

    def lost(self) -> Damage | None:
        """Return what the file has lost since it was opened; None: nothing."""
        what = self._mapping.lost()
        return Damage(self.path, 0, len(self.memory), what) if what else None

    def release(self, start: int, stop: int) -> None:
        """Give the memory of bytes `[start, stop)` back, both rounded down to 2 MiB; they can still be read."""
        self._mapping.release(start, min(stop, len(self.memory)))


class Segment(SegmentFile):
    """A segment and what is known of its records, as it was when it was opened.

    Attributes: `entries` ENTRY array, from the index, and from the records that the index lacks;
    `whole_bytes`, where the last good record ends; `torn_bytes` behind that; `damage` that was found in opening it.
    Never changed: `refreshed` makes a newer one.
    """

    def __init__(self, path: Path, slice_id: int, number: int, key_rule: int, known: Segment | None = None) -> None:
        """Open a segment's file; `known` is the same segment as it was before.

        Raises JournalError when it cannot be read, is not a segment, or is another one than expected.
        """
        self.damage: list[Damage] = []
        self.key_rule = key_rule
        try:
            # The index first: records are appended before their entry is.
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
            self._indexed(index)  # reports the records that should be here

    def __repr__(self) -> str:
        return f"Segment({str(self.path)!r}, entries={len(self.entries)}, bytes={len(self.memory)})"

    def refreshed(self) -> Segment:
        """Return this segment, or a new one when the file has changed."""
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
            # Its last entry is left out: that one may have grown.
            closed = known.entries[: good_entries(known.entries.ctypes.data, len(known.entries) - 1, size)]
            if _end_of(closed) > _end_of(entries):
                entries = closed
                self.damage += [damage for damage in known.damage if damage.offset < _end_of(closed)]
        starts, stops = entries["start"], entries["stop"]
        before = numpy.concatenate(([FILE_HEAD_BYTES], stops[:-1])) if len(entries) else starts
        parts, done = [], 0
        for place in numpy.flatnonzero(starts > before).tolist():
            parts += [entries[done:place], *self._scan(int(before[place]), int(starts[place]))]
            done = place
            if self.whole_bytes < starts[place]:
                self._report(self.whole_bytes, int(starts[place]))
        parts.append(entries[done:])
        parts += self._scan(_end_of(entries), size)
        self.torn_bytes = size - self.whole_bytes
        self.entries = numpy.concatenate(parts)

    def _indexed(self, index: bytes) -> NDArray[Any]:
        """Return the index's entries up to the first damaged one, and up to the end of the segment."""
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
            place = FILE_HEAD_BYTES + ENTRY_BYTES * whole
            self.damage.append(Damage(path, place, len(index) - place, "the index is damaged"))
        return entries[:good]

    def _scan(self, start: int, stop: int) -> list[NDArray[Any]]:
        """Return entries of the records in bytes `[start, stop)`; set `whole_bytes` to where the last of them ends."""
        found = []
        at, count, why = start, 0, NO_RECORD
        table = numpy.zeros(_SCAN_ENTRIES, ENTRY)
        self.whole_bytes = start
        while at < stop:
            count, at, why = scan(self.address, stop, at, table.ctypes.data, count, len(table), self.key_rule)
            if why == NO_ROOM or (why != NO_RECORD and count == len(table)):
                # The last entry stays: records may still belong to it.
                found.append(_sealed(table[: count - 1]))
                self.release(start, at)
                table[0], count = table[count - 1], 1
            elif why != NO_RECORD:
                count, at = self._note_one(at, why, table, count)
                self.whole_bytes = at
            else:
                self.whole_bytes = at
                at = next_record(self.address, stop, at + 1) if at < stop else stop
                if at < 0:
                    break
                if at > self.whole_bytes:
                    self._report(self.whole_bytes, at)
        self.release(start, stop)
        return [*found, _sealed(table[:count])]

    def _note_one(self, at: int, why: int, table: NDArray[Any], count: int) -> tuple[int, int]:
        """Note a record that `scan` could not. The entry of one whose body is damaged may hold any key and time."""
        head = self.memory[at : at + RECORD_HEAD_BYTES].view(RECORD)[0]
        following = at + record_bytes(int(head["stored_bytes"]))
        body = self._unpacked(at, head) if why == PACKED else None
        if body is not None:
            count, _ = note(
                self.address + at, body.ctypes.data, at, table.ctypes.data, count, len(table), self.key_rule
            )
            return count, following
        entry = numpy.zeros((), ENTRY)
        entry["start"], entry["stop"], entry["records"] = at, following, 1
        entry["messages"] = head["count"] - head["first_row"]
        for name in ("ts_out", "ts_recv"):
            entry[f"min_{name}"] = entry[f"max_{name}"] = head[name]
        entry["min_ts_event"], entry["max_ts_event"] = -NO_TIME, NO_TIME
        entry["epoch"], entry["keys"] = head["epoch"], _ALL_KEYS
        entry["min_sequence"] = head["sequence"] + head["first_row"]
        entry["max_sequence"] = head["sequence"] + head["count"] - 1
        table[count] = entry
        return count + 1, following

    def _unpacked(self, at: int, head: Any) -> NDArray[numpy.uint8] | None:
        start = at + RECORD_HEAD_BYTES
        stored = self.memory[start : start + int(head["stored_bytes"])]
        if head["stored_checksum"] != checksum_32(self.address + start, len(stored)):
            return None
        try:
            body = decompress(int(head["codec"]), stored, int(head["body_bytes"]))
        except JournalError as error:
            if isinstance(error.__cause__, ImportError):
                raise
            return None
        place = body.ctypes.data
        fault = check_block(
            self.address + at + OFFSET_BLOCK_HEADER, HEADER_BYTES, place, len(body), place, KEY_OF_TOPICS, self.key_rule
        )
        return None if fault else body

    def _report(self, start: int, stop: int) -> None:
        self.damage.append(Damage(self.path, start, stop - start, NO_GOOD_RECORD))


def open_end(segments: list[Segment]) -> list[Segment]:
    """Return those that may still be appended to: the last one with records, and the empty ones made ahead."""
    last = max((place for place, segment in enumerate(segments) if len(segment.entries)), default=0)
    return segments[last:]


def _sealed(entries: NDArray[Any]) -> NDArray[Any]:
    """Return a copy of entries, with their checksums."""
    sealed = entries.copy()
    for place in range(len(sealed)):
        seal_entry(sealed.ctypes.data + ENTRY_BYTES * place)
    return sealed


def _end_of(entries: NDArray[Any]) -> int:
    return int(entries["stop"][-1]) if len(entries) else FILE_HEAD_BYTES


def _read(index: Path, most_bytes: int) -> bytes:
    try:
        return read_regular(index, most_bytes)
    except FileNotFoundError:
        return b""
