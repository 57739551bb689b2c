"""A message as bytes, little-endian, without padding, for systems without message properties.

    0        8      16        24     28            32          34     34 + T
    +--------+------+---------+------+-------------+-----------+------+---------+
    |ts_event|epoch |sequence |slice |payload bytes|topic bytes|topic |payload  |
    | int64  |int64 | int64   |int32 | int32       | uint16 (T)|      |         |
    +--------+------+---------+------+-------------+-----------+------+---------+

Payload bytes of -1: the topic no longer has a value.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from blackbox.block.batch.batch import Message

_HEADER: Final = struct.Struct("<qqqiiH")
_NO_VALUE: Final = -1
_PREFIX: Final = struct.Struct("<H")


class Fields(NamedTuple):
    """The fields of this form."""

    topic: bytes
    payload: bytes | None
    ts_event: int
    slice_id: int
    epoch: int
    sequence: int

    def as_bytes(self) -> bytes:
        """Encode the message."""
        size = _NO_VALUE if self.payload is None else len(self.payload)
        header = _HEADER.pack(self.ts_event, self.epoch, self.sequence, self.slice_id, size, len(self.topic))
        return header + self.topic + (self.payload or b"")

    @classmethod
    def of(cls, data: bytes) -> Fields:
        """Decode the result of `as_bytes`. Raises ValueError."""
        try:
            ts_event, epoch, sequence, slice_id, size, topic_bytes = _HEADER.unpack_from(data)
        except struct.error as error:
            raise ValueError(f"message had {len(data)} bytes, expected at least {_HEADER.size}") from error
        begin = _HEADER.size + topic_bytes
        if size < _NO_VALUE or len(data) != begin + max(0, size):
            raise ValueError(f"message had {len(data)} bytes, expected {begin} and a payload of {size}")
        payload = None if size == _NO_VALUE else data[begin:]
        return cls(data[_HEADER.size : begin], payload, ts_event, slice_id, epoch, sequence)


def as_bytes(message: Message) -> bytes:
    """Encode a message with its topic and position."""
    place = message.slice_id, message.epoch, message.sequence
    return Fields(message.topic, message.payload, message.ts_event, *place).as_bytes()


def frame_of(prefix: bytes, messages: list[bytes]) -> bytes:
    """Return the frame for messages under a prefix: the prefix's size as uint16, the prefix, the messages."""
    return b"".join((_PREFIX.pack(len(prefix)), prefix, *messages))
