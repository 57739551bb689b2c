"""Write blocks in compiled code: measure how many rows fit, lay the body out, fill it."""

from __future__ import annotations

from typing import NamedTuple

import numpy
from numpy.typing import NDArray

from blackbox.block.format import (
    FLAG_CHECKSUM,
    FLAG_FIXED,
    FLAG_NULLS,
    FLAG_SEQUENCES,
    HEADER_BYTES,
    MAGIC,
    OFFSET_BODY_BYTES,
    OFFSET_BODY_CHECKSUM,
    OFFSET_COUNT,
    OFFSET_EPOCH,
    OFFSET_FLAGS,
    OFFSET_HEADER_CHECKSUM,
    OFFSET_KEY_BYTES,
    OFFSET_MAGIC,
    OFFSET_SCHEMA,
    OFFSET_SEQUENCE,
    OFFSET_SLICE,
    OFFSET_STRIDE,
    OFFSET_TOPIC_BYTES,
    OFFSET_TOPICS,
    OFFSET_TS_IN,
    OFFSET_TS_OUT,
    OFFSET_VERSION,
    VERSION,
    BodyLayout,
    body_layout,
)
from blackbox.native.intrinsics import (
    bytes_at,
    copy_bytes,
    inner,
    int32s_at,
    int64s_at,
    uint16s_at,
    unsigned,
)
from blackbox.native.jit import njit
from blackbox.native.xxh3 import checksum_32


class Rows(NamedTuple):
    """Messages in columns, wherever their payloads lie; columns by address, int64 but for `lengths`, which is int32.

    `starts` and `lengths` are 0 when every payload has `stride` bytes and row r starts at `r * stride`. A length below
    0 marks a message that has no value. `ts_event` is 0 when no message has one (it is then written as 0), `sequences`
    when the messages' sequence numbers follow each other.
    """

    ts_event: int
    payloads: int
    starts: int
    lengths: int
    stride: int
    sequences: int


class TopicTable(NamedTuple):
    """The text of topics by id: bytes `text[offsets[i]:offsets[i] + sizes[i]]`."""

    text: NDArray[numpy.uint8]
    offsets: NDArray[numpy.int64]
    sizes: NDArray[numpy.int32]


class Distinct(NamedTuple):
    """Scratch that finds a block's distinct topics in one pass, without clearing anything between blocks.

    `place[topic]` counts only where `stamp[topic] == generation[0]`; `order` lists the block's topics by place.
    """

    stamp: NDArray[numpy.int64]
    place: NDArray[numpy.int32]
    order: NDArray[numpy.int32]
    generation: NDArray[numpy.int64]


class Plan(NamedTuple):
    """What one block will hold: rows `[start, stop)` of the order, its sizes in bytes, and the flags of its columns."""

    start: int
    stop: int
    topics: int
    topic_bytes: int
    payload_bytes: int
    stride: int
    first_byte: int
    flags: int


VARIABLE = -1
"""`Plan.stride` when payloads differ in length. `Plan.first_byte` is VARIABLE when payloads are not contiguous."""
NO_VALUE = -1
"""The length of the payload of a message that has no value."""


ROW_BYTES = 16
"""Bytes that a row adds to a body beside its payload: time, topic index, offset."""
_SEQUENCE_BYTES = 8


@njit(inline="always")
def _stored_length(rows: Rows, row: int) -> int:
    return numpy.int64(int32s_at(rows.lengths + 4 * row, 1)[0]) if rows.lengths != 0 else rows.stride


@njit(inline="always")
def _length(rows: Rows, row: int) -> int:
    return max(_stored_length(rows, row), numpy.int64(0))


@njit(inline="always")
def _begin(rows: Rows, row: int) -> int:
    return int64s_at(rows.starts + 8 * row, 1)[0] if rows.starts != 0 else row * rows.stride


