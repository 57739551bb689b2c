"""Send control blocks from Python: confirmations, a few at a time, and other blocks under a reserved key."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final

import numpy
import zmq

from blackbox.block.form.block import Block
from blackbox.block.form.encode import Origin
from blackbox.block.form.format import FLAG_LINE_B, FLAG_REFUSED
from blackbox.block.position import End
from blackbox.publish.listeners.peers import Why
from blackbox.publish.listeners.subscriptions import Asked, Subscriptions
from blackbox.publish.send.send_loop import send_control
from blackbox.publish.send.sender_state import Sender

_BYTES_PER_S: Final = 256 << 20
"""Bandwidth limit for the confirmations of all subscribers together."""
_SHARE: Final = 20
"""Confirmations may take 1/20 of the thread's time."""
_AGAIN_NS: Final = 20_000_000
SURELY_S: Final = 1.0
"""Time to retry a control block until all subscribers to its key have room. After that a full queue drops it."""
_WAIT_S: Final = 0.2
"""Time that a confirmation waits for room, if blocks wait too."""
_WAIT_SHARE: Final = 4
"""Pause after a failed wait, as a multiple of its duration."""
NEVER_NS: Final = (1 << 63) - 1


class Full(Enum):
    """Policy for a control block when the queue of a subscriber to its key is full."""

    KEEP = "keep"
    """Send it to no subscriber."""
    WAIT = "wait"
    """Wait for room up to 0.2 s, as a block does; then send it to no subscriber."""
    DROP = "drop"
    """Drop it for full queues, with everything else until libzmq finds room there. Only if blocks are dropped too."""


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
    """Send the end of every key under `count` keys. Return the body's size, and a byte 1 for each key sent.

    `wait`: True if the socket waits for slow subscribers afterwards.
    """
    text, sent = numpy.frombuffer(keys, numpy.uint8), numpy.zeros(count, numpy.uint8)
    size, wait_ms = len(keys) // count, socket.sndtimeo
    socket.setsockopt(zmq.XPUB_NODROP, full is not Full.DROP)
    if full is Full.WAIT:
        socket.sndtimeo = int(1000 * _WAIT_S)
    how = 0 if full is Full.WAIT else zmq.DONTWAIT
    made = send_control(sender, origin, line, text.ctypes.data, size, count, sent.ctypes.data, flags, int(how))
    if full is Full.WAIT:
        socket.sndtimeo = wait_ms
    socket.setsockopt(zmq.XPUB_NODROP, wait)
    return int(made), sent.tobytes()


def send_refusal(
    socket: zmq.Socket[bytes], ask: Asked, refused: Mapping[bytes, Why], origin: Origin, wait: bool
) -> bool:
    """Tell a subscriber which of its prefixes were refused. Return False if its queue is full now.

    `wait`: True if the socket waits for slow subscribers afterwards.
    """
    block = Block.encode_ends(
        ask.key,
        {prefix: End(int(why), 0) for prefix, why in refused.items()},
        slice_id=origin.slice_id,
        key_rule=origin.key_rule,
        epoch=max(1, origin.epoch),
        ts_out=time.time_ns(),
        flags=FLAG_REFUSED | (FLAG_LINE_B if ask.line else 0),
    )
    socket.setsockopt(zmq.XPUB_NODROP, 1)
    try:
        socket.send_multipart(block.frames, zmq.DONTWAIT)
    except zmq.Again:
        return False
    finally:
        socket.setsockopt(zmq.XPUB_NODROP, wait)
    return True


class Answers:
    """Send the confirmations that are due, all with one body.

    If a queue stays full, the confirmation is treated as blocks are: dropped, or made to wait. It waits only while
    blocks wait too, so that a subscriber that stops reading does not delay the data of others.
    """

    def __init__(
        self,
        subscriptions: Subscriptions,
        lines: int,
        send: Callable[[int, bytes, int, Full], tuple[int, bytes]],
        waits: Callable[[], int] | None,
        refuse: Callable[[Asked, Mapping[bytes, Why]], bool],
    ) -> None:
        """`send` takes a line, concatenated keys, their count, and the policy for a full queue.

        It returns the same as `send_control_blocks`. `waits` returns how often blocks have waited for slow subscribers;
        None: blocks are dropped. `refuse` takes a request and its refused prefixes, and returns the same as
        `send_refusal`.
        """
        self._subscriptions, self._lines, self._send, self._waits = subscriptions, lines, send, waits
        self._refuse = refuse
        self._waits_before = self._waited_for = 0
        self._at_ns = self._wait_again_ns = 0

    @property
    def due_ns(self) -> int:
        """Monotonic time at which to send the next ones; NEVER_NS: none were requested."""
        return self._at_ns if self._subscriptions.asked else NEVER_NS

    def send_due(self, is_due: Callable[[Asked], bool]) -> None:
        """Send the confirmations that are due, once `due_ns` has passed."""
        began = time.monotonic_ns()
        if began < self.due_ns:
            return
        since, body_bytes = time.monotonic() - SURELY_S, 0
        late: list[Asked] = []
        for line in range(self._lines):
            due = [ask for ask in self._subscriptions.asked.values() if ask.line == line and is_due(ask)]
            due = [ask for ask in due if not self._is_refused(ask)]
            sent_bytes, left = self._send_to(line, due, Full.KEEP)
            body_bytes += sent_bytes
            late += [ask for ask in left if ask.since <= since]
        if self._waits is None:
            for line in range(self._lines):
                body_bytes += self._send_to(line, [ask for ask in late if ask.line == line], Full.DROP)[0]
        ended = time.monotonic_ns()
        if self._waits is not None and late:
            body_bytes += self._wait_for(late, self._waits())
        pause_ns = max(_SHARE * (ended - began), body_bytes * 1_000_000_000 // _BYTES_PER_S)
        if self._subscriptions.asked and body_bytes == 0:
            pause_ns = max(pause_ns, _AGAIN_NS)
        self._at_ns = time.monotonic_ns() + pause_ns

    def _is_refused(self, ask: Asked) -> bool:
        """Return True if the requester was refused a prefix; send the refusal."""
        refused = self._subscriptions.refused_to(ask)
        if refused and self._refuse(ask, refused):
            with self._subscriptions.changed:
                self._subscriptions.was_told(ask)
        return bool(refused)

    def _send_to(self, line: int, asks: list[Asked], full: Full) -> tuple[int, list[Asked]]:
        """Send confirmations. Return the bytes sent, and the requests that met a full queue."""
        if not asks:
            return 0, []
        size, sent = self._send(line, b"".join(ask.key for ask in asks), len(asks), full)
        with self._subscriptions.changed:
            for ask, was_sent in zip(asks, sent, strict=True):
                if was_sent:
                    self._subscriptions.confirmed(ask)
        return size * sum(sent), [ask for ask, was_sent in zip(asks, sent, strict=True) if not was_sent]

    def _wait_for(self, late: list[Asked], waits: int) -> int:
        """Wait for room for one of these requests, in turn, if blocks have waited meanwhile. Return the bytes sent."""
        is_held_up, self._waits_before = waits != self._waits_before, waits
        began = time.monotonic_ns()
        if not is_held_up or began < self._wait_again_ns:
            return 0
        self._waited_for += 1
        ask = late[self._waited_for % len(late)]
        sent_bytes, left = self._send_to(ask.line, [ask], Full.WAIT)
        if left:
            ended = time.monotonic_ns()
            self._wait_again_ns = ended + _WAIT_SHARE * (ended - began)
        return sent_bytes
