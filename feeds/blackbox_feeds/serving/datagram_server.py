"""Base of venue servers that send datagrams with numbered messages, and answer requests for lost ones.

The playing thread sends messages; the thread `blackbox-venue` sends heartbeats and answers requests. A lock guards what
both use: paths and sent messages.
"""

from __future__ import annotations

import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Final

import msgspec
import numpy
from numpy.typing import NDArray

from blackbox.errors import ConfigError
from blackbox.feed.venue_url import Address
from blackbox.native.system.waits import step_of
from blackbox.replay.play.venue_server import VenueMessages, VenueServer
from blackbox.transport.server_thread import ServerThread
from blackbox_feeds.io.ipv4 import bound
from blackbox_feeds.serving.datagrams import MOST_BYTES, DatagramPath, Faults, cut
from blackbox_feeds.serving.sent_stream import Frames, Framing, SentStream, check_linger

HEARTBEAT_S: Final = 1.0
_LARGEST_REQUEST: Final = 65_536
_PACKETS_OF_ANSWER: Final = 32
"""Most packets that answer one request."""
_PACKETS_PER_S: Final = 50_000
"""Most packets that answer requests in a second."""


class DatagramOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of all such servers."""

    b: str | None = None
    """HOST:PORT of a second group that gets the same packets."""
    rerequest: str | None = None
    """HOST:PORT at which requests for lost messages are answered."""
    mtu: int = 1_400
    """Bytes of the longest packet, its header included. A longer message is alone in its packet."""
    ttl: int = 1
    interface: str | None = None
    """IPv4 address of the interface that sends multicast. Default: as the system routes it."""
    linger: float = 5.0
    """Seconds after the end of the session in which requests are answered."""
    store: str | None = None
    keep_mib: int = 16_384
    """Directory and most MiB of the messages that can be requested. Default: /var/tmp."""
    drop: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    """Fractions of packets that are dropped, sent twice, or swapped with one of the same time. Not of answers."""
    seed: int = 1
    """Seed of these faults, which differ between groups."""


class _Counts(msgspec.Struct):
    messages: int = 0
    heartbeats: int = 0
    requests: int = 0
    answers: int = 0
    """Packets that answered requests."""
    refused: int = 0
    """Requests that were not answered: invalid, of unknown messages, or too many."""


class DatagramServer(VenueServer, ABC):
    """Sends numbered messages in packets, to one or two groups. Subclasses write headers and read requests."""

    header_bytes: int
    most_messages: int
    """Most messages of a packet."""

    def __init__(self, address: Address, framing: Framing, options: DatagramOptions) -> None:
        if not self.header_bytes + 2 < options.mtu <= MOST_BYTES:
            raise ConfigError(f"mtu was {options.mtu}, expected {self.header_bytes + 3} to {MOST_BYTES}")
        check_linger(options.linger)
        self._options = options
        self._faults = Faults(options.drop, options.duplicate, options.reorder)
        self._faults.check()
        self._groups = [address, *([] if options.b is None else [Address.of(options.b, "b")])]
        self._rerequest = None if options.rerequest is None else Address.of(options.rerequest, "rerequest")
        self._paths: list[DatagramPath] = []
        self._counts = _Counts()
        self._lock = threading.Lock()
        self.stream = SentStream(framing, options.store, options.keep_mib)
        self._requests: socket.socket | None = None
        self._answering = ServerThread("blackbox-venue", "the venue server", self._serve)
        self._sent_at = time.monotonic()
        self._has_ended = False
        self._budget = (0, 0.0)
        """Packets that may still answer requests, and when this was computed."""

    # Packets

    @abstractmethod
    def headers(self, frames: Frames, cuts: NDArray[numpy.int64]) -> NDArray[numpy.uint8]:
        """Return uint8[packets, header_bytes]; a packet has the frames from its cut to the next one."""

    @abstractmethod
    def heartbeat(self) -> bytes:
        """Return a packet that says which message is next."""

    @abstractmethod
    def end_of_session(self) -> bytes:
        """Return a packet that says that the session is over."""

    @abstractmethod
    def requested(self, data: bytes) -> Iterable[tuple[int, int]]:
        """Return first sequence and number of messages of each requested range. Raises ValueError."""

    # Life

    def open(self) -> None:
        """Open the sockets and start to send heartbeats."""
        options = self._options
        for number, to in enumerate(self._groups):
            self._paths.append(DatagramPath(to, options.ttl, options.interface, self._faults, options.seed + number))
        if self._rerequest is not None:
            self._requests = bound(self._rerequest, "address of rerequest", socket.SOCK_DGRAM)
        for path in self._paths:
            path.send_one(self.heartbeat())
        self._answering.start()

    def send(self, messages: VenueMessages) -> None:
        """Send messages in packets to all groups."""
        self._answering.check()
        with self._lock:
            frames = self.stream.append(messages)
            headers, bounds = self._packed(frames)
            for path in self._paths:
                path.send(headers, frames.data, bounds)
            self._counts.messages += len(messages.lengths)
            self._sent_at = time.monotonic()

    def end(self, *, at_once: bool) -> None:
        """Send the end of the session, each second while requests are still answered."""
        with self._lock:
            self._has_ended = True
            self._send_idle()
        until = time.monotonic() + (0.0 if at_once else self._options.linger)
        while (left := until - time.monotonic()) > 0:
            time.sleep(step_of(left))
        self._answering.check()

    def close(self) -> None:
        """Close the sockets and delete the stored messages."""
        self._answering.end()
        for path in self._paths:
            path.close()
        if self._requests is not None:
            self._requests.close()
        self.stream.close()

    def counts(self) -> dict[str, int]:
        """Return the counters, those of faults only if there were any."""
        faults = {
            name: sum(getattr(path, name) for path in self._paths) for name in ("dropped", "duplicated", "reordered")
        }
        with self._lock:
            counts = msgspec.structs.asdict(self._counts)
        return {"packets": sum(path.packets for path in self._paths)} | counts | (faults if any(self._faults) else {})

    def _packed(self, frames: Frames) -> tuple[NDArray[numpy.uint8], NDArray[numpy.int64]]:
        """Return the headers of packets, and the bounds of their frames."""
        cuts = cut(frames.offsets, self._options.mtu - self.header_bytes, self.most_messages)
        bounds = frames.offsets[cuts]
        longest = int(numpy.diff(bounds).max(initial=0)) + self.header_bytes
        if longest > MOST_BYTES:
            raise ConfigError(f"a packet had {longest} bytes, expected at most {MOST_BYTES}: a message is too long")
        return self.headers(frames, cuts), bounds

    # The thread

    def _serve(self) -> None:
        poller = self._answering.watch(*(() if self._requests is None else (self._requests,)))
        self._answering.begin()
        while True:
            ready = self._answering.poll(poller, self._idle_s())
            if ready is None:
                break
            if ready:
                self._answer()
            with self._lock:
                if self._idle_s() <= 0:
                    self._send_idle()
        self._answering.begin_to_end()

    def _idle_s(self) -> float:
        """Return the seconds until a heartbeat is due."""
        return self._sent_at + HEARTBEAT_S - time.monotonic()

    def _send_idle(self) -> None:
        """Send a heartbeat, or the end of the session."""
        packet = self.end_of_session() if self._has_ended else self.heartbeat()
        for path in self._paths:
            path.send_one(packet)
        self._counts.heartbeats += not self._has_ended
        self._sent_at = time.monotonic()

    def _answer(self) -> None:
        """Answer the request that has arrived, unless too many do."""
        assert self._requests is not None
        try:
            data, peer = self._requests.recvfrom(_LARGEST_REQUEST)
        except (BlockingIOError, ConnectionError):  # an answer to a peer that is gone
            return
        self._counts.requests += 1
        left = self._left()
        sent = 0
        try:
            for first, count in self.requested(data):
                if sent < min(left, _PACKETS_OF_ANSWER):
                    sent += self._send_range(peer, first, count, min(left, _PACKETS_OF_ANSWER) - sent)
        except ValueError:
            pass
        self._budget = (left - sent, self._budget[1])
        self._counts.answers += sent
        self._counts.refused += not sent

    def _left(self) -> int:
        """Return the number of packets that may answer requests now."""
        left, at = self._budget
        now = time.monotonic()
        left = min(_PACKETS_PER_S, left + int((now - at) * _PACKETS_PER_S))
        self._budget = left, now
        return left

    def _send_range(self, peer: tuple[str, int], first: int, count: int, most_packets: int) -> int:
        """Send messages of a range. Return the number of packets."""
        assert self._requests is not None
        if count == 0:
            with self._lock:
                packet = self.end_of_session() if self._has_ended else self.heartbeat()
            return self._reply(packet, peer)
        room = (self._options.mtu - self.header_bytes) * most_packets
        with self._lock:
            frames = self.stream.read(first, count, room)
            if frames is None:
                return 0
            headers, bounds = self._packed(frames)
        packets = min(len(headers), most_packets)
        for number in range(packets):
            packet = headers[number].tobytes() + frames.data[bounds[number] : bounds[number + 1]].tobytes()
            if not self._reply(packet, peer):
                return number
        return packets

    def _reply(self, packet: bytes, peer: tuple[str, int]) -> int:
        """Send one packet of an answer. Return 1, or 0 if the kernel did not accept it: the peer asks again."""
        assert self._requests is not None
        try:
            self._requests.sendto(packet, peer)
        except OSError:
            return 0
        return 1
