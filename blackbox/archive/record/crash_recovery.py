"""Recover a slice after its recorder was killed: cut the torn tail, complete the index."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

import numpy

from blackbox.archive.files.closed import note_segments, read_closed
from blackbox.archive.files.day import (
    Manifest,
    index_path,
    replace_file,
    segment_numbers,
    segment_path,
    slice_directories,
    slice_directory,
    slice_of,
)
from blackbox.archive.files.format import FILE_HEAD, FILE_HEAD_BYTES, INDEX_MAGIC
from blackbox.archive.files.segment import Segment
from blackbox.block.form.layout import VERSION
from blackbox.errors import JournalError
from blackbox.native.tables.xxh3 import xxh3

log = logging.getLogger("blackbox")


def file_head(magic: bytes, slice_id: int, number: int, created_ns: int) -> bytes:
    """Return the 64-byte head of a segment or index."""
    head = numpy.zeros(1, FILE_HEAD)
    head["magic"], head["version"], head["slice"], head["segment"] = magic, VERSION, slice_id, number
    head["created"] = created_ns
    head["checksum"] = int(xxh3(head.ctypes.data, FILE_HEAD_BYTES - 4)) & 0xFFFFFFFF
    return head.tobytes()


def remove_empty(path: Path) -> bool:
    """Remove a segment and its index if the segment has no data after its head. Return True if it was removed."""
    if not path.is_file() or path.stat().st_size > FILE_HEAD_BYTES:
        return False
    index_path(path).unlink(missing_ok=True)
    path.unlink()
    return True


def recover_day(day: Path) -> int:
    """Recover a day that no process records. Return the number of bytes cut. Raises OSError."""
    try:
        key_rule = Manifest.read(day).feed.key_rule
    except JournalError as error:
        log.warning("%s", error)
        return 0
    slices = [slice_of(path.name) for path in slice_directories(day)]
    return sum(_recover_slice(day, slice_id, key_rule) for slice_id in slices if slice_id is not None)


def _recover_slice(day: Path, slice_id: int, key_rule: int) -> int:
    # Only the last segment with records can be torn. Empty segments after it are removed.
    cut = 0
    for number in reversed(segment_numbers(slice_directory(day, slice_id))):
        path = segment_path(day, slice_id, number)
        size = path.stat().st_size
        if remove_empty(path):
            if size < FILE_HEAD_BYTES:
                log.warning("%s: cut %d bytes of an incomplete head", path, size)
                cut += size
            _forget_segment(day, slice_id, number)
            continue
        try:
            segment = Segment(path, slice_id, number, key_rule)
        except JournalError as error:
            log.warning("%s", error)  # readers report the same; the next segment gets another number
            return cut
        cut += _cut_tail(segment)
        if not remove_empty(path):
            _complete_index(segment)
            return cut
        _forget_segment(day, slice_id, number)
    return cut


def _forget_segment(day: Path, slice_id: int, number: int) -> None:
    """Store that the last segment, which held nothing readable, is gone."""
    try:
        known = read_closed(day).get(slice_id)
    except JournalError as error:
        log.warning("%s", error)
        return
    if known is not None and known.segments > number:
        note_segments(day, slice_id, number)


def cut_segment(segment: Segment, size: int) -> None:
    """Cut a segment after a record or mark. No process may be writing it, and all later segments must be empty."""
    os.truncate(segment.path, size)
    index_path(segment.path).unlink(missing_ok=True)
    if size <= FILE_HEAD_BYTES:
        remove_empty(segment.path)
        _forget_segment(segment.path.parents[1], segment.slice_id, segment.number)


def _cut_tail(segment: Segment) -> int:
    for damage in segment.damage:
        log.warning("%s", damage)
    if segment.torn_bytes:
        log.warning("%s: cut %d bytes of an incomplete record", segment.path, segment.torn_bytes)
    os.truncate(segment.path, segment.whole_bytes)  # also releases reserved disk space
    return segment.torn_bytes


def _complete_index(segment: Segment) -> None:
    path = index_path(segment.path)
    entries = segment.entries.tobytes()
    if not segment.damage and path.exists() and path.read_bytes()[FILE_HEAD_BYTES:] == entries:
        return
    data = file_head(INDEX_MAGIC, segment.slice_id, segment.number, time.time_ns()) + entries
    replace_file(path, path.with_suffix(".index.new"), data, is_durable=False)
