"""Clients of venues in plain Python, from the specifications: they share no code with the servers."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from typing import NamedTuple

from blackbox.feed.venue_url import Address

_PATIENCE_S = 120.0
_BUFFER_BYTES = 8 << 20


class Packet(NamedTuple):
    """A datagram of numbered messages."""

    session: object
    first: int
    many: int
    messages: tuple[bytes, ...]
    data: bytes


def blocks(data: bytes, count: int, form: str) -> tuple[bytes, ...]:
    """Return `count` messages, each after its length of the `struct` format `form`, which fill the data."""
    found, at = [], 0
    for _ in range(count):
        (size,) = struct.unpack_from(form, data, at)
        found.append(data[at + 2 : at + 2 + size])
        assert len(found[-1]) == size
        at += 2 + size
    assert at == len(data)
    return tuple(found)


def mold_packet(data: bytes) -> Packet:
    """Read a MoldUDP64 packet; the count of the end of a session is 65,535."""
    session, first, count = struct.unpack_from(">10sQH", data)
    return Packet(session, first, count, blocks(data[20:], 0 if count == 0xFFFF else count, ">H"), data)


class Client:
    """Receives packets on a port of this machine, and requests lost messages."""

    def __init__(self, read: Callable[[bytes], Packet] = mold_packet, group: str | None = None) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        self.socket.bind((group or "127.0.0.1", 0))
        if group is not None:
            member = socket.inet_aton(group) + socket.inet_aton("127.0.0.1")
            self.socket.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
        self.socket.settimeout(_PATIENCE_S)
        self.address = Address(group or "127.0.0.1", self.socket.getsockname()[1])
        self._read = read
        self.packets: list[Packet] = []

    def receive(self) -> Packet:
        """Return the next packet."""
        packet = self._read(self.socket.recv(65_536))
        self.packets.append(packet)
        return packet

    def receive_until(self, is_last: Callable[[Packet], bool]) -> list[Packet]:
        """Receive packets up to the first one that is the last, and return all so far."""
        while not is_last(self.receive()):
            pass
        return self.packets

    def ask(self, server: Address, request: bytes) -> None:
        """Send a request."""
        self.socket.sendto(request, (server.host, server.port))

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def numbered(packets: list[Packet]) -> dict[int, bytes]:
    """Return messages by sequence; packets that contradict each other fail."""
    found: dict[int, bytes] = {}
    for packet in packets:
        for place, message in enumerate(packet.messages):
            assert found.setdefault(packet.first + place, message) == message
    return found
