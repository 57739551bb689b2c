"""Keys of publishers, subscribers and relays, and feeds that use them."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec

from blackbox import Feed
from blackbox.feed.security import Security
from blackbox.transport.security.curve import make_pair


class Keyring:
    """A directory of keys, and for each name a directory of the keys it accepts."""

    def __init__(self, directory: Path, *names: str) -> None:
        self.directory = directory
        self.public: dict[str, str] = {}
        for name in names:
            self.public[name], _, _ = make_pair(directory / "keys", name)
            (directory / f"allowed-by-{name}").mkdir()

    def path(self, name: str, suffix: str = "key") -> Path:
        return self.directory / "keys" / f"{name}.{suffix}"

    def allow(self, by: str, *names: str) -> None:
        for name in names:
            shutil.copy(self.path(name), self.directory / f"allowed-by-{by}")

    def feed(self, feed: Feed, me: str, *servers: str, archives: tuple[str, ...] = ()) -> Feed:
        """Return the feed for `me`, who connects to `servers`."""
        security = Security(
            key=str(self.path(me, "key_secret")),
            server_keys=tuple(str(self.path(name)) for name in servers),
            archive_keys=tuple(str(self.path(name)) for name in archives),
            allowed_keys=str(self.directory / f"allowed-by-{me}"),
        )
        return msgspec.structs.replace(feed, security=security)
