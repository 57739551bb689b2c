"""Decide which request an archive answers next, and how many bytes may be in flight to its readers.

A reader with one request at a time goes before readers that send requests without reading the answers. Its pieces grow
as it reads; the pieces of others stay small. Readers that receive nothing are disconnected.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import deque
from contextlib import suppress
from typing import Final, NamedTuple

import zmq

from blackbox.archive.serve.piece_reading import PIECE_BYTES
from blackbox.repeated_log import RepeatedLog
from blackbox.transport.tcp_info import Connection, connection_on

log = logging.getLogger("blackbox")

MOST_IN_FLIGHT: Final = 64 << 20
"""Bytes of answers not received yet, over all connections. Above this, pieces are small."""
MOST_WAITING: Final = 64
"""Maximum number of waiting requests of one reader. A reader with more is disconnected, as it reads no answers."""
LEAST_PIECE: Final = 32 << 10
"""Size of a reader's first piece, and of all pieces of one that does not read."""
STUCK_S: Final = 5.0
"""A reader that receives nothing for this time, while an answer waits for it, is disconnected."""
_STUCK_IN_NEED_S: Final = 0.25
"""The same while too many bytes are in flight."""
_LOOK_S: Final = 0.01
_LOOK_LATE_S: Final = 0.1
_SWEEP_S: Final = 1.0
_LATE_TURNS: Final = 8
"""One turn in this many is for readers that ask without reading."""


class Reader:
    """A connection that has sent a request."""

    def __init__(self, identity: bytes, connection: Connection | None) -> None:
        self.identity, self.connection = identity, connection
        self.waiting: deque[tuple[list[zmq.Frame], float]] = deque()
        """Requests, and the times of their receipt."""
        self.piece = LEAST_PIECE
        """Maximum size of its next piece."""
        self.in_flight = 0
        """Bytes of answers that its host has not acknowledged, as of the last `look`."""
        self.is_ended = False
        """True after a disconnect. Its remaining requests are dropped."""
        self.moved_at = self.asked_at = time.monotonic()
        """Times at which it last received data, and last sent a request."""
        self._looked_at = 0.0
        self._goal = 0
        """Bytes acknowledged by its host once it has received all answers."""

    def look(self) -> bool:
        """Update what its host has acknowledged. Return False if it is known to be disconnected."""
        if self.connection is None:
            return not self.is_ended
        self._looked_at = time.monotonic()
        before = self.connection.taken
        is_on = self.connection.look()
        if self.connection.taken != before or self.in_flight == 0:
            self.moved_at = time.monotonic()
        self.in_flight = max(0, self._goal - self.connection.taken) if is_on else 0
        return is_on

    def look_now(self) -> None:
        """Make the next `is_busy` query the kernel. A reader with a new request has usually received its answer."""
        self._looked_at = 0.0

    def is_busy(self) -> bool:
        """Return True if its answer is still in flight. Queries the kernel every 10 ms, or 100 ms for a late reader."""
        often_s = _LOOK_LATE_S if len(self.waiting) > 1 else _LOOK_S
        if self.in_flight and time.monotonic() - self._looked_at >= often_s:
            self.look()
        return self.in_flight > 0

    def note_sent(self, size: int) -> None:
        """Add an answer passed to libzmq. Only Linux reports how much of it was received."""
        if self.connection is not None and sys.platform == "linux":
            if self.in_flight == 0:
                self._goal, self.moved_at = self.connection.taken, time.monotonic()
            self._goal += size
            self.in_flight += size


class Turn(NamedTuple):
    """The request that is answered next."""

    reader: Reader
    frames: list[zmq.Frame]
    """Reader, number and request."""
    most_bytes: int
    """Maximum size of the piece."""
    received_at: float
    """Time of receipt, by `time.monotonic`."""


