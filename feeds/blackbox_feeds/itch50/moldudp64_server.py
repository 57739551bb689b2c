"""Serve a recorded day of ITCH by MoldUDP64: `blackbox replay DAY --serve moldudp64://GROUP:PORT`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, Final

import numpy
from numpy.typing import NDArray

from blackbox.archive.recording import Recording
from blackbox.errors import ConfigError
from blackbox.feed.venue_url import Address
from blackbox_feeds.itch50.moldudp64 import END_OF_SESSION, HEADER, MOST_MESSAGES
from blackbox_feeds.serving.datagram_server import DatagramOptions, DatagramServer
from blackbox_feeds.serving.sent_stream import Frames, Framing

SESSION_BYTES: Final = 10
_HEADERS: Final = numpy.dtype([("session", "S10"), ("sequence", ">u8"), ("count", ">u2")])


class MoldOptions(DatagramOptions, frozen=True, kw_only=True):
    """Options of the URL."""

    session: str | None = None
    """Name of the session, 10 ASCII characters. Default: the day and 01."""


def session_of(recordings: Sequence[Recording], given: str | None) -> bytes:
    """Return the name of a session. Raises ConfigError."""
    name = f"{recordings[0].date:%Y%m%d}01" if given is None else given
    if len(name) != SESSION_BYTES or not name.isascii() or not name.isprintable():
        raise ConfigError(f"session was {name!r}, expected {SESSION_BYTES} printable ASCII characters")
    return name.encode()


class MoldUdp64Server(DatagramServer):
    """Sends ITCH messages in MoldUDP64 packets, and answers requests for lost messages."""

    schemas: ClassVar[frozenset[str]] = frozenset(("itch50",))
    Options = MoldOptions
    header_bytes = HEADER.size
    most_messages = MOST_MESSAGES

    def __init__(self, address: Address, recordings: Sequence[Recording], options: MoldOptions) -> None:
        self._session = session_of(recordings, options.session)
        super().__init__(address, Framing(is_big_endian=True), options)

    def headers(self, frames: Frames, cuts: NDArray[numpy.int64]) -> NDArray[numpy.uint8]:
        """Return the headers of packets."""
        headers = numpy.zeros(len(cuts) - 1, _HEADERS)
        headers["session"] = self._session
        headers["sequence"] = frames.first + cuts[:-1]
        headers["count"] = numpy.diff(cuts)
        return headers.view(numpy.uint8).reshape(-1, HEADER.size)

    def heartbeat(self) -> bytes:
        """Return a packet of no messages."""
        return HEADER.pack(self._session, self.stream.next, 0)

    def end_of_session(self) -> bytes:
        """Return the packet that ends the session."""
        return HEADER.pack(self._session, self.stream.next, END_OF_SESSION)

    def requested(self, data: bytes) -> Iterable[tuple[int, int]]:
        """Return the range of a request."""
        if len(data) != HEADER.size:
            raise ValueError(f"request had {len(data)} bytes, expected {HEADER.size}")
        session, sequence, count = HEADER.unpack(data)
        if session != self._session or count == 0:
            raise ValueError(f"request was for {count} messages of session {session!r}")
        yield sequence, count
