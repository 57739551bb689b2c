"""`blackbox serve`: answer who asks for recorded blocks, of days that need not be recorded any more."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Annotated

import typer

from blackbox.cli.ui.feeds import FeedOption, feed_text, load_feed
from blackbox.cli.ui.status import exit_statuses
from blackbox.cli.ui.terminal import say
from blackbox.errors import JournalError


def serve(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Directory of all recordings; those in DIR/FEED are served.")
    ],
    feed: FeedOption = None,
    endpoint: Annotated[
        str | None,
        typer.Option(metavar="ENDPOINT", help="Where to answer. Default: the first of the feed's `archives`."),
    ] = None,
) -> None:
    """Answer readers of recorded blocks, as `record --serve` does for the feed that it records.

    Changes nothing, and takes no part in recording: a recorder may write there at the same time. Whoever can reach the
    endpoint may read all recordings of the feed, where its `security` does not ask for keys. Ends at Ctrl-C or SIGTERM.

    For example:

    blackbox serve recordings --endpoint tcp://127.0.0.1:17100

    blackbox serve /data/recordings --feed configs/nasdaq.toml
    """
    with exit_statuses():
        from blackbox.archive.serve.server import archive_of

        shape = load_feed(feed)
        place = directory / shape.name
        if not place.is_dir():
            raise JournalError(f"{place} was no directory, expected the recordings of feed {shape.name!r}")
        with archive_of(place, shape, endpoint or True) as archive:
            say(f"serving {place} of {feed_text(shape)} at {archive.endpoints[0]}")
            try:
                threading.Event().wait()  # for Ctrl-C or SIGTERM
            finally:
                now = archive.statistics()
                say(f"{now.answered} requests answered, {now.refused} refused, {now.dropped} dropped")
