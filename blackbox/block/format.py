"""Where every byte of a block is: `key | header | body`. The prose is in `docs/wire-format.md`.

Header, 72 bytes, little-endian::

    0      4   5   6     8     10    12       16              24              32
    +------+---+---+-----+-----+-----+--------+---------------+---------------+
    | BBOX |ver|key|flags|schem|slice| count  | epoch         | sequence      |
    |      |   |len|     |     |     |        |               |               |
    +------+---+---+-----+-----+-----+--------+---------------+---------------+
    32              40              48       52       56       60       64       68       72
    +---------------+---------------+--------+--------+--------+--------+--------+--------+
    | ts_out        | ts_in         | topics | topic  | body   | stride | body   | header |
    |               |               |        | bytes  | bytes  |        | xxh3   | xxh3   |
    +---------------+---------------+--------+--------+--------+--------+--------+--------+

Body: columns, each starting at a multiple of 8::

    ts_event        int64[count]
    topic_index     int32[count]
    payload_offsets int32[count + 1]      absent when FLAG_FIXED: every payload then has `stride` bytes
    sequences       int64[count]          only when FLAG_SEQUENCES: else they follow each other
    validity        bit[count]            only when FLAG_NULLS: 0 marks a message that has no value
    topic_offsets   int32[topics + 1]
    topic_numbers   uint32[topics]        only when FLAG_NUMBERS: what its publisher calls each topic
    topics          the distinct topics, one after the other
    payloads        to the end of the body
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy

from blackbox.native.intrinsics import bytes_at, inner, int64s_at, uint16s_at, uint32_at
from blackbox.native.jit import njit

HEADER_BYTES: Final = 72
MAGIC: Final = int.from_bytes(b"BBOX", "little")
VERSION: Final = 2

FLAG_CHECKSUM: Final = 1
"""`body_checksum` holds the low 32 bits of XXH3 of the body."""
FLAG_FIXED: Final = 2
"""All payloads have `stride` bytes."""
FLAG_CONTROL: Final = 4
"""A heartbeat or confirmation: topics are keys, payloads their next sequence numbers."""
FLAG_LINE_B: Final = 8
"""Sent on the second line of the slice."""
FLAG_END: Final = 16
"""Control only: the publisher closes, nothing follows in this epoch."""
FLAG_SEQUENCES: Final = 32
"""Data only: each message's sequence number stands in a column of its own."""
FLAG_NULLS: Final = 64
"""Data only: some messages have no value; the column `validity` says which."""
FLAG_RECORDED: Final = 128
"""Never travels: a subscriber notes with it in its copy of a header that an archive has brought the block."""
FLAG_NUMBERS: Final = 256
"""Data only: the column `topic_numbers` is there, so that a receiver need not look each topic up by its name."""
FLAG_IMAGE: Final = 1024
"""Never travels: a subscriber notes with it in its copy of a header that the block is of an image."""
FLAG_LATE: Final = 2048
"""Never travels: a subscriber notes with it in its copy of a header that earlier messages of the key never came."""
FLAG_REFUSED: Final = 512
"""Control only, in place of a confirmation: topics are prefixes that are not in force, payloads say why not."""
KNOWN_FLAGS: Final = 127 | FLAG_NUMBERS | FLAG_REFUSED

OFFSET_MAGIC: Final = 0
OFFSET_VERSION: Final = 4
OFFSET_KEY_BYTES: Final = 5
OFFSET_FLAGS: Final = 6
OFFSET_SCHEMA: Final = 8
OFFSET_SLICE: Final = 10
OFFSET_COUNT: Final = 12
OFFSET_EPOCH: Final = 16
OFFSET_SEQUENCE: Final = 24
OFFSET_TS_OUT: Final = 32
OFFSET_TS_IN: Final = 40
OFFSET_TOPICS: Final = 48
OFFSET_TOPIC_BYTES: Final = 52
OFFSET_BODY_BYTES: Final = 56
OFFSET_STRIDE: Final = 60
OFFSET_BODY_CHECKSUM: Final = 64
OFFSET_HEADER_CHECKSUM: Final = 68

MAX_BODY_BYTES: Final = 64 << 20
MAX_TOPIC_BYTES: Final = 65_535
LEAST_ROW_BYTES: Final = 12
"""Bytes that a message takes in a body, at least: its time and its topic's index."""
MAX_KEY_BYTES: Final = 8
MAX_SEQUENCE: Final = 1 << 62

HEARTBEAT_KEY: Final = b"\0H"
CONFIRM_KEY: Final = b"\0C"
"""Followed by the 8-byte nonce of the subscriber that asks."""
NONCE_BYTES: Final = 8
ACCEPT_KEY: Final = b"\0A"
"""Followed by the nonce, the publisher's epoch and the line: subscribed to from the answer to the last block."""
SHARED_KEY: Final = b"\0S"
"""Followed by a prefix of keys: asked for by who reads their blocks in the slice's shared memory."""
RECORDED_KEY: Final = b"\0R"
"""Followed by how far a recorder is: see `blackbox.block.acknowledgement`."""
WANT_KEY: Final = b"\0W"
"""Followed by a prefix of topics, or the first bytes of one: asked for by who wants those topics."""
MOST_WANT_BYTES: Final = 32
"""Of such a prefix."""
PATH_KEY: Final = b"\0P"
"""What relays say of themselves: which of them a block passes on its way."""


