"""Check endpoints of feeds, and find free ones on this machine."""

import atexit
import errno
import fcntl
import os
import re
import secrets
import shutil
import socket
import tempfile
import time
from contextlib import suppress
from ipaddress import IPv4Address, ip_address
from pathlib import Path
from typing import IO, NamedTuple

from blackbox.errors import ConfigError, EndpointError
from blackbox.native.system.limits import Needs, check_limits
from blackbox.user_cache import user_cache

TRANSPORTS = ("tcp", "ipc", "inproc")
SHARED_MEMORY = "shm"
MULTICAST = "udp"
LOOPBACK = "127.0.0.1"
MAX_IPC_PATH_BYTES = 103
"""Longest path of a Unix socket on every platform (macOS 103, Linux 107)."""

_TCP = re.compile(r"(?P<host>\[[^\[\]]+\]|[^\[\]:/;]+):(?P<port>\d+)", re.ASCII)
_SHARED_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?")

_LAST_GROUP = IPv4Address("239.255.255.255")
_FIRST_PORT, _PORTS = 10_000, 22_000
"""Range for chosen ports, below the system's range for outgoing connections, which could take them before the bind."""
_LOCK_TRIES, _LOCK_TRY_S = 1_000, 0.001


def transport_of(endpoint: str) -> str:
    """Return the text before `://`, or an empty string."""
    scheme, separator, _ = endpoint.partition("://")
    return scheme if separator else ""


def check_endpoint(endpoint: str) -> None:
    """Raise ConfigError unless publishers can bind and subscribers connect to `endpoint`."""
    transport = transport_of(endpoint)
    if transport not in (*TRANSPORTS, SHARED_MEMORY, MULTICAST):
        raise ConfigError(f"endpoint was {endpoint!r}, expected tcp://, ipc://, inproc://, udp:// or shm://")
    address = endpoint.removeprefix(f"{transport}://")
    if not address or "\0" in address:
        raise ConfigError(f"endpoint was {endpoint!r}, expected an address after {transport}://")
    if transport == "tcp":
        _check_tcp(endpoint, address)
    elif transport == MULTICAST:
        _check_udp(endpoint, address)
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


def check_bind(what: str, endpoint: str) -> None:
    """Raise ConfigError unless `endpoint` is a tcp address to bind, which may be a wildcard."""
    if transport_of(endpoint) != "tcp":
        raise ConfigError(f"{what} was {endpoint!r}, expected one such as tcp://0.0.0.0:17801")
    _check_tcp(endpoint, endpoint.removeprefix("tcp://"), to_bind=True)


def check_service(endpoint: str, what: str = "archive") -> None:
    """Raise ConfigError unless `endpoint` is tcp or ipc, as for a service that other processes call."""
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
    """Return `lines` endpoints for each of `slices` that are unused on this machine.

    tcp: ports of 127.0.0.1. ipc: paths in a new private directory, removed when this process ends. inproc: names within
    one ZeroMQ context. shm: lines on tcp, and for each slice also a name in shared memory.
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


def _check_tcp(endpoint: str, address: str, *, to_bind: bool = False) -> None:
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
        # Only digits and dots, or brackets: a mistyped address, not a name.
        numeric = host.startswith("[") or not re.search(r"[^\d.]", host)
        if host != "*" and (numeric or not _HOST_NAME.fullmatch(host)):
            raise ConfigError(f"host of endpoint {endpoint!r} was {host!r}, expected an address or a name") from None
        unspecified = host == "*"
    if unspecified and not to_bind:
        raise ConfigError(
            f"host of endpoint {endpoint!r} was {host!r}, expected the address that subscribers connect to; "
            "set `bind` to listen on another"
        )


def _check_udp(endpoint: str, address: str) -> None:
    host, _, port = address.rpartition(":")
    try:
        group = IPv4Address(host)
    except ValueError:
        raise ConfigError(f"endpoint was {endpoint!r}, expected udp://GROUP:PORT with an IPv4 address") from None
    if not group.is_multicast:
        raise ConfigError(f"group of endpoint {endpoint!r} was {host}, expected 224.0.0.0 to 239.255.255.255")
    if not port.isascii() or not port.isdigit() or not 1 <= int(port) <= 65_535:
        raise ConfigError(f"port of endpoint {endpoint!r} was {port!r}, expected 1 to 65535")


class Group(NamedTuple):
    """A multicast group and its port."""

    address: IPv4Address
    port: int


def groups_of(endpoint: str, channels: int) -> list[Group]:
    """Return the groups of a multicast line: that of its endpoint, and with channels also one for each.

    Channel `n` has the endpoint's address plus `n`, and the endpoint's own group carries only heartbeats. Raises
    ConfigError if the last address would not be multicast.
    """
    host, _, port = endpoint.removeprefix(f"{MULTICAST}://").rpartition(":")
    first, last = IPv4Address(host), channels if channels > 1 else 0
    if int(first) + last > int(_LAST_GROUP):
        raise ConfigError(f"endpoint was {endpoint!r} with {channels} channels, expected groups up to {_LAST_GROUP}")
    return [Group(first + number, int(port)) for number in range(last + 1)]


def _free_ports(count: int) -> list[int]:
    ports: list[int] = []
    for _ in range(_PORTS):
        port = _FIRST_PORT + _turn()
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe, suppress(OSError):
            probe.bind((LOOPBACK, port))
            ports += [port] if port not in ports else []
        if len(ports) == count:
            return ports
    raise EndpointError(
        errno.EADDRINUSE, f"{count} free ports of {LOOPBACK} were needed, {len(ports)} of {_PORTS} are free"
    )


def _turn() -> int:
    """Return a number below `_PORTS` that no other process of this user has now; if that fails, a random one.

    A file holds the last number as 8 bytes. The first is random, so that other users and containers start elsewhere.
    """
    with suppress(OSError), open(_turns_path(), "r+b", buffering=0, opener=_open_turns) as file:
        _lock(file)
        last = file.read(8)
        turn = (int.from_bytes(last, "little") + 1) % _PORTS if last else secrets.randbelow(_PORTS)
        file.seek(0)
        file.write(turn.to_bytes(8, "little"))
        return turn
    return secrets.randbelow(_PORTS)


def _turns_path() -> Path:
    return user_cache() / "ports"


def _lock(file: IO[bytes]) -> None:
    """Lock a file. Raises BlockingIOError if its holder seems to be stopped."""
    for _ in range(_LOCK_TRIES):
        with suppress(BlockingIOError):
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        time.sleep(_LOCK_TRY_S)
    raise BlockingIOError


def _open_turns(path: str, flags: int) -> int:
    user_cache().mkdir(parents=True, exist_ok=True)
    return os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW, 0o600)


def _private_directory() -> str:
    directory = tempfile.mkdtemp(prefix="blackbox-")
    atexit.register(_remove_directory, directory, os.getpid())
    return directory


def _remove_directory(directory: str, owner: int) -> None:
    if os.getpid() == owner:  # a forked child inherits the exit handlers
        shutil.rmtree(directory, ignore_errors=True)
