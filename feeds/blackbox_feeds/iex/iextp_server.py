"""Serve a recorded day of IEX TOPS or DEEP by IEX-TP: `blackbox replay DAY --serve iextp://GROUP:PORT`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import ClassVar, Final

import numpy
from numpy.typing import NDArray

from blackbox.archive.recording import Recording
from blackbox.errors import ConfigError
from blackbox.feed.venue_url import Address
from blackbox_feeds.iex.iextp import HEADER, HEADER_BYTES, VERSION, GapFillRequest, Stream
from blackbox_feeds.iex.messages import PROTOCOLS
from blackbox_feeds.serving.datagram_server import DatagramOptions, DatagramServer
from blackbox_feeds.serving.sent_stream import Frames, Framing

_MOST_MESSAGES: Final = 0xFFFF
_MOST_NUMBER: Final = 0xFFFFFFFF
_HEADERS: Final = numpy.dtype(
    [
        ("version", "u1"),
        ("reserved", "u1"),
        ("protocol", "<u2"),
        ("channel", "<u4"),
        ("session", "<u4"),
        ("payload_length", "<u2"),
        ("count", "<u2"),
        ("stream_offset", "<i8"),
        ("first", "<i8"),
        ("send_time", "<i8"),
    ]
)


class IexTpOptions(DatagramOptions, frozen=True, kw_only=True):
    """Options of the URL."""

    channel: int = 1
    session: int | None = None
    """Number of the session. Default: the day as digits, such as 20180127."""


class IexTpServer(DatagramServer):
    """Sends IEX messages in IEX-TP segments, and answers requests to fill gaps."""

    schemas: ClassVar[frozenset[str]] = frozenset(schema.name for schema in PROTOCOLS.values())
    Options = IexTpOptions
    header_bytes = HEADER_BYTES
    most_messages = _MOST_MESSAGES

    def __init__(self, address: Address, recordings: Sequence[Recording], options: IexTpOptions) -> None:
        day = recordings[0]
        (protocol,) = (number for number, schema in PROTOCOLS.items() if schema.name == day.feed.schema_name)
        session = int(f"{day.date:%Y%m%d}") if options.session is None else options.session
        for name, number in (("channel", options.channel), ("session", session)):
            if not 0 <= number <= _MOST_NUMBER:
                raise ConfigError(f"{name} was {number}, expected 0 to {_MOST_NUMBER}")
        self._id = Stream(protocol, options.channel, session)
        super().__init__(address, Framing(is_big_endian=False), options)

    def headers(self, frames: Frames, cuts: NDArray[numpy.int64]) -> NDArray[numpy.uint8]:
        """Return the headers of segments."""
        headers = numpy.zeros(len(cuts) - 1, _HEADERS)
        starts = frames.offsets[cuts]
        headers["version"] = VERSION
        headers["protocol"], headers["channel"], headers["session"] = self._id
        headers["payload_length"] = numpy.diff(starts)
        headers["count"] = numpy.diff(cuts)
        headers["stream_offset"] = frames.position + starts[:-1]
        headers["first"] = frames.first + cuts[:-1]
        headers["send_time"] = time.time_ns()
        return headers.view(numpy.uint8).reshape(-1, HEADER_BYTES)

    def heartbeat(self) -> bytes:
        """Return a segment without messages."""
        return HEADER.pack(VERSION, 0, *self._id, 0, 0, self.stream.position, self.stream.next, time.time_ns())

    def end_of_session(self) -> bytes:
        """Return a heartbeat: the end is a system event message of the recording."""
        return self.heartbeat()

    def requested(self, data: bytes) -> Iterable[tuple[int, int]]:
        """Return the ranges of a request, or an empty one if it has none, which is a test."""
        request = GapFillRequest.of(data)
        if request.stream != self._id:
            raise ValueError(f"request was for {request.stream}")
        for first, last in request.ranges or ((self.stream.next, self.stream.next - 1),):
            yield first, last - first + 1
