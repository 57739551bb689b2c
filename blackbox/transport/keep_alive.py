"""TCP keep-alive probes: a host that lost power closes nothing, and without probes TCP waits for minutes.

The kernel sends and answers probes, whatever the process does. ZMTP's pings are not usable: if one is due on a lost
connection with a full queue, libzmq aborts the process (its issues 3937, 4364 and 4767).
"""

from __future__ import annotations

from typing import Final

import zmq

GIVEN_UP_S: Final = 5
"""Seconds without an answer after which a connection is closed."""
_EVERY_S: Final = 1


def keep_alive(socket: zmq.Socket[bytes], *, must_take: bool = False) -> None:
    """Make later connections probe a silent peer's host, and close if it does not answer.

    `must_take`: also close if the peer reads nothing. Only for peers that always read.
    """
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, _EVERY_S)
    socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, _EVERY_S)
    socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, GIVEN_UP_S // _EVERY_S)
    if must_take:
        socket.setsockopt(zmq.TCP_MAXRT, 1_000 * GIVEN_UP_S)
