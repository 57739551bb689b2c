"""IPv4 sockets for the addresses of a venue."""

from __future__ import annotations

import errno
import socket

from blackbox.errors import EndpointError
from blackbox.feed.venue_url import Address


def resolved(address: Address) -> str:
    """Return the IPv4 address of a host. Raises EndpointError."""
    try:
        return str(socket.getaddrinfo(address.host, None, socket.AF_INET, socket.SOCK_DGRAM)[0][4][0])
    except OSError as error:
        raise EndpointError(error.errno, f"host of {address} is not known as an IPv4 address") from error


def new_socket(address: Address, kind: int) -> socket.socket:
    """Return a new socket for an IPv4 address. Raises EndpointError."""
    try:
        return socket.socket(socket.AF_INET, kind)
    except OSError as error:
        raise EndpointError(error.errno, f"no socket can be opened for {address}: {error.strerror}") from error


def bound(address: Address, what: str, kind: int) -> socket.socket:
    """Return a socket bound to an address. Raises EndpointError, which names `what` it is."""
    made = new_socket(address, kind)
    try:
        if kind == socket.SOCK_STREAM:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((resolved(address), address.port))
        made.setblocking(False)
    except OSError as error:
        made.close()
        why = {
            errno.EADDRINUSE: "is in use",
            errno.EADDRNOTAVAIL: "could not be bound: it is not an address of this machine",
        }.get(error.errno or 0, f"could not be bound: {error}")
        raise EndpointError(error.errno, f"{what} {address} {why}") from error
    return made
