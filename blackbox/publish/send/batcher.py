"""Compiled: select the rows of one slice from columns, group them by key, put them into its ring as blocks."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from ctypes import string_at
from typing import NamedTuple

import numpy
from numpy.typing import NDArray

from blackbox.block.form.encode import (
    Distinct,
    Origin,
    Plan,
    Rows,
    TopicTable,
    plan_block,
    plan_bytes,
    restamp,
    write_body,
    write_template,
)
from blackbox.block.form.format import FLAG_NUMBERS, HEADER_BYTES, read_header
from blackbox.native.compile.jit import njit
from blackbox.native.memory.intrinsics import bytes_at, copy_bytes, inner, int32s_at, int64s_at, unsigned
from blackbox.native.memory.lost_pages import lost_pages
from blackbox.publish.send.ring import (
    ABSENT,
    AGAIN,
    BLOCK,
    BLOCK_RECORD_BYTES,
    RECORD_BYTES,
    SHOW,
    UNWANTED,
    RingAt,
    claim,
    commit_block,
    put_count,
)
from blackbox.publish.send.sender_state import SHARED
from blackbox.transport.libzmq import msg_close, msg_data, msg_init_on, msg_init_size
from blackbox.transport.shared_memory.writer import NO_WRITER, WriterAt, accept_place, offered_place

OUT_OF_MEMORY = -1
LOST_PAGES = -2
"""A mapped file was truncated while it was read. The affected block is not in the ring."""
MOST_ABSENT = (1 << 31) - 1


class Selection(NamedTuple):
    """Rows of one slice: `order[:n]` are row numbers and `topics[:n]` their topic ids, both grouped by key.

    Group g has key `keys[g]` and ends before index `stops[g]`, where the next group begins.
    """

    order: NDArray[numpy.int32]
    topics: NDArray[numpy.int32]
    spare_order: NDArray[numpy.int32]
    spare_topics: NDArray[numpy.int32]
    keys: NDArray[numpy.int32]
    stops: NDArray[numpy.int32]
    counts: NDArray[numpy.int32]
    """Scratch by key, zero between calls."""


class Encoder(NamedTuple):
    """State with which one thread encodes the blocks of one slice."""

    selection: Selection
    table: TopicTable
    key_of_topic: NDArray[numpy.int32]
    distinct: Distinct
    block_bytes: int
    checksum: bool
    origin: Origin
    shared: WriterAt = NO_WRITER


def make_selection(rows: int, max_keys: int) -> Selection:
    """Return scratch to group up to `rows` messages by up to `max_keys` keys."""
    groups = min(rows, max_keys)
    sizes = (rows, rows, rows, rows, groups, groups, max_keys)
    return Selection(*(numpy.zeros(size, numpy.int32) for size in sizes))


@njit(nogil=True, cache=True)
def first_misfit(rows: Rows, count: int, type_at: int, record_bytes: NDArray[numpy.int64]) -> int:
    """Return the first of `count` messages whose payload does not have the size of its type, or -1.

    `record_bytes`: int64[256], payload size by type; 0: not in the schema.
    """
    for row in range(count):
        start, size = rows.stride * row, rows.stride
        if rows.starts != 0:
            start = int64s_at(rows.starts, row + 1)[row]
            size = numpy.int64(int32s_at(rows.lengths, row + 1)[row])
        if size < 0:
            continue
        if size <= type_at or record_bytes[bytes_at(rows.payloads + start, size)[type_at]] != size:
            return row
    return -1


def payload_of(rows: Rows, row: int) -> bytes:
    """Return the payload of a message."""
    if rows.starts == 0:
        return string_at(rows.payloads + rows.stride * row, rows.stride)
    start = int.from_bytes(string_at(rows.starts + 8 * row, 8), sys.byteorder)
    size = int.from_bytes(string_at(rows.lengths + 4 * row, 4), sys.byteorder)
    return string_at(rows.payloads + start, size)


def windows(rows: Rows, count: int, most: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of up to `most` rows, without cutting a message of several topics."""
    start = 0
    while start < count:
        stop = min(start + most, count)
        while rows.same != 0 and stop < count and string_at(rows.same + stop, 1) != b"\0":
            stop -= 1
        yield start, stop
        start = stop