@njit(nogil=True, cache=True)
def copy_extents(starts_at: int, sizes_at: int, count: int, octets: int, to_starts: int, to_sizes: int) -> int:
    """Copy where payloads begin, int64, and their sizes, int64, to int64 and int32; return the largest size.

    -1: one begins or ends outside of so many bytes, or has less than none.
    """
    starts, sizes = int64s_at(starts_at, count), int64s_at(sizes_at, count)
    copied_starts, copied_sizes = int64s_at(to_starts, count), int32s_at(to_sizes, count)
    good = True
    longest = numpy.int64(0)
    for row in range(count):
        start, size = starts[row], sizes[row]
        # Written so that no sum can overflow.
        good &= (size >= 0) & (start >= 0) & (start <= octets - size)
        longest = max(longest, size)
        copied_starts[row] = start
        copied_sizes[row] = numpy.int32(size)
    return longest if good else numpy.int64(-1)


@njit(nogil=True, cache=True)
def plan_block(
    rows: Rows,
    order: NDArray[numpy.int32],
    topic_ids: NDArray[numpy.int32],
    start: int,
    stop: int,
    block_bytes: int,
    table: TopicTable,
    distinct: Distinct,
) -> Plan:
    """Plan a block of the first rows of `order[start:stop]`, topics `topic_ids[start:stop]`, that fit in `block_bytes`.

    At least one row is taken, so a message larger than `block_bytes` gets a block of its own.
    """
    generation = distinct.generation[0] + 1
    distinct.generation[0] = generation
    spaced = rows.lengths != 0
    first_row = numpy.int64(order[start])
    length = stride = _length(rows, first_row)
    next_byte = first_byte = _begin(rows, first_row)
    contiguous = True
    topics = numpy.uint64(0)
    topic_bytes = 0
    payload_bytes = 0
    total = 0
    taken = 0
    shortest = numpy.int64(0)
    row_bytes = numpy.int64(ROW_BYTES) + (_SEQUENCE_BYTES if rows.sequences != 0 else 0)
    for at in range(numpy.uint64(start), numpy.uint64(stop)):
        row = numpy.int64(order[at])
        if spaced:
            length = _stored_length(rows, row)
            shortest = min(shortest, length)
            length = max(length, numpy.int64(0))
        topic = unsigned(topic_ids[at])
        cost = length + row_bytes
        fresh = distinct.stamp[topic] != generation
        if fresh:
            cost += table.sizes[topic] + 4
        if total + cost > block_bytes and taken > 0:
            break
        total += cost
        if fresh:
            distinct.stamp[topic] = generation
            distinct.place[topic] = topics
            distinct.order[topics] = topic
            topics += numpy.uint64(1)
            topic_bytes += table.sizes[topic]
        begin = _begin(rows, row)
        contiguous &= begin == next_byte
        next_byte = begin + length
        if length != stride:
            stride = VARIABLE
        payload_bytes += length
        taken += 1
    return Plan(
        start,
        start + taken,
        numpy.int64(topics),
        topic_bytes,
        payload_bytes,
        stride,
        first_byte if contiguous else VARIABLE,
        (0 if stride == VARIABLE else FLAG_FIXED)
        | (FLAG_NULLS if shortest < 0 else 0)
        | (FLAG_SEQUENCES if rows.sequences != 0 else 0),
    )


@njit(inline="always")
def _plan_layout(plan: Plan) -> BodyLayout:
    return body_layout(plan.stop - plan.start, plan.topics, plan.topic_bytes, plan.payload_bytes, plan.flags)


@njit(nogil=True, cache=True)
def plan_bytes(plan: Plan) -> int:
    """Return the size of the body that `write_body` fills."""
    return _plan_layout(plan).end


