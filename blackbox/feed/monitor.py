"""The `[monitor]` table of a feed: where its processes send alerts, and which of them tools watch."""

import re
from typing import Annotated, Final, NamedTuple

import msgspec

from blackbox.errors import ConfigError
from blackbox.feed.endpoint import check_service
from blackbox.feed.toml import check_ranges, check_types

MOST_WATCHED: Final = 256
_PAGE: Final = re.compile(r"(?:([^=/\s]{1,64})=)?(http://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):(\d{1,5})(/\S*)?)")


class Monitor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings for `blackbox console`, `top` and `dashboard`, and for the alerts of the feed's processes."""

    console: str = ""
    """Endpoint of the operator console, `tcp://HOST:PORT` or `ipc://PATH`. Default: none.

    Subscribers and recorders send their alerts there, unless their `SlowPolicy` names another one."""

    watch: Annotated[tuple[str, ...], msgspec.Meta(max_length=MOST_WATCHED)] = ()
    """Status pages of the feed's processes, such as `http://10.0.0.5:9300`. Default: none; at most 256.

    A process serves one with `--metrics`. With a name, `recorder=http://10.0.0.5:9300`, tools can name a process that
    they never reached."""

    max_peers: int = 1_000
    """Connections to one publisher, relay or hub above which a crowd of peers is reported. Unit: connections.

    Connections to several slices count several times. Default: 1,000."""

    def __post_init__(self) -> None:
        """Check all settings. Raises ConfigError."""
        check_types(self)
        check_ranges(self, {"max_peers": (1, 2**31 - 1)})
        if self.console:
            check_service(self.console, "console")
        for url in self.watch:
            check_watched(url)


class StatusPage(NamedTuple):
    """Address of the status of a process."""

    url: str
    name: str
    """Name of the process; empty: none is given."""
    host: str
    port: int
    path: str


def check_watched(text: str) -> StatusPage:
    """Return the status page at a URL, or `NAME=URL`. Raises ConfigError naming it."""
    found = _PAGE.fullmatch(text)
    if found is None or not 0 < int(found[4]) < 65_536:
        raise ConfigError(f"URL to watch was {text!r}, expected http://HOST:PORT or NAME=http://HOST:PORT")
    path = found[5] or "/"
    return StatusPage(found[2], found[1] or "", found[3].strip("[]"), int(found[4]), "/status" if path == "/" else path)
