"""A message as bytes, little-endian, without padding, for systems that carry nothing beside them.

    0        8      16        24     28            32          34     34 + T
    +--------+------+---------+------+-------------+-----------+------+---------+
    |ts_event|epoch |sequence |slice |payload bytes|topic bytes|topic |payload  |
    | int64  |int64 | int64   |int32 | int32       | uint16 (T)|      |         |
    +--------+------+---------+------+-------------+-----------+------+---------+

Payload bytes of -1: the topic has no value any more.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from blackbox.block.batch import Message

_HEADER: Final = Struct("<qqqiiH")
_NO_VALUE: Final = -1
_PREFIX: Final = Struct("<H")


def as_bytes(message: Message) -> bytes:
    """Return a message with its topic and its place."""
    topic, payload = message.topic, message.payload
    size = _NO_VALUE if payload is None else len(payload)
    header = _HEADER.pack(message.ts_event, message.epoch, message.sequence, message.slice_id, size, len(topic))
    return header + topic + (payload or b"")


def frame_of(prefix: bytes, messages: list[bytes]) -> bytes:
    """Return messages that came under a prefix: its size in an uint16, the prefix, the messages without a gap."""
    return b"".join((_PREFIX.pack(len(prefix)), prefix, *messages))
