"""Pings on TCP connections (ZMTP's heartbeats): a host that lost power closes nothing, and TCP waits minutes for it.

Who connects pings, and says with each ping after which silence to give it up. ZeroMQ's I/O threads do all of it, so a
subscriber that reads nothing pings on: only its process or host can fall silent.
"""

from __future__ import annotations

from typing import Final

import zmq

_LEAST_MS: Final = 1_000
_MOST_MS: Final = 60_000
"""Between two pings. With less, a busy host would be taken for a dead one."""
_GIVEN_UP_AFTER: Final = 5
"""Pings that do not come."""
PING_BYTES_PER_S: Final = 16
"""What pings take on the wire, at most."""


def send_pings(
    socket: zmq.Socket[bytes], endpoint: str, heartbeat_ns: int = 0, *, expects_answers: bool = False
) -> None:
    """Have what is bound or connected to `endpoint` from now on send a ping a heartbeat: 1 s to 60 s, over TCP only.

    `expects_answers`: give up the peer that answers none. Only where the peer always reads: behind what it has not
    read, a ping is not answered.
    """
    over_tcp = endpoint.startswith("tcp:")
    every_ms = min(max(heartbeat_ns // 1_000_000, _LEAST_MS), _MOST_MS) if over_tcp else 0
    socket.setsockopt(zmq.HEARTBEAT_IVL, every_ms)
    socket.setsockopt(zmq.HEARTBEAT_TTL, _GIVEN_UP_AFTER * every_ms)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, _GIVEN_UP_AFTER * every_ms if expects_answers else 0)
