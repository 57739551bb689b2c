"""The client's side of SoupBinTCP without I/O: login, heartbeats, sequence, silence; packets to frames, compiled.

A connection begins with a login. It is over when the login is rejected, at the end of the session, after silence, or
after a fault, since packets after a fault cannot be trusted. The next connection resumes the session.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy
from numpy.typing import NDArray

from blackbox.native.compile.jit import njit
from blackbox_feeds.io.integers import big_16
from blackbox_feeds.itch50.decoder import Reason, judge_whole
from blackbox_feeds.itch50.soupbintcp import (
    CLIENT_HEARTBEAT,
    DEBUG,
    END_OF_SESSION,
    HEARTBEAT_S,
    LOGIN_ACCEPTED,
    LOGIN_REJECTED,
    MOST_SEQUENCE,
    NO_SESSION,
    NOT_AUTHORIZED,
    SEQUENCED,
    SERVER_HEARTBEAT,
    UNSEQUENCED,
    Accepted,
    Login,
    packet,
)

_SEQUENCED: Final = SEQUENCED[0]
_REJECTIONS: Final = {
    NOT_AUTHORIZED: "the server does not accept this user and password",
    NO_SESSION: "the server does not have this session",
}


class Frames(NamedTuple):
    """Messages with their lengths, as a file has them, in runs without a gap inside."""

    data: NDArray[numpy.uint8]
    starts: NDArray[numpy.int64]
    ends: NDArray[numpy.int64]
    gaps: tuple[tuple[int, int], ...]
    """(run, count): messages missing before a run, or after all runs."""


@njit(nogil=True, cache=True)
def _to_frames(
    data: NDArray[numpy.uint8], position: int, frames: NDArray[numpy.uint8]
) -> tuple[int, int, int, int, int]:
    """Convert sequenced packets to frames, up to another packet, an incomplete one, or one that cannot be decoded.

    Returns (packets, position of the packet after them, bytes of frames, 1 if that packet is complete, its length).
    """
    used = packets = 0
    while position + 2 <= len(data):
        size = big_16(data, position)
        after = position + 2 + size
        if after > len(data) or size == 0:
            return packets, position, used, after <= len(data), size
        if data[position + 2] != _SEQUENCED:
            return packets, position, used, 1, size
        length = size - 1
        frames[used], frames[used + 1] = length >> 8, length & 0xFF
        frames[used + 2 : used + 2 + length] = data[position + 3 : after]
        if length > 0 and judge_whole(frames, used) != Reason.END:
            return packets, position, used, 1, size
        used += 2 + length
        packets += 1
        position = after
    return packets, position, used, 0, 0


class SoupBinTcpSession:
    """One session, over several connections one after the other. Times are in seconds of any clock that never jumps."""

    def __init__(self, login: Login, silence_s: float) -> None:
        """`silence_s`: a connection without packets for this time is over."""
        self._login, self._silence_s = login, silence_s
        self._rest = b""
        self._heard_s = self._sent_s = 0.0
        self._must_log_in = False
        self.is_logged_in = self.is_over = self.is_silent = self.has_ended = False
        self.rejected: str | None = None
        """Why the login was rejected."""
        self.packets = self.malformed = self.unexpected = 0
        """Packets; those with a fault; those that a server does not send."""

    def begin(self, now_s: float) -> None:
        """Begin a connection."""
        self._rest = b""
        self._heard_s = self._sent_s = now_s
        self._must_log_in = True
        self.is_logged_in = self.is_over = self.is_silent = False

    def due(self, now_s: float) -> bytes | None:
        """Return the packet to send now, or b""; None if the connection is silent, and over."""
        if self._must_log_in:
            self._must_log_in, self._sent_s = False, now_s
            return self._login.pack()
        if now_s - self._heard_s > self._silence_s:
            self.is_over = self.is_silent = True
            return None
        if self.is_logged_in and now_s - self._sent_s >= HEARTBEAT_S:
            self._sent_s = now_s
            return packet(CLIENT_HEARTBEAT)
        return b""

    def compile(self) -> Frames:
        """Compile everything before a connection is open; return no messages."""
        return self._convert(b"")

    def received(self, data: bytes, now_s: float) -> Frames:
        """Process received bytes; return the messages."""
        if data:
            self._heard_s = now_s
        return self._convert(self._rest + data)

    def _convert(self, data: bytes) -> Frames:
        array = numpy.frombuffer(data or b"\0", numpy.uint8)[: len(data)]
        runs: list[tuple[int, int]] = []
        gaps: list[tuple[int, int]] = []
        out = numpy.empty(len(data) + 2, numpy.uint8)
        position = used = 0
        is_complete = 1
        while is_complete and not self.is_over:
            packets, position, size, is_complete, length = _to_frames(array, position, out[used:])
            if packets and not self.is_logged_in:
                self.packets += 1
                self._fail()  # data before the login
                break
            self.packets += packets
            self._login = self._login._replace(sequence=self._login.sequence + packets)
            if size:
                runs.append((used, used + size))
                used += size
            if is_complete:
                self.packets += 1
                missing = self._take(data[position + 2 : position + 2 + length])
                gaps += [(len(runs), missing)] if missing else []
                position += 2 + length
        self._rest = data[position:]
        bounds = numpy.array(runs, numpy.int64).reshape(-1, 2)
        frames = out[:used]
        frames.flags.writeable = False
        return Frames(frames, bounds[:, 0].copy(), bounds[:, 1].copy(), tuple(gaps))

    def _take(self, content: bytes) -> int:
        """Process the type and payload of any other packet; return the messages that are missing."""
        kind, payload = content[:1], content[1:]
        if kind == SEQUENCED and self.is_logged_in:  # it cannot be decoded
            self.malformed += 1
            self._login = self._login._replace(sequence=self._login.sequence + 1)
            return 1
        if kind == LOGIN_ACCEPTED and not self.is_logged_in:
            return self._accept(payload)
        if kind == LOGIN_REJECTED and not self.is_logged_in:
            self.is_over = True
            self.rejected = _REJECTIONS.get(payload, f"the server rejects the login with code {payload!r}")
        elif kind == END_OF_SESSION:
            self.is_over = self.has_ended = True
        elif kind in (DEBUG, SERVER_HEARTBEAT):
            pass
        elif kind == UNSEQUENCED:
            self.unexpected += 1
        else:
            self._fail()
        return 0

    def _accept(self, payload: bytes) -> int:
        try:
            accepted = Accepted.of(payload)
        except ValueError:
            self._fail()
            return 0
        wanted, known = self._login.sequence, self._login.session
        if known and accepted.session != known:
            self._fail()
            return 0
        if not wanted <= accepted.sequence <= MOST_SEQUENCE:
            self._fail()  # the messages would come again, or the number is too large
            return 0
        self.is_logged_in = True
        self._login = self._login._replace(session=accepted.session, sequence=accepted.sequence)
        return accepted.sequence - wanted if wanted else 0

    def _fail(self) -> None:
        """End the connection: its packets cannot be trusted."""
        self.malformed += 1
        self.is_over = True
