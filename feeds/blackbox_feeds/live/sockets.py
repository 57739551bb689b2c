"""UDP sockets of a live client: its lines, multicast or unicast, and the socket for requests."""

from __future__ import annotations

import errno
import ipaddress
import logging
import select
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from blackbox.errors import ConfigError, EndpointError
from blackbox.feed.venue_url import Address
from blackbox.transport.udp.mmsg import RXQ_OVFL
from blackbox.transport.udp.sockets import MULTICAST_ALL, enlarge
from blackbox_feeds.io.ipv4 import new_socket, resolved
from blackbox_feeds.live.receiver import Receiver

log = logging.getLogger("blackbox")

_REQUEST_BUFFER_BYTES: Final = 4 << 20


class LineSockets:
    """The sockets of one client, and what they have received last. One thread uses them."""

    def __init__(self, lines: Sequence[Address], interface: str | None, server: Address | None) -> None:
        """`server`: answers requests; `interface` joins the groups of the lines. Raises ConfigError for port 0."""
        for address in (*lines, *(() if server is None else (server,))):
            address.check_port()
        self.receiver = Receiver()
        self._lines, self._interface, self._server = lines, interface, server
        self._open: list[socket.socket] = []

    def open(self, buffer_bytes: int) -> None:
        """Join all lines. Raises as `open_line`."""
        try:
            for line in self._lines:
                opened, buffered = open_line(line, self._interface, buffer_bytes)
                self._open.append(opened)
                if buffered < buffer_bytes:
                    log.warning(
                        "%s: the kernel's receive buffer has %d KiB instead of %d: raise net.core.rmem_max",
                        line,
                        buffered >> 10,
                        buffer_bytes >> 10,
                    )
            if self._server is not None:
                self._open.append(open_requests(self._server))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Leave all lines."""
        for opened in self._open:
            self.receiver.forget(opened.fileno())
            opened.close()
        self._open.clear()

    def wait(self, stop_fd: int, timeout_s: float) -> list[tuple[int, bool]]:
        """Wait for datagrams; return the descriptors that have some, each with True if it is a line."""
        poll = select.poll()
        for fd in (stop_fd, *(opened.fileno() for opened in self._open)):
            poll.register(fd, select.POLLIN)
        found = {fd for fd, _ in poll.poll(timeout_s * 1e3)}
        fds = [opened.fileno() for opened in self._open]
        return [(fd, place < len(self._lines)) for place, fd in enumerate(fds) if fd in found]

    def request(self, data: bytes) -> None:
        """Send a request, if there is a server. A failure is ignored: lost messages are requested again."""
        if self._server is not None and self._open:
            with suppress(OSError):
                self._open[-1].send(data)


def open_line(line: Address, interface: str | None, buffer_bytes: int) -> tuple[socket.socket, int]:
    """Return a socket that receives a multicast group or a unicast address, and the bytes of its buffer.

    `interface`: name or IPv4 address of the interface that joins the group; default: by the routing table.

    Raises:
        ConfigError: the interface does not exist.
        EndpointError: the address cannot be bound, or the group not be joined.
    """
    address = resolved(line)
    is_group = ipaddress.IPv4Address(address).is_multicast
    opened = new_socket(line, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    try:
        opened.setsockopt(socket.SOL_SOCKET, RXQ_OVFL, 1)
        if is_group:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            opened.setsockopt(socket.IPPROTO_IP, MULTICAST_ALL, 0)
        opened.bind((address, line.port))
        if is_group:
            opened.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, _membership(address, interface))
        return opened, enlarge(opened, buffer_bytes)
    except OSError as error:
        opened.close()
        what = "joined" if is_group and error.errno != errno.EADDRINUSE else "bound"
        raise EndpointError(f"{line} cannot be {what}: {error.strerror or error}") from error
    except BaseException:
        opened.close()
        raise


def open_requests(server: Address) -> socket.socket:
    """Return a socket to send requests to a server, and to receive its answers only. Raises EndpointError."""
    host, opened = resolved(server), new_socket(server, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    try:
        opened.connect((host, server.port))
        enlarge(opened, _REQUEST_BUFFER_BYTES)
    except OSError as error:
        opened.close()
        raise EndpointError(f"no requests can be sent to {server}: {error.strerror or error}") from error
    return opened


def _membership(group: str, interface: str | None) -> bytes:
    """Return the `struct ip_mreqn` to join a group."""
    own, index = "0.0.0.0", 0
    if interface is not None:
        try:
            own = str(ipaddress.IPv4Address(interface))
        except ValueError:
            try:
                index = socket.if_nametoindex(interface)
            except OSError:
                names = ", ".join(name for _, name in socket.if_nameindex())
                raise ConfigError(f"interface was {interface!r}, expected an IPv4 address or one of: {names}") from None
    return struct.pack("@4s4si", socket.inet_aton(group), socket.inet_aton(own), index)
