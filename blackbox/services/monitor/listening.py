"""Listen for HTTP: the address of a server as text, and its socket."""

from __future__ import annotations

import errno
import socket

from blackbox.errors import ConfigError, EndpointError

_BACKLOG = 128


def address_of(text: str, default_host: str = "") -> tuple[str, int]:
    """Return host and port of `HOST:PORT` or `[IPv6]:PORT`; with a default host also of a port alone.

    Raises ConfigError.
    """
    host, _, port = text.rpartition(":")
    host = (host.removeprefix("[").removesuffix("]") if host.startswith("[") else host) or default_host
    is_port = port.isascii() and port.isdigit() and int(port) <= 65_535
    if not host or not is_port or (":" in host and not text.startswith("[")):
        raise ConfigError(f"address was {text!r}, expected HOST:PORT, such as 127.0.0.1:9100 (port 0: a free one)")
    return host, int(port)


def url_of(host: str, port: int) -> str:
    """Return an address as a URL, without a path."""
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def listen_at(host: str, port: int, what: str) -> socket.socket:
    """Return a socket that listens. Raises EndpointError naming `what` the address is."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise EndpointError(error.errno or errno.EADDRNOTAVAIL, f"{what} {host}: {error.strerror}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        why = "is in use" if error.errno == errno.EADDRINUSE else f"could not be bound: {error.strerror}"
        raise EndpointError(error.errno or 0, f"{what} {host}:{port} {why}") from error
    return listener
