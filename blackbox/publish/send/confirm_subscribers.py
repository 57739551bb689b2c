"""Confirm subscriptions, a few at a time, and send refusals and heartbeats: control blocks from Python."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from itertools import compress
from typing import Final

import numpy
import zmq

from blackbox.block.form.block import Block, HeaderFields
from blackbox.block.form.format import FLAG_LINE_B, FLAG_REFUSED, HEARTBEAT_KEY
from blackbox.block.position import End
from blackbox.native.compile.jit import warm_up
from blackbox.publish.listeners.confirmations import Asked
from blackbox.publish.listeners.peers import Why
from blackbox.publish.listeners.subscriptions import Subscriptions
from blackbox.publish.send.control_blocks import cast_heartbeat, send_control
from blackbox.publish.send.sender_state import Sender, SenderState
from blackbox.transport.libzmq import wire_bytes_of

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


class ControlLine:
    """Sends control blocks on one line, in the thread of its socket. `waits`: blocks wait for slow subscribers."""

    def __init__(
        self, line: int, socket: zmq.Socket[bytes], sender: Sender, state: SenderState, *, waits: bool
    ) -> None:
        self.line, self.socket, self.state, self.waits = line, socket, state, waits
        self._sender = sender

    def send(self, keys: Sequence[bytes], full: Full, flags: int = 0) -> tuple[int, list[bool]]:
        """Send the end of every key under keys of equal size. Return the body's size, and which keys were sent."""
        text, sent = numpy.frombuffer(bytearray().join(keys), numpy.uint8), numpy.zeros(len(keys), numpy.uint8)
        socket, wait_ms = self.socket, self.socket.sndtimeo
        socket.setsockopt(zmq.XPUB_NODROP, full is not Full.DROP)
        if full is Full.WAIT:
            socket.sndtimeo = int(1000 * _WAIT_S)
        how = 0 if full is Full.WAIT else int(zmq.DONTWAIT)
        size = int(send_control(self._sender, self.line, text, sent, flags, how))
        if full is Full.WAIT:
            socket.sndtimeo = wait_ms
        socket.setsockopt(zmq.XPUB_NODROP, self.waits)
        return size, sent.astype(bool).tolist()

    def beat(self, full: Full, flags: int = 0) -> bool:
        """Send a heartbeat. Return False if a queue was full."""
        return self.send((HEARTBEAT_KEY,), full, flags)[1][0]

    def refuse(self, ask: Asked, refused: Mapping[bytes, Why]) -> bool:
        """Report to a subscriber which of its prefixes were refused. Return False if its queue is full now."""
        block = Block.encode_ends(
            ask.key,
            {prefix: End(int(why), 0) for prefix, why in refused.items()},
            HeaderFields(
                slice_id=self._sender.slice_id,
                key_rule=self._sender.key_rule,
                epoch=max(1, self.state.epoch),
                ts_out=time.time_ns(),
                flags=FLAG_REFUSED | (FLAG_LINE_B if self.line else 0),
            ),
        )
        self.socket.setsockopt(zmq.XPUB_NODROP, 1)
        try:
            self.socket.send_multipart(block.frames, zmq.DONTWAIT)
        except zmq.Again:
            return False
        finally:
            self.socket.setsockopt(zmq.XPUB_NODROP, self.waits)
        if self.line:
            self.state.wire_bytes_b += wire_bytes_of(block.frames)
        else:
            self.state.wire_bytes += wire_bytes_of(block.frames)
        return True


def warm_up_control(sender: Sender) -> None:
    """Compile what `ControlLine.send` and the sender's thread call."""
    nothing = numpy.zeros(0, numpy.uint8)
    warm_up(send_control, sender, 0, nothing, nothing, 0, 0)
    warm_up(cast_heartbeat, sender, 0)


class Answers:
    """Send the confirmations that are due, all with one body.

    If a queue stays full, the confirmation is treated as blocks are: dropped, or made to wait. It waits only while
    blocks wait too, so that a subscriber that stops reading does not delay the data of others.
    """

    def __init__(self, subscriptions: Subscriptions, lines: Sequence[ControlLine]) -> None:
        self._subscriptions, self._lines = subscriptions, lines
        self._confirmations = subscriptions.confirmations
        self._waits_before = self._waited_for = 0
        self._at_ns = self._wait_again_ns = 0

    @property
    def due_ns(self) -> int:
        """Monotonic time at which to send the next ones; NEVER_NS: none were requested."""
        return self._at_ns if self._confirmations.asked else NEVER_NS

    def send_due(self, is_due: Callable[[Asked], bool]) -> bool:
        """Send the confirmations that are due, once `due_ns` has passed. Return True if any was sent."""
        began = time.monotonic_ns()
        if began < self.due_ns:
            return False
        since, body_bytes = time.monotonic() - SURELY_S, 0
        late: list[Asked] = []
        for line in self._lines:
            due = [ask for ask in self._confirmations.asked.values() if ask.line == line.line and is_due(ask)]
            sent_bytes, left = self._send(line, [ask for ask in due if not self._is_refused(ask)], Full.KEEP)
            body_bytes += sent_bytes
            late += (late_here := [ask for ask in left if ask.since <= since])
            if not line.waits:
                body_bytes += self._send(line, late_here, Full.DROP)[0]
        ended = time.monotonic_ns()
        if late and self._lines[0].waits:
            body_bytes += self._wait_for(late)
        pause_ns = max(_SHARE * (ended - began), body_bytes * 1_000_000_000 // _BYTES_PER_S)
        if self._confirmations.asked and body_bytes == 0:
            pause_ns = max(pause_ns, _AGAIN_NS)
        self._at_ns = time.monotonic_ns() + pause_ns
        return body_bytes > 0

    def _is_refused(self, ask: Asked) -> bool:
        """Return True if the requester was refused a prefix; send the refusal."""
        refused = self._subscriptions.refused_to(ask)
        if refused and self._lines[ask.line].refuse(ask, refused):
            with self._subscriptions.changed:
                self._confirmations.asked.pop(ask.place, None)
        return bool(refused)

    def _send(self, line: ControlLine, asks: list[Asked], full: Full) -> tuple[int, list[Asked]]:
        """Send confirmations. Return the bytes sent, and the requests that met a full queue."""
        if not asks:
            return 0, []
        size, sent = line.send([ask.key for ask in asks], full)
        with self._subscriptions.changed:
            for ask in compress(asks, sent):
                self._confirmations.confirmed(ask)
        return size * sum(sent), [ask for ask, was_sent in zip(asks, sent, strict=True) if not was_sent]

    def _wait_for(self, late: list[Asked]) -> int:
        """Wait for room for one of these requests, in turn, if blocks have waited meanwhile. Return the bytes sent."""
        waits, began = sum(line.state.waits for line in self._lines), time.monotonic_ns()
        is_held_up, self._waits_before = waits != self._waits_before, waits
        if not is_held_up or began < self._wait_again_ns:
            return 0
        self._waited_for += 1
        ask = late[self._waited_for % len(late)]
        sent_bytes, left = self._send(self._lines[ask.line], [ask], Full.WAIT)
        if left:
            ended = time.monotonic_ns()
            self._wait_again_ns = ended + _WAIT_SHARE * (ended - began)
        return sent_bytes
