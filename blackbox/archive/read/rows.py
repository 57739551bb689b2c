"""Compiled operations on recorded blocks: check them, select rows, list and count topics."""

from __future__ import annotations

from typing import Any, Final

import numpy
from numpy.typing import NDArray

from blackbox.archive.files.format import CODEC_NONE, OFFSET_BLOCK_HEADER, record_head_at
from blackbox.archive.files.journal_record import is_whole
from blackbox.block.form.format import FLAG_CHECKSUM, HEADER_BYTES, layout_of, read_header
from blackbox.block.form.validate import KEY_OF_TOPICS, Fault, check_block
from blackbox.native.compile.jit import njit
from blackbox.native.memory.intrinsics import bytes_at, inner, int32s_at, int64s_at, unsigned
from blackbox.native.tables.name_table import FULL, NumberingAt, number_of

_BODY_CHECKSUM: Final = int(Fault.BODY_CHECKSUM)


@njit(nogil=True, cache=True)
def check_recorded(record: int, body: int, body_bytes: int, key_rule: int) -> int:
    """Return the `Fault` of a record with its body at `body`, 8-byte aligned. All its topics must have the same key.

    The stored bytes of a compressed body were checked before it was decompressed.
    """
    header = record + OFFSET_BLOCK_HEADER
    block = read_header(header)
    head = record_head_at(record)
    if head.codec == CODEC_NONE:
        # If the block has a checksum, it is the same, and `check_block` computes it only once.
        if block.flags & FLAG_CHECKSUM:
            if head.stored_checksum != head.body_checksum:
                return _BODY_CHECKSUM
        elif not is_whole(record):
            return _BODY_CHECKSUM
    return check_block(header, HEADER_BYTES, body, body_bytes, body, KEY_OF_TOPICS, key_rule)


@njit(nogil=True, cache=True)
def check_records(
    records: NDArray[numpy.int64],
    bodies: NDArray[numpy.int64],
    sizes: NDArray[numpy.int64],
    key_rule: int,
    faults: NDArray[numpy.int64],
) -> None:
    """Write the `Fault` of each unchecked record, which has fault 0 or less."""
    for index in range(len(records)):
        if faults[index] <= 0:
            faults[index] = check_recorded(records[index], bodies[index], sizes[index], key_rule)


@njit(nogil=True, cache=True)
def select_rows(
    header: int, body: int, first_row: int, prefix: int, prefix_bytes: int, first_time: int, last_time: int, rows: int
) -> int:
    """Write the selected rows of a checked block to int32[count] at `rows`. Return their number.

    Selects rows from `first_row` on whose topic starts with the prefix and whose `ts_event` is in `first_time` to
    `last_time`.
    """
    block = read_header(header)
    layout = layout_of(block)
    wanted = numpy.empty(block.topics, numpy.uint8)
    offsets = int32s_at(body + layout.topic_offsets, block.topics + 1)
    for topic in range(numpy.uint64(block.topics)):
        start = offsets[topic]
        wanted[topic] = starts_with(
            body + layout.topics + start, offsets[topic + numpy.uint64(1)] - start, prefix, prefix_bytes
        )
    ts_event = int64s_at(body, block.count)
    topic_index = int32s_at(body + layout.topic_index, block.count)
    chosen = int32s_at(rows, block.count)
    many = numpy.uint64(0)
    for row in range(numpy.uint64(first_row), numpy.uint64(block.count)):
        chosen[many] = numpy.int32(row)
        time = ts_event[row]
        good = wanted[unsigned(topic_index[row])] != 0 and first_time <= time and time <= last_time
        many += numpy.uint64(good)
    return numpy.int64(many)


@inner
def starts_with(text: int, size: int, prefix: int, prefix_bytes: int) -> bool:
    """Return True if the `size` bytes at `text` start with a prefix."""
    if size < prefix_bytes:
        return False
    left, right = bytes_at(text, prefix_bytes), bytes_at(prefix, prefix_bytes)
    same = True
    for i in range(numpy.uint64(prefix_bytes)):
        same &= left[i] == right[i]
    return same


@njit(nogil=True, cache=True)
def count_topics(header: int, body: int, first_row: int, first_topic: int, numbering: NumberingAt, counts: Any) -> int:
    """Add a checked block's messages, from `first_row` on, to `counts` by topic number.

    Topics before `first_topic` are counted already. Returns the number of topics counted so far, which is lower than
    the block's if the numbering is full.
    """
    block = read_header(header)
    layout = layout_of(block)
    messages = numpy.zeros(block.topics, numpy.int64)
    topic_index = int32s_at(body + layout.topic_index, block.count)
    for row in range(numpy.uint64(first_row), numpy.uint64(block.count)):
        messages[unsigned(topic_index[row])] += 1
    offsets = int32s_at(body + layout.topic_offsets, block.topics + 1)
    for topic in range(numpy.uint64(first_topic), numpy.uint64(block.topics)):
        if messages[topic] == 0:
            continue
        start = numpy.int64(offsets[topic])
        size = numpy.int64(offsets[topic + numpy.uint64(1)]) - start
        number = number_of(numbering, body + layout.topics + start, size)
        if number == FULL:
            return numpy.int64(topic)
        counts[number] += messages[topic]
    return block.topics