class Header(NamedTuple):
    """The fields of a header, all int64; `body_checksum` from 0 up."""

    key_bytes: int
    flags: int
    schema_id: int
    slice_id: int
    count: int  # type: ignore[assignment]  # it hides a method of tuples that nobody needs
    epoch: int
    sequence: int
    ts_out: int
    ts_in: int
    topics: int
    topic_bytes: int
    body_bytes: int
    stride: int
    body_checksum: int


class BodyLayout(NamedTuple):
    """Where each column of a body starts, in bytes, and where the body ends. A column that is absent has no bytes."""

    topic_index: int
    payload_offsets: int
    sequences: int
    validity: int
    topic_offsets: int
    topic_numbers: int
    topics: int
    payloads: int
    end: int


@njit(inline="always")
def _align(offset: int) -> int:
    return (offset + 7) & -8


@njit(nogil=True, cache=True)
def body_layout(count: int, topics: int, topic_bytes: int, payload_bytes: int, flags: int) -> BodyLayout:
    """Return where the columns lie. `ts_event` starts at 0; `flags` tell which of the others there are."""
    topic_index = 8 * count
    payload_offsets = _align(topic_index + 4 * count)
    sequences = payload_offsets if flags & FLAG_FIXED else _align(payload_offsets + 4 * (count + 1))
    validity = sequences + (8 * count if flags & FLAG_SEQUENCES else 0)
    topic_offsets = validity + (_align((count + 7) >> 3) if flags & FLAG_NULLS else 0)
    topic_numbers = _align(topic_offsets + 4 * (topics + 1))
    text = topic_numbers + (_align(4 * topics) if flags & FLAG_NUMBERS else 0)
    payloads = _align(text + topic_bytes)
    return BodyLayout(
        topic_index,
        payload_offsets,
        sequences,
        validity,
        topic_offsets,
        topic_numbers,
        text,
        payloads,
        payloads + payload_bytes,
    )


@njit(nogil=True, cache=True)
def layout_of(header: Header) -> BodyLayout:
    """Return where the columns of this block lie, and where its payloads start; `end` is the same place."""
    layout: BodyLayout = body_layout(header.count, header.topics, header.topic_bytes, 0, header.flags)
    return layout


@njit(inline="always")
def sequence_of(header: Header, layout: BodyLayout, body: int, row: int) -> Any:
    """Return the sequence number of a row of a checked block."""
    if header.flags & FLAG_SEQUENCES:
        return int64s_at(body + layout.sequences + 8 * row, 1)[0]
    return header.sequence + row


@inner
def span_of(header: Header, body: int) -> Any:
    """Return how many sequence numbers a checked block covers, those that it leaves out between its rows included."""
    if header.flags & FLAG_SEQUENCES == 0:
        return header.count
    return sequence_of(header, layout_of(header), body, header.count - 1) + 1 - header.sequence


@inner
def row_from(header: Header, body: int, offset: int) -> Any:
    """Return the first row of a checked block whose number is at least `offset` behind the first; none: its count."""
    if header.flags & FLAG_SEQUENCES == 0:
        return offset
    sequences = int64s_at(body + layout_of(header).sequences, header.count)
    return numpy.int64(numpy.searchsorted(sequences, header.sequence + offset))


@njit(inline="always")
def has_value(header: Header, layout: BodyLayout, body: int, row: int) -> Any:
    """Return whether a row of a checked block has a value."""
    if header.flags & FLAG_NULLS:
        return (bytes_at(body + layout.validity + (row >> 3), 1)[0] >> (row & 7)) & 1 != 0
    return True


@njit(inline="always")
def _widen(value: int) -> Any:
    return numpy.int64(value)


@njit(nogil=True, cache=True)
def read_header(address: int) -> Header:
    """Return the fields of the header at `address`."""
    return Header(
        _widen(bytes_at(address + OFFSET_KEY_BYTES, 1)[0]),
        _widen(uint16s_at(address + OFFSET_FLAGS, 1)[0]),
        _widen(uint16s_at(address + OFFSET_SCHEMA, 1)[0]),
        _widen(uint16s_at(address + OFFSET_SLICE, 1)[0]),
        uint32_at(address + OFFSET_COUNT),
        int64s_at(address + OFFSET_EPOCH, 1)[0],
        int64s_at(address + OFFSET_SEQUENCE, 1)[0],
        int64s_at(address + OFFSET_TS_OUT, 1)[0],
        int64s_at(address + OFFSET_TS_IN, 1)[0],
        uint32_at(address + OFFSET_TOPICS),
        uint32_at(address + OFFSET_TOPIC_BYTES),
        uint32_at(address + OFFSET_BODY_BYTES),
        uint32_at(address + OFFSET_STRIDE),
        uint32_at(address + OFFSET_BODY_CHECKSUM),
    )