@njit(nogil=True, cache=True)
def select_rows(
    selection: Selection,
    topic_index_at: int,
    start: int,
    stop: int,
    slice_of_topic: NDArray[numpy.int32],
    id_of_topic: NDArray[numpy.int32],
    slice_id: int,
) -> int:
    """List those of the rows `[start, stop)` that belong to `slice_id`, in order. Return their number.

    `topic_index_at`: address of an int32 column. Return -1 if a topic index is out of range.
    """
    taken = numpy.uint64(0)
    topic_index = int32s_at(topic_index_at, stop)
    topics = numpy.uint64(len(slice_of_topic))
    for row in range(numpy.uint64(start), numpy.uint64(stop)):
        topic = unsigned(topic_index[row])
        if topic >= topics:
            return -1
        selection.order[taken] = row
        selection.topics[taken] = id_of_topic[topic]
        taken += numpy.uint64(slice_of_topic[topic] == slice_id)
    return numpy.int64(taken)


@njit(nogil=True, cache=True)
def group_by_key(selection: Selection, count: int, key_of_topic: NDArray[numpy.int32], keys: int) -> int:
    """Group the selection by key, keeping the order within a key. Return the number of groups."""
    groups = 0
    if keys <= 1:
        selection.keys[0] = 0
        selection.stops[0] = count
        return numpy.int64(count > 0)
    counts = selection.counts
    for i in range(count):
        key = key_of_topic[selection.topics[i]]
        if counts[key] == 0:
            selection.keys[groups] = key
            groups += 1
        counts[key] += 1
    place = 0
    for group in range(groups):
        key = selection.keys[group]
        size = counts[key]
        counts[key] = place
        place += size
        selection.stops[group] = place
    for i in range(count):
        key = key_of_topic[selection.topics[i]]
        place = counts[key]
        counts[key] = place + 1
        selection.spare_order[place] = selection.order[i]
        selection.spare_topics[place] = selection.topics[i]
    for group in range(groups):
        counts[selection.keys[group]] = 0
    for i in range(count):
        selection.order[i] = selection.spare_order[i]
        selection.topics[i] = selection.spare_topics[i]
    return groups


@inner
def plan_next(encoder: Encoder, rows: Rows, begin: int, stop: int) -> Plan:
    """Plan a block of as many rows of one key as fit, from index `begin` of the selection on."""
    selection = encoder.selection
    return plan_block(
        rows,
        selection.order,
        selection.topics,
        begin,
        stop,
        encoder.block_bytes,
        encoder.table,
        encoder.distinct,
        numpy.int64(FLAG_NUMBERS),
    )


@inner
def _init_body(message: int, size: int, place: int) -> bool:
    """Make the message of a body, in shared memory at `place` unless that is 0. Return False if out of memory."""
    if place != 0:
        msg_init_on(message, place, size)
        return True
    return msg_init_size(message, size) == 0


@inner
def encode_planned(encoder: Encoder, rows: Rows, plan: Plan, message: int, header: int, ts_in: int, place: int) -> bool:
    """Encode the planned block: its body into a new message, and the template of its header.

    `place`: address for the body in shared memory, or 0. Return False if out of memory.
    """
    if not _init_body(message, plan_bytes(plan), place):
        return False
    body = msg_data(message)
    selection = encoder.selection
    write_body(body, plan, rows, selection.order, selection.topics, encoder.table, encoder.distinct)
    write_template(header, plan, body, encoder.checksum, encoder.origin, ts_in)
    return True


