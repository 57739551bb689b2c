"""The base of clients that receive datagrams: two lines, gaps held and requested, sessions, silence.

One thread, the caller's, does all:

    lines a, b, answers -> receiver -> headers read by the protocol -> gap holder -> decoder -> chunks
                                                                          |
                                  server  <-  requests of the protocol  <-+

Datagrams of another session are skipped, unless the session is silent: a forged datagram changes nothing.
"""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from typing import ClassVar, Final

import numpy

from blackbox.errors import ConfigError, EndpointError
from blackbox.feed.live_source import LiveSource
from blackbox.feed.source import Chunk
from blackbox.feed.venue_url import Address
from blackbox_feeds.io.pcap import Datagrams
from blackbox_feeds.io.statistics import new_counts, skipped
from blackbox_feeds.live.gap_holder import Arrived, Form, GapHolder, Limits
from blackbox_feeds.live.receiver import BATCH, SLOT_BYTES
from blackbox_feeds.live.requests import GapRequests
from blackbox_feeds.live.retries import Retries
from blackbox_feeds.live.settings import LineSettings
from blackbox_feeds.live.sockets import LineSockets

log = logging.getLogger("blackbox")

CHUNK_MESSAGES: Final = 8_192
"""Most messages of a chunk."""
MALFORMED: Final = -1
"""First sequence of an invalid datagram."""
FOREIGN: Final = -2
"""First sequence of a datagram of another session."""
RESTART: Final = -3
"""First sequence of a datagram that begins the numbers of its session again."""
OTHER_PROTOCOL: Final = -4
"""First sequence of a datagram of another protocol."""

_IDLE_S: Final = 0.2
_HOLDING_S: Final = 0.001
_OTHER_LINE_NS: Final = 2_000_000
"""Time for the other line to fill a gap, before it is requested."""
_WITHOUT_SERVER_S: Final = 0.05
"""Longest time for which gaps are held without a server: for the other line, or for datagrams out of order."""

Session = tuple[int, ...]
"""Identifies a session: the integers that the headers of its datagrams share."""


