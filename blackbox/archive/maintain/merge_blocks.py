"""Merge small consecutive blocks of one key into one block."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy
from numpy.typing import NDArray

from blackbox.archive.read.reader import Recorded
from blackbox.block.form.encode import Origin, Plan, finish_header, number_header, plan_bytes, write_template
from blackbox.block.form.format import (
    FLAG_FIXED,
    FLAG_LINE_B,
    HEADER_BYTES,
    BodyLayout,
    Header,
    body_layout,
    layout_of,
    read_header,
)
from blackbox.native.compile.jit import njit
from blackbox.native.memory.intrinsics import bytes_at, copy_bytes, inner, int32s_at, int64s_at, unsigned
from blackbox.native.tables.name_table import FULL, Numbering, NumberingAt, number_of

_VARIABLE: Final = -1


class _Tables(NamedTuple):
    """Addresses of the tables used for merging."""

    topics: NumberingAt
    numbers: int
    """int32: number in the merged block for each topic of each block, block after block."""
    used: int
    """uint8: for each topic of one block, 1 if a row has it."""


class BlockMerger:
    """Merges blocks in reused memory."""

    def __init__(self) -> None:
        self._topics = self._text = 0

    def merge(self, group: list[Recorded]) -> tuple[NDArray[numpy.uint8], NDArray[numpy.uint8]]:
        """Return header and body of the merged block. The blocks must have one key and no gaps."""
        first = group[0]
        topics = sum(recorded.block.topic_count for recorded in group)
        text = sum(recorded.block.layout.payloads - recorded.block.layout.topics for recorded in group)
        self._make_room(topics, text)
        headers = numpy.array([recorded.header for recorded in group], numpy.int64)
        bodies = numpy.array([recorded.body for recorded in group], numpy.int64)
        first_rows = numpy.array([recorded.first_row for recorded in group], numpy.int64)
        tables = _Tables(self._numbering.at, self._numbers.ctypes.data, self._used.ctypes.data)
        plan = plan_merge(headers, bodies, first_rows, tables)
        body = numpy.zeros(plan_bytes(plan), numpy.uint8)
        write_merge(headers, bodies, first_rows, tables, plan, body.ctypes.data)
        header = numpy.zeros(HEADER_BYTES, numpy.uint8)
        address = header.ctypes.data
        block = first.block
        origin = Origin(block.schema_id, block.slice_id, block.key_rule, block.epoch)
        ts_in = min(recorded.block.ts_in for recorded in group)
        write_template(address, plan, body.ctypes.data, True, origin, ts_in)
        sequence = block.sequence + first.first_row
        previous = sequence if first.first_row else block.previous
        number_header(address, sequence, previous, block.key_sequence + first.first_row)
        finish_header(address, block.ts_out, block.flags & FLAG_LINE_B)
        self._numbering.clear()
        return header, body

    def _make_room(self, topics: int, text: int) -> None:
        if topics > self._topics or text > self._text:
            self._topics, self._text = max(2 * topics, 1_024), max(2 * text, 65_536)
            self._numbering = Numbering(self._topics, -(-self._text // self._topics))
            self._numbers = numpy.zeros(self._topics, numpy.int32)
            self._used = numpy.zeros(self._topics, numpy.uint8)


@inner
def _payload_bounds(block: Header, layout: BodyLayout, body: int, first_row: int) -> tuple[int, int]:
    """Return the start and end of the payloads from `first_row` on, in the payload bytes."""
    if block.flags & FLAG_FIXED:
        return first_row * block.stride, block.count * block.stride
    offsets = int32s_at(body + layout.payload_offsets, block.count + 1)
    return numpy.int64(offsets[numpy.uint64(first_row)]), numpy.int64(offsets[numpy.uint64(block.count)])


@inner
def _stride_from(block: Header, layout: BodyLayout, body: int, first_row: int) -> int:
    """Return the size of all payloads from `first_row` on; _VARIABLE if they differ."""
    if block.flags & FLAG_FIXED:
        return block.stride
    offsets = int32s_at(body + layout.payload_offsets, block.count + 1)
    stride = numpy.int64(offsets[first_row + 1]) - numpy.int64(offsets[first_row])
    for row in range(first_row + 1, block.count):
        if numpy.int64(offsets[row + 1]) - numpy.int64(offsets[row]) != stride:
            return numpy.int64(_VARIABLE)
    return stride


@njit(nogil=True, cache=True)
def plan_merge(
    headers: NDArray[numpy.int64], bodies: NDArray[numpy.int64], first_rows: NDArray[numpy.int64], tables: _Tables
) -> Plan:
    """Plan the block that is made of checked blocks, from each one's first row on.

    Numbers the topics that occur; the tables have room for all of them.
    """
    count = topic_bytes = payload_bytes = first_topic = 0
    topics = 0
    stride = numpy.int64(0)
    for i in range(len(headers)):
        block = read_header(headers[i])
        body, first_row = bodies[i], first_rows[i]
        layout = layout_of(block)
        used = bytes_at(tables.used, block.topics)
        used[:] = first_row == 0
        if first_row > 0:
            topic_index = int32s_at(body + layout.topic_index, block.count)
            for row in range(first_row, block.count):
                used[unsigned(topic_index[row])] = 1
        offsets = int32s_at(body + layout.topic_offsets, block.topics + 1)
        numbers = int32s_at(tables.numbers + 4 * first_topic, block.topics)
        for topic in range(block.topics):
            if used[topic] == 0:
                continue
            size = numpy.int64(offsets[topic + 1]) - numpy.int64(offsets[topic])
            number = number_of(tables.topics, body + layout.topics + numpy.int64(offsets[topic]), size)
            assert number != FULL
            numbers[topic] = number
            if number == topics:
                topics += 1
                topic_bytes += size
        first_topic += block.topics
        size = _stride_from(block, layout, body, first_row)
        if i == 0:
            stride = size
        elif stride != size:
            stride = numpy.int64(_VARIABLE)
        low, high = _payload_bounds(block, layout, body, first_row)
        payload_bytes += high - low
        count += block.count - first_row
    flags = 0 if stride == _VARIABLE else FLAG_FIXED
    variable = numpy.int64(_VARIABLE)
    return Plan(0, count, topics, topic_bytes, payload_bytes, stride, variable, variable, flags)


@njit(nogil=True, cache=True)
def write_merge(
    headers: NDArray[numpy.int64],
    bodies: NDArray[numpy.int64],
    first_rows: NDArray[numpy.int64],
    tables: _Tables,
    plan: Plan,
    target: int,
) -> None:
    """Fill the zeros at `target` according to the plan, right after `plan_merge`."""
    fixed = plan.stride != _VARIABLE
    layout = body_layout(plan.stop, plan.topics, plan.topic_bytes, 0, plan.flags)
    starts = int64s_at(tables.topics.starts, plan.topics + 1)
    topic_offsets = int32s_at(target + layout.topic_offsets, plan.topics + 1)
    for topic in range(plan.topics + 1):
        topic_offsets[topic] = starts[topic]
    copy_bytes(target + layout.topics, tables.topics.text, plan.topic_bytes)
    payload_offsets = int32s_at(target + layout.payload_offsets, 0 if fixed else plan.stop + 1)
    first = numpy.int64(0)
    payload = numpy.int64(0)
    first_topic = numpy.int64(0)
    for i in range(len(headers)):
        block = read_header(headers[i])
        body, first_row = bodies[i], first_rows[i]
        old = layout_of(block)
        rows = block.count - first_row
        copy_bytes(target + 8 * first, body + 8 * first_row, 8 * rows)
        old_index = int32s_at(body + old.topic_index, block.count)
        index = int32s_at(target + layout.topic_index + 4 * first, rows)
        numbers = int32s_at(tables.numbers + 4 * first_topic, block.topics)
        for row in range(numpy.uint64(rows)):
            index[row] = numbers[unsigned(old_index[row + numpy.uint64(first_row)])]
        low, high = _payload_bounds(block, old, body, first_row)
        if not fixed:
            if block.flags & FLAG_FIXED:
                for row in range(rows):
                    payload_offsets[first + row] = payload + row * block.stride
            else:
                old_offsets = int32s_at(body + old.payload_offsets, block.count + 1)
                for row in range(rows):
                    payload_offsets[first + row] = payload + numpy.int64(old_offsets[first_row + row]) - low
        copy_bytes(target + layout.payloads + payload, body + old.payloads + low, high - low)
        payload += high - low
        first += rows
        first_topic += block.topics
    if not fixed:
        payload_offsets[plan.stop] = payload
