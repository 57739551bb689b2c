"""The XPUB socket of a line, with limits on what untrusted peers may send."""

from __future__ import annotations

import zmq

from blackbox.publish.listeners.peer_guard import UPSTREAM_BUFFER_BYTES, UPSTREAM_BYTES, UPSTREAM_QUEUE
from blackbox.transport.context import allow_ipv6
from blackbox.transport.keep_alive import keep_alive


def open_xpub(
    context: zmq.Context[zmq.Socket[bytes]], endpoint: str, wait_ms: int | None, hwm_blocks: int
) -> zmq.Socket[bytes]:
    """Return an unbound socket. `wait_ms`: time to wait for a slow subscriber; None: drop."""
    socket = context.socket(zmq.XPUB)
    socket.sndhwm = hwm_blocks
    socket.rcvhwm = UPSTREAM_QUEUE
    socket.rcvbuf = UPSTREAM_BUFFER_BYTES
    socket.maxmsgsize = UPSTREAM_BYTES
    socket.linger = 0
    keep_alive(socket)
    # Only ZMTP 3 peers can be authenticated: libzmq reports no file descriptor for peers with older versions.
    # Without a gate there is no authenticator, and older versions are accepted.
    socket.setsockopt(zmq.ZAP_DOMAIN, b"blackbox")
    socket.setsockopt(zmq.XPUB_MANUAL, 1)  # each subscription is checked first: see `subscription_reader`
    allow_ipv6(socket, endpoint)
    if wait_ms is not None:
        socket.setsockopt(zmq.XPUB_NODROP, 1)
        socket.sndtimeo = wait_ms
    return socket
