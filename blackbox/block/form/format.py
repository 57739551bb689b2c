"""Structures of a block: `key | header | body`, from the table in `layout`. See `wire-format` in the docs."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy

from blackbox.block.form import layout as table
from blackbox.native.compile.jit import njit
from blackbox.native.memory.intrinsics import bytes_at, inner, int64s_at
from blackbox.native.memory.records import structure_at

MAGIC: Final = int.from_bytes(table.BLOCK_MAGIC, "little")
VERSION: Final = table.VERSION

HEADER: Final = table.dtype_of(table.HEADER)
HEADER_BYTES: Final = HEADER.itemsize
CHECKED_BYTES: Final = table.HEADER.offsets["header_checksum"]
"""Bytes of a header covered by its checksum."""
OFFSET_VERSION: Final = table.HEADER.offsets["version"]
block_header_at: Final = structure_at(HEADER)
"""For compiled code: the header at an address."""

# layout: flags
FLAG_CHECKSUM: Final = 1
"""`body_checksum` is valid."""
FLAG_FIXED: Final = 2
"""Payloads have `stride` bytes; no column `payload_offsets`."""
FLAG_CONTROL: Final = 4
"""Control block: the key starts with a zero byte."""
FLAG_LINE_B: Final = 8
"""Sent on the second line of the slice."""
FLAG_END: Final = 16
"""Control: the publisher closes; the epoch ends."""
FLAG_SEQUENCES: Final = 32
"""Data: column `sequences` present."""
FLAG_NULLS: Final = 64
"""Data: some messages have no value; column `validity` present."""
FLAG_NUMBERS: Final = 256
"""Data: column `topic_numbers` present."""
FLAG_SAME: Final = 4096
"""Data: column `same` present."""
FLAG_REFUSED: Final = 512
"""Control: refused prefixes instead of a confirmation."""
FLAG_RECORDED: Final = 128
"""An archive has sent the block."""
FLAG_IMAGE: Final = 1024
"""The block is part of an image."""
FLAG_LATE: Final = 2048
"""Earlier messages of the key were not received and are no gap."""
# end of layout
KNOWN_FLAGS: Final = sum(flag.value for flag in table.FLAGS if flag.travels)

MAX_BODY_BYTES: Final = 64 << 20
MAX_TOPIC_BYTES: Final = 65_535
END_BYTES: Final = 16
"""Size of a key's end in a control block: its sequence and its number of messages, int64 each."""
LEAST_ROW_BYTES: Final = 12
"""Least bytes per message in a body: its time and its topic index."""
MAX_SEQUENCE: Final = 1 << 62

HEARTBEAT_KEY: Final = b"\0H"
CONFIRM_KEY: Final = b"\0C"
"""Followed by the 8-byte nonce of the subscriber."""
NONCE_BYTES: Final = 8
ACCEPT_KEY: Final = b"\0A"
"""Followed by the nonce, the publisher's epoch and the line; subscribed to from the confirmation to the last block."""
SHARED_KEY: Final = b"\0S"
"""Followed by a prefix of keys; subscribed to by readers of the slice's shared memory."""
RECORDED_KEY: Final = b"\0R"
"""Followed by a recorder's progress: see `blackbox.block.form.ack_format`."""
WANT_KEY: Final = b"\0W"
"""Followed by a prefix of topics, or its first bytes; subscribed to by subscribers of those topics."""
MOST_WANT_BYTES: Final = 32
"""Longest such prefix."""
PATH_KEY: Final = b"\0P"
"""Control block of relays: the relays that blocks pass through."""
MOST_RELAYS: Final = 16
"""Most relays between the source and a subscriber."""
RELAY_ID_BYTES: Final = 8
"""Random id of one run of a relay, before its name."""
MOST_RELAY_NAME_BYTES: Final = 64
LOST_KEY: Final = b"\0L"
"""Followed by an int64, little-endian: messages of the slice that the subscriber has lost so far."""
LOST_BYTES: Final = 8
TAP_KEY: Final = b"\0T"
"""Subscribed to by taps, which are disconnected before anything waits for them."""
TRACE_KEY: Final = b"\0HT"
"""Control block of relays: when one of them received and sent a traced block. It starts as the key of heartbeats, which
every subscriber receives."""


