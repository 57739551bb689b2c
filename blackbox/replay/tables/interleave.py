"""Order the messages of many blocks by time, and gather them into new blocks, in compiled code."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy
from numpy.typing import NDArray

from blackbox.archive.files.format import OFFSET_BLOCK_HEADER, RECORD_HEAD_BYTES
from blackbox.block.batch.received_block import ORIGINS
from blackbox.block.form.encode import (
    NO_VALUE,
    Distinct,
    Origin,
    Rows,
    TopicTable,
    finish_header,
    number_header,
    plan_block,
    plan_bytes,
    write_body,
    write_template,
)
from blackbox.native.compile.jit import njit
from blackbox.native.memory.intrinsics import bytes_at, inner, int32s_at, int64s_at, unsigned
from blackbox.replay.slice_numbering import SEVERAL_SLICES
from blackbox.replay.tables.held_messages import HELD_BYTES, held_at
from blackbox.replay.tables.measure_blocks import BLOCK_ROW_BYTES, block_row_at

BLOCK_BYTES: Final = 4 << 20
"""Size of a new block. One block usually holds all messages gathered at a time."""


class Heap(NamedTuple):
    """Min-heap of the blocks with remaining messages: their numbers, and the times of their next messages."""

    numbers: int
    """Address of int64[n]."""
    due_ns: int
    """Address of int64[n]."""
    room: int


class Listed(NamedTuple):
    """Room for a list of messages in order: the number of the block, the row and the time of each."""

    blocks: NDArray[numpy.int32]
    rows: NDArray[numpy.int32]
    times: NDArray[numpy.int64]


@inner
def _ranks_before(held: int, left: int, right: int) -> bool:
    """Return True if messages of the left block precede those of the right one at equal times.

    The result does not depend on send times, except for a slice that is in several recordings.
    """
    a, b = held_at(held + HELD_BYTES * left), held_at(held + HELD_BYTES * right)
    if a.feed != b.feed:
        return a.feed < b.feed
    if a.slice_id != b.slice_id:
        return a.slice_id < b.slice_id
    if a.latest_out != b.latest_out:
        return a.latest_out < b.latest_out
    if a.stream != b.stream:
        return a.stream < b.stream
    return a.place < b.place


@inner
def _is_before(held: int, heap: Heap, left: int, right: int) -> bool:
    """Return True if one entry of the heap precedes another."""
    due_ns = int64s_at(heap.due_ns, heap.room)
    if due_ns[left] != due_ns[right]:
        return due_ns[left] < due_ns[right]
    numbers = int64s_at(heap.numbers, heap.room)
    return _ranks_before(held, numbers[left], numbers[right])


@inner
def _sift_down(held: int, heap: Heap, size: int, place: int) -> None:
    """Restore the heap from a place on."""
    numbers, due_ns = int64s_at(heap.numbers, heap.room), int64s_at(heap.due_ns, heap.room)
    while 2 * place + 1 < size:
        child = 2 * place + 1
        if child + 1 < size and _is_before(held, heap, child + 1, child):
            child += 1
        if not _is_before(held, heap, child, place):
            return
        numbers[place], numbers[child] = numbers[child], numbers[place]
        due_ns[place], due_ns[child] = due_ns[child], due_ns[place]
        place = child


@inner
def _make_heap(held: int, count: int, until_ns: int, heap: Heap) -> int:
    """Build the heap from the blocks with messages before a time. Return its size."""
    numbers, due_ns = int64s_at(heap.numbers, heap.room), int64s_at(heap.due_ns, heap.room)
    size = 0
    for number in range(count):
        block = held_at(held + HELD_BYTES * number)
        if block.next < block.stop and block.due_ns < until_ns:
            numbers[size] = number
            due_ns[size] = block.due_ns
            size += 1
    for place in range(size // 2 - 1, -1, -1):
        _sift_down(held, heap, size, place)
    return size


@njit(nogil=True, cache=True)
def interleave(held: int, count: int, until_ns: int, latest_ns: int, heap: Heap, to: Listed) -> tuple[int, int, int]:
    """List the next messages before `until_ns` of `count` held blocks, in order.

    Returns the number listed, limited by the room; how many of them are earlier than a message played before; and the
    latest time so far, initially `latest_ns`. `heap` has room for all blocks.
    """
    size = _make_heap(held, count, until_ns, heap)
    numbers, due_ns = int64s_at(heap.numbers, heap.room), int64s_at(heap.due_ns, heap.room)
    listed = misplaced = 0
    while size > 0 and listed < len(to.rows):
        rival, rival_ns = numpy.int64(-1), until_ns
        if size > 1:
            second = 2 if size > 2 and _is_before(held, heap, 2, 1) else 1
            rival, rival_ns = numbers[second], due_ns[second]
        number = numbers[0]
        begun = listed
        listed += _list_run(held, number, rival, rival_ns, to, listed)
        if listed == begun:  # the next message does not fit
            break
        place = begun
        while place < listed and to.times[place] < latest_ns:  # rows of a block are in order
            misplaced += 1
            place += 1
        latest_ns = max(latest_ns, to.times[listed - 1])
        block = held_at(held + HELD_BYTES * number)
        due_ns[0] = block.due_ns
        if block.next == block.stop or block.due_ns >= until_ns:
            size -= 1
            numbers[0], due_ns[0] = numbers[size], due_ns[size]
        _sift_down(held, heap, size, 0)
    return listed, misplaced, latest_ns


@njit(nogil=True, cache=True)
def next_long_run(blocks: NDArray[numpy.int32], rows: NDArray[numpy.int32], start: int, least: int) -> tuple[int, int]:
    """Return the next range of at least `least` listed messages consecutive in a block; without one, the end twice."""
    half = least // 2
    at = start
    while at + half <= len(rows):  # a long run contains such a piece
        if blocks[at + half - 1] == blocks[at] and rows[at + half - 1] - rows[at] == half - 1:
            begin, end = at, at + 1
            while begin > start and _follows(blocks, rows, begin):
                begin -= 1
            while end < len(rows) and _follows(blocks, rows, end):
                end += 1
            if end - begin >= least:
                return begin, end
            at = end
        else:
            at += half
    return len(rows), len(rows)


@inner
def _follows(blocks: NDArray[numpy.int32], rows: NDArray[numpy.int32], at: int) -> Any:
    """Return True if a listed message directly follows the one before it in their block."""
    return blocks[at] == blocks[at - 1] and rows[at] == rows[at - 1] + 1


@inner
def _list_run(held: int, number: int, rival: int, rival_ns: int, to: Listed, listed: int) -> int:
    """List the next messages of the earliest block, before the rival's next one. Return their number, at least one."""
    block = held_at(held + HELD_BYTES * number)
    place, time = block.next, block.due_ns
    rows, times = int32s_at(block.rows, block.stop), int64s_at(block.times, block.stop)
    is_chosen, first_row, last = block.rows != 0, block.first_row, block.stop
    to_blocks, to_rows, to_times = to
    at, end = listed, min(len(to_rows), listed + last - place)
    limit_ns = rival_ns
    while True:
        while at < end and time < limit_ns:
            to_blocks[numpy.uint64(at)] = number
            to_rows[numpy.uint64(at)] = rows[numpy.uint64(place)] if is_chosen else first_row + place
            to_times[numpy.uint64(at)] = time
            at += 1
            place += 1
            if place < last:
                time = times[numpy.uint64(place)]
        # Equal times are rare, so their order is computed only when needed.
        if at == end or rival < 0 or time != rival_ns or limit_ns > rival_ns or not _ranks_before(held, number, rival):
            break
        limit_ns += 1
    if at == len(to.rows):
        while at > listed and place < last:
            row = numpy.int64(rows[place]) if is_chosen else first_row + place
            if not _is_same(held, number, row, numpy.int64(to.rows[at - 1])):
                break
            at -= 1
            place -= 1
            time = times[place]
    block.next, block.due_ns = place, time
    return at - listed


