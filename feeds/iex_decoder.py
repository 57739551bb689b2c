"""The compiled decoder of IEX-TP datagrams: messages to topic, time and payload columns.

Source: "IEX Transport Protocol Specification" 1.25. Integers are little-endian.

    version 1 | reserved 1 | protocol 2 | channel 4 | session 4 | payload length 2 | count 2 |
    stream offset 8 | first sequence 8 | send time 8 | { length 2 | message } * count

Payloads are not copied. As the specifications of TOPS and DEEP ask, a message of an unknown type is
skipped, and one that is longer than specified is read as far as it is known; both are counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy
from numba import njit
from numpy.typing import NDArray

from blackbox.schema import Schema
from blackbox.source import Chunk
from feeds.iex_messages import PROTOCOLS, SYSTEM_TYPES
from feeds.pcap import Datagrams
from feeds.sequence import arrive, enter_session, new_sequence, notice_reset
from feeds.statistics import EXTENDED, FOREIGN, UNKNOWN
from feeds.template import TopicForm
from feeds.topics import SYSTEM_SYMBOL, TopicTable, has_room, topic_number
from feeds.words import little_16, little_32, little_64

CHUNK_MESSAGES = 131_072
HEADER_BYTES = 40
VERSION = 1

END, FILLED, CROWDED, BAD_PAYLOAD, BAD_BLOCK, BAD_LENGTH = range(6)
"""Why the kernel stopped: no more datagrams, no room for the next one in the columns or in the
topic table, a payload length that is not the datagram's, messages that do not fill the payload, a
message that is too short for its type."""

_KNOWN_PROTOCOLS = tuple(PROTOCOLS)
_SYSTEM_BYTES = tuple(SYSTEM_TYPES.encode())
_TIMESTAMP = 2
_SYMBOL = 10


@njit(nogil=True, cache=True)
def find_protocol(
    data: NDArray[numpy.uint8], starts: NDArray[numpy.int64], lengths: NDArray[numpy.int32]
) -> tuple[int, int]:
    """(the first TOPS or DEEP protocol id, the first other IEX-TP protocol id before it), or -1."""
    other = -1
    for row in range(len(starts)):
        start = starts[row]
        if (
            lengths[row] >= HEADER_BYTES
            and data[start] == VERSION
            and little_16(data, start + 12) == lengths[row] - HEADER_BYTES
        ):
            protocol = little_16(data, start + 2)
            if protocol in _KNOWN_PROTOCOLS:
                return protocol, other
            if other < 0:
                other = protocol
    return -1, other


@njit(nogil=True, cache=True)
def _skip_blocks(data: NDArray[numpy.uint8], position: int, end: int, count: int) -> int:
    """Where `count` message blocks from `position` on end, or -1 if that is after `end`."""
    for _ in range(count):
        if position + 2 > end:
            return -1
        position += 2 + little_16(data, position)
    return position if position <= end else -1


@njit(nogil=True, cache=True)
def _enter(
    data: NDArray[numpy.uint8],
    start: int,
    state: NDArray[numpy.int64],
    input_counts: NDArray[numpy.int64],
) -> tuple[int, int]:
    """Follow session and sequence to the datagram at `start`: (messages to skip, to take)."""
    first = little_64(data, start + 24)
    session = little_32(data, start + 8)
    enter_session(state, input_counts, session, little_32(data, start + 4), first)
    notice_reset(state, input_counts, first, little_64(data, start + 32))
    return arrive(state, input_counts, first, little_16(data, start + 14))


@njit(nogil=True, cache=True)
def _decode_blocks(
    data: NDArray[numpy.uint8],
    position: int,
    take: int,
    sizes: NDArray[numpy.int64],
    masks: tuple[int, int, int],
    table: NDArray[numpy.int64],
    fresh: NDArray[numpy.int64],
    counts: NDArray[numpy.int64],
    input_counts: NDArray[numpy.int64],
    n: int,
    topic_index: NDArray[numpy.int32],
    ts_event: NDArray[numpy.int64],
    starts: NDArray[numpy.int64],
    lengths: NDArray[numpy.int32],
) -> tuple[int, int, int]:
    """Decode `take` message blocks that are known to be whole.

    Returns (n, position, why it stopped).
    """
    symbol_mask, known_mask, unknown_mask = masks
    for _ in range(take):
        start = position + 2
        after = start + little_16(data, position)
        size = sizes[data[start]] if after > start else 0
        if size == 0:
            input_counts[UNKNOWN] += 1
        else:
            if after - start < size:
                return n, position, BAD_LENGTH
            input_counts[EXTENDED] += after - start > size
            kind = data[start]
            symbol = SYSTEM_SYMBOL if kind in _SYSTEM_BYTES else little_64(data, start + _SYMBOL)
            symbol &= symbol_mask
            tag = kind & (known_mask if symbol else unknown_mask)
            topic_index[n] = topic_number(table, fresh, counts, symbol, tag)
            ts_event[n] = little_64(data, start + _TIMESTAMP)
            starts[n] = start
            lengths[n] = size
            n += 1
        position = after
    return n, position, END


@njit(nogil=True, cache=True)
def decode_datagrams(
    data: NDArray[numpy.uint8],
    datagram_starts: NDArray[numpy.int64],
    datagram_lengths: NDArray[numpy.int32],
    row: int,
    protocol: int,
    sizes: NDArray[numpy.int64],
    state: NDArray[numpy.int64],
    masks: tuple[int, int, int],
    table: NDArray[numpy.int64],
    fresh: NDArray[numpy.int64],
    counts: NDArray[numpy.int64],
    input_counts: NDArray[numpy.int64],
    topic_index: NDArray[numpy.int32],
    ts_event: NDArray[numpy.int64],
    starts: NDArray[numpy.int64],
    lengths: NDArray[numpy.int32],
) -> tuple[int, int, int, int]:
    """Decode from datagram number `row` on, whole datagrams, until the next does not fit.

    Returns (messages, row, position, why it stopped). Nothing is read outside the datagrams.
    """
    n = 0
    while row < len(datagram_starts):
        start = datagram_starts[row]
        length = datagram_lengths[row]
        if length < HEADER_BYTES or data[start] != VERSION or little_16(data, start + 2) != protocol:
            input_counts[FOREIGN] += 1
            row += 1
            continue
        if little_16(data, start + 12) != length - HEADER_BYTES:
            return n, row, start, BAD_PAYLOAD
        count = little_16(data, start + 14)
        end = start + length
        blocks = start + HEADER_BYTES
        if _skip_blocks(data, blocks, end, count) != end:
            return n, row, start, BAD_BLOCK
        if n + count > len(starts):
            return n, row, start, FILLED
        if not has_room(table, counts, count):
            return n, row, start, CROWDED
        skip, take = _enter(data, start, state, input_counts)
        n, position, why = _decode_blocks(
            data,
            _skip_blocks(data, blocks, end, skip),
            take,
            sizes,
            masks,
            table,
            fresh,
            counts,
            input_counts,
            n,
            topic_index,
            ts_event,
            starts,
            lengths,
        )
        if why != END:
            return n, row, position, why
        row += 1
    return n, row, 0, END


class Stop(NamedTuple):
    """Where decoding ended before the end of its datagrams, and why."""

    position: int
    why: int


class DatagramDecoder:
    """Turn the IEX-TP datagrams of one protocol into chunks; one object per iteration.

    Remembers topics and sequence from call to call. Adds to `input_counts`, which is one of
    `feeds.statistics`.
    """

    stop: Stop | None = None
    """After `chunks`: None when all datagrams were used up, else where it ended and why."""

    def __init__(
        self,
        form: TopicForm,
        protocol: int,
        input_counts: NDArray[numpy.int64],
    ) -> None:
        self._topics = TopicTable(form)
        self._protocol = protocol
        self._counts = input_counts
        self._state = new_sequence()
        self._sizes = numpy.zeros(256, numpy.int64)
        for kind, dtype in PROTOCOLS[protocol].records.items():
            self._sizes[ord(kind)] = dtype.itemsize
        topics = self._topics
        self._masks = (topics.symbol_mask, topics.known_mask, topics.unknown_mask)

    def chunks(self, datagrams: Datagrams) -> Iterator[Chunk]:
        """The messages of the datagrams."""
        topics = self._topics
        self.stop = None
        row, position, why = 0, 0, FILLED
        while why in {FILLED, CROWDED}:
            topic_index = numpy.empty(CHUNK_MESSAGES, numpy.int32)
            ts_event = numpy.empty(CHUNK_MESSAGES, numpy.int64)
            starts = numpy.empty(CHUNK_MESSAGES, numpy.int64)
            lengths = numpy.empty(CHUNK_MESSAGES, numpy.int32)
            n, row, position, why = decode_datagrams(
                datagrams.data,
                datagrams.starts,
                datagrams.lengths,
                row,
                self._protocol,
                self._sizes,
                self._state,
                self._masks,
                topics.table,
                topics.fresh,
                topics.counts,
                self._counts,
                topic_index,
                ts_event,
                starts,
                lengths,
            )
            topics.settle(topic_index[:n])
            if n:
                yield Chunk(
                    topics.topics,
                    topic_index[:n],
                    ts_event[:n],
                    datagrams.data,
                    starts[:n],
                    lengths[:n],
                )
            if why == CROWDED:
                topics.grow()
        if why != END:
            self.stop = Stop(position, why)


def describe(stop: Stop, datagrams: Datagrams, schema: Schema, path: str) -> str:
    """One sentence on a datagram or message that is not valid."""
    data = datagrams.data
    at = stop.position
    if stop.why == BAD_LENGTH:
        length = int.from_bytes(data[at : at + 2].tobytes(), "little")
        kind = chr(data[at + 2])
        return (
            f"{path}: no valid message starts at byte {datagrams.offset + at}: its length was "
            f"{length}, expected {schema.dtype(kind).itemsize} or more for type {kind}"
        )
    where = f"{path}: no valid IEX-TP datagram starts at byte {datagrams.offset + at}"
    payload, count = data[at + 12 : at + 16].view("<u2").tolist()
    if stop.why == BAD_BLOCK:
        return f"{where}: its {count} messages do not fill its payload of {payload} bytes"
    row = int(numpy.searchsorted(datagrams.starts, at))
    length = int(datagrams.lengths[row]) - HEADER_BYTES
    return f"{where}: its payload length was {payload}, expected {length} by its UDP header"
