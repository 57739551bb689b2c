"""IEX-TP: segments of messages with one header, as datagrams or on TCP, and requests to fill gaps.

Source: "IEX Transport Protocol Specification" 1.25. Integers are little-endian.

    segment = version 1 | reserved 1 | protocol 2 | channel 4 | session 4 | payload length 2 | count 2 |
              stream offset 8 | first sequence 8 | send time 8 | { length 2 | message } * count
    request = version 1 | request type 1 | protocol 2 | channel 4 | session 4 | ranges 4 | { first 8 | last 8 } * ranges

A segment without messages is a heartbeat: its sequence is that of the next message. The ranges of a request include
their last message, do not overlap, and increase. A request without ranges tests the server, which answers with a
heartbeat. Segments that answer a request are sent to its source address.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

VERSION: Final = 1
HEADER: Final = Struct("<BBHIIHHqqq")
HEADER_BYTES: Final = HEADER.size
SEQUENCED: Final = 1
"""Request type: ranges of sequences."""

_REQUEST: Final = Struct("<BBHIII")
_RANGE: Final = Struct("<qq")


class Stream(NamedTuple):
    """The numbered messages of one protocol and session."""

    protocol: int
    channel: int
    session: int


class GapFillRequest(NamedTuple):
    """A request for ranges of messages."""

    stream: Stream
    ranges: tuple[tuple[int, int], ...]
    """First and last sequence of each."""

    def pack(self) -> bytes:
        """Return the bytes."""
        head = _REQUEST.pack(VERSION, SEQUENCED, *self.stream, len(self.ranges))
        return head + b"".join(_RANGE.pack(*each) for each in self.ranges)

    @classmethod
    def of(cls, data: bytes) -> GapFillRequest:
        """Read a request. Raises ValueError, also if it breaks the rules for ranges."""
        if len(data) < _REQUEST.size:
            raise ValueError(f"request had {len(data)} bytes, expected {_REQUEST.size} or more")
        version, kind, protocol, channel, session, count = _REQUEST.unpack_from(data)
        if (version, kind) != (VERSION, SEQUENCED):
            raise ValueError(f"version and type were {version} and {kind}, expected {VERSION} and {SEQUENCED}")
        if len(data) != _REQUEST.size + count * _RANGE.size:
            raise ValueError(f"request had {len(data)} bytes, which differs from its {count} ranges")
        ranges = tuple(_RANGE.iter_unpack(data[_REQUEST.size :]))
        _check(ranges)
        return cls(Stream(protocol, channel, session), ranges)


def _check(ranges: Sequence[tuple[int, int]]) -> None:
    after = 0
    for first, last in ranges:
        if not after < first <= last:
            raise ValueError(f"range was {first} to {last}, expected one after {after} that increases")
        after = last
