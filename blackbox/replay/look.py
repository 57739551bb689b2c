"""Look at blocks before they are played: whether they are valid, how many messages are wanted, when those were."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy
from numba import njit
from numpy.typing import NDArray

from blackbox.atoms import inner, int32s_at, int64s_at, unsigned
from blackbox.check import Fault, read_header
from blackbox.journal.layout import OFFSET_BLOCK_HEADER
from blackbox.journal.rows import check_recorded, starts_with
from blackbox.layout import FLAG_FIXED, body_layout

# Rows of a reel's columns.
HEAD: Final = 0
"""Address of the block's header, in its record."""
BODY: Final = 1
"""Address of its body, unpacked."""
BODY_BYTES: Final = 2
"""How large that is."""
FIRST: Final = 3
"""Rows before this one are left out."""
RECEIVED: Final = 4
"""`ts_recv`."""
SLICE: Final = 5
FAULT: Final = 6
"""UNSEEN, or its `Fault`; one that is not valid is not played."""
COUNT: Final = 7
"""Messages of the block that are played: those from the first row on whose topic has the prefix."""
NEXT: Final = 8
"""Time of the first of them."""
LOW: Final = 9
HIGH: Final = 10
STAYS: Final = 11
"""1: the body lies in a recording's memory, and stays there as long as it is mapped."""
COLUMNS: Final = 12

UNSEEN: Final = -1
"""In FAULT: nobody has looked at the block. What it says of its messages and their times is not known."""
LATEST: Final = (1 << 63) - 1

_NONE: Final = int(Fault.NONE)


class Wish(NamedTuple):
    """Which messages are played."""

    key_bytes: int
    """Of the feed."""
    prefix: int
    """The address of what their topics start with."""
    prefix_bytes: int
    by_event: int
    """1: their times are `ts_event`; 0: one time of the whole block, which stands in the columns already."""


class Reel(NamedTuple):
    """Blocks to play, in order."""

    columns: int
    """The address of column 0's first block; there are int64[COLUMNS, `stride`]."""
    stride: int
    count: int
    wish: Wish


EMPTY: Final = Reel(0, 0, 0, Wish(0, 0, 0, 0))
"""Nothing to play, of the type that compiled code takes."""


@inner
def column(reel: Reel, row: int) -> NDArray[numpy.int64]:
    """int64[count]: one row of the columns."""
    return int64s_at(reel.columns + 8 * reel.stride * row, reel.count)


@inner
def mark_topics(head: int, body: int, prefix: int, prefix_bytes: int, marks: NDArray[numpy.uint8]) -> None:
    """Mark, in uint8[topics], the topics that start with a prefix."""
    header = read_header(head)
    layout = body_layout(header.count, header.topics, header.topic_bytes, 0, header.flags & FLAG_FIXED != 0)
    offsets = int32s_at(body + layout.topic_offsets, header.topics + 1)
    for topic in range(numpy.uint64(header.topics)):
        start = numpy.int64(offsets[topic])
        size = numpy.int64(offsets[topic + numpy.uint64(1)]) - start
        marks[topic] = starts_with(body + layout.topics + start, size, prefix, prefix_bytes)


@inner
def _measure(reel: Reel, block: int) -> None:
    """Find how many messages of a valid block are wanted, and their times; none: a range that is empty."""
    body, first = column(reel, BODY)[block], column(reel, FIRST)[block]
    head, wish = column(reel, HEAD)[block], reel.wish
    header = read_header(head)
    ts_event = int64s_at(body, header.count)
    following, least, largest = LATEST, LATEST, -LATEST
    if wish.prefix_bytes == 0:
        found = header.count - first
        if found > 0:
            following = ts_event[first]
        for row in range(numpy.uint64(first), numpy.uint64(header.count)):
            least = min(least, ts_event[row])
            largest = max(largest, ts_event[row])
    else:
        marks = numpy.empty(header.topics, numpy.uint8)
        mark_topics(head, body, wish.prefix, wish.prefix_bytes, marks)
        topic_index = int32s_at(body + 8 * header.count, header.count)
        found = 0
        for row in range(numpy.uint64(first), numpy.uint64(header.count)):
            if marks[unsigned(topic_index[row])]:
                if found == 0:
                    following = ts_event[row]
                found += 1
                least = min(least, ts_event[row])
                largest = max(largest, ts_event[row])
    column(reel, COUNT)[block] = found
    if wish.by_event:
        column(reel, NEXT)[block] = following
        column(reel, LOW)[block] = least
        column(reel, HIGH)[block] = largest


@inner
def look_at(reel: Reel, block: int) -> None:
    """Check a block that nobody has looked at, and measure one that is valid."""
    fault = column(reel, FAULT)
    if fault[block] == UNSEEN:
        record = column(reel, HEAD)[block] - OFFSET_BLOCK_HEADER
        body, size = column(reel, BODY)[block], column(reel, BODY_BYTES)[block]
        fault[block] = check_recorded(record, body, size, reel.wish.key_bytes)
    if fault[block] == _NONE:
        _measure(reel, block)


@njit(nogil=True, cache=True)
def look(reel: Reel) -> None:
    """Look at all blocks of a reel."""
    for block in range(reel.count):
        look_at(reel, block)
