"""Bring the records of several slices into one order, the same every time.

A record's place is (the largest `ts_out` of its slice up to it, slice, place in the slice). Where `ts_out` never runs
backwards within a slice, as it does not on one line, that is the order of `ts_out`; where it does, the slice keeps its
own order.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy

from blackbox.archive.format import RECORD_HEAD_BYTES, record_bytes, record_head_at
from blackbox.native.intrinsics import copy_bytes, inner, int32s_at, int64s_at
from blackbox.native.jit import njit

ALL_DONE: Final = -1
"""No stream has anything left."""
NO_ROOM: Final = -2
"""The table that was to be filled is full."""


class Streams(NamedTuple):
    """Where the streams' lookahead lies: plain addresses, `count` streams of `room` records each."""

    count: int
    room: int
    heads: int
    """RECORD[count, room]."""
    places: int
    """int64[count, room]: the address of each record."""
    next: int
    """int64[count]: which record of its lookahead is a stream's next."""
    filled: int
    """int64[count]: records in the lookahead; 0: the stream has come to its end."""
    latest: int
    """int64[count]: the largest `ts_out` of the stream so far."""
    source: int
    """int32[count]: the number of the segment that the lookahead is of."""
    heap: int
    """int64[count]: room for the order of the streams."""


class Target(NamedTuple):
    """Where merged records go."""

    heads: int
    places: int
    source: int
    room: int
    max_bytes: int
    """No more records once these have that many bytes."""


def streams_of(count: int, room: int) -> tuple[Streams, dict[str, Any]]:
    """Lookahead tables for `count` streams, and the arrays that they lie in, which must be kept."""
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
    place = streams.room * stream + int64s_at(streams.next, streams.count)[stream]
    head = streams.heads + RECORD_HEAD_BYTES * place
    ts_out = record_head_at(head).ts_out
    latest = int64s_at(streams.latest, streams.count)
    latest[stream] = max(latest[stream], ts_out)


@inner
def _sift_down(streams: Streams, size: int, place: int) -> None:
    """Put the stream at `place` of the heap where it belongs: before all that come later, or have a higher number."""
    heap = int64s_at(streams.heap, streams.count)
    latest = int64s_at(streams.latest, streams.count)
    moved = heap[place]
    while 2 * place + 1 < size:
        child = 2 * place + 1
        if child + 1 < size:
            left, right = heap[child], heap[child + 1]
            if latest[right] < latest[left] or (latest[right] == latest[left] and right < left):
                child += 1
        other = heap[child]
        if latest[moved] < latest[other] or (latest[moved] == latest[other] and moved < other):
            break
        heap[place] = other
        place = child
    heap[place] = moved


@njit(nogil=True, cache=True)
def merge(streams: Streams, target: Target, count: int, size: int) -> tuple[int, int, int]:
    """Append records to `target`, which holds `count` of `size` bytes in all, until it is full or a stream is dry.

    Returns how many it holds, their bytes, and the stream that must be filled before anything else, ALL_DONE or
    NO_ROOM. Streams stand in the order of their slices.
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
    for place in range(many // 2 - 1, -1, -1):
        _sift_down(streams, many, place)
    while many > 0:
        if count == target.room or size >= target.max_bytes:
            return count, size, NO_ROOM
        stream = heap[0]
        place = streams.room * stream + following[stream]
        head = target.heads + RECORD_HEAD_BYTES * count
        copy_bytes(head, streams.heads + RECORD_HEAD_BYTES * place, RECORD_HEAD_BYTES)
        to_places[count] = places[place]
        to_source[count] = source[stream]
        # What it will be unpacked counts, too; both are at most 64 MiB.
        taken = record_head_at(head)
        size += record_bytes(max(numpy.int64(taken.stored_bytes), numpy.int64(taken.body_bytes)))
        count += 1
        following[stream] += 1
        if following[stream] == filled[stream]:
            return count, size, stream
        _catch_up(streams, stream)
        _sift_down(streams, many, 0)
    return count, size, ALL_DONE
