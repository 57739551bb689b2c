"""Copy a recording with small adjacent blocks merged into large ones, and optionally compressed."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy
from numpy.typing import NDArray

from blackbox.archive.closed import note_closed
from blackbox.archive.codec import BLOCK_BYTES, CODECS, Compression, check_packing, compress
from blackbox.archive.day import Manifest, as_journal_error, recorded_files, slice_directory, sync_directory
from blackbox.archive.digest import Digest
from blackbox.archive.filter import Filter
from blackbox.archive.format import (
    CODEC_NONE,
    ENTRY_BYTES,
    FILE_HEAD_BYTES,
    MARK_HEAD_BYTES,
    RECORD_HEAD_BYTES,
    SEGMENT_BYTES,
    mark_bytes,
    record_bytes,
)
from blackbox.archive.index_entry import add_mark_to_entry, add_to_entry, seal_entry
from blackbox.archive.journal_record import write_head
from blackbox.archive.journal_writer import SegmentFiles
from blackbox.archive.marks import Mark, MarkKind, Totals, behind, chain_start, places_of_marks, read_mark, write_mark
from blackbox.archive.merge_blocks import BlockMerger
from blackbox.archive.reader import Recorded, RecordRun, blocks_of, read_runs
from blackbox.archive.recording import Recording
from blackbox.archive.segment import SegmentFile
from blackbox.block.format import FLAG_NULLS, FLAG_SEQUENCES
from blackbox.errors import JournalError
from blackbox.native.xxh3 import checksum_32

_SPAN_NS: Final = 10**9
"""Maximum time between the first and last block of a merged block, which has one `ts_out`."""
_PADDING_BYTES: Final = 32
_ABOUT_SEGMENTS: Final = (MarkKind.SEGMENT_BEGIN, MarkKind.SEGMENT_END)


class Compacted(msgspec.Struct, frozen=True, kw_only=True):
    """Result of compacting a recording."""

    messages: int
    blocks_before: int
    blocks_after: int
    file_bytes_before: int
    file_bytes_after: int
    """Size of the segments and indexes."""
    left_out: int
    """Messages of damaged blocks, as far as known. They are gaps in the copy."""


def compact(
    recording: Recording,
    out: str | os.PathLike[str],
    *,
    compression: Compression = "none",
    block_bytes: int = BLOCK_BYTES,
    progress: Callable[[int], object] | None = None,
) -> Compacted:
    """Write a compacted copy of a recording to the directory `out`; the recording itself is not changed.

    Consecutive blocks of one key that were sent within a second are merged, up to `block_bytes`. A merged block has
    `ts_out` and `ts_recv` of the first one. Messages keep their order, so nothing is merged where keys alternate block
    by block. Gaps are kept. Damaged blocks become gaps, and a torn tail is left out. `out` is renamed into place after
    the copy was read and has the same messages: topic, payload, `ts_event`, sequence, slice and epoch of each.

    Args:
        recording: the recording to copy, as of when it was opened.
        out: a directory that does not exist yet.
        compression: of the bodies. Replays use uncompressed bodies ("none") without a copy.
        block_bytes: 1 KiB to 64 MiB.
        progress: called with the bytes read so far, of the recording and then of the copy.

    Raises JournalError if `out` exists, cannot be written, or does not hold the same messages; ValueError for an
    invalid setting.
    """
    check_packing(compression, block_bytes)
    target = Path(out)
    if target.exists() or target.is_symlink():
        raise JournalError(f"{target} exists, expected the name of a new directory")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".new", dir=target.parent))
        try:
            done = _write_and_compare(recording, fresh, compression, block_bytes, progress or (lambda _: None))
            fresh.chmod(0o755)
            fresh.rename(target)
            sync_directory(target.parent)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    except OSError as error:
        raise as_journal_error(error, f"{target} cannot be written") from error
    return done


def _write_and_compare(
    recording: Recording, fresh: Path, compression: Compression, block_bytes: int, progress: Callable[[int], object]
) -> Compacted:
    before, after, done = Digest(), Digest(), 0
    seen: list[RecordRun] = []

    def read(source: Recording, slice_id: int, digest: Digest) -> Iterator[Recorded]:
        nonlocal done
        key_rule = source.feed.key_rule
        for run in read_runs(source._streams(b"", [slice_id]), Filter(key_rule), source._note):
            seen.append(run)
            for recorded in blocks_of(run, key_rule):
                digest.add(recorded)
                yield recorded
            done += run.stored_bytes
            progress(done)

    blocks_before = blocks_after = 0
    manifest = Manifest.read(recording.path)
    for slice_id, _ in recording._segments_of():
        chain = chain_start(manifest.created_ns, slice_id)
        writer = _Writer(fresh, slice_id, recording.feed.key_rule, compression, chain)
        try:
            groups = _groups(read(recording, slice_id, before), block_bytes)
            blocks_before += _write_slice(writer, groups, _kept_marks(recording, slice_id), seen)
        finally:
            writer.close()
        blocks_after += writer.blocks
    manifest.write(fresh)
    again = Recording.open(fresh)
    seen.clear()
    for slice_id in range(len(again.feed.slices)):
        for _ in read(again, slice_id, after):
            seen.clear()
    if before != after or again.damage:
        raise JournalError(
            f"the copy of {recording.path} had {after.messages} messages of checksum {after.total:016x}, expected "
            f"{before.messages} of {before.total:016x}; it was removed"
        )
    return Compacted(
        messages=before.messages,
        blocks_before=blocks_before,
        blocks_after=blocks_after,
        file_bytes_before=_file_bytes(recording.path),
        file_bytes_after=_file_bytes(fresh),
        left_out=sum(damage.messages for damage in recording.damage),
    )


def _write_slice(
    writer: _Writer,
    groups: Iterator[list[Recorded]],
    marks: deque[tuple[SegmentFile, Mark]],
    seen: list[RecordRun],
) -> int:
    """Write the merged blocks and the marks of a slice. Return the number of blocks before merging."""
    blocks = 0
    for group in groups:
        blocks += len(group)
        writer.put(group)
        while marks and marks[0][1].ts <= group[-1].ts_recv:
            writer.copy_mark(*marks.popleft())
        _give_back(seen)
    for mark in marks:
        writer.copy_mark(*mark)
    writer.finish()
    return blocks


def _kept_marks(recording: Recording, slice_id: int) -> deque[tuple[SegmentFile, Mark]]:
    """Return the marks, except those about segments. They keep their times and positions among the records."""
    found: deque[tuple[SegmentFile, Mark]] = deque()
    for _, segments in recording._segments_of([slice_id]):
        for segment in segments:
            places = [*places_of_marks(segment).tolist(), *places_of_marks(segment, are_notes=True).tolist()]
            marks = [mark for place in sorted(places) if (mark := read_mark(segment, place)) is not None]
            found += [(segment, mark) for mark in marks if mark.kind not in _ABOUT_SEGMENTS]
    return found


def _give_back(seen: list[RecordRun]) -> None:
    """Release the pages of all runs but the last, whose blocks may still be needed."""
    for run in seen[:-1]:
        for segment, start, stop in run.ranges():
            segment.release(start, stop)
    del seen[:-1]


def _file_bytes(day: Path) -> int:
    return sum(path.stat().st_size for path in recorded_files(day))


def _groups(blocks: Iterator[Recorded], block_bytes: int) -> Iterator[list[Recorded]]:
    """Yield lists of consecutive blocks that are merged into one."""
    group: list[Recorded] = []
    size = 0
    for recorded in blocks:
        # If payload sizes differ between blocks, each row needs an offset.
        more = recorded.block.body.nbytes + 4 * recorded.block.count + _PADDING_BYTES
        if group and (size + more > block_bytes or not _continues(group, recorded)):
            yield group
            group, size = [], 0
        group.append(recorded)
        size += more
    if group:
        yield group


def _continues(group: list[Recorded], recorded: Recorded) -> bool:
    """Return True if a block can be merged with those before it."""
    last, block = group[-1].block, recorded.block
    return (
        (last.flags | block.flags) & (FLAG_SEQUENCES | FLAG_NULLS) == 0
        and (last.epoch, last.schema_id, last.key) == (block.epoch, block.schema_id, block.key)
        and last.sequence + last.count == block.sequence + recorded.first_row
        and abs(block.ts_out - group[0].block.ts_out) <= _SPAN_NS
    )


class _Writer:
    """The new segments of one slice."""

    def __init__(self, day: Path, slice_id: int, key_rule: int, compression: Compression, chain: int) -> None:
        self.blocks = 0
        self._day, self._slice_id, self._key_rule = day, slice_id, key_rule
        self._compression = compression
        self._merger = BlockMerger()
        self._entry = numpy.zeros(ENTRY_BYTES, numpy.uint8)
        self._head = numpy.zeros(RECORD_HEAD_BYTES, numpy.uint8)
        self._totals = Totals(chain=chain)
        self._epoch = 0
        slice_directory(day, slice_id).mkdir()
        self._number = 0
        self._offset = FILE_HEAD_BYTES
        self._files = SegmentFiles(day, slice_id, 0)

    def put(self, group: list[Recorded]) -> None:
        """Append the blocks of a group as one."""
        first = group[0]
        first_row = 0
        if first.block.flags & (FLAG_SEQUENCES | FLAG_NULLS):
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
        if self._offset >= SEGMENT_BYTES:
            self._next_segment()
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
        os.fdatasync(self._files.index_fd)
        sync_directory(slice_directory(self._day, self._slice_id))
        note_closed(self._day, self._slice_id, self._totals, self._number + (self._offset > FILE_HEAD_BYTES))

    def close(self) -> None:
        """Close the files."""
        self._files.close()

    def _next_segment(self) -> None:
        self.finish()
        self.close()
        self._number += 1
        self._offset = FILE_HEAD_BYTES
        self._files = SegmentFiles(self._day, self._slice_id, self._number)

    def _begin(self) -> None:
        if self._offset == FILE_HEAD_BYTES:
            self._put_mark(numpy.zeros(mark_bytes(0), numpy.uint8), MarkKind.SEGMENT_BEGIN, None)

    def _put_mark(self, memory: NDArray[numpy.uint8], kind: MarkKind, like: Mark | None) -> None:
        """Append the mark in `memory` with this kind; its other fields are those of `like`."""
        target, epoch = memory.ctypes.data, like.epoch if like else self._epoch
        flags, ts = (like.flags, like.ts) if like else (0, time.time_ns())
        ts_out, ts_event, sequence = (like.ts_out, like.ts_event, like.sequence) if like else (0, 0, 0)
        names = len(like.keys) if like else 0
        body_bytes = like.body_bytes if like else 0
        self._epoch = epoch
        memory[:MARK_HEAD_BYTES] = 0
        write_mark(target, kind, flags, ts, epoch, names, ts_out, ts_event, sequence, self._totals, body_bytes)
        _write_all(self._files.fd, memory.data)
        at = self._entry.ctypes.data
        if not add_mark_to_entry(at, self._offset, len(memory), epoch, kind):
            self._seal()
            add_mark_to_entry(at, self._offset, len(memory), epoch, kind)
        self._offset += len(memory)
        self._totals = behind(target, self._totals)

    def _note(
        self, header: NDArray[numpy.uint8], body: NDArray[numpy.uint8], ts_recv: int, first_row: int, size: int
    ) -> None:
        at = self._entry.ctypes.data
        words = header.ctypes.data, body.ctypes.data, ts_recv, first_row, size, self._offset, self._key_rule
        if not add_to_entry(at, *words):
            self._seal()
            add_to_entry(at, *words)

    def _seal(self) -> None:
        if self._entry.any():
            seal_entry(self._entry.ctypes.data)
            _write_all(self._files.index_fd, self._entry.data)
            self._entry[:] = 0


def _write_all(fd: int, *pieces: Any) -> None:
    left = [memoryview(piece) for piece in pieces if len(piece)]
    while left:
        written = os.writev(fd, left)
        while left and written >= len(left[0]):
            written -= len(left.pop(0))
        if written:
            left[0] = left[0][written:]
