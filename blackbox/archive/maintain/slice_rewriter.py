"""Write the segments of a slice once more: blocks that were recorded, merged or not, with their marks."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy
from numpy.typing import NDArray

from blackbox.archive.files.closed import note_closed
from blackbox.archive.files.codec import CODECS, Compression, compress
from blackbox.archive.files.day import slice_directory, sync_directory
from blackbox.archive.files.format import (
    CODEC_NONE,
    ENTRY_BYTES,
    FILE_HEAD_BYTES,
    MARK_HEAD_BYTES,
    RECORD_HEAD_BYTES,
    SEGMENT_BYTES,
    MarkKind,
    mark_bytes,
    record_bytes,
)
from blackbox.archive.files.index_entry import add_mark_to_entry, add_to_entry, seal_entry
from blackbox.archive.files.journal_record import write_head
from blackbox.archive.files.marks import (
    Mark,
    MarkHead,
    Totals,
    behind,
    chain_start,
    places_of_marks,
    read_mark,
    write_mark,
)
from blackbox.archive.files.segment import Segment, SegmentFile
from blackbox.archive.maintain.merge_blocks import BlockMerger
from blackbox.archive.read.reader import Recorded
from blackbox.archive.record.segment_files import SegmentFiles
from blackbox.block.form.format import FLAG_NULLS, FLAG_SAME, FLAG_SEQUENCES
from blackbox.native.system.posix import sync_data
from blackbox.native.tables.xxh3 import checksum_32

_ABOUT_SEGMENTS: Final = (MarkKind.SEGMENT_BEGIN, MarkKind.SEGMENT_END)


class SliceRewriter:
    """The new segments of one slice."""

    def __init__(self, day: Path, slice_id: int, key_rule: int, compression: Compression, created_ns: int) -> None:
        """`day`: a directory to which no recorder writes; `created_ns`: of its manifest."""
        self.blocks = 0
        self._day, self._slice_id, self._key_rule = day, slice_id, key_rule
        self._compression = compression
        self._merger = BlockMerger()
        self._entry = numpy.zeros(ENTRY_BYTES, numpy.uint8)
        self._head = numpy.zeros(RECORD_HEAD_BYTES, numpy.uint8)
        self._totals = Totals(chain=chain_start(created_ns, slice_id))
        self._epoch = 0
        slice_directory(day, slice_id).mkdir()
        self._number = 0
        self._offset = FILE_HEAD_BYTES
        self._files = SegmentFiles(day, slice_id, 0)

    @property
    def is_full(self) -> bool:
        """True if the segment has the size of one."""
        return self._offset >= SEGMENT_BYTES

    def put(self, group: list[Recorded]) -> None:
        """Append the blocks of a group as one."""
        first = group[0]
        first_row = 0
        if first.block.flags & (FLAG_SEQUENCES | FLAG_NULLS | FLAG_SAME):
            first_row = first.first_row
        if len(group) == 1 and first.first_row == first_row:
            header, body = numpy.frombuffer(first.block.header, numpy.uint8).copy(), first.block.body
        else:
            header, body = self._merger.merge(group)
        stored: Any = body
        codec = CODEC_NONE
        if self._compression != "none":
            packed = numpy.frombuffer(compress(self._compression, body.data), numpy.uint8)
            if len(packed) < len(body):
                stored, codec = packed, CODECS[self._compression]
        self._begin()
        size = record_bytes(len(stored))
        checksum = checksum_32(stored.ctypes.data, len(stored))
        write_head(
            self._head.ctypes.data,
            header.ctypes.data,
            first.ts_recv,
            first_row,
            codec,
            len(stored),
            numpy.int64(checksum),
        )
        _write_all(self._files.fd, self._head.data, stored.data, bytes(size - RECORD_HEAD_BYTES - len(stored)))
        self._note(header, body, first.ts_recv, first_row, size)
        self._offset += size
        self._totals = behind(self._head.ctypes.data, self._totals)
        self.blocks += 1

    def copy_mark(self, segment: SegmentFile, mark: Mark) -> None:
        """Append a mark of another journal."""
        self._begin()
        self._put_mark(segment.memory[mark.offset :][: mark.size].copy(), mark.kind, mark)

    def finish(self) -> None:
        """Mark the end and sync."""
        if self._offset > FILE_HEAD_BYTES:
            self._put_mark(numpy.zeros(mark_bytes(0), numpy.uint8), MarkKind.SEGMENT_END, None)
        self._seal()
        self._files.sync()
        sync_data(self._files.index_fd)
        sync_directory(slice_directory(self._day, self._slice_id))
        note_closed(self._day, self._slice_id, self._totals, self._number + (self._offset > FILE_HEAD_BYTES))

    def close(self) -> None:
        """Close the files."""
        self._files.close()

    def next_segment(self) -> None:
        """Go on in another segment, once this one is finished."""
        self.finish()
        self.close()
        self._number += 1
        self._offset = FILE_HEAD_BYTES
        self._files = SegmentFiles(self._day, self._slice_id, self._number)

    def _begin(self) -> None:
        if self._offset == FILE_HEAD_BYTES:
            self._put_mark(numpy.zeros(mark_bytes(0), numpy.uint8), MarkKind.SEGMENT_BEGIN, None)

    def _put_mark(self, memory: NDArray[numpy.uint8], kind: MarkKind, like: Mark | None) -> None:
        """Append a mark. `memory` has its body already; `like` has its other fields."""
        target = memory.ctypes.data
        head = MarkHead(int(kind), 0, time.time_ns())
        if like is not None:
            self._epoch, names = like.epoch, len(like.keys)
            head = MarkHead(
                int(kind), like.flags, like.ts, like.ts_out, like.ts_event, like.sequence, names, like.body_bytes
            )
        memory[:MARK_HEAD_BYTES] = 0
        write_mark(target, head, self._epoch, self._totals)
        _write_all(self._files.fd, memory.data)
        entry = self._entry.ctypes.data
        if not add_mark_to_entry(entry, self._offset, len(memory), self._epoch, kind):
            self._seal()
            add_mark_to_entry(entry, self._offset, len(memory), self._epoch, kind)
        self._offset += len(memory)
        self._totals = behind(target, self._totals)

    def _note(
        self, header: NDArray[numpy.uint8], body: NDArray[numpy.uint8], ts_recv: int, first_row: int, size: int
    ) -> None:
        entry = self._entry.ctypes.data
        words = header.ctypes.data, body.ctypes.data, ts_recv, first_row, size, self._offset, self._key_rule
        if not add_to_entry(entry, *words):
            self._seal()
            add_to_entry(entry, *words)

    def _seal(self) -> None:
        if self._entry.any():
            seal_entry(self._entry.ctypes.data)
            _write_all(self._files.index_fd, self._entry.data)
            self._entry[:] = 0


class MarkCopier:
    """Copies the marks of a slice's segments, each before the same block as there; those within merged blocks after."""

    def __init__(self, writer: SliceRewriter, segments: list[Segment]) -> None:
        self._writer, self._segments, self._index = writer, segments, 0
        self._marks = ((index, mark) for index, each in enumerate(segments) for mark in _copied_marks(each))
        self._next = next(self._marks, None)

    def copy_before(self, recorded: Recorded) -> None:
        """Copy the marks before a block of the segments. Call it for the blocks in order."""
        while not 0 <= self._offset_of(recorded) < len(self._segments[self._index].memory):
            self._index += 1
        self._copy_to(self._index, self._offset_of(recorded))

    def copy_rest(self) -> None:
        """Copy the marks after the last block."""
        self._copy_to(len(self._segments), 0)

    def _offset_of(self, recorded: Recorded) -> int:
        return recorded.header - self._segments[self._index].address

    def _copy_to(self, stop: int, offset: int) -> None:
        while self._next is not None and (self._next[0], self._next[1].offset) < (stop, offset):
            index, mark = self._next
            self._writer.copy_mark(self._segments[index], mark)
            self._next = next(self._marks, None)


def _copied_marks(segment: Segment) -> Iterator[Mark]:
    """Yield the marks of a segment that a copy has, too: those that are not about the segment."""
    places = [*places_of_marks(segment).tolist(), *places_of_marks(segment, are_notes=True).tolist()]
    for offset in sorted(places):
        mark = read_mark(segment, offset)
        if mark is not None and mark.kind not in _ABOUT_SEGMENTS:
            yield mark


def _write_all(fd: int, *pieces: Any) -> None:
    left = [memoryview(piece) for piece in pieces if len(piece)]
    while left:
        written = os.writev(fd, left)
        while left and written >= len(left[0]):
            written -= len(left.pop(0))
        if written:
            left[0] = left[0][written:]
