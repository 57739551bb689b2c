"""Times and rows of blocks in compiled code: when a block's messages happened, and a block of some of its rows."""

from __future__ import annotations

import numpy
from numba import njit

from blackbox.atoms import bytes_at, copy_bytes, inner, int32s_at, int64s_at, unsigned
from blackbox.check import check_body, read_header
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
from blackbox.xxh3 import checksum_32

_LATEST = numpy.int64(numpy.iinfo(numpy.int64).max)


@inner
def _rows(head: int) -> int:
    """Rows whose times lie in the body, whatever the header says."""
    header = read_header(head)
    return min(header.count, header.body_bytes // 8)


@njit(nogil=True, cache=True)
def is_good(head: int, body: int, checksum: int) -> bool:
    """Whether a body is what `checksum` says (-1: it was looked at before), and a valid one for its header."""
    size = read_header(head).body_bytes
    if checksum >= 0 and numpy.int64(checksum_32(body, size)) != checksum:
        return False
    return check_body(head, body, size, body, numpy.int64(0), False) == 0


@njit(nogil=True, cache=True)
def time_ranges(heads: int, bodies: int, firsts: int, count: int, next_at: int, earliest: int, latest: int) -> None:
    """Find the `ts_event` of each of `count` blocks' first row, and the least and the largest from there on.

    All are addresses of int64[count]. A block without such rows gets a range that is empty.
    """
    head, body, first = int64s_at(heads, count), int64s_at(bodies, count), int64s_at(firsts, count)
    following, low, high = int64s_at(next_at, count), int64s_at(earliest, count), int64s_at(latest, count)
    for block in range(count):
        rows = _rows(head[block])
        ts_event = int64s_at(body[block], rows)
        least, largest = _LATEST, -_LATEST
        for row in range(numpy.uint64(first[block]), numpy.uint64(rows)):
            least = min(least, ts_event[row])
            largest = max(largest, ts_event[row])
        following[block] = ts_event[first[block]] if first[block] < rows else _LATEST
        low[block], high[block] = least, largest


@njit(nogil=True, cache=True)
def next_outside(head: int, body: int, row: int, start: int, stop: int) -> int:
    """The first row, from `row` on, whose `ts_event` is not in `[start, stop)`; the block's count if there is none."""
    rows = _rows(head)
    ts_event = int64s_at(body, rows)
    while row < rows and start <= ts_event[row] < stop:
        row += 1
    return row


@njit(nogil=True, cache=True)
def next_inside(head: int, body: int, row: int, start: int, stop: int) -> int:
    """As `next_outside`: the first row whose `ts_event` is in `[start, stop)`."""
    rows = _rows(head)
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