@njit(nogil=True, cache=True)
def write_body(
    target: int,
    plan: Plan,
    rows: Rows,
    order: NDArray[numpy.int32],
    topic_ids: NDArray[numpy.int32],
    table: TopicTable,
    distinct: Distinct,
) -> None:
    """Fill `plan_bytes(plan)` bytes at `target` (8-byte aligned), right after `plan_block` made the plan."""
    count = plan.stop - plan.start
    layout = _plan_layout(plan)
    _clear_padding(target, layout)
    ts_event = int64s_at(target, count)
    topic_index = int32s_at(target + layout.topic_index, count)
    start = numpy.uint64(plan.start)
    for i in range(numpy.uint64(count)):
        topic_index[i] = distinct.place[unsigned(topic_ids[start + i])]
    if rows.ts_event == 0:
        for i in range(count):
            ts_event[i] = 0
    else:
        for i in range(numpy.uint64(count)):
            ts_event[i] = int64s_at(rows.ts_event + 8 * numpy.int64(order[start + i]), 1)[0]
    if rows.sequences != 0:
        sequences = int64s_at(target + layout.sequences, count)
        for i in range(numpy.uint64(count)):
            sequences[i] = int64s_at(rows.sequences + 8 * numpy.int64(order[start + i]), 1)[0]
    if plan.flags & FLAG_NULLS:
        _write_validity(target + layout.validity, plan, rows, order)
    _write_topics(target + layout.topic_offsets, target + layout.topics, plan.topics, table, distinct)
    _write_payloads(target, layout.payload_offsets, layout.payloads, plan, rows, order)


@inner
def _clear_padding(target: int, layout: BodyLayout) -> None:
    # Up to 7 bytes before each column belong to nobody: unwritten, they would leak old memory onto the wire.
    for place in layout[:7]:
        int64s_at(target + place - 8, 1)[0] = 0


@inner
def _write_validity(target: int, plan: Plan, rows: Rows, order: NDArray[numpy.int32]) -> None:
    count = plan.stop - plan.start
    valid = bytes_at(target, (count + 7) >> 3)
    valid[:] = 0
    for i in range(count):
        if _stored_length(rows, numpy.int64(order[plan.start + i])) >= 0:
            valid[i >> 3] |= numpy.uint8(1 << (i & 7))


@inner
def _write_topics(offsets_at: int, text_at: int, topics: int, table: TopicTable, distinct: Distinct) -> None:
    offsets = int32s_at(offsets_at, topics + 1)
    place = 0
    for i in range(topics):
        topic = distinct.order[i]
        offsets[i] = place
        copy_bytes(
            text_at + place,
            table.text.ctypes.data + table.offsets[topic],
            numpy.int64(table.sizes[topic]),
        )
        place += table.sizes[topic]
    offsets[topics] = place


@inner
def _write_payloads(
    target: int,
    offsets_place: int,
    payloads_place: int,
    plan: Plan,
    rows: Rows,
    order: NDArray[numpy.int32],
) -> None:
    count = plan.stop - plan.start
    if plan.stride == VARIABLE:
        offsets = int32s_at(target + offsets_place, count + 1)
        place = 0
        for i in range(count):
            offsets[i] = place
            place += _length(rows, numpy.int64(order[plan.start + i]))
        offsets[count] = place
    place = target + payloads_place
    if plan.first_byte != VARIABLE:
        copy_bytes(place, rows.payloads + plan.first_byte, plan.payload_bytes)
        return
    for i in range(plan.start, plan.stop):
        row = numpy.int64(order[i])
        length = _length(rows, row)
        copy_bytes(place, rows.payloads + _begin(rows, row), length)
        place += length


@njit(nogil=True, cache=True)
def plan_sequences(keys: TopicTable, count: int) -> Plan:
    """Return the plan of a control block that holds one number for each of the first `count` keys."""
    topic_bytes = 0
    for key in range(count):
        topic_bytes += keys.sizes[key]
    return Plan(0, count, count, topic_bytes, 8 * count, 8, 0, FLAG_FIXED)