@njit(nogil=True, cache=True)
def put_blocks(
    ring: RingAt, encoder: Encoder, start: int, rows: Rows, groups: int, wanted: NDArray[numpy.uint16], ts_in: int
) -> int:
    """Encode the selection from `start` on. Return where it stopped: at its end, or earlier if the ring is full.

    `ts_in`: when the messages were handed to the publisher, ns since the epoch. Return OUT_OF_MEMORY if no body could
    be allocated, LOST_PAGES if rows are in a file that was truncated.
    """
    begin = start
    for group in range(groups):
        key = numpy.int64(encoder.selection.keys[group])
        stop = numpy.int64(encoder.selection.stops[group])
        if begin >= stop:
            continue
        if not wanted[key]:
            if not put_count(ring, numpy.int64(UNWANTED), key, stop - begin, ts_in):
                return begin
            begin = stop
        while begin < stop:
            plan = plan_next(encoder, rows, begin, stop)
            body_bytes = plan_bytes(plan)
            record = claim(ring, numpy.int64(BLOCK_RECORD_BYTES), body_bytes)
            if record == 0:
                return begin
            header = record + RECORD_BYTES
            lost = lost_pages()
            place = offered_place(encoder.shared, body_bytes) if wanted[key] >= SHARED else numpy.int64(0)
            if not encode_planned(encoder, rows, plan, header + HEADER_BYTES, header, ts_in, place):
                return OUT_OF_MEMORY
            if lost_pages() != lost:
                msg_close(header + HEADER_BYTES)
                return LOST_PAGES
            if place != 0:
                accept_place(encoder.shared)
            commit_block(ring, record, numpy.int64(BLOCK), key, body_bytes, ts_in)
            begin = plan.stop
    return begin


class Stored(NamedTuple):
    """Encoded blocks of one slice: addresses of int64 columns with a row per block."""

    heads: int
    """Header address; 0: no block, only sequences without messages."""
    bodies: int
    absent: int
    """Number of sequences before it without a message."""
    count: int
    is_again: bool = False
    """True if this publisher sent them before: they keep their sequences and `ts_in`."""
    keys: int = 0
    """Number of its key, filled in by the publisher."""


@njit(nogil=True, cache=True)
def put_show(ring: RingAt, ts_event: int, absent: int, ts_in: int) -> bool:
    """Put a request to skip `absent` sequences and send a heartbeat. Return False if there is no room."""
    return put_count(ring, numpy.int64(SHOW), ts_event, absent, ts_in)


@njit(nogil=True, cache=True)
def put_stored(
    ring: RingAt,
    origin: Origin,
    stored: Stored,
    start: int,
    wanted: NDArray[numpy.uint16],
    ts_in: int,
    shared: WriterAt,
) -> int:
    """Put copies of blocks from `start` on into the ring. Return where it stopped, as `put_blocks` does.

    Blocks are copied because libzmq would crash the process if a mapped file shrank under a message. Absent
    sequences that were put are subtracted from their column.
    """
    heads, bodies = int64s_at(stored.heads, stored.count), int64s_at(stored.bodies, stored.count)
    keys, absent = int64s_at(stored.keys, stored.count), int64s_at(stored.absent, stored.count)
    for block in range(start, stored.count):
        key = keys[block]
        while absent[block] > 0:
            part = min(absent[block], MOST_ABSENT)
            if not put_count(ring, numpy.int64(ABSENT), key, part, ts_in):
                return block
            absent[block] -= part
        if heads[block] == 0:
            continue
        lost = lost_pages()
        header = read_header(heads[block])
        count, body_bytes = header.count, header.body_bytes
        if lost_pages() != lost:
            return LOST_PAGES
        if not wanted[key] and not stored.is_again:  # for blocks that are sent again the sender counts
            if not put_count(ring, numpy.int64(UNWANTED), key, count, ts_in):
                return block
            continue
        record = claim(ring, numpy.int64(BLOCK_RECORD_BYTES), body_bytes)
        if record == 0:
            return block
        new_header = record + RECORD_BYTES
        message = new_header + HEADER_BYTES
        place = offered_place(shared, body_bytes) if wanted[key] >= SHARED else numpy.int64(0)
        if not _init_body(message, body_bytes, place):
            return OUT_OF_MEMORY
        copy_bytes(msg_data(message), bodies[block], body_bytes)
        copy_bytes(new_header, heads[block], HEADER_BYTES)
        if lost_pages() != lost:
            msg_close(message)
            return LOST_PAGES
        if place != 0:
            accept_place(shared)
        restamp(new_header, origin, header.ts_in if stored.is_again else ts_in)
        commit_block(ring, record, numpy.int64(AGAIN if stored.is_again else BLOCK), key, body_bytes, ts_in)
    return stored.count
