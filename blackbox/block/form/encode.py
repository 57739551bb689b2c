"""Encode blocks in compiled code: count the rows that fit, lay out the body, fill it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy
from numpy.typing import NDArray

from blackbox.block.form.column_same import has_same, whole_messages, write_same
from blackbox.block.form.format import (
    CHECKED_BYTES,
    END_BYTES,
    FLAG_CHECKSUM,
    FLAG_FIXED,
    FLAG_NULLS,
    FLAG_NUMBERS,
    FLAG_SAME,
    FLAG_SEQUENCES,
    HEADER_BYTES,
    MAGIC,
    VERSION,
    BodyLayout,
    block_header_at,
    body_layout,
)
from blackbox.native.compile.jit import njit
from blackbox.native.memory.intrinsics import (
    bytes_at,
    copy_bytes,
    copy_name,
    inner,
    int32s_at,
    int64s_at,
    prefetch,
    unsigned,
)
from blackbox.native.tables.xxh3 import checksum_32


class Rows(NamedTuple):
    """Messages in columns, with payloads anywhere in memory. Columns are addresses of int64; `lengths` of int32.

    `starts` and `lengths` are 0 if every payload has `stride` bytes and row r starts at `r * stride`. A negative length
    marks a message without a value. `ts_event` is 0 if no message has a time (0 is written), `sequences` is 0 if
    messages are consecutive.

    `same` is 0, or the address of a byte per row: a message with several topics has consecutive rows, and each has the
    distance to the first of them, in sequences if there are any, else in rows.
    """

    ts_event: int
    payloads: int
    starts: int
    lengths: int
    stride: int
    sequences: int
    same: int


class TopicTable(NamedTuple):
    """Topics by id: bytes `text[offsets[i]:offsets[i] + sizes[i]]`."""

    text: NDArray[numpy.uint8]
    offsets: NDArray[numpy.int64]
    sizes: NDArray[numpy.int32]


class Distinct(NamedTuple):
    """Scratch to find a block's distinct topics in one pass, without clearing it between blocks.

    If the block has a topic, the upper half of `seen[topic]` is `generation[0]` and the lower half is the topic's
    index. `order` lists the block's topics by index; it has room for one topic more than there are.
    """

    seen: NDArray[numpy.int64]
    order: NDArray[numpy.int32]
    generation: NDArray[numpy.int64]


class Plan(NamedTuple):
    """Contents of one block: rows `[start, stop)` of the order, its sizes in bytes, and the flags of its columns."""

    start: int
    stop: int
    topics: int
    topic_bytes: int
    payload_bytes: int
    stride: int
    first_byte: int
    first_row: int
    flags: int


VARIABLE = -1
"""`Plan.stride` if payloads differ in length, `Plan.first_byte` if they are not contiguous, `Plan.first_row` if rows
are not consecutive."""
NO_VALUE = -1
"""Payload length of a message without a value."""


ROW_BYTES = 16
"""Bytes per row in a body, without the payload: time, topic index, offset."""
_SEQUENCE_BYTES = 8
TOPIC_BYTES = 4
"""Bytes per topic in a body, without its text: its offset."""
NUMBER_BYTES = 4
"""Bytes per topic for its number."""
_SAME_BYTES = 1
"""Bytes per row of a block with messages of several topics."""
_NO_LIMIT = 1 << 62
_AHEAD = 16
"""Rows or topics to prefetch ahead: of 100,000 topics most are not in the cache."""
_HALF = 32
_PLACE = (1 << _HALF) - 1
_LAST_GENERATION = (1 << 31) - 1


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
def plan_block(
    rows: Rows,
    order: NDArray[numpy.int32],
    topic_ids: NDArray[numpy.int32],
    start: int,
    stop: int,
    block_bytes: int,
    table: TopicTable,
    distinct: Distinct,
    flags: int = 0,
) -> Plan:
    """Plan a block of the first rows of `order[start:stop]`, topics `topic_ids[start:stop]`, that fit in `block_bytes`.

    At least one message is taken, so a message larger than `block_bytes` gets its own block. `flags`: FLAG_NUMBERS for
    a block with topic ids, else 0.
    """
    plan = _plan(rows, order, topic_ids, start, stop, block_bytes, table, distinct, flags)
    while rows.same != 0 and plan.stop < stop:
        end = whole_messages(rows, order, start, plan.stop, stop)
        if end == plan.stop:
            return plan
        stop = end
        plan = _plan(rows, order, topic_ids, start, stop, numpy.int64(_NO_LIMIT), table, distinct, flags)
    return plan


@njit(nogil=True, cache=True)
def _plan(
    rows: Rows,
    order: NDArray[numpy.int32],
    topic_ids: NDArray[numpy.int32],
    start: int,
    stop: int,
    block_bytes: int,
    table: TopicTable,
    distinct: Distinct,
    flags: int,
) -> Plan:
    generation = _next_generation(distinct)
    spaced = rows.lengths != 0
    row_bytes = numpy.int64(ROW_BYTES) + (_SEQUENCE_BYTES if rows.sequences != 0 else 0)
    row_bytes += _SAME_BYTES if rows.same != 0 else 0
    topic_cost = numpy.int64(TOPIC_BYTES) + (NUMBER_BYTES if flags & FLAG_NUMBERS else 0)
    cost = rows.stride + row_bytes
    topics = 0
    topic_bytes = 0
    left = block_bytes
    end = numpy.uint64(stop)
    for at in range(numpy.uint64(start), numpy.uint64(stop)):
        if spaced:
            cost = _length(rows, numpy.int64(order[at])) + row_bytes
        if at + numpy.uint64(_AHEAD) < numpy.uint64(stop):
            coming = numpy.int64(topic_ids[at + numpy.uint64(_AHEAD)])
            prefetch(distinct.seen.ctypes.data + 8 * coming)
            prefetch(table.sizes.ctypes.data + 4 * coming)
        # A new topic is unpredictable: without a branch there are no mispredictions.
        topic = unsigned(topic_ids[at])
        seen = distinct.seen[topic]
        fresh = numpy.int64(seen >> _HALF != generation)
        size = fresh * table.sizes[topic]
        left -= cost + size + topic_cost * fresh
        if left < 0 and at > numpy.uint64(start):
            end = at
            break
        distinct.seen[topic] = generation << _HALF | topics if fresh else seen
        distinct.order[unsigned(topics)] = topic
        topics += fresh
        topic_bytes += size
    extent = _extent_of(rows, order, start, numpy.int64(end))
    return Plan(
        start,
        numpy.int64(end),
        topics,
        topic_bytes,
        extent.payload_bytes,
        extent.stride,
        extent.first_byte,
        extent.first_row,
        flags
        | (0 if extent.stride == VARIABLE else FLAG_FIXED)
        | (FLAG_NULLS if extent.shortest < 0 else 0)
        | (FLAG_SEQUENCES if rows.sequences != 0 else 0)
        | (FLAG_SAME if rows.same != 0 and has_same(rows, order, start, numpy.int64(end)) else 0),
    )


class _Extent(NamedTuple):
    """Location of the payloads of some rows, as in `Plan`; `shortest` is negative if a message has no value."""

    payload_bytes: int
    stride: int
    first_byte: int
    first_row: int
    shortest: int


@inner
def _extent_of(rows: Rows, order: NDArray[numpy.int32], start: int, stop: int) -> _Extent:
    first_row = numpy.int64(order[start])
    first_byte = _begin(rows, first_row)
    in_turn = True
    for i in range(numpy.uint64(stop - start)):
        in_turn &= numpy.int64(order[numpy.uint64(start) + i]) == first_row + numpy.int64(i)
    row_if_in_turn = first_row if in_turn else numpy.int64(VARIABLE)
    if rows.lengths == 0:
        payload_bytes = (stop - start) * rows.stride
        first_byte = first_byte if in_turn else numpy.int64(VARIABLE)
        return _Extent(payload_bytes, rows.stride, first_byte, row_if_in_turn, numpy.int64(0))
    next_byte = first_byte
    stride = _length(rows, first_row)
    contiguous = True
    payload_bytes = shortest = numpy.int64(0)
    for at in range(numpy.uint64(start), numpy.uint64(stop)):
        row = numpy.int64(order[at])
        length = _stored_length(rows, row)
        shortest = min(shortest, length)
        length = max(length, numpy.int64(0))
        begin = _begin(rows, row)
        contiguous &= begin == next_byte
        next_byte = begin + length
        stride = stride if length == stride else numpy.int64(VARIABLE)
        payload_bytes += length
    first_byte = first_byte if contiguous else numpy.int64(VARIABLE)
    return _Extent(payload_bytes, stride, first_byte, row_if_in_turn, shortest)


@inner
def _next_generation(distinct: Distinct) -> Any:
    """Clear the topics of the previous block."""
    if distinct.generation[0] == _LAST_GENERATION:
        distinct.generation[0] = 0
        distinct.seen[:] = 0
    distinct.generation[0] += 1
    return distinct.generation[0]


@inner
def place_in_block(distinct: Distinct, topic: int) -> Any:
    """Return the index of a topic in the block just planned."""
    return distinct.seen[unsigned(topic)] & _PLACE


@njit(inline="always")
def _plan_layout(plan: Plan) -> BodyLayout:
    return body_layout(plan.stop - plan.start, plan.topics, plan.topic_bytes, plan.payload_bytes, plan.flags)


@njit(nogil=True, cache=True)
def plan_bytes(plan: Plan) -> int:
    """Return the size of the body that `write_body` writes."""
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
    """Fill `plan_bytes(plan)` bytes at `target` (8-byte aligned). Call it right after `plan_block`."""
    count = plan.stop - plan.start
    layout = _plan_layout(plan)
    clear_padding(target, layout)
    topic_index = int32s_at(target + layout.topic_index, count)
    start = numpy.uint64(plan.start)
    for i in range(numpy.uint64(count)):
        topic_index[i] = place_in_block(distinct, topic_ids[start + i])
    if rows.ts_event == 0:
        int64s_at(target, count)[:] = 0
    else:
        _write_words(target, rows.ts_event, plan, order)
    if rows.sequences != 0:
        _write_words(target + layout.sequences, rows.sequences, plan, order)
    if plan.flags & FLAG_NULLS:
        _write_validity(target + layout.validity, plan, rows, order)
    if plan.flags & FLAG_SAME:
        write_same(target + layout.same, rows, order, plan.start, plan.stop)
    write_topics(target + layout.topic_offsets, target + layout.topics, plan.topics, table, distinct.order)
    if plan.flags & FLAG_NUMBERS:
        copy_bytes(target + layout.topic_numbers, distinct.order.ctypes.data, 4 * plan.topics)
    _write_payloads(target, layout.payload_offsets, layout.payloads, plan, rows, order)


@inner
def _write_words(target: int, source: int, plan: Plan, order: NDArray[numpy.int32]) -> None:
    """Write a column of eight bytes per row."""
    count = plan.stop - plan.start
    if plan.first_row != VARIABLE:
        copy_bytes(target, source + 8 * plan.first_row, 8 * count)
        return
    words = int64s_at(target, count)
    start = numpy.uint64(plan.start)
    for i in range(numpy.uint64(count)):
        words[i] = int64s_at(source + 8 * numpy.int64(order[start + i]), 1)[0]


@inner
def clear_padding(target: int, layout: BodyLayout) -> None:
    """Write zeros between columns."""
    # Up to 7 bytes before each column are unused: unwritten, they would leak old memory onto the wire.
    for place in layout[:-1]:
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
def write_topics(offsets_at: int, text_at: int, topics: int, table: TopicTable, order: NDArray[numpy.int32]) -> None:
    """Write the texts and offsets of the first `topics` of `order`."""
    offsets = int32s_at(offsets_at, topics + 1)
    place = 0
    for i in range(topics):
        if i + _AHEAD < topics:
            prefetch(table.offsets.ctypes.data + 8 * numpy.int64(order[i + _AHEAD]))
            prefetch(table.text.ctypes.data + table.offsets[unsigned(order[i + _AHEAD // 2])])
        topic = unsigned(order[i])
        size = numpy.int64(table.sizes[topic])
        offsets[i] = place
        copy_name(text_at + place, table.text.ctypes.data + table.offsets[topic], size)
        place += size
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
def plan_ends(keys: TopicTable, count: int) -> Plan:
    """Return the plan of a control block with the ends of the first `count` keys."""
    topic_bytes = 0
    for key in range(count):
        topic_bytes += keys.sizes[key]
    return Plan(0, count, count, topic_bytes, END_BYTES * count, END_BYTES, 0, 0, FLAG_FIXED)


@njit(nogil=True, cache=True)
def write_ends(
    target: int, plan: Plan, keys: TopicTable, ends: NDArray[numpy.int64], counts: NDArray[numpy.int64]
) -> None:
    """Fill `plan_bytes(plan)` bytes at `target` (8-byte aligned): row i is key i, its payload `ends[i], counts[i]`."""
    count = plan.topics
    layout = _plan_layout(plan)
    words = int64s_at(target, layout.payloads >> 3)
    for i in range(layout.payloads >> 3):
        words[i] = 0
    topic_index = int32s_at(target + layout.topic_index, count)
    offsets = int32s_at(target + layout.topic_offsets, count + 1)
    numbers = int64s_at(target + layout.payloads, 2 * count)
    place = 0
    for i in range(count):
        size = numpy.int64(keys.sizes[i])
        topic_index[i] = i
        offsets[i] = place
        copy_bytes(target + layout.topics + place, keys.text.ctypes.data + keys.offsets[i], size)
        place += size
        numbers[2 * i] = ends[i]
        numbers[2 * i + 1] = counts[i]
    offsets[count] = place


class Origin(NamedTuple):
    """Source of blocks: the header fields that are constant for a slice in one epoch."""

    schema_id: int
    slice_id: int
    key_rule: int
    epoch: int


@njit(nogil=True, cache=True)
def write_template(target: int, plan: Plan, body_address: int, checksum: bool, origin: Origin, ts_in: int) -> None:
    """Write a header at `target`, except for the fields that `finish_header` adds when the block is sent."""
    body_bytes = plan_bytes(plan)
    int64s_at(target, HEADER_BYTES // 8)[:] = 0
    header = block_header_at(target)
    header.magic = MAGIC
    header.version = VERSION
    header.flags = plan.flags | (FLAG_CHECKSUM if checksum else 0)
    restamp(target, origin, ts_in)
    header.count = plan.stop - plan.start
    header.topics = plan.topics
    header.topic_bytes = plan.topic_bytes
    header.body_bytes = body_bytes
    header.stride = 0 if plan.stride == VARIABLE else plan.stride
    if checksum:
        header.body_checksum = checksum_32(body_address, body_bytes)


@inner
def restamp(target: int, origin: Origin, ts_in: int) -> None:
    """Turn the header of a sent block into the template for sending it again."""
    header = block_header_at(target)
    header.flags &= FLAG_CHECKSUM | FLAG_FIXED | FLAG_NULLS | FLAG_NUMBERS | FLAG_SAME | FLAG_SEQUENCES
    header.schema = origin.schema_id
    header.slice = origin.slice_id
    header.key_rule = origin.key_rule & 0xFF
    header.epoch = origin.epoch
    header.ts_in = ts_in


@njit(nogil=True, cache=True)
def number_header(target: int, sequence: int, previous: int, key_sequence: int) -> None:
    """Write the block's sequence and its position within its key."""
    header = block_header_at(target)
    header.sequence = sequence
    header.previous = previous
    header.key_sequence = key_sequence


@njit(nogil=True, cache=True)
def finish_header(target: int, ts_out: int, more_flags: int) -> None:
    """Write the send time, more flags and the header's checksum."""
    header = block_header_at(target)
    header.flags |= more_flags
    header.ts_out = ts_out
    seal_header(target)


@inner
def seal_header(target: int) -> None:
    """Write the header's checksum."""
    block_header_at(target).header_checksum = checksum_32(target, CHECKED_BYTES)
