"""Columns into a line's ring, compiled: pick the rows of one slice, group them by key, encode them as blocks."""

from __future__ import annotations

from typing import NamedTuple

import numpy
from numba import njit
from numpy.typing import NDArray

from blackbox.atoms import copy_bytes, fence, inner, int32s_at, int64s_at, load_acquire, store_release, unsigned
from blackbox.check import read_header
from blackbox.encode import (
    Distinct,
    Rows,
    TopicTable,
    plan_block,
    plan_bytes,
    restamp,
    write_body,
    write_template,
)
from blackbox.layout import HEADER_BYTES
from blackbox.ring import (
    BLOCK,
    BODIES_IN,
    BODIES_OUT,
    HEAD,
    PAD,
    RECORD_BYTES,
    SKIP,
    SLEEPING,
    TAIL,
    WAITING,
)
from blackbox.zmqlib import MESSAGE_BYTES, msg_data, msg_init_on, msg_init_size, poke

BLOCK_RECORD_BYTES = RECORD_BYTES + HEADER_BYTES + MESSAGE_BYTES
OUT_OF_MEMORY = -1
_MOST_SKIPPED = (1 << 31) - 1


class Target(NamedTuple):
    """The line that blocks are put into, as compiled code sees it."""

    memory: NDArray[numpy.uint8]
    words: NDArray[numpy.int64]
    wake_fd: int
    block_bytes: int
    bodies_limit: int
    checksum: bool
    schema_id: int
    slice_id: int
    epoch: int


