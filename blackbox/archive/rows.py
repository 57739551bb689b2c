"""Look into recorded blocks: whether they may be believed, which rows are wanted, which topics they hold."""

from __future__ import annotations

from typing import Any, Final

import numpy
from numpy.typing import NDArray

from blackbox.archive.format import (
    CODEC_NONE,
    OFFSET_BLOCK_HEADER,
    record_head_at,
)
from blackbox.archive.journal_record import is_whole
from blackbox.block.format import FLAG_CHECKSUM, HEADER_BYTES, BodyLayout, layout_of, read_header
from blackbox.block.validate import KEY_OF_TOPICS, Fault, check_block
from blackbox.native.intrinsics import bytes_at, inner, int32s_at, int64s_at, unsigned
from blackbox.native.jit import njit
from blackbox.native.name_table import FULL, NumberingAt, number_of

_BODY_CHECKSUM: Final = int(Fault.BODY_CHECKSUM)


@inner
def _layout_of(header: int) -> BodyLayout:
    block = read_header(header)
    return layout_of(block)


@njit(nogil=True, cache=True)
def check_recorded(record: int, body: int, body_bytes: int, key_rule: int) -> int:
    """The `Fault` of a record whose body lies at `body`, 8-byte aligned; all its topics must have the first one's key.

    Where the body was packed, that its stored bytes are whole was seen before it was unpacked.
    """
    header = record + OFFSET_BLOCK_HEADER
    block = read_header(header)
    head = record_head_at(record)
    if head.codec == CODEC_NONE:
        # A block that has a checksum of its own has the same one: it is reckoned once, by `check_block`.
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
    """Write the `Fault` of each record that has none yet, that is, whose fault is 0 or less."""
    for place in range(len(records)):
        if faults[place] <= 0:
            faults[place] = check_recorded(records[place], bodies[place], sizes[place], key_rule)


@njit(nogil=True, cache=True)
def select_rows(
    header: int,
    body: int,
    first_row: int,
    prefix: int,
    prefix_bytes: int,
    first_time: int,
    last_time: int,
    rows: int,
) -> int:
    """Write to int32[count] at `rows` which rows of a checked block are wanted; returns how many.

    Wanted are those from `first_row` on whose topic starts with the prefix and whose `ts_event` is one of `first_time`
    to `last_time`.
    """
    block = read_header(header)
    layout = _layout_of(header)
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
    """Whether the `size` bytes at `text` start with a prefix."""
    if size < prefix_bytes:
        return False
    left, right = bytes_at(text, prefix_bytes), bytes_at(prefix, prefix_bytes)
    same = True
    for i in range(numpy.uint64(prefix_bytes)):
        same &= left[i] == right[i]
    return same


@njit(nogil=True, cache=True)
def count_topics(header: int, body: int, first_row: int, first_topic: int, numbering: NumberingAt, counts: Any) -> int:
    """Add a checked block's messages, from `first_row` on, to `counts` by the number of their topic.

    Topics before `first_topic` were counted before. Returns how many are now: fewer than the block has when the
    numbering is full.
    """
    block = read_header(header)
    layout = _layout_of(header)
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
