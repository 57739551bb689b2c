"""Check the endpoints of a feed, and find free ones on this machine."""

import atexit
import errno
import os
import re
import secrets
import shutil
import socket
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import ip_address
from itertools import count as counting
from itertools import islice

from blackbox.errors import ConfigError, EndpointError
from blackbox.native.limits import Needs, check_limits

TRANSPORTS = ("tcp", "ipc", "inproc")
SHARED_MEMORY = "shm"
LOOPBACK = "127.0.0.1"
MAX_IPC_PATH_BYTES = 103
"""Longest path of a Unix socket that every platform takes (macOS 103, Linux 107)."""

_TCP = re.compile(r"(?P<host>\[[^\[\]]+\]|[^\[\]:/;]+):(?P<port>\d+)", re.ASCII)
_SHARED_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?")

_FIRST_PORT, _PORTS = 10_000, 22_000
"""Below those of outgoing connections: the system takes one of these for each, maybe before anyone has bound it."""
_turns: defaultdict[int, Iterator[int]] = defaultdict(lambda: counting(secrets.randbelow(_PORTS)))
"""By process: each goes through the ports from a place of its own on, so that no two offer the same one at a time."""


def transport_of(endpoint: str) -> str:
    """Return what stands before `://`, or an empty string."""
    scheme, separator, _ = endpoint.partition("://")
    return scheme if separator else ""


def check_endpoint(endpoint: str) -> None:
    """Raise ConfigError unless publishers can bind and subscribers connect to `endpoint`."""
    transport = transport_of(endpoint)
    if transport not in (*TRANSPORTS, SHARED_MEMORY):
        raise ConfigError(f"endpoint was {endpoint!r}, expected tcp://, ipc://, inproc:// or shm://")
    address = endpoint.removeprefix(f"{transport}://")
    if not address or "\0" in address:
        raise ConfigError(f"endpoint was {endpoint!r}, expected an address behind {transport}://")
    if transport == "tcp":
        _check_tcp(endpoint, address)
    elif transport == SHARED_MEMORY:
        if not _SHARED_NAME.fullmatch(address):
            raise ConfigError(
                f"name of endpoint {endpoint!r} was {address!r}, expected 1 to 64 letters, digits, '.', '_' or '-', "
                "the first a letter or digit"
            )
    elif transport == "ipc":
        if address == "*":
            raise ConfigError(f"endpoint was {endpoint!r}, expected a path to connect to")
        length = len(os.fsencode(address))
        if length > MAX_IPC_PATH_BYTES:
            raise ConfigError(
                f"path of endpoint {endpoint!r} was {length} bytes long, expected at most {MAX_IPC_PATH_BYTES}"
            )


def check_archive(endpoint: str, what: str = "archive") -> None:
    """Raise ConfigError unless an archive, or a hub, can answer at `endpoint`, and other processes can ask there."""
    check_endpoint(endpoint)
    if transport_of(endpoint) not in ("tcp", "ipc"):
        raise ConfigError(f"{what} was {endpoint!r}, expected tcp:// or ipc://")


def check_interface(interface: str) -> None:
    """Raise ConfigError unless `interface` is an IPv4 or IPv6 address of one host."""
    try:
        unspecified = ip_address(interface).is_unspecified
    except ValueError:
        raise ConfigError(f"interface was {interface!r}, expected an IP address") from None
    if unspecified:
        raise ConfigError(f"interface was {interface!r}, expected the address of one interface")


def free_endpoints(transport: str, name: str, slices: int, lines: int) -> list[tuple[str, ...]]:
    """Return `lines` endpoints for each of `slices` that nobody on this machine uses now; with shm one more.

    tcp: ports of 127.0.0.1. ipc: paths in a new directory that only this user can enter and
    that is removed when this process ends. inproc: names that hold within one ZeroMQ context.
    shm: lines on tcp, and a name in shared memory.
    """
    if transport == SHARED_MEMORY:
        sockets = free_endpoints("tcp", name, slices, lines)
        token = secrets.token_hex(4)
        return [(*of_slice, f"shm://{name[:48]}-{token}-{number}") for number, of_slice in enumerate(sockets)]
    count = slices * lines
    if transport == "tcp":
        check_limits(f"free ports for feed {name!r}", Needs(descriptors=1))
        flat = [f"tcp://{LOOPBACK}:{port}" for port in _free_ports(count)]
    elif transport == "ipc":
        directory = _private_directory()
        flat = [f"ipc://{directory}/{number}" for number in range(count)]
    elif transport == "inproc":
        token = secrets.token_hex(4)
        flat = [f"inproc://{name}-{token}-{number}" for number in range(count)]
    else:
        raise ConfigError(f"transport was {transport!r}, expected one of {', '.join((*TRANSPORTS, SHARED_MEMORY))}")
    return [tuple(flat[first : first + lines]) for first in range(0, count, lines)]


def _check_tcp(endpoint: str, address: str) -> None:
    parts = _TCP.fullmatch(address)
    if parts is None:
        raise ConfigError(f"endpoint was {endpoint!r}, expected tcp://HOST:PORT")
    port = int(parts["port"])
    if not 1 <= port <= 65_535:
        raise ConfigError(f"port of endpoint {endpoint!r} was {port}, expected 1 to 65535")
    host = parts["host"]
    try:
        unspecified = ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        # Digits and dots alone, or brackets, are a mistyped address and never a name.
        numeric = host.startswith("[") or not re.search(r"[^\d.]", host)
        if host != "*" and (numeric or not _HOST_NAME.fullmatch(host)):
            raise ConfigError(f"host of endpoint {endpoint!r} was {host!r}, expected an address or a name") from None
        unspecified = host == "*"
    if unspecified:
        raise ConfigError(
            f"host of endpoint {endpoint!r} was {host!r}, expected the one address that subscribers connect to"
        )


def _free_ports(count: int) -> list[int]:
    ports: list[int] = []
    for turn in islice(_turns[os.getpid()], _PORTS):
        port = _FIRST_PORT + turn % _PORTS
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe, suppress(OSError):
            probe.bind((LOOPBACK, port))
            ports.append(port)
        if len(ports) == count:
            return ports
    raise EndpointError(
        errno.EADDRINUSE, f"{count} free ports of {LOOPBACK} were wanted, and {len(ports)} of {_PORTS} are free"
    )


def _private_directory() -> str:
    directory = tempfile.mkdtemp(prefix="blackbox-")
    atexit.register(_remove_directory, directory, os.getpid())
    return directory


def _remove_directory(directory: str, owner: int) -> None:
    if os.getpid() == owner:  # a forked child inherits the exit handlers
        shutil.rmtree(directory, ignore_errors=True)
