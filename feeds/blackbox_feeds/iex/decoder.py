"""Compiled: decode IEX-TP datagrams, from messages to topic, time and payload columns.

`blackbox_feeds.iex.iextp` describes them. Payloads are not copied. As the specifications of TOPS and DEEP require, a
message of an unknown type is skipped, and a longer one than specified is cut. Both are counted, and so is a message
with an invalid symbol, which is skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum

import numpy
from numpy.typing import NDArray

from blackbox.feed.schema.schema import Schema
from blackbox.feed.source import Chunk
from blackbox.native.compile.jit import njit
from blackbox_feeds.iex.iextp import HEADER_BYTES, VERSION
from blackbox_feeds.iex.messages import PROTOCOLS, SYSTEM_TYPES
from blackbox_feeds.io.columns import Columns, Stop, put_row
from blackbox_feeds.io.integers import little_16, little_32, little_64
from blackbox_feeds.io.length_prefixed import skip_messages
from blackbox_feeds.io.pcap import Datagrams
from blackbox_feeds.io.sequence import Sequence, enter_session, next_run, notice_gap, notice_reset
from blackbox_feeds.io.skipped import count_no_symbol, count_unknown
from blackbox_feeds.io.statistics import EXTENDED, FOREIGN, NO_TYPE
from blackbox_feeds.io.template import TopicForm
from blackbox_feeds.io.topic_text import is_symbol
from blackbox_feeds.io.topics import FULL, SYSTEM_SYMBOL, TopicsAt, TopicTable, key_number


class Reason(IntEnum):
    """Why decoding stopped.

    No more datagrams, no room for the next one in the columns, too many topics, a payload length that differs from the
    datagram's, messages that do not fill the payload, a message too short for its type.
    """

    END = 0
    FILLED = 1
    CROWDED = 2
    BAD_PAYLOAD = 3
    BAD_BLOCK = 4
    BAD_LENGTH = 5


_KNOWN_PROTOCOLS = tuple(PROTOCOLS)
_SYSTEM_BYTES = tuple(SYSTEM_TYPES.encode())
_TIMESTAMP = 2
_SYMBOL = 10


@njit(nogil=True, cache=True)
def find_protocol(
    data: NDArray[numpy.uint8], starts: NDArray[numpy.int64], lengths: NDArray[numpy.int32]
) -> tuple[int, int]:
    """Return (the first TOPS or DEEP protocol id, the first other IEX-TP protocol id before it), or -1."""
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
def _enter(
    data: NDArray[numpy.uint8],
    start: int,
    sequence: int,
    input_counts: NDArray[numpy.int64],
    row: int,
) -> None:
    """Follow session and sequence to the datagram at `start`, whose messages come before row number `row`."""
    first = little_64(data, start + 24)
    session = little_32(data, start + 8)
    enter_session(sequence, input_counts, session, little_32(data, start + 4), first)
    notice_reset(sequence, input_counts, first, little_64(data, start + 32))
    notice_gap(sequence, input_counts, first, row)


@njit(nogil=True, cache=True)
def _decode_blocks(
    data: NDArray[numpy.uint8],
    position: int,
    take: int,
    sizes: NDArray[numpy.int64],
    topics: TopicsAt,
    input_counts: NDArray[numpy.int64],
    n: int,
    columns: Columns,
) -> tuple[int, int, int]:
    """Decode `take` message blocks that are known to be complete.

    Returns (n, position, why it stopped).
    """
    for _ in range(take):
        start = position + 2
        after = start + little_16(data, position)
        size = sizes[data[start]] if after > start else 0
        position = after
        if size == 0:
            count_unknown(input_counts, numpy.int64(data[start]) if after > start else NO_TYPE)
            continue
        if after - start < size:
            return n, start - 2, Reason.BAD_LENGTH
        kind = data[start]
        is_system = kind in _SYSTEM_BYTES
        symbol = SYSTEM_SYMBOL if is_system else little_64(data, start + _SYMBOL)
        if not is_system and not is_symbol(symbol):
            count_no_symbol(input_counts, symbol)
            continue
        input_counts[EXTENDED] += after - start > size
        number = key_number(topics, symbol, kind)
        if number == FULL:
            return n, start - 2, Reason.CROWDED
        put_row(columns, n, number, little_64(data, start + _TIMESTAMP), start, size)
        n += 1
    return n, position, Reason.END


@njit(nogil=True, cache=True)
def decode_datagrams(
    data: NDArray[numpy.uint8],
    datagram_starts: NDArray[numpy.int64],
    datagram_lengths: NDArray[numpy.int32],
    row: int,
    protocol: int,
    sizes: NDArray[numpy.int64],
    sequence: int,
    topics: TopicsAt,
    input_counts: NDArray[numpy.int64],
    columns: Columns,
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
            return n, row, start, Reason.BAD_PAYLOAD
        count = little_16(data, start + 14)
        end = start + length
        blocks = start + HEADER_BYTES
        if skip_messages(data, blocks, end, count, False) != end:
            return n, row, start, Reason.BAD_BLOCK
        if n + count > len(columns.starts):
            return n, row, start, Reason.FILLED
        _enter(data, start, sequence, input_counts, n)
        done, position = 0, blocks
        while done < count:
            skip, take = next_run(sequence, input_counts, little_64(data, start + 24), count, done)
            if take == 0:
                break
            position = skip_messages(data, position, end, skip, False)
            n, position, why = _decode_blocks(data, position, take, sizes, topics, input_counts, n, columns)
            if why != Reason.END:
                return n, row, position, why
            done += skip + take
        row += 1
    return n, row, 0, Reason.END


class DatagramDecoder:
    """Turns the IEX-TP datagrams of one protocol into chunks; one object per iteration.

    Remembers topics and sequence between calls. Adds to `input_counts`, an array of `blackbox_feeds.io.statistics`.
    """

    stop: Stop | None = None
    """After `chunks`: None if all datagrams were decoded, else the position and the reason."""

    def __init__(
        self,
        form: TopicForm,
        protocol: int,
        input_counts: NDArray[numpy.int64],
        sequence: Sequence,
        chunk_messages: int | None = None,
    ) -> None:
        """`chunk_messages`: most messages of a chunk."""
        self._chunk_messages = chunk_messages
        self._topics = TopicTable(form)
        self._protocol = protocol
        self._counts = input_counts
        self._sequence = sequence
        self.sizes = numpy.zeros(256, numpy.int64)
        """Bytes of a message by its type, 0 for an unknown one."""
        for kind, dtype in PROTOCOLS[protocol].records.items():
            self.sizes[ord(kind)] = dtype.itemsize

    def chunks(self, datagrams: Datagrams) -> Iterator[Chunk]:
        """Yield the messages of the datagrams, and the gaps between them."""
        topics, sequence = self._topics, self._sequence
        self.stop = None
        row, position, why = 0, 0, Reason.FILLED
        sequence.make_room(len(datagrams.starts))
        while why == Reason.FILLED:
            columns = Columns.new(self._chunk_messages)
            n, row, position, why = decode_datagrams(
                datagrams.data,
                datagrams.starts,
                datagrams.lengths,
                row,
                self._protocol,
                self.sizes,
                sequence.address,
                topics.at,
                self._counts,
                columns,
            )
            topics.settle(columns.topic_index[:n])
            gaps = sequence.report()
            if n or gaps:
                yield columns.chunk(n, topics.topics, datagrams.data, gaps)
        if why == Reason.CROWDED:
            raise topics.overflow()
        if why != Reason.END:
            self.stop = Stop(position, why)


def describe(stop: Stop, datagrams: Datagrams, schema: Schema, path: str) -> str:
    """Describe an invalid datagram or message."""
    data = datagrams.data
    at = stop.position
    if stop.why == Reason.BAD_LENGTH:
        length = int.from_bytes(data[at : at + 2].tobytes(), "little")
        kind = chr(data[at + 2])
        return (
            f"{path}: no valid message starts at byte {datagrams.offset + at}: its length was "
            f"{length}, expected {schema.dtype(kind).itemsize} or more for type {kind}"
        )
    where = f"{path}: no valid IEX-TP datagram starts at byte {datagrams.offset + at}"
    payload, count = data[at + 12 : at + 16].view("<u2").tolist()
    if stop.why == Reason.BAD_BLOCK:
        return f"{where}: its {count} messages do not fill its payload of {payload} bytes"
    row = int(numpy.searchsorted(datagrams.starts, at))
    length = int(datagrams.lengths[row]) - HEADER_BYTES
    return f"{where}: its payload length was {payload}, expected {length} by its UDP header"
