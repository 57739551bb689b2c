"""Send control blocks from Python: confirmations, a few at a time, and what else goes under a reserved key."""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import Enum
from typing import Final

import numpy
import zmq

from blackbox.block.encode import Origin
from blackbox.publish.send_loop import send_control
from blackbox.publish.sender_state import Sender
from blackbox.publish.subscriptions import Asked, Subscriptions

_BYTES_PER_S: Final = 256 << 20
"""What the confirmations of all subscribers together may take."""
_SHARE: Final = 20
"""Confirmations may take one part in this many of the thread's time."""
_AGAIN_NS: Final = 20_000_000
SURELY_S: Final = 1.0
"""How long a control block is tried again until all subscribers to its key have room; then it is sent all the same."""
NEVER_NS: Final = (1 << 63) - 1


class Full(Enum):
    """What is done with a control block when the queue of a subscriber to its key is full."""

    KEEP = "keep"
    """It is not sent to anybody."""
    WAIT = "wait"
    """It waits for room, as a block does; not for longer than SURELY_S."""
    DROP = "drop"
    """The full queue drops it, and all that comes until libzmq finds room there: only where blocks are dropped too."""


def send_control_blocks(
    socket: zmq.Socket[bytes],
    sender: Sender,
    origin: Origin,
    line: int,
    keys: bytes,
    count: int,
    full: Full,
    wait: bool,
    flags: int = 0,
) -> tuple[int, bytes]:
    """Send the next sequence of every key under `count` keys; return the body's bytes, and 1 for each sent.

    `wait`: whether the socket waits for slow subscribers afterwards.
    """
    text, sent = numpy.frombuffer(keys, numpy.uint8), numpy.zeros(count, numpy.uint8)
    size, wait_ms = len(keys) // count, socket.sndtimeo
    socket.setsockopt(zmq.XPUB_NODROP, full is not Full.DROP)
    socket.sndtimeo = int(1000 * SURELY_S)
    how = 0 if full is Full.WAIT else zmq.DONTWAIT
    made = send_control(sender, origin, line, text.ctypes.data, size, count, sent.ctypes.data, flags, int(how))
    socket.sndtimeo = wait_ms
    socket.setsockopt(zmq.XPUB_NODROP, wait)
    return int(made), sent.tobytes()


class Answers:
    """Sends the confirmations that are due, one body for all of them.

    `send` gets a line, keys side by side, how many, and what to do when a queue is full; it returns as
    `send_control_blocks`. `wait`: whether blocks wait for slow subscribers.
    """

    def __init__(
        self,
        subscriptions: Subscriptions,
        lines: int,
        send: Callable[[int, bytes, int, Full], tuple[int, bytes]],
        wait: bool,
    ) -> None:
        self._subscriptions, self._lines, self._send = subscriptions, lines, send
        self._late = Full.WAIT if wait else Full.DROP
        self._at_ns = 0

    @property
    def due_ns(self) -> int:
        """When it is time for the next ones, by the monotonic clock; NEVER_NS: nobody has asked."""
        return self._at_ns if self._subscriptions.asked else NEVER_NS

    def send_due(self, is_due: Callable[[Asked], bool]) -> None:
        """Send those that are due, if it is time."""
        if time.monotonic_ns() < self.due_ns:
            return
        began, now, body_bytes = time.monotonic_ns(), time.monotonic(), 0
        for line in range(self._lines):
            due = [ask for ask in self._subscriptions.asked.values() if ask.line == line and is_due(ask)]
            for full in (Full.KEEP, self._late):
                asks = [ask for ask in due if (now - ask.since < SURELY_S) == (full is Full.KEEP)]
                keys = b"".join(ask.key for ask in asks)
                size, sent = self._send(line, keys, len(asks), full) if asks else (0, b"")
                body_bytes += size * sum(sent)
                with self._subscriptions.changed:
                    for ask, was_sent in zip(asks, sent, strict=True):
                        if was_sent:
                            self._subscriptions.confirmed(ask)
        ended = time.monotonic_ns()
        pause_ns = max(_SHARE * (ended - began), body_bytes * 1_000_000_000 // _BYTES_PER_S)
        if self._subscriptions.asked and body_bytes == 0:
            pause_ns = max(pause_ns, _AGAIN_NS)
        self._at_ns = ended + pause_ns
