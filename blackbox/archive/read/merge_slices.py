"""Merge the records of several slices into one deterministic order.

Records are ordered by the largest `ts_out` of their slice so far, then slice, then position in the slice. If `ts_out`
never decreases within a slice, as on a single line, this is the order of `ts_out`; otherwise each slice keeps its own
order.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy

from blackbox.archive.files.format import RECORD_HEAD_BYTES, record_bytes, record_head_at
from blackbox.native.compile.jit import njit
from blackbox.native.memory.intrinsics import copy_bytes, inner, int32s_at, int64s_at

ALL_DONE: Final = -1
"""All streams are at their end."""
NO_ROOM: Final = -2
"""The target table is full."""


class Streams(NamedTuple):
    """Addresses of the lookahead of `count` streams, with `room` records each."""

    count: int
    room: int
    heads: int
    """RECORD[count, room]."""
    places: int
    """int64[count, room]: address of each record."""
    next: int
    """int64[count]: index of each stream's next record in its lookahead."""
    filled: int
    """int64[count]: records in the lookahead; 0: the stream is at its end."""
    latest: int
    """int64[count]: largest `ts_out` of the stream so far."""
    source: int
    """int32[count]: segment number of the lookahead."""
    heap: int
    """int64[count]: heap of the streams."""


class Target(NamedTuple):
    """Destination of merged records."""

    heads: int
    places: int
    source: int
    room: int
    max_bytes: int
    """The target is full once its records have this size."""


def streams_of(count: int, room: int) -> tuple[Streams, dict[str, Any]]:
    """Return lookahead tables for `count` streams, and their arrays, which must be kept alive."""
    arrays: dict[str, Any] = {
        "heads": numpy.zeros((count, room, RECORD_HEAD_BYTES), numpy.uint8),
        "places": numpy.zeros((count, room), numpy.int64),
        "next": numpy.zeros(count, numpy.int64),
        "filled": numpy.zeros(count, numpy.int64),
        "latest": numpy.zeros(count, numpy.int64),
        "source": numpy.zeros(count, numpy.int32),
        "heap": numpy.zeros(count, numpy.int64),
    }
    return Streams(count, room, **{name: array.ctypes.data for name, array in arrays.items()}), arrays


@inner
def _catch_up(streams: Streams, stream: int) -> None:
    """Raise a stream's `latest` to that of its next record."""
    index = streams.room * stream + int64s_at(streams.next, streams.count)[stream]
    head = streams.heads + RECORD_HEAD_BYTES * index
    ts_out = record_head_at(head).ts_out
    latest = int64s_at(streams.latest, streams.count)
    latest[stream] = max(latest[stream], ts_out)


@inner
def _sift_down(streams: Streams, size: int, index: int) -> None:
    """Move the stream at an index down the heap: ordered by time, then number."""
    heap = int64s_at(streams.heap, streams.count)
    latest = int64s_at(streams.latest, streams.count)
    moved = heap[index]
    while 2 * index + 1 < size:
        child = 2 * index + 1
        if child + 1 < size:
            left, right = heap[child], heap[child + 1]
            if latest[right] < latest[left] or (latest[right] == latest[left] and right < left):
                child += 1
        other = heap[child]
        if latest[moved] < latest[other] or (latest[moved] == latest[other] and moved < other):
            break
        heap[index] = other
        index = child
    heap[index] = moved


@njit(nogil=True, cache=True)
def merge(streams: Streams, target: Target, count: int, size: int) -> tuple[int, int, int]:
    """Append records to `target`, which has `count` records of `size` bytes, until it is full or a stream is empty.

    Returns the new count, the new size, and the stream that must be filled next, ALL_DONE or NO_ROOM. Streams are in
    the order of their slices.
    """
    following = int64s_at(streams.next, streams.count)
    filled = int64s_at(streams.filled, streams.count)
    places = int64s_at(streams.places, streams.count * streams.room)
    source = int32s_at(streams.source, streams.count)
    heap = int64s_at(streams.heap, streams.count)
    to_places = int64s_at(target.places, target.room)
    to_source = int32s_at(target.source, target.room)
    many = 0
    for stream in range(streams.count):
        if following[stream] < filled[stream]:
            _catch_up(streams, stream)
            heap[many] = stream
            many += 1
    for index in range(many // 2 - 1, -1, -1):
        _sift_down(streams, many, index)
    while many > 0:
        if count == target.room or size >= target.max_bytes:
            return count, size, NO_ROOM
        stream = heap[0]
        index = streams.room * stream + following[stream]
        head = target.heads + RECORD_HEAD_BYTES * count
        copy_bytes(head, streams.heads + RECORD_HEAD_BYTES * index, RECORD_HEAD_BYTES)
        to_places[count] = places[index]
        to_source[count] = source[stream]
        # The decompressed size counts too. Both are at most 64 MiB.
        taken = record_head_at(head)
        size += record_bytes(max(numpy.int64(taken.stored_bytes), numpy.int64(taken.body_bytes)))
        count += 1
        following[stream] += 1
        if following[stream] == filled[stream]:
            return count, size, stream
        _catch_up(streams, stream)
        _sift_down(streams, many, 0)
    return count, size, ALL_DONE
