"""Copy a recording with small adjacent blocks merged into large ones, and optionally compressed."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from blackbox.archive.files.codec import BLOCK_BYTES, Compression, check_packing
from blackbox.archive.files.day import Manifest, as_journal_error, recorded_files, sync_directory
from blackbox.archive.maintain.slice_rewriter import MarkCopier, SliceRewriter
from blackbox.archive.read.digest import Digest
from blackbox.archive.read.filter import Filter
from blackbox.archive.read.reader import Recorded, RecordRun, blocks_of, read_runs
from blackbox.archive.recording import Recording
from blackbox.block.form.format import FLAG_NULLS, FLAG_SAME, FLAG_SEQUENCES
from blackbox.errors import JournalError

_SPAN_NS: Final = 10**9
"""Maximum time between the first and last block of a merged block, which has one `ts_out`."""
_PADDING_BYTES: Final = 32


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
        for run in read_runs(source.segments.streams(b"", [slice_id]), Filter(key_rule), source.segments.note):
            seen.append(run)
            for recorded in blocks_of(run, key_rule):
                digest.add(recorded)
                yield recorded
            done += run.stored_bytes
            progress(done)

    blocks_before = blocks_after = 0
    manifest = Manifest.read(recording.path)
    for slice_id, _ in recording.segments.of():
        writer = SliceRewriter(fresh, slice_id, recording.feed.key_rule, compression, manifest.created_ns)
        try:
            groups = _groups(read(recording, slice_id, before), block_bytes)
            marks = MarkCopier(writer, recording.segments.filled(slice_id))
            blocks_before += _write_slice(writer, groups, marks, seen)
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
    writer: SliceRewriter, groups: Iterator[list[Recorded]], marks: MarkCopier, seen: list[RecordRun]
) -> int:
    """Write the merged blocks and the marks of a slice. Return the number of blocks before merging."""
    blocks = 0
    for group in groups:
        blocks += len(group)
        if writer.is_full:
            writer.next_segment()
        marks.copy_before(group[0])
        writer.put(group)
        _give_back(seen)
    marks.copy_rest()
    writer.finish()
    return blocks


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
        (last.flags | block.flags) & (FLAG_SEQUENCES | FLAG_NULLS | FLAG_SAME) == 0
        and (last.epoch, last.schema_id, last.key) == (block.epoch, block.schema_id, block.key)
        and last.sequence + last.count == block.sequence + recorded.first_row
        and abs(block.ts_out - group[0].block.ts_out) <= _SPAN_NS
    )
