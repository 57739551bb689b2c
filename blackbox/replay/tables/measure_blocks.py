"""Check blocks, count the messages to play and find their times, in compiled code."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy
from numpy.typing import NDArray

from blackbox.archive.files.format import OFFSET_BLOCK_HEADER
from blackbox.archive.read.reader import UNCHECKED
from blackbox.archive.read.rows import check_recorded
from blackbox.block.form.format import is_same, layout_of, read_header
from blackbox.block.form.validate import Fault
from blackbox.feed.symbol_choice import CHOSEN
from blackbox.native.compile.jit import njit
from blackbox.native.memory.intrinsics import inner, int32s_at, int64s_at, unsigned
from blackbox.native.memory.records import Field, SharedRecord, record_at
from blackbox.native.tables.prefix_trie import Trie, longest_prefix

_NO_FAULT: Final = int(Fault.NONE)
_LATEST: Final = (1 << 63) - 2
"""Messages with a later time are played at this one: the next integer is the end of all times."""


class BlockRow(SharedRecord):
    """A block in a table, or some consecutive messages of it. Times are ns since 1970, by the pacing clock."""

    header = Field()
    """Address of the block's header."""
    body = Field()
    """Address of its decompressed body."""
    body_bytes = Field()
    place = Field()
    """Index of the record in its run."""
    slice_id = Field()
    ts_recv = Field()
    first_row = Field()
    stop_row = Field()
    """Only rows `[first_row, stop_row)` of the block are played."""
    fault = Field()
    """UNCHECKED, or its `Fault`. Only valid blocks are played."""
    count = Field()
    """Number of rows with a chosen topic."""
    next_ns = Field()
    """Time of the first of them."""
    low_ns = Field()
    high_ns = Field()
    origins = Field()
    """Address of the messages' origins if they were gathered from several blocks; else 0."""


block_row_at = record_at(BlockRow)
BLOCK_ROW_BYTES: Final = BlockRow.dtype.itemsize


class Wanted(NamedTuple):
    """Selection of the messages to play, for compiled code."""

    key_rule: int
    """Key rule of the feed."""
    topics: Trie
    """Trie of a `TopicChoice`."""
    takes_all: int
    """1: all topics."""
    by_event: int
    """1: each message has its own `ts_event`; 0: the row's time applies to the whole block."""
    start_ns: int
    """The first time."""
    stop_ns: int
    """The end of the times, exclusive."""


class BlockTableAt(NamedTuple):
    """A table of blocks, for compiled code."""

    address: int
    """Address of BlockRow[count]."""
    count: int
    wanted: Wanted


NO_TOPICS: Final = Trie(numpy.zeros(256, numpy.uint8), numpy.zeros((1, 1), numpy.int32), numpy.zeros(1, numpy.int32))
NO_BLOCKS: Final = BlockTableAt(0, 0, Wanted(0, NO_TOPICS, 0, 0, 0, 0))


@inner
def is_wanted(text: int, size: int, wanted: Wanted) -> bool:
    """Return True if a topic is chosen."""
    return bool(wanted.takes_all != 0 or longest_prefix(wanted.topics, text, size) == CHOSEN)


@inner
def _mark_topics(header_at: int, body: int, wanted: Wanted, marks: NDArray[numpy.uint8]) -> None:
    """Mark the topics to play in uint8[topics]."""
    header = read_header(header_at)
    layout = layout_of(header)
    offsets = int32s_at(body + layout.topic_offsets, header.topics + 1)
    for topic in range(numpy.uint64(header.topics)):
        start = numpy.int64(offsets[topic])
        size = numpy.int64(offsets[topic + numpy.uint64(1)]) - start
        marks[topic] = is_wanted(body + layout.topics + start, size, wanted)


@inner
def _measure(address: int, wanted: Wanted) -> None:
    """Count the messages to play of a valid block, and find their times. Without any, the range is empty."""
    block = block_row_at(address)
    header = read_header(block.header)
    first, stop = block.first_row, block.stop_row
    ts_event = int64s_at(block.body, header.count)
    next_ns, low_ns, high_ns = _LATEST, _LATEST, -_LATEST
    if wanted.takes_all != 0:
        found = stop - first
        if found > 0:
            next_ns = ts_event[first]
        for row in range(numpy.uint64(first), numpy.uint64(stop)):
            low_ns = min(low_ns, ts_event[row])
            high_ns = max(high_ns, ts_event[row])
    else:
        marks = numpy.empty(header.topics, numpy.uint8)
        _mark_topics(block.header, block.body, wanted, marks)
        topic_index = int32s_at(block.body + 8 * header.count, header.count)
        found = 0
        for row in range(numpy.uint64(first), numpy.uint64(stop)):
            if marks[unsigned(topic_index[row])]:
                if found == 0:
                    next_ns = ts_event[row]
                found += 1
                low_ns = min(low_ns, ts_event[row])
                high_ns = max(high_ns, ts_event[row])
    block.count = found
    if wanted.by_event:
        block.next_ns, block.low_ns, block.high_ns = min(next_ns, _LATEST), low_ns, min(high_ns, _LATEST)


@inner
def measure_one(address: int, wanted: Wanted) -> None:
    """Check the block of a row if it is unchecked, and measure it if valid."""
    block = block_row_at(address)
    if block.fault == UNCHECKED:
        record = block.header - OFFSET_BLOCK_HEADER
        block.fault = check_recorded(record, block.body, block.body_bytes, wanted.key_rule)
    if block.fault == _NO_FAULT:
        _measure(address, wanted)


@njit(nogil=True, cache=True)
def measure(table: BlockTableAt) -> None:
    """Check and measure all blocks of a table."""
    for block in range(table.count):
        measure_one(table.address + BLOCK_ROW_BYTES * block, table.wanted)


@njit(nogil=True, cache=True)
def due_rows(table: BlockTableAt, until_ns: int, messages: int) -> int:
    """Return the first row of the table's first block that is not due yet; its `stop_row` if all are due.

    About `messages` of the rows to play are due, up to the first one later than `until_ns`. A message with several
    topics is not split.
    """
    block = block_row_at(table.address)
    header = read_header(block.header)
    layout = layout_of(header)
    marks = numpy.empty(header.topics, numpy.uint8)
    _mark_topics(block.header, block.body, table.wanted, marks)
    ts_event = int64s_at(block.body, header.count)
    topic_index = int32s_at(block.body + layout.topic_index, header.count)
    is_begun = False
    for row in range(block.first_row, block.stop_row):
        is_begun = is_begun and is_same(header, layout, block.body, row)
        if marks[unsigned(topic_index[row])]:
            if not is_begun and (min(ts_event[row], _LATEST) > until_ns or messages <= 0):
                return row
            messages -= 1
            is_begun = True
    return block.stop_row


@njit(nogil=True, cache=True)
def next_in_range(table: BlockTableAt, row: int) -> tuple[int, int]:
    """Return the next rows `[first, stop)` of the table's first block, from `row` on, with wanted times.

    Returns its `stop_row` twice if there are no more.
    """
    block = block_row_at(table.address)
    ts_event = int64s_at(block.body, read_header(block.header).count)
    end, start_ns, stop_ns = block.stop_row, table.wanted.start_ns, table.wanted.stop_ns
    while row < end and not start_ns <= min(ts_event[row], _LATEST) < stop_ns:
        row += 1
    first = row
    while row < end and start_ns <= min(ts_event[row], _LATEST) < stop_ns:
        row += 1
    return first, row
