"""One line of a relay's slice: its state, the path above it, and its sockets above and below."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from ctypes import string_at

import zmq

from blackbox.block.form.block import Block, HeaderFields
from blackbox.block.form.encode import Origin
from blackbox.block.form.format import CONFIRM_KEY
from blackbox.errors import BlockError
from blackbox.publish.listeners.peers import Why
from blackbox.services.relay.hops import Hop, check_path, decode_path, encode_path, encode_times
from blackbox.services.relay.line_state import BODY_AT, HEADER_AT, UNWANTED_AT, LineMemory
from blackbox.services.relay.upstream_socket import UpstreamSocket
from blackbox.transport.libzmq import message_bytes, wire_bytes_of

log = logging.getLogger("blackbox")


class Line:
    """One line of a slice. Once it is open, `xpub` is the socket below, and `sender` sends control blocks there.

    Attributes: `handle`, address of the socket below, 0 before `open`; `above`, relays between the source and this one;
    `memory` and its `state`; `way`, the socket to the source, and its `upstream`.
    """

    def __init__(self, memory: LineMemory, way: UpstreamSocket, me: Hop, origin: Origin, what: str) -> None:
        """`origin`: of the slice's blocks, with any epoch. `what` names the slice in the log."""
        self.memory, self.way, self.upstream = memory, way, way.upstream
        self.state = memory.state
        self.handle = 0
        self.above: tuple[Hop, ...] = ()
        self._me, self._origin, self._what = me, origin, what
        self._path_due_ns = 0

    @property
    def origin(self) -> Origin:
        """Origin of the blocks that are forwarded now."""
        return self._origin._replace(epoch=self.state.epoch)

    def open(self, xpub: zmq.Socket[bytes], caster: int) -> None:
        """Take the socket below, and the address of the sender of multicast lines, if there are any."""
        self.xpub, self.handle = xpub, xpub.underlying
        self.sender = self.memory.sender(self.handle, self._origin.slice_id, self._origin.key_rule, caster)

    def close(self) -> None:
        """Close the socket above."""
        self.way.close()
        self.memory.close()

    def read_path(self) -> None:
        """Process the path in the scratch, if any. Raises RelayError for a loop or a path that is too long."""
        above = decode_path(*self._control_block()) if self.state.has_path else None
        self.state.has_path = 0
        if above is not None and above != self.above:
            self.above, self._path_due_ns = above, 0
            check_path(self._me, above)
            log.info("%s: hop %d, below %s", self._what, len(above) + 1, ", ".join(hop.name for hop in above))
        if self.above and not self.upstream.source.is_connected:
            self.above, self._path_due_ns = (), 0

    def send_path(self, is_wanted: bool, heartbeat_ns: int) -> int:
        """Send this relay's path below if it is wanted or due. Return when it is due next, by the monotonic clock."""
        now_ns = time.monotonic_ns()
        if is_wanted or now_ns >= self._path_due_ns:
            self._path_due_ns = now_ns + heartbeat_ns
            self._send(encode_path((*self.above, self._me), self.origin))
        return self._path_due_ns

    def send_times(self) -> None:
        """Send below when this relay had the traced block that has just passed, if any."""
        state = self.state
        if state.traced_in_ns:
            _, slice_id, key_rule, epoch = self.origin
            traced = HeaderFields(
                slice_id=slice_id,
                key_rule=key_rule,
                epoch=epoch,
                sequence=state.traced_end,
                ts_in=state.traced_in_ns,
                ts_out=state.traced_out_ns,
                flags=state.traced_flags,
            )
            state.traced_in_ns = 0
            self._send(encode_times(self._me, len(self.above) + 1, traced))

    def _send(self, block: Block) -> None:
        """Send a control block below. A subscriber without room gets the next one."""
        with suppress(zmq.Again):
            self.xpub.send_multipart(block.frames, zmq.DONTWAIT)
            self.state.wire_bytes += wire_bytes_of(block.frames)

    def read_refusal(self) -> list[bytes]:
        """Process the refusal in the scratch, if any. Return the newly refused prefixes."""
        if not self.state.has_refusal:
            return []
        self.state.has_refusal = 0
        try:
            ends = Block.decode(CONFIRM_KEY, *self._control_block()).ends()
            return self.upstream.refuse({prefix: Why(end.sequence) for prefix, end in ends.items()})
        except (BlockError, ValueError):
            return self.upstream.refuse({})

    def read_unwanted(self) -> None:
        """Process the unwanted key in the scratch, if any."""
        if self.state.has_unwanted:
            key = string_at(self.memory.scratch + UNWANTED_AT, self.state.has_unwanted - 1)
            self.state.has_unwanted = 0
            self.upstream.note_unwanted(key)

    def _control_block(self) -> list[bytes]:
        """Return header and body of the control block in the scratch."""
        return [string_at(*message_bytes(self.memory.scratch + place)) for place in (HEADER_AT, BODY_AT)]
