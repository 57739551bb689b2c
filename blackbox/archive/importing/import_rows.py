"""Gather messages, encode them as blocks and append these to journals, in compiled code and without sockets."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy
from numpy.typing import NDArray

from blackbox.archive.importing.growing_blocks import (
    ABOUT_BYTES,
    GROWING_BYTES,
    LINE_BYTES,
    Journals,
    Topics,
    about_at,
    add_row,
    append_block,
    growing_at,
)
from blackbox.block.form.encode import Rows
from blackbox.native.compile.jit import njit
from blackbox.native.memory.intrinsics import int32s_at, int64s_at, prefetch, unsigned
from blackbox.publish.send.batcher import Selection

_ROWS_AHEAD: Final = 8
"""Payloads are prefetched this many rows ahead; the columns that point to them, twice as many."""


class Gathered(NamedTuple):
    """Columns of messages that wait to be encoded."""

    topics: NDArray[numpy.int32]
    """int32[n]: topic number of each message."""
    times: NDArray[numpy.int64]
    starts: NDArray[numpy.int64]
    """int64[n]: address of each payload."""
    sizes: NDArray[numpy.int32]

    @classmethod
    def of(cls, rows: int) -> Gathered:
        """Return columns for `rows` messages."""
        return cls(
            numpy.zeros(rows, numpy.int32),
            numpy.zeros(rows, numpy.int64),
            numpy.zeros(rows, numpy.int64),
            numpy.zeros(rows, numpy.int32),
        )


@njit(nogil=True, cache=True)
def gather(
    gathered: Gathered,
    first: int,
    topic_index_at: int,
    numbers: NDArray[numpy.int32],
    rows: Rows,
    start: int,
    stop: int,
    begin_ns: int,
    end_ns: int,
) -> tuple[int, int]:
    """Gather rows `[start, stop)` from `first` on. Their topics are `numbers[i]` for the int32 column at an address.

    Returns the bytes of their payloads, and how many have a time outside `[begin_ns, end_ns)`.
    """
    topic_index = int32s_at(topic_index_at, stop)
    size = int(rows.stride)
    octets = outside = 0
    time = numpy.int64(0)
    index = numpy.uint64(first)
    for row in range(numpy.uint64(start), numpy.uint64(stop)):
        begin = numpy.int64(row) * rows.stride
        if rows.lengths != 0:
            begin = int64s_at(rows.starts, stop)[row]
            size = int(int32s_at(rows.lengths, stop)[row])
        if rows.ts_event != 0:
            time = int64s_at(rows.ts_event, stop)[row]
        gathered.topics[index] = numbers[unsigned(topic_index[row])]
        gathered.times[index] = time
        gathered.starts[index] = rows.payloads + begin
        gathered.sizes[index] = size
        octets += size
        outside += (time != 0) & ((time < begin_ns) | (time >= end_ns))
        index += numpy.uint64(1)
    return octets, outside


@njit(nogil=True, cache=True)
def put_rows(
    blocks: int,
    journals: Journals,
    topics: Topics,
    rows: Rows,
    octets: int,
    topic_index_at: int,
    numbers: NDArray[numpy.int32],
    start: int,
    stop: int,
    begin_ns: int,
    end_ns: int,
) -> tuple[int, int]:
    """Add rows `[start, stop)` to the growing blocks of their groups, with `numbers` as in `gather`.

    With an empty `numbers` the column has the topic numbers themselves. `octets` is the size of the payloads' buffer.
    Returns the row where it stopped, and how many rows before it have a time outside `[begin_ns, end_ns)`. It stops
    before `stop` at a payload that is too long for its block.
    """
    topic_index = int32s_at(topic_index_at, stop)
    abouts, numbers_at, has_numbers = topics.about.ctypes.data, numbers.ctypes.data, len(numbers) > 0
    size: Any = rows.stride
    outside = 0
    time: Any = numpy.int64(0)
    row = numpy.uint64(start)
    is_empty = False
    while row < numpy.uint64(stop):
        begin = numpy.int64(row) * rows.stride
        if rows.lengths != 0:
            begin = int64s_at(rows.starts, stop)[row]
            size = numpy.int64(int32s_at(rows.lengths, stop)[row])
        if rows.ts_event != 0:
            time = int64s_at(rows.ts_event, stop)[row]
        ahead: Any = min(row + numpy.uint64(2 * _ROWS_AHEAD), numpy.uint64(stop - 1))
        prefetch(abouts + ABOUT_BYTES * numpy.int64(topic_index[ahead]))
        topic: Any = numpy.int64(topic_index[row])
        if has_numbers:
            topic = numpy.int64(int32s_at(numbers_at + 4 * topic, 1)[0])
        about = abouts + ABOUT_BYTES * topic
        group: Any = numpy.int64(about_at(about).group)
        block = blocks + GROWING_BYTES * group
        if add_row(block, about, topic, time, rows.payloads + begin, size, begin + LINE_BYTES <= octets):
            outside += (time != 0) & ((time < begin_ns) | (time >= end_ns))
            row += numpy.uint64(1)
            is_empty = False
        elif is_empty:
            break
        else:
            append_block(block, group, topics, journals)
            is_empty = True
    return int(row), outside


@njit(nogil=True, cache=True)
def put_groups(
    block: int, journals: Journals, topics: Topics, gathered: Gathered, selection: Selection, groups: int, start: int
) -> int:
    """Append the gathered rows of a selection, grouped by slice and key, from position `start` on.

    All use the same growing block. Returns where it stopped: before the end at a payload that is too long for it.
    """
    about = topics.about.ctypes.data
    index = start
    last = int(selection.stops[groups - 1]) - 1
    for number in range(groups):
        group = numpy.int64(selection.keys[number])
        stop = numpy.int64(selection.stops[number])
        while index < stop:
            # Rows of one key are far apart: prefetch their columns, then their payloads.
            near: Any = min(index + _ROWS_AHEAD, last)
            ahead: Any = min(index + 2 * _ROWS_AHEAD, last)
            far = numpy.int64(selection.order[ahead])
            prefetch(gathered.times.ctypes.data + 8 * far)
            prefetch(gathered.starts.ctypes.data + 8 * far)
            prefetch(gathered.sizes.ctypes.data + 4 * far)
            prefetch(gathered.starts[selection.order[near]])
            row, topic = unsigned(selection.order[index]), numpy.int64(selection.topics[index])
            time, payload, size = gathered.times[row], gathered.starts[row], numpy.int64(gathered.sizes[row])
            if add_row(block, about + ABOUT_BYTES * topic, topic, time, payload, size, False):
                index += 1
            elif growing_at(block).count == 0:
                return index
            else:
                append_block(block, group, topics, journals)
        append_block(block, group, topics, journals)
    return index


@njit(nogil=True, cache=True)
def put_rest(blocks: int, groups: int, topics: Topics, journals: Journals) -> None:
    """Append the growing blocks of all groups."""
    for group in range(groups):
        append_block(blocks + GROWING_BYTES * group, group, topics, journals)
