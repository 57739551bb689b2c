"""Gather messages of many blocks into Spark's columns: select them, then fill buffers of the exact size.

Topics are split into symbol and type by the feed's symbol rule.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy
from numpy.typing import NDArray

from blackbox.archive.files.format import OFFSET_BLOCK_HEADER, record_head_at
from blackbox.archive.read.rows import starts_with
from blackbox.block.form.format import FLAG_FIXED, Header, has_value, layout_of, read_header, sequence_of
from blackbox.feed.routing.compiled_routing import CompiledSymbolRule, separator_at
from blackbox.native.compile.jit import njit
from blackbox.native.memory.intrinsics import bytes_at, copy_bytes, inner, int32s_at, int64s_at

TOPIC: Final = 0
SYMBOL: Final = 1
TYPE: Final = 2
_BYTE: Final = numpy.uint8(1)


class Conditions(NamedTuple):
    """Conditions on topics: at least one alternative of each group must hold."""

    groups: NDArray[numpy.int64]
    """int64[groups + 1]: start of each group's alternatives."""
    parts: NDArray[numpy.uint8]
    """uint8[n]: part that an alternative applies to: TOPIC, SYMBOL or TYPE."""
    exact: NDArray[numpy.uint8]
    """uint8[n]: 1 if the part must equal the text, 0 if it must begin with it."""
    starts: NDArray[numpy.int64]
    """int64[n + 1]: start of each alternative's text in `text`."""
    text: NDArray[numpy.uint8]


class Wanted(NamedTuple):
    """The wanted times and message type."""

    first_time: int
    last_time: int
    """Bounds of `ts_event`, both included, ns since 1970."""
    kind: int
    """The type character of the payloads; -1 for any."""
    type_offset: int
    """Offset of the type character in a payload."""
    width: int
    """Bytes of a payload of that type."""


class Chosen(NamedTuple):
    """The result of `choose`."""

    count: int
    record: int
    row: int
    """Record and row to continue at."""
    topic_bytes: int
    symbol_bytes: int
    type_bytes: int
    payload_bytes: int
    wrong: int
    """Messages of the type that were left out because of their length."""
    wrong_record: int
    """Index of the first one's record in the run."""
    wrong_bytes: int
    """Its length."""


class Target(NamedTuple):
    """Addresses of the buffers of each column; 0 if the column is not wanted.

    Offsets are int32[count + 1] and start with 0. Validity has one bit per message, the lowest first, initially zeros.
    """

    ts_event: int
    ts_out: int
    ts_recv: int
    event_time: int
    """int64[count]: µs since 1970; null where `ts_event` is 0."""
    event_valid: int
    out_time: int
    recv_time: int
    epoch: int
    sequence: int
    topic: int
    topic_offsets: int
    symbol: int
    symbol_offsets: int
    type: int
    type_offsets: int
    type_valid: int
    payload: int
    payload_offsets: int
    payload_valid: int
    """Null for a message without a value."""


class _Columns(NamedTuple):
    count: int
    first_row: int
    stride: int
    """-1 if payloads differ in length."""
    topics: int
    topic_bytes: int
    topic_index: int
    payload_offsets: int
    topic_offsets: int
    text: int
    payloads: int


@inner
def _columns_of(record: int, body: int) -> _Columns:
    block = read_header(record + OFFSET_BLOCK_HEADER)
    fixed = block.flags & FLAG_FIXED != 0
    layout = layout_of(block)
    return _Columns(
        numpy.int64(block.count),
        numpy.int64(record_head_at(record).first_row),
        numpy.int64(block.stride) if fixed else numpy.int64(-1),
        numpy.int64(block.topics),
        numpy.int64(block.topic_bytes),
        body + layout.topic_index,
        body + layout.payload_offsets,
        body + layout.topic_offsets,
        body + layout.topics,
        body + layout.payloads,
    )


@inner
def _meets(conditions: Conditions, text: int, size: int, separator: int) -> bool:
    letters: Any = conditions.text.ctypes.data
    for group in range(len(conditions.groups) - 1):
        met = False
        for place in range(conditions.groups[group], conditions.groups[group + 1]):
            part = conditions.parts[place]
            at, length = text, size
            if part == SYMBOL and separator >= 0:
                length = separator
            elif part == TYPE:
                if separator < 0:
                    continue
                at, length = text + separator + 1, size - separator - 1
            start = conditions.starts[place]
            bytes_wanted = conditions.starts[place + 1] - start
            if conditions.exact[place] != 0 and length != bytes_wanted:
                continue
            if starts_with(at, length, letters + start, bytes_wanted):
                met = True
                break
        if not met:
            return False
    return True


