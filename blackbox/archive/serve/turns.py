"""Whose request an archive answers next, and how many bytes may be in flight to its readers.

A reader that asks one question at a time goes before readers that ask without reading the answers. Its pieces
grow as it reads; the pieces of others stay small. Readers that take nothing are disconnected.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import deque
from contextlib import suppress
from typing import Final

import zmq

from blackbox.archive.serve.piece_reading import PIECE_BYTES
from blackbox.transport.connections import Connection, connection_on

log = logging.getLogger("blackbox")

MOST_IN_FLIGHT: Final = 64 << 20
"""Bytes of answers that readers have not taken, over all connections; beyond it pieces are small."""
MOST_WAITING: Final = 64
"""Requests of one reader that may wait. A reader with more does not read the answers, and is disconnected."""
LEAST_PIECE: Final = 32 << 10
"""Bytes of the first piece of a reader, and of one that does not read."""
STUCK_S: Final = 5.0
"""A reader that has taken nothing for so long, while an answer waits for it, is disconnected."""
_STUCK_IN_NEED_S: Final = 0.25
"""The same while too many bytes are in flight."""
_LOOK_S: Final = 0.01
_LOOK_LATE_S: Final = 0.1
_SWEEP_S: Final = 1.0
_NOTICE_S: Final = 10.0
"""Least time between two lines in the log."""
_LATE_TURNS: Final = 8
"""One turn in this many is for readers that ask without reading."""


class Reader:
    """A connection that has asked something."""

    def __init__(self, identity: bytes, connection: Connection | None) -> None:
        self.identity, self.connection = identity, connection
        self.waiting: deque[list[zmq.Frame]] = deque()
        self.piece = LEAST_PIECE
        """Bytes that its next piece may have."""
        self.in_flight = 0
        """Bytes of answers that its host has not acknowledged, as of the last look."""
        self.is_ended = False
        """True once it was disconnected: what is left of its requests is dropped."""
        self.moved_at = self.asked_at = time.monotonic()
        """Time at which it last took something, and asked something."""
        self._looked_at = 0.0
        self._goal = 0
        """Bytes that its host has acknowledged once it has taken all."""

    def look(self) -> bool:
        """Read from the kernel what it has taken; return whether it is connected, as far as that is known."""
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
        """Have the next `is_busy` ask the kernel: who asks again has usually taken the answer before."""
        self._looked_at = 0.0

    def is_busy(self) -> bool:
        """Return True if it has not taken its answer yet. The kernel is asked every 10 ms, or 100 ms for a late one."""
        often_s = _LOOK_LATE_S if len(self.waiting) > 1 else _LOOK_S
        if self.in_flight and time.monotonic() - self._looked_at >= often_s:
            self.look()
        return self.in_flight > 0

    def note_sent(self, size: int) -> None:
        """Note that an answer was handed to libzmq. Only Linux reports how much of it was taken."""
        if self.connection is not None and sys.platform == "linux":
            if self.in_flight == 0:
                self._goal, self.moved_at = self.connection.taken, time.monotonic()
            self._goal += size
            self.in_flight += size


class Turns:
    """Requests that wait at an archive. Used by its thread."""

    def __init__(self, what: str) -> None:
        """`what` serves, for the log."""
        self._what = what
        self._readers: dict[bytes, Reader] = {}
        self._prompt: deque[Reader] = deque()
        """Readers with one request, in turn."""
        self._late: deque[Reader] = deque()
        """Readers with several."""
        self._turn = 0
        self._swept_at = 0.0
        self.disconnected = 0
        """Readers that were disconnected."""
        self._logged_at = -_NOTICE_S

    def take(self, frames: list[zmq.Frame]) -> int:
        """Take a request: reader, number, request. Return how many requests are dropped for it."""
        identity = frames[0].bytes
        reader = self._readers.get(identity)
        if reader is None or reader.is_ended:
            connection = _connection_of(frames[-1])
            if reader is not None and (connection is None or not connection.look()):
                return 1  # it was disconnected, and this came before
            reader = self._readers[identity] = Reader(identity, connection)
        reader.asked_at = time.monotonic()
        if len(reader.waiting) >= MOST_WAITING:
            return 1 + self._end(reader, f"{MOST_WAITING} requests waited, and it read no answer")
        reader.waiting.append(frames)
        reader.look_now()
        if len(reader.waiting) == 1:
            self._prompt.append(reader)
        elif len(reader.waiting) == 2:
            self._late.append(reader)
        return 0

    def wait_s(self) -> float | None:
        """Return seconds until the next look if no request comes; None: no look is needed."""
        if not self._readers:
            return None
        return _LOOK_S if self._prompt or self._late else _SWEEP_S

    def next(self) -> tuple[Reader, list[zmq.Frame], int] | None:
        """Return the reader whose turn it is, its request, and the most bytes of a piece; None: none may go now."""
        self._turn += 1
        queues = [self._prompt, self._late] if self._turn % _LATE_TURNS else [self._late, self._prompt]
        for queue in queues:
            for _ in range(len(queue)):
                reader = queue.popleft()
                if reader.is_ended or not reader.waiting or (queue is self._prompt and len(reader.waiting) > 1):
                    continue  # it is in the other queue, or in none
                if reader.is_busy():
                    queue.append(reader)
                elif reader.look():
                    return self._turn_of(reader)
                else:
                    self._forget(reader)
        return None

    def _turn_of(self, reader: Reader) -> tuple[Reader, list[zmq.Frame], int]:
        frames, is_prompt = reader.waiting.popleft(), not reader.waiting
        if reader.waiting:
            (self._late if len(reader.waiting) > 1 else self._prompt).append(reader)
        share = PIECE_BYTES // (1 + len(self._prompt))
        room = MOST_IN_FLIGHT - sum(each.in_flight for each in self._readers.values())
        most = max(LEAST_PIECE, min(reader.piece, share, room)) if is_prompt else LEAST_PIECE
        reader.piece = min(2 * reader.piece, PIECE_BYTES) if is_prompt else LEAST_PIECE
        return reader, frames, most

    def sweep(self) -> int:
        """Disconnect readers that take nothing, and forget those that have gone; return how many requests they had."""
        now = time.monotonic()
        flying = [each for each in self._readers.values() if each.in_flight]
        is_full = sum(each.in_flight for each in flying) > MOST_IN_FLIGHT
        if now - self._swept_at < (_STUCK_IN_NEED_S / 2 if is_full else _SWEEP_S):
            return 0
        self._swept_at, dropped = now, 0
        for reader in list(self._readers.values()):
            if not reader.look() or (reader.is_ended and now - reader.asked_at > STUCK_S):
                self._forget(reader)
            elif reader.in_flight and now - reader.moved_at > (_STUCK_IN_NEED_S if is_full else STUCK_S):
                dropped += self._end(reader, f"it has taken nothing for {now - reader.moved_at:.2g} s")
            elif reader.connection is None and not reader.waiting and now - reader.asked_at > STUCK_S:
                self._forget(reader)
        return dropped

    def _end(self, reader: Reader, why: str) -> int:
        """Disconnect a reader; return how many requests it had."""
        dropped = len(reader.waiting)
        reader.waiting.clear()
        if reader.connection is not None and reader.connection.end():
            reader.is_ended, reader.in_flight = True, 0
            self.disconnected += 1
            if time.monotonic() - self._logged_at >= _NOTICE_S:
                self._logged_at = time.monotonic()
                address, count = reader.connection.address, self.disconnected
                log.warning("%s: reader %s was disconnected: %s; %d in all", self._what, address, why, count)
        return dropped

    def _forget(self, reader: Reader) -> None:
        reader.waiting.clear()
        if self._readers.get(reader.identity) is reader:
            del self._readers[reader.identity]


def _connection_of(frame: zmq.Frame) -> Connection | None:
    """Return the TCP connection on which a frame came; None: it came by ipc, or the connection has ended."""
    with suppress(zmq.ZMQError):
        return connection_on(int(frame.get(zmq.SRCFD)))
    return None
