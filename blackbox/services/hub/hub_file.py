"""Create the hub of a hub file."""

from __future__ import annotations

import os

import msgspec

from blackbox.errors import ConfigError
from blackbox.feed.feed import Feed
from blackbox.services.hub.pair.paired_hub import PairedHub
from blackbox.services.hub.server.hub import Hub
from blackbox.services.hub.settings import HubSettings


def load_hub(path: str | os.PathLike[str], *, alone: bool = False) -> Hub:
    """Return the hub of a hub file, a `PairedHub` if the file has a table `[pair]`. `alone`: see `PairedHub`.

    Raises ConfigError naming what is wrong in it or in its feed file.
    """
    settings = msgspec.structs.asdict(HubSettings.load(path))
    feed, directory, pair = Feed.load(settings.pop("feed")), settings.pop("directory"), settings.pop("pair")
    settings["peers"] = [
        (Feed.load(peer.feed, environment={}), Feed.load(peer.here, environment={})) for peer in settings["peers"]
    ]  # environment variables are for the hub's own feed
    settings["fsync_interval"] = settings.pop("fsync_interval_ns") / 1e9
    if pair is None and (alone or feed.hub_backup):
        what = "--alone was given" if alone else f"feed {feed.name!r} had a hub_backup"
        raise ConfigError(f"{os.fspath(path)} had no table [pair], expected one, as {what}")
    try:
        if pair is None:
            return Hub(feed, directory, **settings)
        return PairedHub(feed, directory, pair=pair, alone=alone, **settings)
    except ValueError as error:
        raise ConfigError(f"{os.fspath(path)}: {error}") from None
