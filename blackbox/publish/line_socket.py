"""The XPUB socket of a line, with its limits on what strangers may send."""

from __future__ import annotations

import zmq

from blackbox.publish.peer_guard import UPSTREAM_BUFFER_BYTES, UPSTREAM_BYTES, UPSTREAM_QUEUE
from blackbox.transport.context import allow_ipv6
from blackbox.transport.keep_alive import keep_alive


def open_xpub(
    context: zmq.Context[zmq.Socket[bytes]], endpoint: str, wait_ms: int | None, hwm_blocks: int
) -> zmq.Socket[bytes]:
    """Return a socket that is not bound yet. `wait_ms`: how long to wait for a slow subscriber; None: drop."""
    socket = context.socket(zmq.XPUB)
    socket.sndhwm = hwm_blocks
    socket.rcvhwm = UPSTREAM_QUEUE
    socket.rcvbuf = UPSTREAM_BUFFER_BYTES
    socket.maxmsgsize = UPSTREAM_BYTES
    socket.linger = 0
    keep_alive(socket)
    # Whoever would be authenticated must speak ZMTP 3: libzmq tells no descriptor of what comes by older
    # versions. Without a gate there is no authenticator, so those that do are let in.
    socket.setsockopt(zmq.ZAP_DOMAIN, b"blackbox")
    socket.setsockopt(zmq.XPUB_MANUAL, 1)  # each subscription is decided upon: see `subscription_reader`
    allow_ipv6(socket, endpoint)
    if wait_ms is not None:
        socket.setsockopt(zmq.XPUB_NODROP, 1)
        socket.sndtimeo = wait_ms
    return socket