@njit(nogil=True, cache=True)
def write_sequences(target: int, plan: Plan, keys: TopicTable, sequences: NDArray[numpy.int64]) -> None:
    """Fill `plan_bytes(plan)` bytes at `target` (8-byte aligned): row i is key i, its payload `sequences[i]`."""
    count = plan.topics
    layout = _plan_layout(plan)
    words = int64s_at(target, layout.payloads >> 3)
    for i in range(layout.payloads >> 3):
        words[i] = 0
    topic_index = int32s_at(target + layout.topic_index, count)
    offsets = int32s_at(target + layout.topic_offsets, count + 1)
    numbers = int64s_at(target + layout.payloads, count)
    place = 0
    for i in range(count):
        size = numpy.int64(keys.sizes[i])
        topic_index[i] = i
        offsets[i] = place
        copy_bytes(target + layout.topics + place, keys.text.ctypes.data + keys.offsets[i], size)
        place += size
        numbers[i] = sequences[i]
    offsets[count] = place


class Origin(NamedTuple):
    """Where blocks come from: what stands in the header of every block of one slice of one run."""

    schema_id: int
    slice_id: int
    key_bytes: int
    epoch: int


@njit(nogil=True, cache=True)
def write_template(target: int, plan: Plan, body_address: int, checksum: bool, origin: Origin, ts_in: int) -> None:
    """Write a header at `target` that lacks only what `finish_header` adds when the block is sent."""
    body_bytes = plan_bytes(plan)
    int64s_at(target, HEADER_BYTES // 8)[:] = 0
    int32s_at(target + OFFSET_MAGIC, 1)[0] = MAGIC
    bytes_at(target + OFFSET_VERSION, 1)[0] = VERSION
    uint16s_at(target + OFFSET_FLAGS, 1)[0] = plan.flags | (FLAG_CHECKSUM if checksum else 0)
    restamp(target, origin, ts_in)
    int32s_at(target + OFFSET_COUNT, 1)[0] = plan.stop - plan.start
    int32s_at(target + OFFSET_TOPICS, 1)[0] = plan.topics
    int32s_at(target + OFFSET_TOPIC_BYTES, 1)[0] = plan.topic_bytes
    int32s_at(target + OFFSET_BODY_BYTES, 1)[0] = body_bytes
    int32s_at(target + OFFSET_STRIDE, 1)[0] = 0 if plan.stride == VARIABLE else plan.stride
    if checksum:
        int32s_at(target + OFFSET_BODY_CHECKSUM, 1)[0] = checksum_32(body_address, body_bytes)


@njit(nogil=True, cache=True)
def restamp(target: int, origin: Origin, ts_in: int) -> None:
    """Turn the header of a block that was sent into the template for sending it again."""
    uint16s_at(target + OFFSET_FLAGS, 1)[0] &= FLAG_CHECKSUM | FLAG_FIXED | FLAG_NULLS | FLAG_SEQUENCES
    uint16s_at(target + OFFSET_SCHEMA, 1)[0] = origin.schema_id
    uint16s_at(target + OFFSET_SLICE, 1)[0] = origin.slice_id
    bytes_at(target + OFFSET_KEY_BYTES, 1)[0] = origin.key_bytes
    int64s_at(target + OFFSET_EPOCH, 1)[0] = origin.epoch
    int64s_at(target + OFFSET_TS_IN, 1)[0] = ts_in


@njit(nogil=True, cache=True)
def finish_header(target: int, sequence: int, ts_out: int, more_flags: int) -> None:
    """Stamp what is known only at the send, and the header's own checksum."""
    uint16s_at(target + OFFSET_FLAGS, 1)[0] |= numpy.uint16(more_flags)
    int64s_at(target + OFFSET_SEQUENCE, 1)[0] = sequence
    int64s_at(target + OFFSET_TS_OUT, 1)[0] = ts_out
    seal_header(target)


@njit(nogil=True, cache=True)
def seal_header(target: int) -> None:
    """Write the header's own checksum."""
    int32s_at(target + OFFSET_HEADER_CHECKSUM, 1)[0] = checksum_32(target, OFFSET_HEADER_CHECKSUM)


assert OFFSET_HEADER_CHECKSUM + 4 == HEADER_BYTES
