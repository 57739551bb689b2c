"""Hold messages of blocks until a merge by market time reaches their times, in compiled code."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy
from numpy.typing import NDArray

from blackbox.block.form.format import FLAG_FIXED, FLAG_NULLS, FLAG_SAME, FLAG_SEQUENCES, Header, layout_of, read_header
from blackbox.native.compile.jit import njit
from blackbox.native.memory.intrinsics import bytes_at, inner, int32s_at, int64s_at, unsigned
from blackbox.native.memory.records import Field, SharedRecord, record_at
from blackbox.native.tables.name_table import FULL, NumberingAt, number_of
from blackbox.replay.slice_numbering import ONE_FEED
from blackbox.replay.tables.block_table import BEGINNING, END
from blackbox.replay.tables.measure_blocks import (
    BLOCK_ROW_BYTES,
    BlockRow,
    BlockTableAt,
    Wanted,
    block_row_at,
    is_wanted,
)

NO_ROOM: Final = -1
FEED_MARK_BYTES: Final = 2
_NO_TIME: Final = 0


class HeldMessages(SharedRecord):
    """Messages of one block that wait for their time.

    Messages of equal times are ordered by `feed`, then by `slice_id`, and within a slice as recorded, by `latest_out`,
    `stream` and `place`.
    """

    first_row = Field()
    rows = Field()
    """Address of int32[stop], the wanted rows by time; 0: rows from `first_row` on."""
    times = Field()
    """Address of int64[stop], time of each row."""
    next = Field()
    stop = Field()
    numbers = Field()
    """Address of int32[topics], number of each topic."""
    ts_event = Field()
    """Address of the block's column, like the following fields."""
    topic_index = Field()
    payloads = Field()
    payload_offsets = Field()
    """0: each payload has `stride` bytes."""
    stride = Field()
    sequences = Field()
    """0: they are consecutive from `sequence` on."""
    sequence = Field()
    validity = Field()
    """0: every message has a value."""
    same = Field()
    """0: no message has several topics."""
    ts_out = Field()
    ts_in = Field()
    ts_recv = Field()
    epoch = Field()
    feed = Field()
    slice_id = Field()
    """Number of the slice over all feeds."""
    latest_out = Field()
    stream = Field()
    place = Field()
    due_ns = Field()
    """Time of the next message."""
    table = Field()
    """Number of its table of blocks."""
    row = Field()
    """Its row in the table."""


held_at = record_at(HeldMessages)
HELD_BYTES: Final = HeldMessages.dtype.itemsize


class Arena(NamedTuple):
    """Memory for what held blocks refer to, with room for all topics and messages of the blocks."""

    numbers: NDArray[numpy.int32]
    rows: NDArray[numpy.int32]
    times: NDArray[numpy.int64]


class Holding(NamedTuple):
    """Result of `hold`."""

    blocks: int
    """Number of blocks with wanted messages; NO_ROOM: there are too many topics."""
    latest_ns: int
    """Largest time of the slice so far."""
    late: int
    """Number of wanted messages that are earlier than one recorded before in their slice."""


@njit(nogil=True, cache=True)
def hold(
    blocks: BlockTableAt,
    sent: NDArray[numpy.int64],
    places: NDArray[numpy.int64],
    latest_ns: int,
    numbering: NumberingAt,
    feed: int,
    arena: Arena,
    held: int,
) -> Holding:
    """Write HeldMessages[n] of the valid blocks of one slice that have wanted messages, and count them.

    `feed` is the number of their feed, or ONE_FEED. `sent` and `places` are `latest_out` and `place` of each.
    `latest_ns` is the largest time of the slice before them, 0: none. A message without a time takes the latest one
    before it. Before the first time, it takes the next one here, but at most the time when it was sent.
    """
    found = topics = messages = late = numpy.int64(0)
    first_ns = _first_time(blocks) if latest_ns <= _NO_TIME else latest_ns
    for number in range(blocks.count):
        row = block_row_at(blocks.address + BLOCK_ROW_BYTES * number)
        if row.fault != 0:
            continue
        header = read_header(row.header)
        numbers, rows = arena.numbers[topics : topics + header.topics], arena.rows[messages:]
        times = arena.times[messages:]
        if not _number_topics(header, row.body, blocks.wanted, numbering, feed, numbers):
            return Holding(NO_ROOM, latest_ns, late)
        opening_ns, room = min(first_ns, sent[number]), Arena(numbers, rows, times)
        count, is_plain, latest_ns, more = _list_wanted(header, row, blocks.wanted, latest_ns, opening_ns, room)
        late += more
        if count == 0:
            continue
        block = held_at(held + HELD_BYTES * found)
        found += 1
        topics += header.topics
        _note_columns(block, header, row.body)
        block.ts_recv = row.ts_recv
        block.first_row, block.next, block.stop = row.first_row, numpy.int64(0), count
        block.numbers = numbers.ctypes.data
        block.feed, block.slice_id = feed, row.slice_id
        block.latest_out, block.place = sent[number], places[number]
        block.row = number
        block.rows, block.times = numpy.int64(0), row.body + 8 * row.first_row
        if not is_plain:
            order = numpy.argsort(times[:count], kind="mergesort")
            rows[:count] = rows[:count][order]
            times[:count] = times[:count][order]
            block.rows, block.times = rows.ctypes.data, times.ctypes.data
            messages += count
        block.due_ns = int64s_at(block.times, 1)[0]
    return Holding(found, latest_ns, late)


