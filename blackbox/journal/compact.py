"""Write a recording anew, with the small blocks of each key merged into large ones, and packed if that is wanted."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import msgspec
import numpy
from numba import njit
from numpy.typing import NDArray

from blackbox.atoms import bytes_at, copy_bytes, inner, int32s_at, int64s_at, uint64s_at, unsigned
from blackbox.check import Header, read_header
from blackbox.encode import Plan, finish_header, plan_bytes, write_template
from blackbox.errors import JournalError
from blackbox.journal.blocks import Recorded, read_blocks
from blackbox.journal.chunks import Chunk, Query, read_chunks
from blackbox.journal.codec import CODECS, compress
from blackbox.journal.day import Manifest, as_journal_error, slice_directory, sync_directory
from blackbox.journal.layout import (
    CODEC_NONE,
    ENTRY_BYTES,
    FILE_HEAD_BYTES,
    RECORD_HEAD_BYTES,
    record_bytes,
)
from blackbox.journal.record import add_to_entry, seal_entry, write_head
from blackbox.journal.writer import Files
from blackbox.layout import FLAG_FIXED, FLAG_LINE_B, HEADER_BYTES, MAX_BODY_BYTES, BodyLayout, body_layout
from blackbox.recording import Recording
from blackbox.topics import FULL, Numbering, NumberingAt, number_of
from blackbox.xxh3 import checksum_32, xxh3

Compression = Literal["none", "lz4", "zstd"]

BLOCK_BYTES: Final = 256 << 10
"""Blocks are merged up to that many bytes, unless it is said otherwise."""
SEGMENT_BYTES: Final = 256 << 20
_SPAN_NS: Final = 10**9
"""A merged block holds no more than what was sent in that time: it has one `ts_out`."""
_WINDOW_BYTES: Final = 32 << 20
"""Blocks of all keys are looked at together up to that many bytes."""
_WINDOW_BLOCKS: Final = 65_536
_PADDING_BYTES: Final = 32
_VARIABLE: Final = -1


class Compacted(msgspec.Struct, frozen=True, kw_only=True):
    """What was made of a recording."""

    messages: int
    blocks_before: int
    blocks_after: int
    file_bytes_before: int
    file_bytes_after: int
    """Segments and their indexes, both."""
    left_out: int
    """Messages of damaged blocks, as far as they are known: gaps from now on."""


class Digest(msgspec.Struct):
    """What messages are there, whatever blocks they are in: how many, and a sum of the checksums of all of them."""

    messages: int = 0
    total: int = 0

    def add(self, recorded: Recorded) -> None:
        """Take in the messages of a checked block."""
        self.total = (self.total + int(digest_of(recorded.header, recorded.body, recorded.first_row))) % (1 << 64)
        self.messages += recorded.block.count - recorded.first_row


def compact(
    recording: Recording,
    out: str | os.PathLike[str],
    *,
    compression: Compression = "none",
    block_bytes: int = BLOCK_BYTES,
    progress: Callable[[int], object] | None = None,
) -> Compacted:
    """Write a recording anew into the directory `out`; the recording itself is not changed.

    Blocks of one run, slice and key that follow each other without a gap become one, up to `block_bytes`, as long as
    they were sent within a second. It has `ts_out` and `ts_recv` of the first. Gaps stay gaps; damaged blocks become
    gaps, and a torn tail is left out. `out` gets its name only when it has been read again and found to hold the same
    messages: topic, payload, `ts_event`, sequence number, slice and run of each.

    Args:
        recording: what to read, as it was when it was opened.
        out: a directory that is not there yet.
        compression: of the bodies. "none": replays use them as they are.
        block_bytes: 1 KiB to 64 MiB.
        progress: called with the bytes read so far, of the recording and then of what was made of it.

    Raises JournalError when `out` exists, cannot be written, or does not hold the same messages; ValueError for a
    setting that is none.
    """
    if compression not in CODECS:
        raise ValueError(f"compression was {compression!r}, expected one of: {', '.join(CODECS)}")
    if not 1 << 10 <= block_bytes <= MAX_BODY_BYTES:
        raise ValueError(f"block_bytes were {block_bytes}, expected {1 << 10} to {MAX_BODY_BYTES}")
    compress(compression, b"")  # whether its library is there is to be known now
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
    before, after, read = Digest(), Digest(), 0
    seen: list[Chunk] = []

    def blocks_of(source: Recording, slice_id: int, digest: Digest) -> Iterator[Recorded]:
        nonlocal read
        key_bytes = source.feed.key_bytes
        for chunk in read_chunks(source.streams(b"", [slice_id]), Query(key_bytes), source.note):
            seen.append(chunk)
            for recorded in read_blocks([chunk], key_bytes, source.note):
                digest.add(recorded)
                yield recorded
            read += int(chunk.heads["stored_bytes"].sum(dtype=numpy.int64)) + RECORD_HEAD_BYTES * len(chunk.heads)
            progress(read)

    blocks_before = blocks_after = 0
    manifest = Manifest.read(recording.path)
    for slice_id in range(len(recording.feed.slices)):
        if not recording.streams(b"", [slice_id]):
            continue
        writer = _Writer(fresh, slice_id, recording.feed.key_bytes, compression)
        try:
            for window in _windows(blocks_of(recording, slice_id, before)):
                blocks_before += len(window)
                for group in _groups(window, block_bytes):
                    writer.put(group)
                _give_back(seen)
            writer.finish()
        finally:
            writer.close()
        blocks_after += writer.blocks
    manifest.write(fresh)
    again = Recording.open(fresh)
    seen.clear()
    for slice_id in range(len(again.feed.slices)):
        for _ in blocks_of(again, slice_id, after):
            seen.clear()
    if before != after or again.damage:
        raise JournalError(
            f"what was written of {recording.path} was not what was read: {after.messages} messages of checksum "
            f"{after.total:016x}, expected {before.messages} of {before.total:016x}; it was removed"
        )
    return Compacted(
        messages=before.messages,
        blocks_before=blocks_before,
        blocks_after=blocks_after,
        file_bytes_before=_file_bytes(recording.path),
        file_bytes_after=_file_bytes(fresh),
        left_out=sum(damage.messages for damage in recording.damage),
    )


def _give_back(seen: list[Chunk]) -> None:
    """Give back the memory of all chunks but the last, whose blocks may still be wanted."""
    for chunk in seen[:-1]:
        ends = chunk.addresses + chunk.heads["stored_bytes"] + RECORD_HEAD_BYTES
        for number, segment in enumerate(chunk.segments):
            mine = chunk.segment_of == number
            segment.release(int(chunk.addresses[mine].min()) - segment.address, int(ends[mine].max()) - segment.address)
    del seen[:-1]


def _file_bytes(day: Path) -> int:
    return sum(path.stat().st_size for kind in ("journal", "index") for path in day.glob(f"slice-*/*.{kind}"))


def _windows(blocks: Iterator[Recorded]) -> Iterator[list[Recorded]]:
    """Consecutive blocks, as many as are looked at together."""
    window: list[Recorded] = []
    size = 0
    for recorded in blocks:
        block = recorded.block
        if window and (
            size + block.body.nbytes > _WINDOW_BYTES
            or len(window) >= _WINDOW_BLOCKS
            or abs(block.ts_out - window[0].block.ts_out) > _SPAN_NS
        ):
            yield window
            window, size = [], 0
        window.append(recorded)
        size += block.body.nbytes
    if window:
        yield window


def _groups(window: list[Recorded], block_bytes: int) -> list[list[Recorded]]:
    """What becomes one block each, in the order of the first of each."""
    groups: list[list[Recorded]] = []
    growing: dict[tuple[int, int, bytes], tuple[list[Recorded], int, int]] = {}
    for recorded in window:
        block = recorded.block
        name = (block.epoch, block.schema_id, block.key)
        group, following, size = growing.get(name, ([], -1, 0))
        # Payloads of one size in each block may differ between blocks: then each row has an offset.
        more = block.body.nbytes + 4 * block.count + _PADDING_BYTES
        if following != block.sequence + recorded.first_row or size + more > block_bytes:
            group, size = [], 0
            groups.append(group)
        group.append(recorded)
        growing[name] = group, block.sequence + block.count, size + more
    return groups


class _Writer:
    """The new segments of one slice."""

    def __init__(self, day: Path, slice_id: int, key_bytes: int, compression: Compression) -> None:
        self.blocks = 0
        self._day, self._slice_id, self._key_bytes = day, slice_id, key_bytes
        self._compression = compression
        self._merger = _Merger()
        self._entry = numpy.zeros(ENTRY_BYTES, numpy.uint8)
        self._head = numpy.zeros(RECORD_HEAD_BYTES, numpy.uint8)
        slice_directory(day, slice_id).mkdir()
        self._number = 0
        self._offset = FILE_HEAD_BYTES
        self._files = Files(day, slice_id, 0)

    def put(self, group: list[Recorded]) -> None:
        """Append the blocks of a group as one."""
        first = group[0]
        if len(group) == 1 and not first.first_row:
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
        size = record_bytes(len(stored))
        checksum = checksum_32(stored.ctypes.data, len(stored))
        write_head(
            self._head.ctypes.data, header.ctypes.data, first.ts_recv, 0, codec, len(stored), numpy.int64(checksum)
        )
        _write_all(self._files.fd, self._head.data, stored.data, bytes(size - RECORD_HEAD_BYTES - len(stored)))
        self._note(header, body, first.ts_recv, size)
        self._offset += size
        self.blocks += 1

    def finish(self) -> None:
        """Make everything durable."""
        self._seal()
        self._files.sync()
        os.fdatasync(self._files.index_fd)
        sync_directory(slice_directory(self._day, self._slice_id))

    def close(self) -> None:
        """Let the files go."""
        self._files.close()

    def _next_segment(self) -> None:
        self.finish()
        self.close()
        self._number += 1
        self._offset = FILE_HEAD_BYTES
        self._files = Files(self._day, self._slice_id, self._number)

    def _note(self, header: NDArray[numpy.uint8], body: NDArray[numpy.uint8], ts_recv: int, size: int) -> None:
        at = self._entry.ctypes.data
        words = header.ctypes.data, body.ctypes.data, ts_recv, 0, size, self._offset, self._key_bytes
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


class _Tables(NamedTuple):
    """Where the merging keeps its books, by address."""

    topics: NumberingAt
    numbers: int
    """int32: the number in the merged block of each topic of each block, one block behind the other."""
    used: int
    """uint8: for the topics of one block, whether a row is of it."""


class _Merger:
    """Merges blocks; its memory is used again and again."""

    def __init__(self) -> None:
        self._topics = self._text = 0

    def merge(self, group: list[Recorded]) -> tuple[NDArray[numpy.uint8], NDArray[numpy.uint8]]:
        """Header and body of the block that holds the messages of all, which must be of one key and without gaps."""
        first = group[0]
        topics = sum(recorded.block.topic_count for recorded in group)
        text = sum(recorded.block.layout.payloads - recorded.block.layout.topics for recorded in group)
        self._make_room(topics, text)
        headers = numpy.array([recorded.header for recorded in group], numpy.int64)
        bodies = numpy.array([recorded.body for recorded in group], numpy.int64)
        first_rows = numpy.array([recorded.first_row for recorded in group], numpy.int64)
        tables = _Tables(self._numbering.at, self._numbers.ctypes.data, self._used.ctypes.data)
        plan = plan_merge(headers, bodies, first_rows, tables)
        body = numpy.zeros(plan_bytes(plan), numpy.uint8)
        write_merge(headers, bodies, first_rows, tables, plan, body.ctypes.data)
        header = numpy.zeros(HEADER_BYTES, numpy.uint8)
        at = header.ctypes.data
        block = first.block
        write_template(at, plan, body.ctypes.data, True, block.schema_id, block.slice_id, numpy.uint64(block.epoch))
        finish_header(at, block.sequence + first.first_row, block.ts_out, block.flags & FLAG_LINE_B)
        self._numbering.clear()
        return header, body

    def _make_room(self, topics: int, text: int) -> None:
        if topics > self._topics or text > self._text:
            self._topics, self._text = max(2 * topics, 1_024), max(2 * text, 65_536)
            self._numbering = Numbering(self._topics, -(-self._text // self._topics))
            self._numbers = numpy.zeros(self._topics, numpy.int32)
            self._used = numpy.zeros(self._topics, numpy.uint8)


@inner
def _layout_of(block: Header) -> BodyLayout:
    return body_layout(block.count, block.topics, block.topic_bytes, 0, block.flags & FLAG_FIXED != 0)


@inner
def _payload_bounds(block: Header, layout: BodyLayout, body: int, first_row: int) -> tuple[int, int]:
    """Where the payloads from `first_row` on start and end, in the payload bytes."""
    if block.flags & FLAG_FIXED:
        return first_row * block.stride, block.count * block.stride
    offsets = int32s_at(body + layout.payload_offsets, block.count + 1)
    return numpy.int64(offsets[numpy.uint64(first_row)]), numpy.int64(offsets[numpy.uint64(block.count)])


@inner
def _stride_from(block: Header, layout: BodyLayout, body: int, first_row: int) -> int:
    """The size of all payloads from `first_row` on; _VARIABLE when they differ."""
    if block.flags & FLAG_FIXED:
        return block.stride
    offsets = int32s_at(body + layout.payload_offsets, block.count + 1)
    stride = numpy.int64(offsets[first_row + 1]) - numpy.int64(offsets[first_row])
    for row in range(first_row + 1, block.count):
        if numpy.int64(offsets[row + 1]) - numpy.int64(offsets[row]) != stride:
            return numpy.int64(_VARIABLE)
    return stride


@njit(nogil=True, cache=True)
def plan_merge(
    headers: NDArray[numpy.int64], bodies: NDArray[numpy.int64], first_rows: NDArray[numpy.int64], tables: _Tables
) -> Plan:
    """What the block that is made of checked blocks will hold, from each one's first row on.

    Numbers the topics that occur; there is room for all of them.
    """
    count = topic_bytes = payload_bytes = place = 0
    topics = 0
    stride = numpy.int64(0)
    for i in range(len(headers)):
        block = read_header(headers[i])
        body, first_row = bodies[i], first_rows[i]
        layout = _layout_of(block)
        used = bytes_at(tables.used, block.topics)
        used[:] = first_row == 0
        if first_row > 0:
            topic_index = int32s_at(body + layout.topic_index, block.count)
            for row in range(first_row, block.count):
                used[unsigned(topic_index[row])] = 1
        offsets = int32s_at(body + layout.topic_offsets, block.topics + 1)
        numbers = int32s_at(tables.numbers + 4 * place, block.topics)
        for topic in range(block.topics):
            if used[topic] == 0:
                continue
            size = numpy.int64(offsets[topic + 1]) - numpy.int64(offsets[topic])
            number = number_of(tables.topics, body + layout.topics + numpy.int64(offsets[topic]), size)
            assert number != FULL
            numbers[topic] = number
            if number == topics:
                topics += 1
                topic_bytes += size
        place += block.topics
        size = _stride_from(block, layout, body, first_row)
        if i == 0:
            stride = size
        elif stride != size:
            stride = numpy.int64(_VARIABLE)
        low, high = _payload_bounds(block, layout, body, first_row)
        payload_bytes += high - low
        count += block.count - first_row
    return Plan(0, count, topics, topic_bytes, payload_bytes, stride, numpy.int64(_VARIABLE))


@njit(nogil=True, cache=True)
def write_merge(
    headers: NDArray[numpy.int64],
    bodies: NDArray[numpy.int64],
    first_rows: NDArray[numpy.int64],
    tables: _Tables,
    plan: Plan,
    target: int,
) -> None:
    """Fill the zeros at `target`, as `plan_merge` has just planned it."""
    fixed = plan.stride != _VARIABLE
    layout = body_layout(plan.stop, plan.topics, plan.topic_bytes, 0, fixed)
    starts = int64s_at(tables.topics.starts, plan.topics + 1)
    topic_offsets = int32s_at(target + layout.topic_offsets, plan.topics + 1)
    for topic in range(plan.topics + 1):
        topic_offsets[topic] = starts[topic]
    copy_bytes(target + layout.topics, tables.topics.text, plan.topic_bytes)
    payload_offsets = int32s_at(target + layout.payload_offsets, 0 if fixed else plan.stop + 1)
    at = numpy.int64(0)
    payload = numpy.int64(0)
    place = numpy.int64(0)
    for i in range(len(headers)):
        block = read_header(headers[i])
        body, first_row = bodies[i], first_rows[i]
        old = _layout_of(block)
        rows = block.count - first_row
        copy_bytes(target + 8 * at, body + 8 * first_row, 8 * rows)
        old_index = int32s_at(body + old.topic_index, block.count)
        index = int32s_at(target + layout.topic_index + 4 * at, rows)
        numbers = int32s_at(tables.numbers + 4 * place, block.topics)
        for row in range(numpy.uint64(rows)):
            index[row] = numbers[unsigned(old_index[row + numpy.uint64(first_row)])]
        low, high = _payload_bounds(block, old, body, first_row)
        if not fixed:
            if block.flags & FLAG_FIXED:
                for row in range(rows):
                    payload_offsets[at + row] = payload + row * block.stride
            else:
                old_offsets = int32s_at(body + old.payload_offsets, block.count + 1)
                for row in range(rows):
                    payload_offsets[at + row] = payload + numpy.int64(old_offsets[first_row + row]) - low
        copy_bytes(target + layout.payloads + payload, body + old.payloads + low, high - low)
        payload += high - low
        at += rows
        place += block.topics
    if not fixed:
        payload_offsets[plan.stop] = payload


_PRIME: Final = numpy.uint64(0x9E3779B185EBCA87)
_OTHER_PRIME: Final = numpy.uint64(0xC2B2AE3D27D4EB4F)


@inner
def _mixed(total: int, word: int) -> int:
    total = (total ^ word) * _PRIME
    total ^= total >> numpy.uint64(32)
    total *= _OTHER_PRIME
    return total ^ (total >> numpy.uint64(29))


@njit(nogil=True, cache=True)
def digest_of(header: int, body: int, first_row: int) -> int:
    """The sum, uint64, of a checksum of each message of a checked block, from its first row on.

    Of its slice, epoch and sequence number, `ts_event`, topic and payload: how it is packed in blocks does not matter.
    """
    block = read_header(header)
    layout = _layout_of(block)
    fixed = block.flags & FLAG_FIXED != 0
    topic_offsets = int32s_at(body + layout.topic_offsets, block.topics + 1)
    topics = numpy.empty(block.topics, numpy.uint64)
    for topic in range(block.topics):
        start = numpy.int64(topic_offsets[topic])
        topics[topic] = xxh3(body + layout.topics + start, numpy.int64(topic_offsets[topic + 1]) - start)
    ts_event = uint64s_at(body, block.count)
    topic_index = int32s_at(body + layout.topic_index, block.count)
    offsets = int32s_at(body + layout.payload_offsets, 0 if fixed else block.count + 1)
    origin = _mixed(_mixed(numpy.uint64(block.slice_id), block.epoch), numpy.uint64(block.schema_id))
    total = numpy.uint64(0)
    for row in range(first_row, block.count):
        start = row * block.stride if fixed else numpy.int64(offsets[row])
        size = block.stride if fixed else numpy.int64(offsets[row + 1]) - start
        word = _mixed(origin, numpy.uint64(block.sequence + row))
        word = _mixed(word, ts_event[row])
        word = _mixed(word, topics[topic_index[row]])
        total += _mixed(word, xxh3(body + layout.payloads + start, size))
    return total
