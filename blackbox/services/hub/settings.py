"""The settings of a hub: `hub.toml`."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Literal, Self

import msgspec

from blackbox.archive.maintain.retention import EVERYTHING, Retention
from blackbox.errors import ConfigError
from blackbox.feed.feed import Feed
from blackbox.feed.security import path_in
from blackbox.feed.toml import check_types, from_document
from blackbox.regular_file import read_regular
from blackbox.services.hub.pair.protocol import Pair
from blackbox.services.hub.sites.discovery import Join

_MOST_BYTES = 1 << 20


class PeerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Hub of another site. Its feed is relayed here while a subscriber here wants it."""

    feed: str
    """The feed file of that hub, as its own site has it."""
    here: str
    """The same feed with endpoints of this host, for subscribers and clients of this site."""


class HubSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a hub. Paths in the file are relative to it."""

    feed: str
    """Feed file, with the endpoints of the hub (`hub`) and of its archive (the first of `archives`)."""

    directory: str
    """Directory of everything that is stored: the feed's days. No default."""

    fsync: Literal["interval", "block"] = "interval"
    """Times at which days are synced: at intervals, or after each block. Default: `interval`.

    A put that must be synced before its answer is synced at once."""

    fsync_interval_ns: int = 1_000_000_000
    """Time between two syncs of the days. Unit: ns. Default: 1 s."""

    remember_puts: int = 100_000
    """Number of remembered answers to requests of all clients, up to 256 MiB. Default: 100,000."""

    remember_ids: int = 1_000_000
    """Maximum number of remembered ids, the newest ones, while their days are kept. A put with a remembered id is not
    stored again. Default: 1,000,000."""

    most_clients: int = 100_000
    """Maximum number of known clients. A new one replaces the least recently active one. Default: 100,000."""

    retention: Retention = EVERYTHING
    """Limits of the feed's days: `days` and `bytes`; `most_days` and `most_bytes` if durable clients still need more;
    `messages_per_topic` and `only_wanted` drop messages from these. Default: all days and messages are kept."""

    peers: tuple[PeerSettings, ...] = ()
    """Hubs of other sites. Default: none."""

    join: Join | None = None
    """Settings for finding hubs of other sites that `peers` does not name. Default: none are found."""

    pair: Pair | None = None
    """Settings as a hub of a pair. Default: it is the feed's only hub."""

    def __post_init__(self) -> None:
        """Check types; ConfigError names the setting and its value."""
        check_types(self)
        try:
            self.retention.check()
        except ValueError as error:
            raise ConfigError(f"retention: {error}") from None

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a hub file. Raises ConfigError if it cannot be read, is not TOML, or a setting is wrong."""
        try:
            settings = from_document(tomllib.loads(read_regular(path, _MOST_BYTES).decode()), cls)
        except OSError as error:
            raise ConfigError(f"hub file {os.fspath(path)!r} cannot be read: {error.strerror}") from error
        except ConfigError as error:
            raise ConfigError(f"{os.fspath(path)}: {error}") from None
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{os.fspath(path)} is not TOML: {error}") from error
        there = Path(path).parent
        peers = tuple(PeerSettings(feed=path_in(there, p.feed), here=path_in(there, p.here)) for p in settings.peers)
        paths = {name: path_in(there, getattr(settings, name)) for name in ("feed", "directory")}
        join = None if settings.join is None else settings.join.in_directory(there)
        return msgspec.structs.replace(settings, **paths, peers=peers, join=join)


def feed_of_hub(feed: Feed | str | os.PathLike[str]) -> Feed:
    """Return a feed that has a hub, or the feed of a hub file. Raises ConfigError if it lacks hub or archives."""
    if not isinstance(feed, Feed):
        feed = Feed.load(HubSettings.load(feed).feed)
    for name in ("hub", "archives"):
        if not getattr(feed, name):
            raise ConfigError(f"feed {feed.name!r} had no {name}, expected an endpoint such as tcp://host:5600")
    return feed