# layout: header and body
class Header(NamedTuple):
    """The fields of a header, all int64; those of u32 from 0 up."""

    key_rule: int
    flags: int
    schema_id: int
    slice_id: int
    count: int
    epoch: int
    sequence: int
    previous: int
    key_sequence: int
    ts_out: int
    ts_in: int
    topics: int
    topic_bytes: int
    body_bytes: int
    stride: int
    body_checksum: int


@njit(nogil=True, cache=True)
def read_header(address: int) -> Header:
    """Return the fields of the header at `address`."""
    head = block_header_at(address)
    return Header(
        numpy.int64(head.key_rule),
        numpy.int64(head.flags),
        numpy.int64(head.schema),
        numpy.int64(head.slice),
        numpy.int64(head.count),
        head.epoch,
        head.sequence,
        head.previous,
        head.key_sequence,
        head.ts_out,
        head.ts_in,
        numpy.int64(head.topics),
        numpy.int64(head.topic_bytes),
        numpy.int64(head.body_bytes),
        numpy.int64(head.stride),
        numpy.int64(head.body_checksum),
    )


class BodyLayout(NamedTuple):
    """Start of each column of a body, and the end of the body, in bytes. An absent column has no bytes."""

    topic_index: int
    payload_offsets: int
    sequences: int
    validity: int
    same: int
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
    """Return where the columns start. `ts_event` starts at 0; `flags` say which of the others are present."""
    topic_index_at = 8 * count
    payload_offsets_at = _align(topic_index_at + 4 * count)
    sequences_at = payload_offsets_at if flags & FLAG_FIXED else _align(payload_offsets_at + 4 * (count + 1))
    validity_at = sequences_at + 8 * count if flags & FLAG_SEQUENCES else sequences_at
    same_at = _align(validity_at + ((count + 7) >> 3)) if flags & FLAG_NULLS else validity_at
    topic_offsets_at = _align(same_at + count) if flags & FLAG_SAME else same_at
    topic_numbers_at = _align(topic_offsets_at + 4 * (topics + 1))
    topics_at = _align(topic_numbers_at + 4 * topics) if flags & FLAG_NUMBERS else topic_numbers_at
    payloads_at = _align(topics_at + topic_bytes)
    return BodyLayout(
        topic_index_at,
        payload_offsets_at,
        sequences_at,
        validity_at,
        same_at,
        topic_offsets_at,
        topic_numbers_at,
        topics_at,
        payloads_at,
        payloads_at + payload_bytes,
    )


# end of layout


@njit(nogil=True, cache=True)
def layout_of(header: Header) -> BodyLayout:
    """Return the offsets of the block's columns; `payloads` and `end` are both the start of the payloads."""
    layout: BodyLayout = body_layout(header.count, header.topics, header.topic_bytes, 0, header.flags)
    return layout


@njit(inline="always")
def sequence_of(header: Header, layout: BodyLayout, body: int, row: int) -> Any:
    """Return the sequence of a row of a checked block."""
    if header.flags & FLAG_SEQUENCES:
        return int64s_at(body + layout.sequences + 8 * row, 1)[0]
    return header.sequence + row


@inner
def span_of(header: Header, body: int) -> Any:
    """Return the sequences that a checked block covers, including those missing between its rows."""
    if header.flags & FLAG_SEQUENCES == 0:
        return header.count
    return sequence_of(header, layout_of(header), body, header.count - 1) + 1 - header.sequence


@inner
def row_from(header: Header, body: int, offset: int) -> Any:
    """Return the first row of a checked block at least `offset` sequences after the first; its count if none."""
    if header.flags & FLAG_SEQUENCES == 0:
        return offset
    sequences = int64s_at(body + layout_of(header).sequences, header.count)
    return numpy.int64(numpy.searchsorted(sequences, header.sequence + offset))


@njit(inline="always")
def is_same(header: Header, layout: BodyLayout, body: int, row: int) -> Any:
    """Return True if a row above 0 of a checked block is the message of the row before it, under another topic."""
    if header.flags & FLAG_SAME:
        back = numpy.int64(bytes_at(body + layout.same, header.count)[row])
        return back != 0 and back >= sequence_of(header, layout, body, row) - sequence_of(header, layout, body, row - 1)
    return False


@njit(inline="always")
def has_value(header: Header, layout: BodyLayout, body: int, row: int) -> Any:
    """Return True if a row of a checked block has a value."""
    if header.flags & FLAG_NULLS:
        return (bytes_at(body + layout.validity + (row >> 3), 1)[0] >> (row & 7)) & 1 != 0
    return True
