"""Arguments of commands that watch: feeds, status pages, positions of consumers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from blackbox.cli.ui.feeds import load_feed
from blackbox.cli.ui.options import choice_of
from blackbox.errors import ConfigError

if TYPE_CHECKING:
    from blackbox.feed.feed import Feed
    from blackbox.services.monitor.watch.watcher import Watcher

FeedsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[FEED]...", help="Feed files. Default: the built-in feed `local`.", show_default=False),
]
WatchOption = Annotated[
    list[str] | None,
    choice_of(
        "--watch",
        "URL",
        "Status page of a process (`--metrics`), such as http://10.0.0.5:9300 or recorder=http://10.0.0.5:9300.",
        default="`watch` in the feed files",
    ),
]
WatchedPositions = Annotated[
    Path | None,
    typer.Option(
        "--positions", metavar="DIR", file_okay=False, help="Directory with the positions of named consumers."
    ),
]


def watcher_of(feeds: Sequence[str] | None, watch: Sequence[str] | None, positions: Path | None = None) -> Watcher:
    """Return a watcher. Raises ConfigError."""
    from blackbox.services.monitor.watch.watcher import Watcher

    found: list[Feed] = [load_feed(path) for path in feeds or ()]
    if not found and not watch:
        found = [load_feed(None)]
    if positions is not None and not positions.is_dir():
        raise ConfigError(f"positions {str(positions)!r} was no directory, expected the positions of consumers")
    return Watcher(found, watch or (), positions)
