"""Sockets of multicast groups: what joins a group, and what sends to one."""

from __future__ import annotations

import errno
import logging
import socket
from contextlib import suppress
from ipaddress import IPv4Address
from typing import Final

from blackbox.errors import EndpointError
from blackbox.feed.endpoint import Group
from blackbox.transport.udp.mmsg import RXQ_OVFL

log = logging.getLogger("blackbox")

BUFFER_BYTES: Final = 32 << 20
"""Receive buffer asked for; the system grants up to `net.core.rmem_max`."""
LEAST_BUFFER_BYTES: Final = 4 << 20
"""With less, a burst of large blocks overruns the buffer of a receiver that is asleep."""
_RCVBUFFORCE: Final = 33
MULTICAST_ALL: Final = 49
"""IP_MULTICAST_ALL in linux/in.h: receive datagrams of groups that other sockets of this host have joined."""
_warned: set[int] = set()


def open_receiver(group: Group, interface: str, what: str, *, joins_more: bool = False) -> socket.socket:
    """Return a socket that has joined a group.

    `interface`: address of the interface to join on; "": that of the route. `joins_more`: groups on the same port will
    follow. Raises EndpointError naming `what`, the group and the interface.
    """
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        receiver.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        receiver.setsockopt(socket.IPPROTO_IP, MULTICAST_ALL, 0)
        receiver.setsockopt(socket.SOL_SOCKET, RXQ_OVFL, 1)
        # Bound to its only group, it cannot receive what is sent to an address of this host.
        receiver.bind(("" if joins_more else str(group.address), group.port))
    except OSError as error:
        receiver.close()
        raise _failed(error, f"{what}: cannot bind {group.address}:{group.port}", interface) from error
    try:
        change_group(receiver, group, interface, what)
    except EndpointError:
        receiver.close()
        raise
    granted = enlarge(receiver, BUFFER_BYTES)
    if granted < LEAST_BUFFER_BYTES and granted not in _warned:
        _warned.add(granted)
        log.warning(
            "%s: the receive buffer of multicast is %d bytes, expected at least %d: raise net.core.rmem_max",
            what,
            granted,
            LEAST_BUFFER_BYTES,
        )
    return receiver


def enlarge(receiver: socket.socket, size: int) -> int:
    """Enlarge the receive buffer, beyond `net.core.rmem_max` if allowed; return its size in bytes."""
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)
    with suppress(OSError):  # it needs a privilege
        receiver.setsockopt(socket.SOL_SOCKET, _RCVBUFFORCE, size)
    return receiver.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2  # the kernel doubles it


def change_group(receiver: socket.socket, group: Group, interface: str, what: str, *, leaves: bool = False) -> None:
    """Join a group by IGMP, or leave it. Raises EndpointError as `open_receiver`."""
    change = socket.IP_DROP_MEMBERSHIP if leaves else socket.IP_ADD_MEMBERSHIP
    try:
        receiver.setsockopt(
            socket.IPPROTO_IP, change, group.address.packed + IPv4Address(interface or "0.0.0.0").packed
        )
    except OSError as error:
        text = f"{what}: cannot {'leave' if leaves else 'join'} {group.address}:{group.port}"
        if error.errno == errno.ENOBUFS:
            text = f"{text}, raise net.ipv4.igmp_max_memberships:"
        raise _failed(error, text, interface) from error


def open_sender(group: Group, interface: str, ttl: int, what: str) -> socket.socket:
    """Return a socket that sends to multicast groups from an interface; "": that of the route.

    Raises EndpointError naming `what`, the group and the interface.
    """
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, ttl)
        if interface:
            sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, IPv4Address(interface).packed)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:  # finds the route, and sends nothing
            if interface:
                probe.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, IPv4Address(interface).packed)
            probe.connect((str(group.address), group.port))
    except OSError as error:
        sender.close()
        raise _failed(error, f"{what}: cannot send to {group.address}:{group.port}", interface) from error
    return sender


def _failed(error: OSError, what: str, interface: str) -> EndpointError:
    where = f"from interface {interface}" if interface else "and no interface is set"
    hint = "" if interface else "; set `interface`, or a route to the group"
    return EndpointError(error.errno or 0, f"{what} {where}: {error.strerror}{hint}")
