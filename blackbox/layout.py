"""Where every byte of a block is: `key | header | body`. The prose is in `docs/wire-format.md`.

Header, 64 bytes, little-endian::

    0      4   5   6     8     10    12       16              24              32
    +------+---+---+-----+-----+-----+--------+---------------+---------------+
    | BBOX |ver|flg|schem|slice|  0  | count  | epoch         | sequence      |
    +------+---+---+-----+-----+-----+--------+---------------+---------------+
    32              40       44       48       52       56       60           64
    +---------------+--------+--------+--------+--------+--------+------------+
    | ts_out        | topics | topic  | body   | stride | body   | header     |
    |               |        | bytes  | bytes  |        | xxh3   | xxh3       |
    +---------------+--------+--------+--------+--------+--------+------------+

Body: columns, each starting at a multiple of 8::

    ts_event        int64[count]
    topic_index     int32[count]
    payload_offsets int32[count + 1]      absent when FLAG_FIXED: every payload then has `stride` bytes
    topic_offsets   int32[topics + 1]
    topics          the distinct topics, one after the other
    payloads        to the end of the body
"""

from __future__ import annotations

from typing import Final, NamedTuple

from numba import njit

HEADER_BYTES: Final = 64
MAGIC: Final = int.from_bytes(b"BBOX", "little")
VERSION: Final = 1

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
KNOWN_FLAGS: Final = 31

OFFSET_MAGIC: Final = 0
OFFSET_VERSION: Final = 4
OFFSET_FLAGS: Final = 5
OFFSET_SCHEMA: Final = 6
OFFSET_SLICE: Final = 8
OFFSET_RESERVED: Final = 10
OFFSET_COUNT: Final = 12
OFFSET_EPOCH: Final = 16
OFFSET_SEQUENCE: Final = 24
OFFSET_TS_OUT: Final = 32
OFFSET_TOPICS: Final = 40
OFFSET_TOPIC_BYTES: Final = 44
OFFSET_BODY_BYTES: Final = 48
OFFSET_STRIDE: Final = 52
OFFSET_BODY_CHECKSUM: Final = 56
OFFSET_HEADER_CHECKSUM: Final = 60

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


class BodyLayout(NamedTuple):
    """Where each column of a body starts, in bytes, and where the body ends."""

    topic_index: int
    payload_offsets: int
    topic_offsets: int
    topics: int
    payloads: int
    end: int


@njit(inline="always")
def _align(offset: int) -> int:
    return (offset + 7) & -8


@njit(nogil=True, cache=True)
def body_layout(count: int, topics: int, topic_bytes: int, payload_bytes: int, fixed: bool) -> BodyLayout:
    """The columns' places. `ts_event` starts at 0; `payload_offsets` has no bytes when `fixed`."""
    topic_index = 8 * count
    payload_offsets = _align(topic_index + 4 * count)
    topic_offsets = payload_offsets if fixed else _align(payload_offsets + 4 * (count + 1))
    text = _align(topic_offsets + 4 * (topics + 1))
    payloads = _align(text + topic_bytes)
    return BodyLayout(topic_index, payload_offsets, topic_offsets, text, payloads, payloads + payload_bytes)