class Selection(NamedTuple):
    """Rows of one slice: `order[:n]` are row numbers, `topics[:n]` their topic ids, both grouped by key.

    Group g is of key `keys[g]` and ends before place `stops[g]`, where the next one begins.
    """

    order: NDArray[numpy.int32]
    topics: NDArray[numpy.int32]
    spare_order: NDArray[numpy.int32]
    spare_topics: NDArray[numpy.int32]
    keys: NDArray[numpy.int32]
    stops: NDArray[numpy.int32]
    counts: NDArray[numpy.int32]
    """Scratch by key, zero between calls."""


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
    """List rows `[start, stop)` of `slice_id`, in order, by the int32 column at `topic_index_at`; returns how many.

    -1: a topic index is out of range.
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
    """Group the selection by key, each in its order; returns how many groups. Keys without rows cost nothing."""
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
def _claim(target: Target, size: int, body_bytes: int) -> int:
    """Offset where a record of `size` bytes may be written now; -1 when there is no room."""
    words = target.words.ctypes.data
    pending = target.words[BODIES_IN] - load_acquire(words + 8 * BODIES_OUT)
    if pending > 0 and pending + body_bytes > target.bodies_limit:
        return -1
    head = load_acquire(words + 8 * HEAD)
    tail = target.words[TAIL]
    capacity = len(target.memory)
    if tail < head:
        return tail if tail + size <= head - RECORD_BYTES else -1
    if tail + size <= capacity - RECORD_BYTES:
        return tail
    if head <= size + RECORD_BYTES:
        return -1
    halves = int32s_at(target.memory.ctypes.data + tail, 2)
    halves[0] = 0
    halves[1] = numpy.int32(numpy.uint32(PAD))
    return 0


@inner
def _claim_or_announce(target: Target, size: int, body_bytes: int) -> int:
    place = _claim(target, size, body_bytes)
    if place < 0:
        # The reader pokes a waiting writer; room made before it could see WAITING is found by the second look.
        store_release(target.words.ctypes.data + 8 * WAITING, 1)
        fence()
        place = _claim(target, size, body_bytes)
    return place


@inner
def _commit(target: Target, tail: int) -> None:
    words = target.words.ctypes.data
    store_release(words + 8 * TAIL, tail)
    fence()
    if load_acquire(words + 8 * SLEEPING) != 0:
        store_release(words + 8 * SLEEPING, 0)
        poke(target.wake_fd, words)


@inner
def _put_skip(target: Target, key: int, count: int) -> bool:
    """Leave out sequence numbers: of messages that nobody wants; or, `count` below 0, that there never were here."""
    place = _claim_or_announce(target, numpy.int64(RECORD_BYTES), numpy.int64(0))
    if place < 0:
        return False
    address = target.memory.ctypes.data + place
    halves = int32s_at(address, 2)
    halves[0] = count
    halves[1] = numpy.int32(numpy.uint32(SKIP))
    int64s_at(address + 8, 1)[0] = key
    _commit(target, place + RECORD_BYTES)
    return True


@njit(nogil=True, cache=True)
def put_blocks(
    target: Target,
    selection: Selection,
    start: int,
    rows: Rows,
    groups: int,
    wanted: NDArray[numpy.uint8],
    table: TopicTable,
    distinct: Distinct,
) -> int:
    """Encode the selection from `start` on; returns where it stopped: at its end, or earlier when the line is full.

    OUT_OF_MEMORY when no body could be allocated.
    """
    at = start
    for group in range(groups):
        key = numpy.int64(selection.keys[group])
        stop = numpy.int64(selection.stops[group])
        if at >= stop:
            continue
        if not wanted[key]:
            if not _put_skip(target, key, stop - at):
                return at
            at = stop
        while at < stop:
            plan = plan_block(
                rows,
                selection.order,
                selection.topics,
                at,
                stop,
                target.block_bytes,
                table,
                distinct,
            )
            body_bytes = plan_bytes(plan)
            place = _claim_or_announce(target, numpy.int64(BLOCK_RECORD_BYTES), body_bytes)
            if place < 0:
                return at
            record = target.memory.ctypes.data + place
            message = record + RECORD_BYTES + HEADER_BYTES
            if msg_init_size(message, body_bytes) != 0:
                return OUT_OF_MEMORY
            body = msg_data(message)
            write_body(body, plan, rows, selection.order, selection.topics, table, distinct)
            write_template(
                record + RECORD_BYTES,
                plan,
                body,
                target.checksum,
                target.schema_id,
                target.slice_id,
                target.epoch,
            )
            halves = int32s_at(record, 2)
            halves[0] = HEADER_BYTES + MESSAGE_BYTES
            halves[1] = numpy.int32(numpy.uint32(BLOCK))
            int64s_at(record + 8, 1)[0] = key
            target.words[BODIES_IN] += body_bytes
            _commit(target, place + BLOCK_RECORD_BYTES)
            at = plan.stop
    return at


class Stored(NamedTuple):
    """Encoded blocks of one slice to send again: addresses of int64 columns, a row a block."""

    heads: int
    """Address of its header; 0: there is no block, only sequence numbers are left out."""
    bodies: int
    keys: int
    """Number of its key."""
    skips: int
    """Sequence numbers to leave out before it."""
    stays: int
    """1: its body stays where it is until the publisher has closed, and is sent from there; 0: it is copied."""
    count: int


@njit(nogil=True, cache=True)
def put_stored(target: Target, stored: Stored, start: int, wanted: NDArray[numpy.uint8]) -> int:
    """Put blocks from `start` on into the line; returns where it stopped, as `put_blocks`.

    A skip is taken off its column once it was put.
    """
    heads, bodies = int64s_at(stored.heads, stored.count), int64s_at(stored.bodies, stored.count)
    keys, skips = int64s_at(stored.keys, stored.count), int64s_at(stored.skips, stored.count)
    stays = int64s_at(stored.stays, stored.count)
    for block in range(start, stored.count):
        key = keys[block]
        while skips[block] > 0:
            part = min(skips[block], _MOST_SKIPPED)
            if not _put_skip(target, key, -part):
                return block
            skips[block] -= part
        if heads[block] == 0:
            continue
        header = read_header(heads[block])
        if not wanted[key]:
            if not _put_skip(target, key, header.count):
                return block
            continue
        place = _claim_or_announce(target, numpy.int64(BLOCK_RECORD_BYTES), header.body_bytes)
        if place < 0:
            return block
        record = target.memory.ctypes.data + place
        message = record + RECORD_BYTES + HEADER_BYTES
        if stays[block] != 0:
            msg_init_on(message, bodies[block], header.body_bytes)
        elif msg_init_size(message, header.body_bytes) != 0:
            return OUT_OF_MEMORY
        else:
            copy_bytes(msg_data(message), bodies[block], header.body_bytes)
        copy_bytes(record + RECORD_BYTES, heads[block], HEADER_BYTES)
        restamp(record + RECORD_BYTES, target.schema_id, target.slice_id, target.epoch)
        halves = int32s_at(record, 2)
        halves[0] = HEADER_BYTES + MESSAGE_BYTES
        halves[1] = numpy.int32(numpy.uint32(BLOCK))
        int64s_at(record + 8, 1)[0] = key
        target.words[BODIES_IN] += header.body_bytes
        _commit(target, place + BLOCK_RECORD_BYTES)
    return stored.count