@inner
def _sequence_of(block: Any, row: int) -> Any:
    return int64s_at(block.sequences + 8 * row, 1)[0] if block.sequences != 0 else block.sequence + row


@inner
def _is_same(held: int, number: int, row: int, before: int) -> bool:
    """Return True if two rows of a held block, listed one after the other, are of one message."""
    block = held_at(held + HELD_BYTES * number)
    if block.same == 0 or bytes_at(block.same + row, 1)[0] == 0:
        return False
    first = _sequence_of(block, row) - numpy.int64(bytes_at(block.same + row, 1)[0])
    return first == _sequence_of(block, before) - numpy.int64(bytes_at(block.same + before, 1)[0])


@inner
def _joins(held: int, blocks: NDArray[numpy.int32], rows: NDArray[numpy.int32], at: int) -> bool:
    """Return True if a listed row is of the same message as the one before it."""
    number, row, before = numpy.int64(blocks[at]), numpy.int64(rows[at]), numpy.int64(rows[at - 1])
    return blocks[at - 1] == blocks[at] and _is_same(held, number, row, before)


@njit(nogil=True, cache=True)
def uncut(held: int, blocks: NDArray[numpy.int32], rows: NDArray[numpy.int32], stop: int) -> int:
    """Return the last end of listed messages, up to `stop`, that does not cut a message of several topics."""
    while 0 < stop < len(rows) and _joins(held, blocks, rows, stop):
        stop -= 1
    return stop


