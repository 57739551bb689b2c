"""The keys of a feed's `[security]` table, and a warning if a feed has none."""

import logging
import os
from ipaddress import ip_address
from pathlib import Path

import msgspec

from blackbox.errors import ConfigError
from blackbox.feed.endpoint import MULTICAST, transport_of
from blackbox.feed.toml import check_types

log = logging.getLogger("blackbox")

_warned: set[str] = set()
"""Names of feeds already reported as open."""


class Security(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Keys of both ends of a feed's tcp connections, which are then encrypted (CURVE).

    Other transports are not encrypted; `group_key` authenticates multicast. Each setting is a path: in a feed file
    relative to the file, else to the working directory; `~` is the user's home. The files are read when something binds
    or connects. `blackbox keys new` makes them.
    """

    key: str
    """The secret key file of the process that loads this feed file, such as `keys/desk.key_secret`. No default.

    It must be readable by its owner only."""

    server_keys: tuple[str, ...] = ()
    """Public key files of the publishers to connect to: one for both lines, or one each for A and B. Default: none.

    Applies to subscribers, recorders and the upstream side of relays."""

    archive_keys: tuple[str, ...] = ()
    """Public key files of the feed's archives: one for all, or one each. Default: the first of `server_keys`.

    A hub serves as an archive too: clients use the first key for it, and the second for a backup."""

    allowed_keys: str = ""
    """Directory of public key files (`*.key`) of peers that may connect to what this side binds. Default: none.

    Applies to publishers, archives and the downstream side of relays. Read again on each connection attempt. A slice
    can have its own directory."""

    group_key: str = ""
    """Key file that authenticates the datagrams of multicast lines, the same on all sides. Default: none.

    Required with an endpoint on udp. Each holder can read and forge datagrams, which are not encrypted.
    `blackbox keys group` makes one."""

    def __post_init__(self) -> None:
        """Check each setting on its own. Raises ConfigError."""
        check_types(self)
        if not self.key:
            raise ConfigError("key was empty, expected the path of a secret key file")
        for name in ("server_keys", "archive_keys"):
            if "" in getattr(self, name):
                raise ConfigError(f"{name} had an empty path, expected paths of public key files")

    def in_directory(self, directory: Path) -> "Security":
        """Return a copy whose paths do not depend on the working directory."""
        return Security(
            key=path_in(directory, self.key),
            server_keys=tuple(path_in(directory, path) for path in self.server_keys),
            archive_keys=tuple(path_in(directory, path) for path in self.archive_keys),
            allowed_keys=path_in(directory, self.allowed_keys),
            group_key=path_in(directory, self.group_key),
        )

    def key_of_line(self, line: int) -> str:
        """Return the public key file of a line's publisher. Raises ConfigError if it is missing."""
        return _one_of("server_keys", self.server_keys, line, "line")

    def key_of_archive(self, place: int) -> str:
        """Return the public key file of the archive at index `place` of `Feed.archives`.

        Raises ConfigError if it is missing.
        """
        if not self.archive_keys:
            return _one_of("server_keys", self.server_keys[:1], place, "archive")
        return _one_of("archive_keys", self.archive_keys, place, "archive")


def path_in(directory: Path, path: str) -> str:
    """Return the absolute path of a file in `directory`; `~` is the user's home, "" stays ""."""
    home = os.path.expanduser(path)  # noqa: PTH111 - Path's own fails for an unknown user
    return str(directory.absolute() / home) if path else ""


def _one_of(name: str, paths: tuple[str, ...], place: int, each: str) -> str:
    if len(paths) > 1 and place >= len(paths):
        raise ConfigError(f"security.{name} were {len(paths)}, expected one for all or one for each {each}")
    if not paths:
        raise ConfigError(f"security.{name} were missing, expected the public key file of the peer")
    return paths[place if len(paths) > 1 else 0]


def warn_if_open(name: str, endpoint: str) -> None:
    """Warn once per feed about an endpoint without security that other hosts may reach."""
    if name in _warned or transport_of(endpoint) not in ("tcp", MULTICAST) or is_loopback(endpoint):
        return
    _warned.add(name)
    log.warning(
        "feed %r is open: %s is neither encrypted nor authenticated; [security] in the feed file adds both",
        name,
        endpoint,
    )


def is_loopback(endpoint: str) -> bool:
    """Return True if only this host can reach a tcp endpoint, or it connects to itself there."""
    host = endpoint.rpartition(";")[2].removeprefix("tcp://").rpartition(":")[0].strip("[]")
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