class DatagramSource(LiveSource):
    """Messages of a session, received as datagrams."""

    form: ClassVar[Form]
    """The layout of the protocol's datagrams."""

    def __init__(self, line: Address, settings: LineSettings, server: Address | None) -> None:
        """`server`: answers requests for lost messages."""
        super().__init__()
        self._settings, self._has_server = settings, server is not None
        self._sockets = LineSockets(settings.lines(line), settings.interface, server)
        hold_s = settings.hold if self._has_server else min(settings.hold, _WITHOUT_SERVER_S)
        limits = Limits(round(hold_s * 1e9)) if self._has_server else Limits(round(hold_s * 1e9), 0)
        self._holder = GapHolder(self.form, SLOT_BYTES, limits, settings.held)
        self._requests = GapRequests(_OTHER_LINE_NS if settings.b else 0)
        receiver = self._sockets.receiver
        columns = (numpy.zeros(BATCH, numpy.int64) for _ in range(2))
        self._arrived = Arrived(receiver.data, receiver.slot_bytes, receiver.lengths, *columns)
        self._input_counts = new_counts()
        self._session: Session | None = None
        self._ended_at: int | None = None
        self._heard_ns = self._away_ns = 0

    @abstractmethod
    def _read_headers(self, arrived: Arrived, n: int, session: Session | None, *, is_line: bool) -> int | None:
        """Set `first` and `end` of datagrams; `first` to one of the constants above if they are not to be used.

        Without a session, all valid datagrams are FOREIGN. Return the sequence at which the session ends, if known.
        """

    @abstractmethod
    def _session_at(self, arrived: Arrived, row: int) -> tuple[Session, int]:
        """Begin the session of a valid datagram; return it and the datagram's first sequence."""

    @abstractmethod
    def _decode(self, datagrams: Datagrams) -> Iterator[Chunk]:
        """Yield the messages of datagrams in order, and the gaps between them."""

    @abstractmethod
    def _pack_requests(self, session: Session, parts: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return datagrams that request parts: (first sequence, messages)."""

    def _receive(self) -> Generator[Chunk, None, None]:
        with closing(self._follow()) as chunks:
            for chunk in chunks:
                began_ns = time.monotonic_ns()
                yield chunk
                self._away_ns += time.monotonic_ns() - began_ns

    def _now_ns(self) -> int:
        """Return the time, without that of the caller: meanwhile nothing is received, but that is no silence."""
        return time.monotonic_ns() - self._away_ns

    def _follow(self) -> Generator[Chunk, None, None]:
        sockets, holder, retries = self._sockets, self._holder, Retries()
        stale_ns = round(self._settings.stale * 1e9)
        rejoin_ns = 0  # when to join the lines again, if they are silent
        try:
            sockets.open(self._settings.buffer_mib << 20)
            joined_ns = self._heard_ns = self._now_ns()
            while not self.is_stopping:
                ready = sockets.wait(self.stop_fd, _IDLE_S if holder.gap is None else _HOLDING_S)
                now_ns = self._now_ns()
                for fd, is_line in ready:
                    n = sockets.receiver.receive(fd)
                    yield from self._take(n, is_line=is_line, now_ns=now_ns)
                if holder.gap is not None:
                    yield from self._arrange(0, is_line=False, now_ns=now_ns)
                    self._request(now_ns)
                self._count()
                if self._ended_at is not None and holder.expected >= self._ended_at:
                    return
                if now_ns - max(self._heard_ns, joined_ns) <= stale_ns:
                    rejoin_ns = 0
                elif not rejoin_ns:
                    retries.ended((self._heard_ns - joined_ns) / 1e9)
                    rejoin_ns = now_ns + self._fall_silent(retries.delay_s())
                elif now_ns >= rejoin_ns:
                    self._rejoin()
                    joined_ns, rejoin_ns = self._now_ns(), 0
            yield from self._flush()
        finally:
            self._count()
            sockets.close()

    def _notes(self) -> tuple[str, ...]:
        return (*super()._notes(), *skipped(self._input_counts).notes())

    def compile(self) -> None:
        """Compile everything before datagrams arrive."""
        super().compile()
        nothing = numpy.zeros(1, numpy.uint8)
        nothing.flags.writeable = False
        none = numpy.zeros(0, numpy.int64)
        for session in (None, (0, 0, 0)):
            self._read_headers(self._arrived, 0, session, is_line=True)
        self._holder.arrange(self._arrived, 0, is_line=True, now_ns=0)
        self._sockets.receiver.receive(-1)
        list(self._decode(Datagrams(nothing, 0, none, numpy.zeros(0, numpy.int32), none)))

    def _take(self, n: int, *, is_line: bool, now_ns: int) -> Iterator[Chunk]:
        """Yield the messages that are next, of `n` datagrams that have arrived."""
        arrived = self._arrived
        ended_at = self._read_headers(arrived, n, self._session, is_line=is_line)
        first = arrived.first[:n]
        if not is_line:
            for begin, end in zip(first.tolist(), arrived.end[:n].tolist(), strict=True):
                if begin >= 0:
                    self._requests.answered(begin, end - begin)
        elif (row := self._new_session(first, now_ns)) is not None:
            # The datagrams before it belong to the old session; those from it on are read again.
            self._count_wrong(first[:row])
            yield from self._arrange(row, is_line=True, now_ns=now_ns)
            yield from self._flush()
            self._session, begin = self._session_at(arrived, row)
            self._heard_ns, self._ended_at = now_ns, None
            self._holder.start(max(1, begin - self._settings.backfill) if self._has_server else begin, begin)
            size = arrived.slot_bytes
            arrived.data[: (n - row) * size] = arrived.data[row * size : n * size].copy()
            arrived.lengths[: n - row] = arrived.lengths[row:n].copy()
            yield from self._take(n - row, is_line=True, now_ns=now_ns)
            return
        self._count_wrong(first)
        if is_line and (first >= 0).any():
            self._heard_ns = now_ns
            self.counts.connected = True
        if ended_at is not None:
            self._ended_at = ended_at
        yield from self._arrange(n, is_line=is_line, now_ns=now_ns)

    def _count_wrong(self, first: numpy.ndarray) -> None:
        """Count the datagrams that are not of this session."""
        self.counts.malformed += int((first == MALFORMED).sum())
        self.counts.foreign += int((first <= FOREIGN).sum())

    def _new_session(self, first: numpy.ndarray, now_ns: int) -> int | None:
        """Return the row of the datagram that begins a new session, if there is one."""
        is_silent = now_ns - self._heard_ns > self._settings.stale * 1e9
        begins = first == RESTART
        if self._session is None or is_silent:
            begins |= first == FOREIGN
        rows = numpy.flatnonzero(begins)
        return int(rows[0]) if len(rows) else None

    def _arrange(self, n: int, *, is_line: bool, now_ns: int) -> Iterator[Chunk]:
        for part in self._holder.arrange(self._arrived, n, is_line=is_line, now_ns=now_ns):
            yield from self._decode(part)

    def _flush(self) -> Iterator[Chunk]:
        for part in self._holder.flush(self._arrived):
            yield from self._decode(part)

    def _request(self, now_ns: int) -> None:
        if self._has_server and self._session is not None:
            parts = self._requests.due(self._holder.gap, now_ns)
            for request in self._pack_requests(self._session, parts) if parts else ():
                self._sockets.request(request)

    def _count(self) -> None:
        counts, receiver, holder = self.counts, self._sockets.receiver, self._holder
        counts.packets, counts.bytes = receiver.packets, receiver.bytes
        counts.kernel_drops += receiver.take_drops()
        counts.duplicates, counts.recovered = holder.duplicates, holder.recovered
        counts.malformed += holder.take_implausible()

    def _fall_silent(self, delay_s: float) -> int:
        """Count that nothing was heard, not even a heartbeat. Return the delay before the next join in nanoseconds."""
        self.counts.stale += 1
        self.counts.connected = False
        log.warning("%r: nothing was heard for %.3g s: joining again in %.3g s", self, self._settings.stale, delay_s)
        return round(delay_s * 1e9)

    def _rejoin(self) -> None:
        self._sockets.close()
        self.counts.reconnects += 1
        try:
            self._sockets.open(self._settings.buffer_mib << 20)
        except (ConfigError, EndpointError) as error:  # such as an interface that is down
            log.warning("%r: %s", self, error)
