"""The XPUB sockets of a slice, with limits on what untrusted peers may send, and the parts that serve these peers."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import Final

import zmq

from blackbox.feed.feed import Feed
from blackbox.publish.listeners.peer_guard import Guard
from blackbox.publish.listeners.queue_policy import QueuePolicy
from blackbox.publish.listeners.subscription_reader import SubscriptionReader
from blackbox.publish.listeners.subscriptions import Subscriptions
from blackbox.publish.listeners.taps import TAPPED_WAIT_MS
from blackbox.publish.send.sender_state import SenderState
from blackbox.transport.context import allow_ipv6
from blackbox.transport.keep_alive import keep_alive
from blackbox.transport.security.gate import Gate, open_gate
from blackbox.transport.server_thread import bind
from blackbox.transport.shared_memory.layout import is_supported
from blackbox.transport.shared_memory.writer import NO_WRITER, SharedWriter, WriterAt
from blackbox.transport.udp.open_lines import open_caster
from blackbox.transport.udp.sender import NO_CASTER, Caster
from blackbox.transport.wakeup import Pipe

log = logging.getLogger("blackbox")

UPSTREAM_BYTES: Final = 512
"""Largest frame accepted from a subscriber, bounded by ZeroMQ's handshake. Our own frames have at most 100 bytes."""
_UPSTREAM_QUEUE: Final = 256
"""Subscriptions of one connection queued for the sender; further ones wait at the subscriber."""
_UPSTREAM_BUFFER_BYTES: Final = 256 << 10
SEND_WAIT_MS: Final = 20
"""Time that a send waits for a slow subscriber before the sender looks for other work."""
_READ_EVERY_NS: Final = 5_000_000
"""Time between two reads of subscriptions if more wait; messages are sent in between."""


def open_xpub(context: zmq.Context[zmq.Socket[bytes]], endpoint: str, policy: QueuePolicy) -> zmq.Socket[bytes]:
    """Return an unbound socket."""
    socket = context.socket(zmq.XPUB)
    socket.sndhwm = policy.hwm_blocks
    socket.rcvhwm = _UPSTREAM_QUEUE
    socket.rcvbuf = _UPSTREAM_BUFFER_BYTES
    socket.maxmsgsize = UPSTREAM_BYTES
    socket.linger = 0
    keep_alive(socket)
    # Only ZMTP 3 peers can be authenticated: libzmq reports no file descriptor for peers with older versions.
    # Without a gate there is no authenticator, and older versions are accepted.
    socket.setsockopt(zmq.ZAP_DOMAIN, b"blackbox")
    socket.setsockopt(zmq.XPUB_MANUAL, 1)  # each subscription is checked first: see `subscription_reader`
    allow_ipv6(socket, endpoint)
    if policy.waits:
        socket.setsockopt(zmq.XPUB_NODROP, 1)
        socket.sndtimeo = SEND_WAIT_MS
    return socket


class PeerSockets:
    """The sockets of a slice to which subscribers connect, shared memory, and the sender of multicast lines.

    Opened, used and closed in one thread. `guard` disconnects peers; `shared` and `caster` are None if the slice has no
    such endpoint.
    """

    def __init__(
        self,
        feed: Feed,
        slice_id: int,
        policy: QueuePolicy,
        subscriptions: Subscriptions,
        sent: SenderState,
        wake: Pipe,
    ) -> None:
        """`wake`: wakes the thread."""
        self.xpubs: list[zmq.Socket[bytes]] = []
        self.guard = Guard(slice_id, subscriptions, sent, wake.poke, policy)
        self.shared: SharedWriter | None = None
        self.caster: Caster | None = None
        self._feed, self._slice_id, self._part, self._policy = feed, slice_id, feed.slices[slice_id], policy
        self._subscriptions, self._sent, self._wake = subscriptions, sent, wake
        self._gate: Gate | None = None
        self._reader: SubscriptionReader | None = None
        self._has_warned = False

    def open(
        self, context: zmq.Context[zmq.Socket[bytes]], what: str, read_bytes: int, after: Callable[[int], int]
    ) -> None:
        """Bind everything. Raises EndpointError naming `what` the endpoint is of.

        Shared memory comes before the sockets, so that subscribers connected to them find it. `read_bytes`, `after`:
        as in `SubscriptionReader`.
        """
        if (name := self._part.shared_memory) and is_supported():
            sizes = self._feed.block_bytes, self._policy.waits, self._policy.hwm_blocks
            self.shared = SharedWriter(name, f"{what}: endpoint shm://{name}", *sizes, self._wake)
        self._gate = open_gate(context, self._feed, self._part.bound, what, self._part.allowed_keys)
        self.caster = open_caster(self._feed, self._slice_id, what)
        for line, endpoint in enumerate(self._part.bound):
            xpub = open_xpub(context, endpoint, self._policy)
            self.xpubs.append(xpub)
            if self._gate is not None:
                self._gate.secure(xpub, endpoint)
            if not endpoint.startswith("inproc:"):
                self.guard.watch(line, xpub)
            bind(xpub, endpoint, f"{what}: endpoint")
        self._reader = SubscriptionReader(
            self._subscriptions, self.xpubs, self._part.sockets, self._gate, read_bytes, after
        )

    @property
    def shared_at(self) -> WriterAt:
        """The shared memory for compiled code; NO_WRITER: none."""
        return NO_WRITER if self.shared is None else self.shared.at

    @property
    def caster_at(self) -> int:
        """Address of the multicast sender for compiled code; NO_CASTER: none."""
        return NO_CASTER if self.caster is None else self.caster.address

    def end_waits(self) -> None:
        """Make the sender of multicast lines drop what its rate holds back. Any thread may call this."""
        if self.caster is not None:
            self.caster.state.ending = 1

    def warn_of_failures(self) -> None:
        """Log the first datagrams that the system refused to send."""
        if self.caster is not None and self.caster.state.errno and not self._has_warned:
            self._has_warned = True
            error = os.strerror(self.caster.state.errno)
            log.warning("slice %d: datagrams of %s fail: %s", self._slice_id, self._part.multicast[0], error)

    def start_guard(self) -> None:
        """Start watching the peers."""
        self.guard.start(self._gate, self.shared)

    def read(self) -> None:
        """Read some of the waiting subscriptions, leaving time for messages."""
        assert self._reader is not None, "created before subscribers can connect"
        self._reader.read()
        self._sent.read_at = time.monotonic_ns() + _READ_EVERY_NS if self._subscriptions.is_behind else 0
        if (has_taps := self._subscriptions.has_taps) != (self._sent.tap_bell != 0):
            self._sent.tap_bell = self.guard.taps.bell.writer if has_taps else 0
            for xpub in self.xpubs if self._policy.waits else ():
                xpub.sndtimeo = TAPPED_WAIT_MS if has_taps else SEND_WAIT_MS
        if self._subscriptions.unwelcome:
            self.guard.look_now()

    def close(self, linger_ms: int) -> None:
        """Close everything. The sockets send queued blocks for up to `linger_ms`."""
        self.guard.close()
        if self.shared is not None:
            self.shared.close()
            self.shared = None
        if self.caster is not None:
            self.caster.close()
        if self._reader is not None:
            self._reader.close()
        for xpub in self.xpubs:
            xpub.close(linger_ms)
        if self._gate is not None:
            self._gate.close()
