"""Feeds on free multicast groups of the loopback interface, and a path between two groups that loses datagrams."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from itertools import count
from typing import Any, Final

from blackbox import Feed
from blackbox.feed.endpoint import free_endpoints, groups_of
from blackbox.feed.slice import Slice
from blackbox.transport.udp.sockets import open_receiver, open_sender
from blackbox.transport.wakeup import readable
from tests.receive.subscribers import _PATIENT_NS
from tests.transport.udp.slow_assembly import Part, part_in

INTERFACE: Final = "127.0.0.1"
_numbers = count(1)


def free_port() -> int:
    """A port that no other process of this user has been given lately."""
    return int(free_endpoints("tcp", "udp", 1, 1)[0][0].rpartition(":")[2])


def free_group(port: int | None = None) -> str:
    return f"udp://239.255.{next(_numbers)}.1:{free_port() if port is None else port}"


def tcp_endpoint() -> str:
    return free_endpoints("tcp", "udp", 1, 1)[0][0]


def multicast_feed(*endpoints: str, **settings: Any) -> Feed:
    part = Slice(endpoints=endpoints, interface=INTERFACE)
    usual: dict[str, Any] = {"heartbeat_ns": 500_000_000, "max_lag_ns": _PATIENT_NS}
    return Feed(name="cast", slices=(part,), **usual | settings)


class LossyGroup:
    """Forwards the datagrams of one group to another, except those for which `loses` returns True."""

    def __init__(self, source: str, target: str, loses: Callable[[Part], bool]) -> None:
        self._loses, self._target = loses, groups_of(target, 1)[0]
        self._from = open_receiver(groups_of(source, 1)[0], INTERFACE, "test")
        self._to = open_sender(self._target, INTERFACE, 1, "test")
        self._end, self._wake = socket.socketpair()
        self.lost: list[Part] = []
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while self._end.fileno() not in readable(self._from.fileno(), self._end.fileno(), timeout=None):
            datagram = self._from.recv(65_536)
            part = part_in(datagram)
            if self._loses(part):
                self.lost.append(part)
            else:
                self._to.sendto(datagram, (str(self._target.address), self._target.port))

    def __enter__(self) -> LossyGroup:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._wake.send(b"\0")
        self._thread.join()
        for each in (self._from, self._to, self._end, self._wake):
            each.close()


def is_data(part: Part) -> bool:
    """True for a part of a block with messages: heartbeats have a key of two bytes that starts with zero."""
    return not (part.part == 0 and part.key_bytes == 2 and part.data[:1] == b"\0")