class Gathered(NamedTuple):
    """Columns of the messages for new blocks."""

    ts_event: NDArray[numpy.int64]
    starts: NDArray[numpy.int64]
    """Addresses of the payloads."""
    lengths: NDArray[numpy.int32]
    sequences: NDArray[numpy.int64]
    topics: NDArray[numpy.int32]
    order: NDArray[numpy.int32]
    """0, 1, 2 ..."""
    same: NDArray[numpy.uint8]


@njit(nogil=True, cache=True)
def gather(held: int, blocks: NDArray[numpy.int32], rows: NDArray[numpy.int32], to: Gathered) -> int:
    """Write the columns of the listed messages. Return the size of their payloads."""
    payload_bytes = numpy.int64(0)
    for i in range(len(blocks)):
        block = held_at(held + HELD_BYTES * numpy.int64(blocks[i]))
        row = numpy.int64(rows[i])
        to.ts_event[i] = int64s_at(block.ts_event + 8 * row, 1)[0]
        topic = numpy.int64(int32s_at(block.topic_index + 4 * row, 1)[0])
        to.topics[i] = int32s_at(block.numbers + 4 * topic, 1)[0]
        to.sequences[i] = _sequence_of(block, row)
        to.same[i] = 0
        if block.same != 0 and i > 0 and _joins(held, blocks, rows, i):
            to.same[i] = to.same[i - 1] + to.sequences[i] - to.sequences[i - 1]
        start, size = row * block.stride, block.stride
        if block.payload_offsets != 0:
            offsets = int32s_at(block.payload_offsets + 4 * row, 2)
            start, size = numpy.int64(offsets[0]), numpy.int64(offsets[1]) - numpy.int64(offsets[0])
        to.starts[i] = block.payloads + start
        to.lengths[i] = size
        if block.validity != 0 and (bytes_at(block.validity + (row >> 3), 1)[0] >> (row & 7)) & 1 == 0:
            to.lengths[i] = NO_VALUE
        payload_bytes += size
    return payload_bytes


class Names(NamedTuple):
    """The topics by number, and scratch memory to find those of a block."""

    table: TopicTable
    distinct: Distinct
    matched: int
    """Address of int64[n], initially zeros: the player's cache for each topic."""


class Target(NamedTuple):
    """Memory for new blocks: `room` bytes at `memory`, and BlockRow[many] at `rows`."""

    memory: int
    room: int
    rows: int
    many: int


