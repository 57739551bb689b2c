"""Send frames as datagrams: cut them into packets, and pass many packets to the kernel at a time."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import time
from typing import Final, NamedTuple

import numpy
from numpy.typing import NDArray

from blackbox.errors import ConfigError, EndpointError
from blackbox.feed.venue_url import Address
from blackbox.native.compile.jit import njit, warm_up
from blackbox.native.system.limits import require_linux
from blackbox.transport.udp.mmsg import Gathered, packed_address, send_gathered
from blackbox_feeds.io.ipv4 import new_socket, resolved

MOST_BYTES: Final = 65_507
"""Payload of the longest datagram over IPv4."""
_BATCH: Final = 1_024
"""UIO_MAXIOV in linux/uio.h: most packets that one call sends."""
_PATIENCE_S: Final = 5.0
"""Time in which the kernel must accept a packet."""
_FULL: Final = (errno.ENOBUFS, errno.EAGAIN, errno.EINTR, errno.ENOMEM)


class Faults(NamedTuple):
    """Fractions of packets that are dropped, sent twice, or swapped with the next one sent at the same time."""

    drop: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0

    def check(self) -> None:
        """Raise ConfigError for a fraction outside of 0 to 1."""
        for name, value in zip(self._fields, self, strict=True):
            if not 0 <= value <= 1:
                raise ConfigError(f"{name} was {value}, expected a fraction from 0 to 1")


@njit(nogil=True, cache=True)
def _cut(offsets: NDArray[numpy.int64], room: int, most: int, cuts: NDArray[numpy.int64]) -> int:
    """Write the first frame of each packet, and the end of the last one. Return the number of packets."""
    packets, start = 0, 0
    many = len(offsets) - 1
    cuts[0] = 0
    while start < many:
        stop = start + 1
        while stop < many and stop - start < most and offsets[stop + 1] - offsets[start] <= room:
            stop += 1
        packets += 1
        cuts[packets] = start = stop
    return packets


def cut(offsets: NDArray[numpy.int64], room: int, most: int) -> NDArray[numpy.int64]:
    """Distribute frames to packets of at most `room` bytes and `most` frames; a longer frame has its own packet.

    Returns int64[packets + 1]: the first frame of each packet, and the number of frames.
    """
    cuts = numpy.zeros(len(offsets), numpy.int64)
    return cuts[: _cut(offsets, room, most, cuts) + 1]


class DatagramPath:
    """Sends datagrams from one socket to one address, multicast or unicast, with faults if wanted.

    Attributes: `packets` handed to the kernel, and those `dropped`, `duplicated` and `reordered` by faults.
    """

    def __init__(self, to: Address, ttl: int, interface: str | None, faults: Faults, seed: int) -> None:
        """Open the socket. Raises EndpointError for an address or interface that cannot be used; ConfigError."""
        require_linux("venue servers that send datagrams")
        self.to = to
        self.packets = self.dropped = self.duplicated = self.reordered = 0
        self._faults, self._random = faults, numpy.random.default_rng(seed)
        warm_up(_cut, numpy.zeros(1, numpy.int64), 0, 0, numpy.zeros(1, numpy.int64))
        warm_up(send_gathered, -1, 0, 0, 0)
        host = resolved(to)
        self.socket = new_socket(to, socket.SOCK_DGRAM)
        try:
            _set_up(self.socket, to, host, ttl, interface)
        except BaseException:
            self.socket.close()
            raise
        self._host = host
        self._gathered = Gathered(_BATCH, 2, packed_address(ipaddress.IPv4Address(host), to.port))

    def send(self, headers: NDArray[numpy.uint8], data: NDArray[numpy.uint8], bounds: NDArray[numpy.int64]) -> None:
        """Send packets, each a row of `headers` and the bytes of `data` from its bound to the next one.

        Raises EndpointError if the kernel does not accept them.
        """
        order = self._order(len(headers))
        starts, sizes = bounds[:-1] + data.ctypes.data, numpy.diff(bounds)
        for at in range(0, len(order), _BATCH):
            chosen = order[at : at + _BATCH]
            pieces = self._gathered.pieces[: len(chosen)]
            pieces[:, 0, 0] = headers.ctypes.data + headers.strides[0] * chosen
            pieces[:, 0, 1] = headers.shape[1]
            pieces[:, 1, 0] = starts[chosen]
            pieces[:, 1, 1] = sizes[chosen]
            self._send(len(chosen))
        self.packets += len(order)

    def send_one(self, packet: bytes) -> None:
        """Send a packet without faults, such as a heartbeat."""
        try:
            self.socket.sendto(packet, (self._host, self.to.port))
        except OSError as error:
            raise self._error(error.errno or 0) from error
        self.packets += 1

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()

    def _send(self, many: int) -> None:
        done = 0
        deadline = time.monotonic() + _PATIENCE_S
        while done < many:
            sent, number = send_gathered(self.socket.fileno(), self._gathered.messages, done, many - done)
            done += sent
            if not number:
                continue
            if number not in _FULL or time.monotonic() > deadline:
                raise self._error(number)
            time.sleep(0.0001)

    def _order(self, many: int) -> NDArray[numpy.int64]:
        """Return the numbers of the packets to send, in order, with faults."""
        order = numpy.arange(many)
        drop, duplicate, reorder = self._faults
        if not (drop or duplicate or reorder):
            return order
        chance = self._random.random((3, many))
        swapped = numpy.flatnonzero(chance[2, : many - 1] < reorder) if many > 1 else order[:0]
        for place in swapped.tolist():
            order[place], order[place + 1] = order[place + 1], order[place]
        times = numpy.where(chance[0] < drop, 0, 1 + (chance[1] < duplicate))
        self.dropped += int((times == 0).sum())
        self.duplicated += int((times == 2).sum())
        self.reordered += len(swapped)
        return numpy.repeat(order, times)

    def _error(self, number: int) -> EndpointError:
        hint = ": for multicast give interface=, or add a route" if number == errno.ENETUNREACH else ""
        return EndpointError(number, f"datagrams to {self.to} cannot be sent: {os.strerror(number)}{hint}")


def _set_up(made: socket.socket, to: Address, host: str, ttl: int, interface: str | None) -> None:
    to.check_port()
    if not 0 <= ttl <= 255:
        raise ConfigError(f"ttl was {ttl}, expected 0 to 255")
    if not ipaddress.IPv4Address(host).is_multicast:
        if interface is not None:
            raise ConfigError(
                f"interface was {interface!r} with the unicast address {to}, expected a multicast address"
            )
        return
    made.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, ttl)
    if interface is not None:
        try:
            made.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, ipaddress.IPv4Address(interface).packed)
        except (OSError, ValueError) as error:
            raise EndpointError(
                getattr(error, "errno", errno.EADDRNOTAVAIL),
                f"interface was {interface!r}, expected an IPv4 address of this machine",
            ) from error
