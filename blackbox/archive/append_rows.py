"""Gather messages, encode them as blocks, append these to journals, in compiled code: slice threads without sockets."""

from __future__ import annotations

from typing import NamedTuple

import numpy
from numpy.typing import NDArray

from blackbox.archive.append import append
from blackbox.archive.journal_state import journal_at
from blackbox.block.block_handler import BLOCK
from blackbox.block.encode import Origin, Rows, finish_header, plan_bytes, write_body, write_template
from blackbox.block.format import HEADER_BYTES
from blackbox.native.intrinsics import int32s_at, int64s_at, unsigned
from blackbox.native.jit import njit
from blackbox.publish.batcher import Encoder, plan_next


class Gathered(NamedTuple):
    """Columns of messages that wait to be encoded."""

    topics: NDArray[numpy.int32]
    """int32[n]: the number of each one's topic."""
    times: NDArray[numpy.int64]
    starts: NDArray[numpy.int64]
    """int64[n]: the address of each payload."""
    sizes: NDArray[numpy.int32]

    @classmethod
    def of(cls, rows: int) -> Gathered:
        """Return room for so many messages."""
        return cls(
            numpy.zeros(rows, numpy.int32),
            numpy.zeros(rows, numpy.int64),
            numpy.zeros(rows, numpy.int64),
            numpy.zeros(rows, numpy.int32),
        )

    @property
    def rows(self) -> Rows:
        """The same columns, without the topics."""
        return Rows(self.times.ctypes.data, 0, self.starts.ctypes.data, self.sizes.ctypes.data, 0, 0)


class Journals(NamedTuple):
    """Where the blocks of all slices go."""

    states: NDArray[numpy.int64]
    """The address of each slice's JournalState."""
    clocks: NDArray[numpy.int64]
    """The latest time so far of each slice's messages."""
    limit_ns: int
    """A time from here on does not move the clock."""
    header: int
    """Address of memory for a block's header."""
    body: int
    """Address of memory for a body, 8-byte aligned."""
    body_room: int


@njit(nogil=True, cache=True)
def gather(
    gathered: Gathered,
    at: int,
    topic_index_at: int,
    numbers: NDArray[numpy.int32],
    rows: Rows,
    start: int,
    stop: int,
    begin_ns: int,
    end_ns: int,
) -> tuple[int, int]:
    """Gather rows `[start, stop)` from place `at` on: topics by their `numbers`, of the int32 column at an address.

    Returns the bytes of their payloads, and how many have a time outside of `[begin_ns, end_ns)`.
    """
    topic_index = int32s_at(topic_index_at, stop)
    size = int(rows.stride)
    octets = outside = 0
    time = numpy.int64(0)
    place = numpy.uint64(at)
    for row in range(numpy.uint64(start), numpy.uint64(stop)):
        begin = numpy.int64(row) * rows.stride
        if rows.lengths != 0:
            begin = int64s_at(rows.starts, stop)[row]
            size = int(int32s_at(rows.lengths, stop)[row])
        if rows.ts_event != 0:
            time = int64s_at(rows.ts_event, stop)[row]
        gathered.topics[place] = numbers[unsigned(topic_index[row])]
        gathered.times[place] = time
        gathered.starts[place] = rows.payloads + begin
        gathered.sizes[place] = size
        octets += size
        outside += (time != 0) & ((time < begin_ns) | (time >= end_ns))
        place += numpy.uint64(1)
    return octets, outside


@njit(nogil=True, cache=True)
def put_rows(
    journals: Journals,
    encoder: Encoder,
    rows: Rows,
    slice_of_group: NDArray[numpy.int32],
    groups: int,
    start: int,
    next_sequence: NDArray[numpy.int64],
) -> tuple[int, int]:
    """Append the encoder's selection, in groups of one slice and key, from `start` on; return where it stopped, and 0.

    Or, where a body needs more room than there is, its bytes. A block is sent and received at the latest time so far of
    its slice's messages.
    """
    at = start
    selection = encoder.selection
    for place in range(groups):
        group = selection.keys[place]
        stop = numpy.int64(selection.stops[place])
        slice_id = int(slice_of_group[group])
        origin = Origin(encoder.origin.schema_id, slice_id, encoder.origin.key_bytes, encoder.origin.epoch)
        address = journals.states[slice_id]
        while at < stop:
            plan = plan_next(encoder, rows, at, stop)
            size = int(plan_bytes(plan))
            if size > journals.body_room:
                return at, size
            write_body(journals.body, plan, rows, selection.order, selection.topics, encoder.table, encoder.distinct)
            count = plan.stop - plan.start
            now = journals.clocks[slice_id]
            for time in int64s_at(journals.body, count):
                if now < time < journals.limit_ns:
                    now = time
            journals.clocks[slice_id] = now
            write_template(journals.header, plan, journals.body, encoder.checksum, origin, numpy.int64(0))
            finish_header(journals.header, next_sequence[group], now, numpy.int64(0))
            next_sequence[group] += count
            state = journal_at(address)
            state.kind = BLOCK
            state.head, state.body, state.body_bytes = journals.header, journals.body, size
            state.first_row = state.held = 0
            state.ts_recv = now
            append(address)
            at = plan.stop
    return at, 0


assert HEADER_BYTES % 8 == 0