@njit(nogil=True, cache=True)
def put_blocks(
    held: int,
    blocks: NDArray[numpy.int32],
    times: NDArray[numpy.int64],
    columns: Gathered,
    start: int,
    names: Names,
    origin: Origin,
    to: Target,
) -> tuple[int, int, int]:
    """Write the gathered messages from `start` on as new blocks, each after the head of a record, while there is room.

    After each body follow int64[ORIGINS, n], the origins of its messages, and for each topic, int64[topics] each, its
    slice and the address of its entry in `names.matched`.
    Returns where it stopped, the number of blocks, and the bytes that the next block needs.
    """
    rows = Rows(
        columns.ts_event.ctypes.data,
        numpy.int64(0),
        columns.starts.ctypes.data,
        columns.lengths.ctypes.data,
        numpy.int64(0),
        columns.sequences.ctypes.data,
        columns.same.ctypes.data if columns.same[: len(blocks)].any() else numpy.int64(0),
    )
    at, used, made = start, numpy.int64(0), numpy.int64(0)
    while at < len(blocks):
        plan = plan_block(
            rows, columns.order, columns.topics, at, len(blocks), numpy.int64(BLOCK_BYTES), names.table, names.distinct
        )
        body_bytes = plan_bytes(plan)
        count = plan.stop - plan.start
        origins = (RECORD_HEAD_BYTES + body_bytes + 7) & -8
        size = origins + 8 * (ORIGINS * count + 2 * plan.topics)
        if used + size > to.room or made == to.many:
            return at, made, size
        record = to.memory + used
        body = record + RECORD_HEAD_BYTES
        header = record + OFFSET_BLOCK_HEADER
        write_body(body, plan, rows, columns.order, columns.topics, names.table, names.distinct)
        slice_id, ts_out, ts_in, ts_recv = _note_origins(
            held, blocks[plan.start : plan.stop], body, plan.topics, record + origins
        )
        matched = int64s_at(record + origins + 8 * (ORIGINS * count + plan.topics), plan.topics)
        for place in range(plan.topics):
            matched[place] = names.matched + 8 * numpy.int64(names.distinct.order[place])
        first = columns.sequences[plan.start]
        bytes_at(record, RECORD_HEAD_BYTES)[:] = 0
        write_template(
            header, plan, body, False, Origin(origin.schema_id, slice_id, origin.key_rule, origin.epoch), ts_in
        )
        number_header(header, first, first, first)
        finish_header(header, ts_out, numpy.int64(0))
        row = block_row_at(to.rows + BLOCK_ROW_BYTES * made)
        row.header, row.body, row.body_bytes, row.origins = header, body, body_bytes, record + origins
        row.place, row.slice_id, row.ts_recv = made, origin.slice_id, ts_recv
        row.stop_row = row.count = count
        row.next_ns = row.low_ns = times[plan.start]
        row.high_ns = times[plan.stop - 1]
        used += size
        made += 1
        at = plan.stop
    return at, made, numpy.int64(0)


@inner
def _note_origins(
    held: int, blocks: NDArray[numpy.int32], body: int, topics: int, to: int
) -> tuple[int, int, int, int]:
    """Write the origin of each message of a body.

    Returns their slice, or SEVERAL_SLICES, the latest `ts_out`, the lowest `ts_in` and the latest `ts_recv`.
    """
    count = len(blocks)
    topic_index = int32s_at(body + 8 * count, count)
    ts_out, ts_in, ts_recv = int64s_at(to, count), int64s_at(to + 8 * count, count), int64s_at(to + 16 * count, count)
    slices, epochs = int64s_at(to + 24 * count, count), int64s_at(to + 32 * count, count)
    slice_of_topic = int64s_at(to + 8 * ORIGINS * count, topics)
    block = held_at(held + HELD_BYTES * numpy.int64(blocks[0]))
    slice_id = block.slice_id
    latest_out, least_in, latest_recv = block.ts_out, block.ts_in, block.ts_recv
    others = numpy.int64(0)
    for i in range(count):
        block = held_at(held + HELD_BYTES * numpy.int64(blocks[i]))
        latest_out = max(latest_out, block.ts_out)
        least_in = min(least_in, block.ts_in)
        latest_recv = max(latest_recv, block.ts_recv)
        others |= block.slice_id ^ slice_id
        ts_out[i], ts_in[i], ts_recv[i] = block.ts_out, block.ts_in, block.ts_recv
        slices[i], epochs[i] = block.slice_id, block.epoch
        slice_of_topic[unsigned(topic_index[i])] = block.slice_id
    return slice_id if others == 0 else numpy.int64(SEVERAL_SLICES), latest_out, least_in, latest_recv
