"""Compiled operations that gather rows of many recorded blocks into columns, for `archive.export.gathered`."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy
from numpy.typing import NDArray

from blackbox.archive.files.format import OFFSET_BLOCK_HEADER, record_head_at
from blackbox.block.form.format import FLAG_FIXED, has_value, layout_of, read_header, sequence_of
from blackbox.native.compile.jit import njit
from blackbox.native.memory.intrinsics import bytes_at, copy_bytes, inner, int32s_at, int64s_at
from blackbox.native.tables.name_table import FULL, NumberingAt, number_of

NO_PICK: Final = -1


class Wanted(NamedTuple):
    """Conditions on rows. Bounds are included."""

    first_time: int
    last_time: int
    first_sequence: int
    last_sequence: int
    type_offset: int
    """Offset of the type character in payloads; -1 selects messages of any type."""


class Found(NamedTuple):
    """The chosen rows, with room for all rows of a run. `ts_event` and `sequence` may be empty: not wanted."""

    block: NDArray[numpy.int32]
    """int32[n]: index of the record in the run."""
    topic: NDArray[numpy.int32]
    """int32[n]: number of the topic."""
    pick: NDArray[numpy.int16]
    """int16[n]: pick of the message type."""
    ts_event: NDArray[numpy.int64]
    sequence: NDArray[numpy.int64]
    payload: NDArray[numpy.int64]
    """int64[n]: address of the payload."""
    size: NDArray[numpy.int32]
    """int32[n]: size of the payload; -1: the message has no value."""


@njit(nogil=True, cache=True)
def number_topics(
    records: NDArray[numpy.int64],
    bodies: NDArray[numpy.int64],
    starts: NDArray[numpy.int64],
    first: int,
    numbering: NumberingAt,
    numbers: NDArray[numpy.int32],
) -> int:
    """Write the topic numbers of checked records from `first` on, each record's at its start in `numbers`.

    Returns the index of the first record that was not numbered because the numbering is full; the number of records
    if all were.
    """
    for record in range(first, len(records)):
        body = bodies[record]
        header = read_header(records[record] + OFFSET_BLOCK_HEADER)
        layout = layout_of(header)
        offsets = int32s_at(body + layout.topic_offsets, header.topics + 1)
        for topic in range(header.topics):
            start = numpy.int64(offsets[topic])
            number = number_of(numbering, body + layout.topics + start, numpy.int64(offsets[topic + 1]) - start)
            if number == FULL:
                return record
            numbers[starts[record] + topic] = number
    return len(records)


@inner
def _is_within(wanted: Wanted, time: int, sequence: int) -> bool:
    return (
        wanted.first_time <= time
        and time <= wanted.last_time
        and wanted.first_sequence <= sequence
        and sequence <= wanted.last_sequence
    )


@inner
def _pick_of(wanted: Wanted, pick_of: Any, payload: int, size: int) -> int:
    """Return the pick of a payload; NO_PICK if its type is not wanted or it is too short to have one."""
    if wanted.type_offset < 0:
        return 0
    if wanted.type_offset >= size:
        return NO_PICK
    return numpy.int64(pick_of[bytes_at(payload + wanted.type_offset, 1)[0]])


@inner
def _wanted_topics(topics: int, numbers: Any, chosen: Any) -> int:
    found = 0
    for topic in range(topics):
        found += chosen[numbers[topic]]
    return found


@njit(nogil=True, cache=True)
def choose_rows(
    records: NDArray[numpy.int64],
    bodies: NDArray[numpy.int64],
    topics: tuple[NDArray[numpy.int64], NDArray[numpy.int32], NDArray[numpy.uint8]],
    wanted: Wanted,
    picks: tuple[NDArray[numpy.int16], NDArray[numpy.int64]],
    found: Found,
) -> tuple[int, int]:
    """Write the rows of checked records that meet all conditions. Return their number and NO_PICK.

    `topics` are the starts and numbers of `number_topics`, and uint8 by number: 0 if the topic is not wanted. With no
    numbers all topics are wanted, and their numbers are not. `picks`
    are int16[256], the pick of each type character or NO_PICK, and int64 by pick, the size of its payloads. If one has
    another size, returns the number of rows before it and its pick, with its block and size as the next row.
    """
    starts, numbers_of_all, chosen = topics
    pick_of, widths = picks
    has_topics, has_times, has_sequences = len(numbers_of_all) > 0, len(found.ts_event) > 0, len(found.sequence) > 0
    count = 0
    for record in range(len(records)):
        body = bodies[record]
        header = read_header(records[record] + OFFSET_BLOCK_HEADER)
        layout = layout_of(header)
        numbers = numbers_of_all[starts[record] if has_topics else 0 :]
        if has_topics and _wanted_topics(header.topics, numbers, chosen) == 0:
            continue
        is_fixed = header.flags & FLAG_FIXED != 0
        ts_event = int64s_at(body, header.count)
        topic_index = int32s_at(body + layout.topic_index, header.count)
        places = int32s_at(body + layout.payload_offsets, 0 if is_fixed else header.count + 1)
        for row in range(numpy.int64(record_head_at(records[record]).first_row), header.count):
            topic = numbers[topic_index[row]] if has_topics else numpy.int32(0)
            sequence = sequence_of(header, layout, body, row)
            if not (_is_within(wanted, ts_event[row], sequence) and (not has_topics or chosen[topic] != 0)):
                continue
            start, size = row * header.stride, header.stride
            if not is_fixed:
                start = numpy.int64(places[row])
                size = numpy.int64(places[row + 1]) - start
            start += body + layout.payloads
            pick = _pick_of(wanted, pick_of, start, size)
            if pick == NO_PICK:
                continue
            if wanted.type_offset < 0 and not has_value(header, layout, body, row):
                size = -1
            found.block[count] = record
            found.size[count] = size
            if wanted.type_offset >= 0 and size != widths[pick]:
                return count, pick
            found.topic[count] = topic
            found.pick[count] = pick
            found.payload[count] = start
            if has_times:
                found.ts_event[count] = ts_event[row]
            if has_sequences:
                found.sequence[count] = sequence
            count += 1
    return count, NO_PICK


@njit(nogil=True, cache=True)
def take_fields(payloads: NDArray[numpy.int64], offset: int, size: int, target: int) -> None:
    """Copy `size` bytes at an offset of each payload to `target`, one after the other."""
    # A constant size is one load and one store.
    if size == 8:
        for row in range(len(payloads)):
            copy_bytes(target + 8 * row, payloads[row] + offset, 8)
    elif size == 4:
        for row in range(len(payloads)):
            copy_bytes(target + 4 * row, payloads[row] + offset, 4)
    elif size == 1:
        for row in range(len(payloads)):
            copy_bytes(target + row, payloads[row] + offset, 1)
    else:
        for row in range(len(payloads)):
            copy_bytes(target + size * row, payloads[row] + offset, size)


@njit(nogil=True, cache=True)
def take_payloads(
    payloads: NDArray[numpy.int64], sizes: NDArray[numpy.int32], offsets: NDArray[numpy.int32], target: int
) -> None:
    """Copy payloads to their offsets from `target`."""
    for row in range(len(payloads)):
        copy_bytes(target + offsets[row], payloads[row], max(0, numpy.int64(sizes[row])))
