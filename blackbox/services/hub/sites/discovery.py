"""The settings `[join]` of `hub.toml`, by which `sites` finds the hubs of other sites."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Self

import msgspec

from blackbox.errors import ConfigError
from blackbox.feed.endpoint import LOOPBACK, check_endpoint, check_service
from blackbox.feed.feed import Feed
from blackbox.feed.security import path_in
from blackbox.feed.toml import check_ranges, check_types

_RANGES: Final = {"every_ns": (10**7, 3_600 * 10**9)}
_Port = Annotated[int, msgspec.Meta(ge=1, le=65_535)]


class Join(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Hubs to ask for all others, and endpoints of this host for their feeds."""

    ask: tuple[str, ...] = ()
    """Hubs of other sites, `tcp://HOST:PORT`. One is enough, as it names all others. The hub's own endpoint is ignored,
    so all sites may have the same list. Default: none, and only hubs that ask this one are found."""

    ask_keys: tuple[str, ...] = ()
    """Public key files of those hubs: one for all, or one each. Needed if the feed file has `[security]`."""

    directory: str
    """Directory of the feed files of found sites. Readers here load `NAME.toml`. The files stay: the next hub starts
    with them and uses the same ports. No default."""

    ports: tuple[_Port, _Port]
    """First and last port of this host for their feeds, with one port for each slice of each feed. No default."""

    host: str = ""
    """Address of this host at which readers reach those ports. Default: that of the first slice's line A."""

    every_ns: int = 10_000_000_000
    """Time between two questions to the same hub. Unit: ns. Default: 10 s; 10 ms to 1 hour."""

    def __post_init__(self) -> None:
        """Check types and ranges; ConfigError names the setting and its value."""
        check_types(self)
        check_ranges(self, _RANGES)
        for endpoint in self.ask:
            check_service(endpoint, "ask")
        if not self.directory:
            raise ConfigError("directory was empty, expected the path of a directory for feed files")
        if self.ports[0] > self.ports[1]:
            raise ConfigError(f"ports were {list(self.ports)}, expected a first and a last port that is not below it")
        if self.ask_keys and len(self.ask_keys) not in (1, len(self.ask)):
            raise ConfigError(f"ask_keys were {len(self.ask_keys)}, expected one for all or one for each of ask")
        if self.host:
            check_endpoint(f"tcp://{self.host}:{self.ports[0]}")

    def in_directory(self, directory: Path) -> Self:
        """Return a copy whose paths do not depend on the working directory."""
        keys = tuple(path_in(directory, path) for path in self.ask_keys)
        return msgspec.structs.replace(self, directory=path_in(directory, self.directory), ask_keys=keys)

    def host_of(self, feed: Feed) -> str:
        """Return the address at which readers of a hub's feed reach this host."""
        transport, _, address = feed.slices[0].lines[0].partition("://")
        return self.host or (address.rpartition(":")[0] if transport == "tcp" else LOOPBACK)

    def key_of(self, place: int) -> str:
        """Return the public key file of a hub that is asked; empty if none was given."""
        return self.ask_keys[place % len(self.ask_keys)] if self.ask_keys else ""
