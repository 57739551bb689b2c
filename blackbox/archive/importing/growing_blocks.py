"""Build blocks message by message, in compiled code, and append full ones to journals.

    source ==row by row==> columns of a growing block ==column by column==> body ==write==> journal

Each message is read once, and its payload copied while it is in the cache. A growing block has separate columns,
because the number of rows is not known yet.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy
from numba.extending import register_jitable
from numpy.typing import NDArray

from blackbox.archive.record.append import append
from blackbox.archive.record.journal_state import journal_at
from blackbox.block.batch.block_handler import BLOCK
from blackbox.block.form.encode import (
    NUMBER_BYTES,
    ROW_BYTES,
    TOPIC_BYTES,
    VARIABLE,
    Origin,
    Plan,
    TopicTable,
    clear_padding,
    finish_header,
    number_header,
    write_template,
    write_topics,
)
from blackbox.block.form.format import FLAG_FIXED, FLAG_NULLS, FLAG_NUMBERS, body_layout
from blackbox.native.compile.jit import njit
from blackbox.native.memory.intrinsics import bytes_at, copy_bytes, copy_line, inner, int32s_at, int64s_at
from blackbox.native.memory.records import Field, SharedRecord, record_at, structure_at

LINE_BYTES: Final = 64
"""Bytes copied by `copy_line`."""
_HALF: Final = 32
_PLACE: Final = (1 << _HALF) - 1
_TOPIC_COST: Final = TOPIC_BYTES + NUMBER_BYTES
_SPARE_BYTES: Final = 128 << 10
"""Upper limit for a topic, the padding of all columns, and the bytes after the last rows."""


class GrowingBlock(SharedRecord):
    """A block under construction."""

    # Addresses of the columns.
    times = Field()
    places = Field()
    """int32: index of each row's topic in `order`."""
    ends = Field()
    """int32: end of each payload, after a leading 0."""
    order = Field()
    """int32: numbers of the block's topics, in order of appearance."""
    validity = Field()
    payloads = Field()
    limit = Field()
    """Maximum size of rows and topics, bytes."""
    longest_room = Field()
    """Maximum size of a payload, bytes."""

    # State of the columns.
    count = Field()
    topics = Field()
    payload_bytes = Field()
    left = Field()
    """Remaining bytes of `limit`."""
    has_nulls = Field()
    """1 if some messages have no value; see `validity`."""
    generation = Field()
    """Upper half of `seen` for the block's topics. Each block has another one."""


growing_at = record_at(GrowingBlock)
GROWING_BYTES: Final = GrowingBlock.dtype.itemsize