@njit(nogil=True, cache=True)
def choose(
    records: NDArray[numpy.int64],
    bodies: NDArray[numpy.int64],
    record: int,
    row: int,
    wanted: Wanted,
    conditions: Conditions,
    rule: CompiledSymbolRule,
    room: int,
    payload_room: int,
    chosen_records: NDArray[numpy.int32],
    chosen_rows: NDArray[numpy.int32],
) -> Chosen:
    """Select messages of checked records from `row` of `record` on, up to `room` messages or `payload_room` bytes.

    The bytes of payloads and of topics are each limited to `payload_room`, but a single larger message is selected.
    """
    count = topic_bytes = symbol_bytes = type_bytes = payload_bytes = 0
    wrong, wrong_record, wrong_bytes = 0, -1, 0
    while record < len(records):
        block = _columns_of(records[record], bodies[record])
        offsets = int32s_at(block.topic_offsets, block.topics + 1)
        separators = numpy.empty(block.topics, numpy.int32)
        fits = numpy.empty(block.topics, numpy.uint8)
        for topic in range(block.topics):
            text = block.text + numpy.int64(offsets[topic])
            size = numpy.int64(offsets[topic + 1]) - numpy.int64(offsets[topic])
            separators[topic] = separator_at(rule, text, size)
            fits[topic] = _meets(conditions, text, size, numpy.int64(separators[topic]))
        ts_event = int64s_at(bodies[record], block.count)
        topic_index = int32s_at(block.topic_index, block.count)
        places = int32s_at(block.payload_offsets, block.count + 1 if block.stride < 0 else 0)
        row = max(row, block.first_row)
        while row < block.count:
            topic = topic_index[row]
            time = ts_event[row]
            start, length = row * block.stride, block.stride
            if block.stride < 0:
                start = numpy.int64(places[row])
                length = numpy.int64(places[row + 1]) - start
            good = fits[topic] != 0 and wanted.first_time <= time and time <= wanted.last_time
            if good and wanted.kind >= 0:
                good = wanted.type_offset < length
                if good:
                    good = bytes_at(block.payloads + start + wanted.type_offset, 1)[0] == wanted.kind
                if good and length != wanted.width:
                    good = False
                    if wrong == 0:
                        wrong_record, wrong_bytes = record, length
                    wrong += 1
            if good:
                size = numpy.int64(offsets[topic + 1]) - numpy.int64(offsets[topic])
                full = count == room or payload_bytes + length > payload_room or topic_bytes + size > payload_room
                if full and count > 0:
                    return Chosen(
                        count, record, row, topic_bytes, symbol_bytes, type_bytes, payload_bytes, wrong, wrong_record,
                        wrong_bytes,
                    )  # fmt: skip
                chosen_records[count] = record
                chosen_rows[count] = row
                count += 1
                topic_bytes += size
                separator = numpy.int64(separators[topic])
                symbol_bytes += separator if separator >= 0 else size
                type_bytes += size - separator - 1 if separator >= 0 else 0
                payload_bytes += length
            row += 1
        record += 1
        row = 0
    return Chosen(
        count, record, 0, topic_bytes, symbol_bytes, type_bytes, payload_bytes, wrong, wrong_record, wrong_bytes
    )


@inner
def _spread(column: int, first: int, last: int, value: int) -> None:
    if column != 0:
        int64s_at(column, last)[first:last] = value


@inner
def _set_bit(bits: int, at: int) -> None:
    bytes_at(bits + (at >> 3), 1)[0] |= _BYTE << numpy.uint8(at & 7)


@inner
def _fill_rows(block: _Columns, body: int, header: Header, rows: Any, first: int, target: Target) -> None:
    """Fill the fixed-width columns with different values in each row."""
    many = len(rows)
    ts_event = int64s_at(body, block.count)
    if target.ts_event != 0:
        column = int64s_at(target.ts_event + 8 * first, many)
        for i in range(many):
            column[i] = ts_event[rows[i]]
    if target.event_time != 0:
        column = int64s_at(target.event_time + 8 * first, many)
        for i in range(many):
            time = ts_event[rows[i]]
            column[i] = time // 1_000
            if time != 0:
                _set_bit(target.event_valid, first + i)
    if target.sequence != 0:
        layout = layout_of(header)
        column = int64s_at(target.sequence + 8 * first, many)
        for i in range(many):
            column[i] = sequence_of(header, layout, body, rows[i])


