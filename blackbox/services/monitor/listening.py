"""Listen for HTTP: the address of a server as text, and its socket."""

from __future__ import annotations

import errno
import ipaddress
import socket
from functools import cache
from urllib.parse import urlsplit

from blackbox.errors import ConfigError, EndpointError

_BACKLOG = 128
NOT_OWN = "this server answers to its addresses and to the names of its host only\n"
_PRIVATE = (".local", ".internal", ".localhost", ".home.arpa", ".test")
"""Ends of names that are reserved for private networks."""


def address_of(text: str, default_host: str = "") -> tuple[str, int]:
    """Return host and port of `HOST:PORT` or `[IPv6]:PORT`; with a default host also of a port alone.

    Raises ConfigError.
    """
    host, _, port = text.rpartition(":")
    host = (host.removeprefix("[").removesuffix("]") if host.startswith("[") else host) or default_host
    is_port = port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65_535
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
    except UnicodeError:  # an empty label, such as in `a..b`, or one above 63 letters
        raise EndpointError(errno.EADDRNOTAVAIL, f"{what} {host}: it cannot be the name of a host") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        why = "is in use" if error.errno == errno.EADDRINUSE else f"could not be bound: {error.strerror}"
        raise EndpointError(error.errno or 0, f"{what} {host}:{port} {why}") from error
    return listener


def is_own_host(header: str, host: str) -> bool:
    """Return True if the `Host` header of a request names a server at `host`, not a page of another site.

    Own are addresses, `host`, the names of this machine, and names that cannot be those of a public site: without a
    dot, or of a private domain. A site that points its own name to this address (DNS rebinding) is refused. Browsers
    always send the header.
    """
    if not header:
        return True
    try:
        name = (urlsplit(f"//{header}").hostname or "").rstrip(".")
    except ValueError:
        return False
    if name and ("." not in name or name.endswith(_PRIVATE) or name == host.lower()):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:  # only now: a look-up of this machine's names may take seconds
        return name in map(str.lower, _names())
    return True


@cache
def _names() -> tuple[str, str]:
    return socket.gethostname(), socket.getfqdn()
