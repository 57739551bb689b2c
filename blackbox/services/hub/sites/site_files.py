"""Keep the feed files of found sites: one for the hub, and one for readers at its own site."""

from __future__ import annotations

import errno
import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from msgspec.structs import replace

from blackbox.errors import ConfigError
from blackbox.feed.feed import Feed
from blackbox.feed.security import Security
from blackbox.feed.toml import to_toml
from blackbox.services.hub.protocol import Site
from blackbox.services.hub.sites.discovery import Join
from blackbox.transport.security.curve import load_pair, load_public

_THERE: Final = "there"
_KEYS: Final = "keys"
_TITLE: Final = "# A site that a hub has found."
"""First line of the files written here; other files are not overwritten."""
_IN_USE: Final = errno.EADDRINUSE, errno.EACCES


class Feeds(NamedTuple):
    """The feed of another site."""

    there: Feed
    """The feed as its own site has it, with our key."""
    here: Feed
    """The feed with endpoints of this host, one line per slice, so that blocks cross once."""


def keys_of(feed: Feed) -> list[str]:
    """Return the public keys of a feed's publisher, as text: one, or one each for lines A and B; empty: no keys.

    Raises ConfigError naming the file that is wrong.
    """
    security = feed.security
    if security is None:
        return []
    if security.server_keys:
        return [load_public(path).decode() for path in security.server_keys]
    return [load_pair(security.key).public.decode()]


class SiteFiles:
    """The directory of `[join]`: `NAME.toml` for readers here, `there/NAME.toml`, `keys/NAME-0.key`, `keys/own.key`."""

    def __init__(self, own: Feed, join: Join) -> None:
        self._own, self._join, self._directory = own, join, Path(join.directory)

    def path(self, name: str) -> Path:
        """Return the file that readers of a site's feed load here."""
        return self._directory / f"{name}.toml"

    def load(self) -> list[Feeds]:
        """Return the feeds that are there already. Raises ConfigError naming a file that is damaged."""
        theirs = sorted((self._directory / _THERE).glob("*.toml"))
        return [Feeds(_load(path), _load(self.path(path.stem))) for path in theirs]

    def write(self, site: Site, feed: Feed) -> Feeds:
        """Write the files of a found site, and return their feeds. Ports stay if its number of slices does.

        Raises ConfigError if no ports are left, only one side has keys, or another file has the name; OSError.
        """
        path, path_there = self.path(feed.name), self._directory / _THERE / f"{feed.name}.toml"
        if path.exists() and not path.read_bytes().startswith(_TITLE.encode()):
            raise ConfigError(f"file {path} was there already, expected none, or one that begins with {_TITLE!r}")
        theirs, ours = self._security(feed.name, site.keys)
        there = replace(feed, security=theirs)
        endpoints = self._endpoints_before(feed) or self._free_endpoints(feed)
        slices = tuple(replace(part, endpoints=(each,)) for part, each in zip(feed.slices, endpoints, strict=True))
        found = Feeds(there, replace(feed, slices=slices, security=ours))
        path_there.unlink(missing_ok=True)  # a kill between the two files must not leave files that differ
        _write(path, f"{_TITLE}\n{to_toml(found.here)}")
        _write(path_there, f"{_TITLE}\n{to_toml(found.there)}")  # last: it marks the site as complete
        return found

    def _endpoints_before(self, feed: Feed) -> list[str]:
        """Return the endpoints that readers here may have loaded already."""
        with suppress(ConfigError):
            before = _load(self.path(feed.name)).slices
            if len(before) == len(feed.slices):
                return [part.endpoints[0] for part in before]
        return []

    def _free_endpoints(self, feed: Feed) -> list[str]:
        count, (first, last) = len(feed.slices), self._join.ports
        taken = {self._own.hub, *self._own.archives}
        for each in (self._own, *(feeds.here for feeds in self.load())):
            taken.update(endpoint for part in each.slices for endpoint in part.endpoints)
        host, found = self._join.host_of(self._own), list[str]()
        for port in range(first, last + 1):
            endpoint = f"tcp://{host}:{port}"
            if endpoint not in taken and len(found) < count and _is_free(host.strip("[]"), port):
                found.append(endpoint)
        if len(found) < count:
            raise ConfigError(
                f"ports {first} to {last} of {host} had {len(found)} free ones, expected {count} for the slices of "
                f"feed {feed.name!r}"
            )
        return found

    def _security(self, name: str, keys: list[str]) -> tuple[Security | None, Security | None]:
        """Return the security settings of the hub's connection, and those for readers here."""
        own = self._own.security
        if (own is not None) != bool(keys):
            ours, theirs = ("none", "some") if own is None else ("some", "none")
            raise ConfigError(f"feed {name!r} had {theirs} of the keys of [security], expected {ours} as here")
        if own is None:
            return None, None
        files = tuple(self._write_key(f"{name}-{place}", key) for place, key in enumerate(keys))
        here = self._write_key("own", load_pair(own.key).public.decode())
        return (
            Security(key=own.key, server_keys=files, group_key=own.group_key),
            Security(
                key=own.key,
                server_keys=(here,),
                archive_keys=files,
                allowed_keys=own.allowed_keys,
                group_key=own.group_key,
            ),
        )

    def _write_key(self, name: str, key: str) -> str:
        path = self._directory / _KEYS / f"{name}.key"
        _write(path, f'metadata\ncurve\n    public-key = "{key}"\n')
        load_public(str(path))  # checks it; its error names the fault
        return str(path.absolute())


def _load(path: Path) -> Feed:
    """Load a file that a hub wrote. Environment variables are for the hub's own feed."""
    return Feed.load(path, environment={})


def _write(path: Path, text: str) -> None:
    """Write a whole file or none, as a reader may load it at any time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".part")
    with beside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def _is_free(host: str, port: int) -> bool:
    """Return True if a port of this host is free. Raises ConfigError if the address is of another host."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        if isinstance(error, socket.gaierror) or error.errno not in _IN_USE:
            raise ConfigError(f"host was {host!r}, expected an address of this host: {error.strerror}") from error
        return False
    return True