@inner
def _fill_topics(
    block: _Columns, rule: CompiledSymbolRule, rows: Any, first: int, part: int, text: int, offsets: int, valid: int
) -> None:
    """Fill the topics, or one part of them."""
    if offsets == 0:
        return
    topic_index = int32s_at(block.topic_index, block.count)
    starts = int32s_at(block.topic_offsets, block.topics + 1)
    begin = numpy.empty(block.topics, numpy.int64)
    size = numpy.empty(block.topics, numpy.int64)
    for topic in range(block.topics):
        begin[topic] = block.text + numpy.int64(starts[topic])
        size[topic] = numpy.int64(starts[topic + 1]) - numpy.int64(starts[topic])
        if part != TOPIC:
            separator = separator_at(rule, begin[topic], size[topic])
            if part == SYMBOL:
                size[topic] = separator if separator >= 0 else size[topic]
            else:
                begin[topic] += separator + 1
                size[topic] = size[topic] - separator - 1 if separator >= 0 else -1
    many = len(rows)
    places = int32s_at(offsets + 4 * first, many + 1)
    end = numpy.int64(places[0])
    for i in range(many):
        topic = topic_index[rows[i]]
        if size[topic] >= 0:
            copy_bytes(text + end, begin[topic], size[topic])
            end += size[topic]
            if part == TYPE:
                _set_bit(valid, first + i)
        places[i + 1] = end


@inner
def _fill_payloads(
    block: _Columns, body: int, header: Header, rows: Any, first: int, target: Target, width: int
) -> None:
    """Fill the payloads. Without offsets, all have one `width`."""
    if target.payload == 0:
        return
    many = len(rows)
    stride = block.stride
    places = int32s_at(block.payload_offsets, block.count + 1 if stride < 0 else 0)
    if target.payload_offsets == 0:
        for i in range(many):
            row = numpy.int64(rows[i])
            start = row * stride if stride >= 0 else numpy.int64(places[row])
            copy_bytes(target.payload + (first + i) * width, block.payloads + start, width)
        return
    layout = layout_of(header)
    ends = int32s_at(target.payload_offsets + 4 * first, many + 1)
    end = numpy.int64(ends[0])
    for i in range(many):
        row = numpy.int64(rows[i])
        start, size = row * stride, stride
        if stride < 0:
            start = numpy.int64(places[row])
            size = numpy.int64(places[row + 1]) - start
        copy_bytes(target.payload + end, block.payloads + start, size)
        end += size
        ends[i + 1] = end
        if has_value(header, layout, body, row):
            _set_bit(target.payload_valid, first + i)


@njit(nogil=True, cache=True)
def fill(
    records: NDArray[numpy.int64],
    bodies: NDArray[numpy.int64],
    chosen_records: NDArray[numpy.int32],
    chosen_rows: NDArray[numpy.int32],
    count: int,
    target: Target,
    rule: CompiledSymbolRule,
    width: int,
) -> None:
    """Write the columns of the `count` messages selected by `choose`. `width` is that of `Wanted`."""
    first = 0
    while first < count:
        record = chosen_records[first]
        last = first + 1
        while last < count and chosen_records[last] == record:
            last += 1
        rows = chosen_rows[first:last]
        block = _columns_of(records[record], bodies[record])
        header = read_header(records[record] + OFFSET_BLOCK_HEADER)
        ts_recv = record_head_at(records[record]).ts_recv
        _spread(target.ts_out, first, last, header.ts_out)
        _spread(target.ts_recv, first, last, ts_recv)
        _spread(target.out_time, first, last, header.ts_out // 1_000)
        _spread(target.recv_time, first, last, ts_recv // 1_000)
        _spread(target.epoch, first, last, numpy.int64(header.epoch))
        _fill_rows(block, bodies[record], header, rows, first, target)
        _fill_topics(block, rule, rows, first, TOPIC, target.topic, target.topic_offsets, 0)
        _fill_topics(block, rule, rows, first, SYMBOL, target.symbol, target.symbol_offsets, 0)
        _fill_topics(block, rule, rows, first, TYPE, target.type, target.type_offsets, target.type_valid)
        _fill_payloads(block, bodies[record], header, rows, first, target, width)
        first = last
