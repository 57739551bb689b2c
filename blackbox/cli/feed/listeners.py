"""Find the process of this host that listens at an endpoint, without binding it: its publisher may start meanwhile."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Final, NamedTuple

from blackbox.feed.endpoint import MULTICAST, transport_of

_PROC: Final = Path("/proc")
_LISTENS: Final = "0A"
_UNIX_LISTENS: Final = 0x10000
_ANY: Final = "*"


class Use(NamedTuple):
    """The state of an endpoint on this host."""

    text: str
    """Text: `free`, `in use by NAME (PID 17)`, or why no process of this host can listen there."""
    is_used: bool = False
    pid: int | None = None
    """The process that listens; None: none, or not visible to this user."""


def use_of(endpoint: str, proc: Path = _PROC) -> Use:
    """Return which process listens at an endpoint."""
    transport = transport_of(endpoint)
    address = endpoint.removeprefix(f"{transport}://")
    if transport == "tcp":
        host, _, port = address.rpartition(":")
        return _tcp_use(host.strip("[]"), int(port), proc)
    if transport == "ipc":
        if not address.startswith("@") and not Path(address).parent.is_dir():
            return Use(f"{Path(address).parent} is not a directory")
        return _use(_unix_inodes(address, proc), proc)
    if transport == "shm":
        return _use(_unix_inodes(f"@blackbox/{os.geteuid()}/{address}", proc), proc)
    if transport == MULTICAST:
        joined = _joined_groups(proc)
        return Use("joined by a process of this host" if address.rpartition(":")[0] in joined else "not joined here")
    return Use("within one process")


def _joined_groups(proc: Path) -> set[str]:
    """Return the multicast groups joined on this host: the lines of `/proc/net/igmp` that begin with hexadecimals."""
    found = set[str]()
    with suppress(OSError):
        for line in (proc / "net" / "igmp").read_text().splitlines():
            first = line.split()[0] if line.startswith("\t") and line.strip() else ""
            if len(first) == 8:
                found.add(str(IPv4Address(bytes.fromhex(first)[::-1])))
    return found


def _tcp_use(host: str, port: int, proc: Path) -> Use:
    try:
        addresses = [] if host == _ANY else _addresses(host)
    except (OSError, UnicodeError):
        return Use(f"{host} is not a known host name")
    if addresses and not any(_is_here(address) for address in addresses):
        return Use("on another host")
    wanted = {ip_address(address) for address in addresses if not ip_address(address).is_unspecified}
    inodes = {
        inode
        for address, at, inode in _tcp_listeners(proc)
        if at == port and (not wanted or address.is_unspecified or address in wanted)
    }
    return _use(inodes, proc)


def _use(inodes: set[int], proc: Path) -> Use:
    if not inodes:
        return Use("free")
    for folder in proc.glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or belongs to another user
            for fd in (folder / "fd").iterdir():
                with suppress(OSError, ValueError):
                    if int(str(fd.readlink()).removeprefix("socket:[").removesuffix("]")) in inodes:
                        name = (folder / "comm").read_text().strip()
                        return Use(f"in use by {name} (PID {folder.name})", True, int(folder.name))
    return Use("in use by another user's process", True)


def _addresses(host: str) -> list[str]:
    """Return the addresses of a host name. Raises OSError."""
    return [str(found[4][0]).partition("%")[0] for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]


def _is_here(address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))  # any port: only the address is tested
    except OSError:
        return False
    return True


def _tcp_listeners(proc: Path) -> Iterator[tuple[IPv4Address | IPv6Address, int, int]]:
    """Yield address, port and inode of each listening socket."""
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in (proc / "net" / name).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENS:
                    address, _, port = fields[1].rpartition(":")
                    yield _address_of(address), int(port, 16), int(fields[9])


def _address_of(text: str) -> IPv4Address | IPv6Address:
    """Parse an address in /proc: 32-bit words in native byte order."""
    words = [bytes.fromhex(text[place : place + 8])[::-1] for place in range(0, len(text), 8)]
    found = ip_address(b"".join(words))
    return found.ipv4_mapped or found if isinstance(found, IPv6Address) else found


def _unix_sockets(proc: Path) -> Iterator[tuple[str, bool, int]]:
    """Yield path, True if it listens, and inode of each Unix socket with a path."""
    with suppress(OSError):
        for line in (proc / "net" / "unix").read_text(errors="surrogateescape").splitlines()[1:]:
            fields = line.split(maxsplit=7)
            if len(fields) == 8:
                yield fields[7], bool(int(fields[3], 16) & _UNIX_LISTENS), int(fields[6])


def _unix_inodes(path: str, proc: Path) -> set[int]:
    return {inode for at, listens, inode in _unix_sockets(proc) if listens and at == path}