@register_jitable
def validity_bytes(block_bytes: int) -> int:
    """Return the size of a bitmap with a bit for each row."""
    return (block_bytes // ROW_BYTES + 2) // 8 + 1


class GrowingBlocks:
    """Memory of growing blocks, which are numbered from 0.

    Attributes: `body`, memory for the body of any of them.
    """

    def __init__(self, block_bytes: int) -> None:
        """Start without blocks. Each will have up to `block_bytes`."""
        self._block_bytes = block_bytes
        self._rows = block_bytes // ROW_BYTES + 2
        self._records = numpy.zeros(0, GrowingBlock.dtype)
        self._columns: list[dict[str, NDArray[Any]]] = []
        self._make_body(block_bytes)

    @property
    def address(self) -> int:
        """Address of the first block's record."""
        return self._records.ctypes.data

    def __len__(self) -> int:
        return len(self._records)

    def make_room(self, count: int) -> None:
        """Grow to at least `count` blocks."""
        before = self._records
        if count <= len(before):
            return
        self._records = numpy.zeros(count, GrowingBlock.dtype)
        self._records[: len(before)] = before
        for number in range(len(before), count):
            integers = (numpy.zeros(self._rows, numpy.int32) for _ in range(3))
            self._columns.append({
                "times": numpy.empty(self._rows, numpy.int64),
                **dict(zip(("places", "ends", "order"), integers, strict=True)),
                "validity": numpy.empty(validity_bytes(self._block_bytes), numpy.uint8),
            })  # fmt: skip
            for name, column in self._columns[number].items():
                self._records[name][number] = column.ctypes.data
            self._records["limit"][number] = self._records["left"][number] = self._block_bytes
            self._records["generation"][number] = ~number  # unique
            self.lengthen(number, self._block_bytes)

    def lengthen(self, number: int, longest: int) -> None:
        """Make room for a payload of `longest` bytes in an empty block."""
        payloads = self._columns[number]["payloads"] = numpy.empty(longest + LINE_BYTES, numpy.uint8)
        self._records["payloads"][number], self._records["longest_room"][number] = payloads.ctypes.data, longest
        if longest > self._longest:
            self._make_body(longest)

    def _make_body(self, longest: int) -> None:
        self._longest = longest
        self.body = numpy.empty((longest + self._block_bytes // LINE_BYTES + _SPARE_BYTES) // 8, numpy.int64)


ABOUT: Final = numpy.dtype([("seen", "<i8"), ("size", "<i4"), ("group", "<i4")])
"""State of a topic. `seen`: generation of its last block and, in the lower half, its index there. `size`: bytes of the
name. `group`: its slice and key. One structure, so that a lookup touches one cache line.
"""


about_at: Final = structure_at(ABOUT)
ABOUT_BYTES: Final = ABOUT.itemsize


class Topics(NamedTuple):
    """State of topics, by number, and of their groups."""

    about: NDArray[Any]
    """ABOUT by topic."""
    table: TopicTable
    generation: NDArray[numpy.int64]
    """int64[1]: the last generation assigned to a block."""
    slice_of_group: NDArray[numpy.int32]
    following: NDArray[numpy.int64]
    """int64: next sequence of each slice."""
    ends: NDArray[numpy.int64]
    """int64: sequence after the last message of each group."""
    counts: NDArray[numpy.int64]
    """int64: number of messages of each group."""


class Journals(NamedTuple):
    """Destination of the blocks of all slices."""

    states: NDArray[numpy.int64]
    """The address of each slice's JournalState."""
    clocks: NDArray[numpy.int64]
    """Highest message time of each slice."""
    limit_ns: int
    """Times from here on do not advance the clock."""
    header: int
    """Address of memory for a block's header."""
    body: int
    """Address of memory for a block's body, 8-byte aligned."""
    origin: Origin
    """Its slice is ignored."""
    checksum: bool


@njit(inline="always")
def add_row(address: int, about: int, topic: int, time: int, payload: int, size: int, is_wide: bool) -> bool:
    """Add a message to a block. Return False if there is no room.

    `about`: address of the topic's ABOUT. `size` is negative for a message without a value. `is_wide`: LINE_BYTES may
    be read from the payload's address on.
    """
    block, known = growing_at(address), about_at(about)
    count, topics, begin = block.count, block.topics, block.payload_bytes
    length: Any = max(size, numpy.int64(0))
    # Computed without a branch, because new topics are unpredictable.
    fresh: Any = numpy.int64(known.seen >> _HALF != block.generation)
    left = block.left - (length + ROW_BYTES + (numpy.int64(known.size) + _TOPIC_COST) * fresh)
    if (left < 0 and count > 0) or length > block.longest_room:
        return False
    index = known.seen & _PLACE
    index ^= (index ^ topics) & -fresh
    known.seen = block.generation << _HALF | index
    int32s_at(block.order + 4 * topics, 1)[0] = topic
    int64s_at(block.times + 8 * count, 1)[0] = time
    int32s_at(block.places + 4 * count, 1)[0] = index
    int32s_at(block.ends + 4 * count, 2)[1] = begin + length
    if size <= LINE_BYTES and is_wide:
        copy_line(block.payloads + begin, payload)
    else:
        copy_bytes(block.payloads + begin, payload, length)
    if size < 0:
        _note_null(address)
    block.count = count + 1
    block.topics = topics + fresh
    block.payload_bytes = begin + length
    block.left = left
    return True


@inner
def _note_null(address: int) -> None:
    block = growing_at(address)
    valid = bytes_at(block.validity, validity_bytes(block.limit))
    if block.has_nulls == 0:
        valid[:] = 0xFF
        block.has_nulls = 1
    valid[block.count >> 3] &= ~(1 << (block.count & 7))


@inner
def _begin(address: int, generation: NDArray[numpy.int64]) -> None:
    """Empty the block."""
    block = growing_at(address)
    block.count = block.topics = block.payload_bytes = block.has_nulls = 0
    block.left = block.limit
    generation[0] += 1
    block.generation = generation[0]


@inner
def _stride_of(address: int) -> int:
    """Return the length of all payloads, or VARIABLE."""
    block = growing_at(address)
    ends = int32s_at(block.ends, block.count + 1)
    first = ends[1]
    is_fixed = True
    for row in range(numpy.uint64(block.count)):
        is_fixed &= ends[row + numpy.uint64(1)] - ends[row] == first
    return int(first) if is_fixed else VARIABLE


@inner
def _plan_of(address: int) -> Plan:
    block = growing_at(address)
    stride = _stride_of(address)
    flags = FLAG_NUMBERS | (0 if stride == VARIABLE else FLAG_FIXED) | (FLAG_NULLS if block.has_nulls else 0)
    used = block.limit - block.left - block.payload_bytes - ROW_BYTES * block.count
    zero: Any = numpy.int64(0)
    return Plan(
        zero,
        block.count,
        block.topics,
        used - _TOPIC_COST * block.topics,
        block.payload_bytes,
        stride,
        zero,
        zero,
        flags,
    )


@inner
def _lay_out(address: int, plan: Plan, target: int, table: TopicTable) -> int:
    """Write the body at `target` and return its size in bytes."""
    block = growing_at(address)
    count = block.count
    layout = body_layout(count, plan.topics, plan.topic_bytes, plan.payload_bytes, plan.flags)
    clear_padding(target, layout)
    copy_bytes(target, block.times, 8 * count)
    copy_bytes(target + layout.topic_index, block.places, 4 * count)
    if plan.stride == VARIABLE:
        copy_bytes(target + layout.payload_offsets, block.ends, 4 * (count + 1))
    if plan.flags & FLAG_NULLS:
        size = (count + 7) >> 3
        copy_bytes(target + layout.validity, block.validity, size)
        if count & 7:
            bytes_at(target + layout.validity, size)[size - 1] &= (1 << (count & 7)) - 1
    order = int32s_at(block.order, plan.topics)
    write_topics(target + layout.topic_offsets, target + layout.topics, plan.topics, table, order)
    copy_bytes(target + layout.topic_numbers, block.order, 4 * plan.topics)
    copy_bytes(target + layout.payloads, block.payloads, plan.payload_bytes)
    return int(layout.end)


@inner
def append_block(block: int, group: int, topics: Topics, journals: Journals) -> None:
    """Append the block to the journal of its group's slice and empty it. An empty block is skipped.

    Its `ts_out` and `ts_recv` are the highest message time of its slice.
    """
    count = growing_at(block).count
    if count == 0:
        return
    slice_id = int(topics.slice_of_group[group])
    origin = Origin(journals.origin.schema_id, slice_id, journals.origin.key_rule, journals.origin.epoch)
    plan = _plan_of(block)
    size = _lay_out(block, plan, journals.body, topics.table)
    now = journals.clocks[slice_id]
    for time in int64s_at(journals.body, count):
        if now < time < journals.limit_ns:
            now = time
    journals.clocks[slice_id] = now
    write_template(journals.header, plan, journals.body, journals.checksum, origin, numpy.int64(0))
    sequence = topics.following[slice_id]
    number_header(journals.header, sequence, topics.ends[group], topics.counts[group])
    finish_header(journals.header, now, numpy.int64(0))
    topics.following[slice_id] = topics.ends[group] = sequence + count
    topics.counts[group] += count
    address = journals.states[slice_id]
    state = journal_at(address)
    state.kind = BLOCK
    state.head, state.body, state.body_bytes = journals.header, journals.body, size
    state.first_row = state.held = 0
    state.ts_recv = now
    append(address)
    _begin(block, topics.generation)