@inner
def _note_columns(block: HeldMessages, header: Header, body: int) -> None:
    """Store the addresses of a block's columns, and the fields of its header that apply to each message."""
    layout = layout_of(header)
    block.ts_event, block.topic_index, block.payloads = body, body + layout.topic_index, body + layout.payloads
    block.payload_offsets = numpy.int64(0) if header.flags & FLAG_FIXED else body + layout.payload_offsets
    block.stride = header.stride
    block.sequences = body + layout.sequences if header.flags & FLAG_SEQUENCES else numpy.int64(0)
    block.sequence = header.sequence
    block.validity = body + layout.validity if header.flags & FLAG_NULLS else numpy.int64(0)
    block.same = body + layout.same if header.flags & FLAG_SAME else numpy.int64(0)
    block.ts_out, block.ts_in, block.epoch = header.ts_out, header.ts_in, header.epoch


@inner
def _number_topics(
    header: Header, body: int, wanted: Wanted, numbering: NumberingAt, feed: int, numbers: NDArray[numpy.int32]
) -> bool:
    """Write the number of each topic of a block, -1 if it is not wanted. Return False if there are too many.

    With several feeds, FEED_MARK_BYTES are appended to each topic, because two feeds may have topics of the same name.
    """
    layout = layout_of(header)
    offsets = int32s_at(body + layout.topic_offsets, header.topics + 1)
    for topic in range(header.topics):
        start = numpy.int64(offsets[topic])
        size = numpy.int64(offsets[topic + 1]) - start
        text = body + layout.topics + start
        numbers[topic] = -1
        if is_wanted(text, size, wanted):
            if feed == ONE_FEED:
                number = number_of(numbering, text, size)
            else:
                marked = numpy.empty(size + FEED_MARK_BYTES, numpy.uint8)
                marked[:size] = bytes_at(text, size)
                marked[size], marked[size + 1] = feed & 0xFF, feed >> 8
                number = number_of(numbering, marked.ctypes.data, size + FEED_MARK_BYTES)
                marked[size] = 0  # numba frees an array after its last use
            if number == FULL:
                return False
            numbers[topic] = number
    return True


@inner
def _first_time(blocks: BlockTableAt) -> int:
    """Return the first time in blocks; END if no message has one."""
    for number in range(blocks.count):
        block = block_row_at(blocks.address + BLOCK_ROW_BYTES * number)
        if block.fault == 0:
            header = read_header(block.header)
            ts_event = int64s_at(block.body, header.count)
            for row in range(block.first_row, numpy.int64(header.count)):
                if ts_event[row] > _NO_TIME:
                    return ts_event[row]
    return numpy.int64(END)


@inner
def _list_wanted(
    header: Header, block: BlockRow, wanted: Wanted, latest_ns: int, opening_ns: int, to: Arena
) -> tuple[int, bool, int, int]:
    """List the wanted rows of a block and their times; `opening_ns` applies before the first message with a time.

    Nothing is listed in the common case that every row is wanted, has a time and is in order.

    Returns the number of rows, True in that common case, the latest time, and the number of late rows.
    """
    ts_event = int64s_at(block.body, header.count)
    if _is_plain(block.first_row, ts_event, wanted, latest_ns, to.numbers):
        return header.count - block.first_row, True, ts_event[header.count - 1], numpy.int64(0)
    topic_index = int32s_at(block.body + 8 * header.count, header.count)
    numbers, rows, times, start_ns, stop_ns = to.numbers, to.rows, to.times, wanted.start_ns, wanted.stop_ns
    taken = numpy.uint64(0)
    late = numpy.int64(0)
    before = numpy.int64(BEGINNING)
    is_plain = True
    for row in range(numpy.uint64(block.first_row), numpy.uint64(header.count)):
        own = min(ts_event[row], END - 1)
        is_late = _NO_TIME < own < latest_ns
        latest_ns = max(latest_ns, own)
        time = own
        if own <= _NO_TIME:
            time = latest_ns if latest_ns > _NO_TIME else opening_ns
        if numbers[unsigned(topic_index[row])] >= 0 and start_ns <= own and own < stop_ns:
            rows[taken] = row
            times[taken] = time
            late += is_late
            is_plain &= before <= time and time == ts_event[row]
            before = time
            taken += numpy.uint64(1)
    count = numpy.int64(taken)
    return count, is_plain and count == header.count - block.first_row, latest_ns, late


@inner
def _is_plain(
    first_row: int, ts_event: NDArray[numpy.int64], wanted: Wanted, latest_ns: int, numbers: NDArray[numpy.int32]
) -> bool:
    """Return True if all rows from the first on are wanted, have a time, and are in order after the latest time."""
    last, least_ns = len(ts_event) - 1, max(wanted.start_ns, latest_ns, _NO_TIME + 1)
    if last < first_row or ts_event[first_row] < least_ns or ts_event[last] >= wanted.stop_ns:
        return False
    in_order = all_wanted = True
    for row in range(numpy.uint64(first_row), numpy.uint64(last)):
        in_order &= ts_event[row] <= ts_event[row + numpy.uint64(1)]
    for number in numbers:
        all_wanted &= number >= 0
    return in_order and all_wanted
