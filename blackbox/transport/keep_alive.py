"""Probes on TCP connections (TCP's keep-alive): a host that lost power closes nothing, and TCP waits minutes for it.

The system sends and answers them, whatever the process does. ZMTP's own pings will not do: when one is due on a
connection that is gone, behind a queue that is full, libzmq aborts the process (its issues 3937, 4364 and 4767).
"""

from __future__ import annotations

from typing import Final

import zmq

GIVEN_UP_S: Final = 5
"""A host that has answered nothing for so long is given up."""
_EVERY_S: Final = 1


def keep_alive(socket: zmq.Socket[bytes], *, must_take: bool = False) -> None:
    """Have the connections that are made from now on probe their peer's host when it is silent, and give it up.

    `must_take`: give up a peer that takes nothing, too. Only where it always reads.
    """
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, _EVERY_S)
    socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, _EVERY_S)
    socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, GIVEN_UP_S // _EVERY_S)
    if must_take:
        socket.setsockopt(zmq.TCP_MAXRT, 1_000 * GIVEN_UP_S)