class Turns:
    """Requests waiting at an archive. Used by its thread."""

    def __init__(self, what: str) -> None:
        """`what` names the server in the log."""
        self._what = what
        self._readers: dict[bytes, Reader] = {}
        self._prompt: deque[Reader] = deque()
        """Readers with one request, in order."""
        self._late: deque[Reader] = deque()
        """Readers with several requests."""
        self._turn = 0
        self._swept_at = 0.0
        self._are_all_busy = False
        """True if the last look found no request that can be answered now."""
        self._flying: set[Reader] = set()
        """Readers whose answers may still be in flight."""
        self.disconnected = 0
        """Number of disconnected readers."""
        self.dropped = 0
        """Number of requests that were dropped."""
        self._repeated = RepeatedLog(log)

    def take(self, frames: list[zmq.Frame]) -> None:
        """Add a request: reader, number, request."""
        identity = frames[0].bytes
        reader = self._readers.get(identity)
        if reader is None or reader.is_ended:
            connection = _connection_of(frames[-1])
            if reader is not None and (connection is None or not connection.look()):
                self.dropped += 1  # sent before it was disconnected
                return
            reader = self._readers[identity] = Reader(identity, connection)
        reader.asked_at = time.monotonic()
        if len(reader.waiting) >= MOST_WAITING:
            self.dropped += 1
            self._end(reader, f"{MOST_WAITING} requests waited and it read no answer")
            return
        reader.waiting.append((frames, reader.asked_at))
        reader.look_now()
        self._are_all_busy = False
        if len(reader.waiting) == 1:
            self._prompt.append(reader)
        elif len(reader.waiting) == 2:
            self._late.append(reader)

    def wait_s(self) -> float | None:
        """Return seconds until the next look if no request arrives; None if none is needed."""
        if not self._readers:
            return None
        if not self._prompt and not self._late:
            return _SWEEP_S
        return _LOOK_S if self._are_all_busy else 0.0

    def next(self) -> Turn | None:
        """Return the request to answer next; None if none can be answered now."""
        self._turn, self._are_all_busy = self._turn + 1, False
        queues = [self._prompt, self._late] if self._turn % _LATE_TURNS else [self._late, self._prompt]
        for queue in queues:
            for _ in range(len(queue)):
                reader = queue.popleft()
                if reader.is_ended or not reader.waiting or (queue is self._prompt and len(reader.waiting) > 1):
                    continue  # it has moved to the other queue or to none
                if reader.is_busy():
                    queue.append(reader)
                elif reader.look():
                    return self._turn_of(reader)
                else:
                    self._forget(reader)
        self._are_all_busy = True
        return None

    def _turn_of(self, reader: Reader) -> Turn:
        (frames, received_at), is_prompt = reader.waiting.popleft(), not reader.waiting
        if reader.waiting:
            (self._late if len(reader.waiting) > 1 else self._prompt).append(reader)
        share = PIECE_BYTES // (1 + len(self._prompt))
        room = MOST_IN_FLIGHT - self._in_flight()
        self._flying.add(reader)
        most = max(LEAST_PIECE, min(reader.piece, share, room)) if is_prompt else LEAST_PIECE
        reader.piece = min(2 * reader.piece, PIECE_BYTES) if is_prompt else LEAST_PIECE
        return Turn(reader, frames, most, received_at)

    def _in_flight(self) -> int:
        """Return the bytes in flight of all readers."""
        self._flying = {each for each in self._flying if each.in_flight}
        return sum(each.in_flight for each in self._flying)

    def sweep(self) -> None:
        """Disconnect readers that receive nothing, and remove those that left."""
        now, is_full = time.monotonic(), self._in_flight() > MOST_IN_FLIGHT
        if now - self._swept_at < (_STUCK_IN_NEED_S / 2 if is_full else _SWEEP_S):
            return
        self._swept_at = now
        for reader in list(self._readers.values()):
            if not reader.look() or (reader.is_ended and now - reader.asked_at > STUCK_S):
                self._forget(reader)
            elif reader.in_flight and now - reader.moved_at > (_STUCK_IN_NEED_S if is_full else STUCK_S):
                self._end(reader, f"it received nothing for {now - reader.moved_at:.2g} s")
            elif reader.connection is None and not reader.waiting and now - reader.asked_at > STUCK_S:
                self._forget(reader)

    def _end(self, reader: Reader, why: str) -> None:
        """Drop the requests of a reader and disconnect it, which is not possible on ipc."""
        self._drop(reader)
        for queue in (self._prompt, self._late):
            while reader in queue:
                queue.remove(reader)
        if reader.connection is not None and reader.connection.end():
            reader.is_ended, reader.in_flight = True, 0
            self.disconnected += 1
            text = "%s: reader %s was disconnected: %s"
            self._repeated.warning("", text, self._what, reader.connection.address, why)

    def _drop(self, reader: Reader) -> None:
        self.dropped += len(reader.waiting)
        reader.waiting.clear()

    def _forget(self, reader: Reader) -> None:
        self._drop(reader)
        if self._readers.get(reader.identity) is reader:
            del self._readers[reader.identity]


def _connection_of(frame: zmq.Frame) -> Connection | None:
    """Return the TCP connection of a frame; None for ipc or if the connection has ended."""
    with suppress(zmq.ZMQError):
        return connection_on(int(frame.get(zmq.SRCFD)))
    return None
