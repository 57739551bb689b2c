"""Parts of blocks in compiled code: which rows are due or in a time range, and a block of just these."""

from __future__ import annotations

import numpy
from numba import njit

from blackbox.atoms import bytes_at, copy_bytes, inner, int32s_at, int64s_at, unsigned
from blackbox.check import read_header
from blackbox.layout import (
    FLAG_CHECKSUM,
    FLAG_FIXED,
    HEADER_BYTES,
    OFFSET_BODY_BYTES,
    OFFSET_BODY_CHECKSUM,
    OFFSET_COUNT,
    OFFSET_FLAGS,
    OFFSET_HEADER_CHECKSUM,
    OFFSET_SEQUENCE,
    OFFSET_TOPIC_BYTES,
    OFFSET_TOPICS,
    body_layout,
)
from blackbox.replay.look import mark_topics
from blackbox.xxh3 import checksum_32


@njit(nogil=True, cache=True)
def next_beyond(head: int, body: int, row: int, until: int, messages: int, prefix: int, prefix_bytes: int) -> int:
    """The first row of a valid block, from `row` on, that is not to be played yet; the block's count: none.

    That is one whose topic starts with the prefix, and that either is later than `until`, or comes after `messages`
    such rows.
    """
    header = read_header(head)
    marks = numpy.empty(header.topics, numpy.uint8)
    mark_topics(head, body, prefix, prefix_bytes, marks)
    ts_event = int64s_at(body, header.count)
    topic_index = int32s_at(body + 8 * header.count, header.count)
    while row < header.count:
        if marks[unsigned(topic_index[row])]:
            if ts_event[row] > until or messages == 0:
                break
            messages -= 1
        row += 1
    return row


@njit(nogil=True, cache=True)
def next_outside(head: int, body: int, row: int, start: int, stop: int) -> int:
    """The first row, from `row` on, whose `ts_event` is not in `[start, stop)`; the block's count if there is none."""
    rows = read_header(head).count
    ts_event = int64s_at(body, rows)
    while row < rows and start <= ts_event[row] < stop:
        row += 1
    return row


@njit(nogil=True, cache=True)
def next_inside(head: int, body: int, row: int, start: int, stop: int) -> int:
    """As `next_outside`: the first row whose `ts_event` is in `[start, stop)`."""
    rows = read_header(head).count
    ts_event = int64s_at(body, rows)
    while row < rows and not start <= ts_event[row] < stop:
        row += 1
    return row


@inner
def _renumber(head: int, body: int, start: int, stop: int, places: int) -> int:
    """Number the topics of rows `[start, stop)` anew, in the block's order, into int32[topics]; returns how many."""
    header = read_header(head)
    layout = body_layout(header.count, header.topics, header.topic_bytes, 0, header.flags & FLAG_FIXED != 0)
    topic_index = int32s_at(body + layout.topic_index, header.count)
    place = int32s_at(places, header.topics)
    place[:] = -1
    for row in range(start, stop):
        place[unsigned(topic_index[row])] = 0
    used = 0
    for topic in range(header.topics):
        if place[topic] == 0:
            place[topic] = used
            used += 1
    return used


@njit(nogil=True, cache=True)
def cut(head: int, body: int, start: int, stop: int, places: int, new_head: int, new_body: int) -> int:
    """Write a block of rows `[start, stop)` of a valid one: its header, and its body; returns the body's bytes.

    `places` is scratch, int32[topics]; `new_body` has room for the body at `body`. The sequence goes on where it was.
    """
    header = read_header(head)
    fixed = header.flags & FLAG_FIXED != 0
    layout = body_layout(header.count, header.topics, header.topic_bytes, 0, fixed)
    count = stop - start
    topics = _renumber(head, body, start, stop, places)
    place = int32s_at(places, header.topics)
    offsets = int32s_at(body + layout.topic_offsets, header.topics + 1)
    topic_bytes = 0
    for topic in range(header.topics):
        if place[topic] >= 0:
            topic_bytes += offsets[topic + 1] - offsets[topic]
    if fixed:
        first_byte, payload_bytes = start * header.stride, count * header.stride
    else:
        payload_offsets = int32s_at(body + layout.payload_offsets, header.count + 1)
        first_byte = numpy.int64(payload_offsets[start])
        payload_bytes = numpy.int64(payload_offsets[stop]) - first_byte
    new = body_layout(count, topics, topic_bytes, payload_bytes, fixed)
    bytes_at(new_body, new.payloads)[:] = 0
    copy_bytes(new_body, body + 8 * start, 8 * count)
    topic_index = int32s_at(body + layout.topic_index, header.count)
    new_index = int32s_at(new_body + new.topic_index, count)
    for row in range(count):
        new_index[row] = place[unsigned(topic_index[start + row])]
    if not fixed:
        new_offsets = int32s_at(new_body + new.payload_offsets, count + 1)
        for row in range(count + 1):
            new_offsets[row] = payload_offsets[start + row] - first_byte
    new_topics = int32s_at(new_body + new.topic_offsets, topics + 1)
    end = 0
    for topic in range(header.topics):
        if place[topic] >= 0:
            size = numpy.int64(offsets[topic + 1]) - offsets[topic]
            new_topics[place[topic]] = end
            copy_bytes(new_body + new.topics + end, body + layout.topics + offsets[topic], size)
            end += size
    new_topics[topics] = end
    copy_bytes(new_body + new.payloads, body + layout.payloads + first_byte, payload_bytes)
    copy_bytes(new_head, head, HEADER_BYTES)
    bytes_at(new_head + OFFSET_FLAGS, 1)[0] |= FLAG_CHECKSUM
    int32s_at(new_head + OFFSET_COUNT, 1)[0] = count
    int64s_at(new_head + OFFSET_SEQUENCE, 1)[0] = header.sequence + start
    int32s_at(new_head + OFFSET_TOPICS, 1)[0] = topics
    int32s_at(new_head + OFFSET_TOPIC_BYTES, 1)[0] = topic_bytes
    int32s_at(new_head + OFFSET_BODY_BYTES, 1)[0] = new.end
    int32s_at(new_head + OFFSET_BODY_CHECKSUM, 1)[0] = checksum_32(new_body, new.end)
    int32s_at(new_head + OFFSET_HEADER_CHECKSUM, 1)[0] = checksum_32(new_head, OFFSET_HEADER_CHECKSUM)
    return new.end
