"""`blackbox serve`: answer readers of recorded blocks."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Annotated, Final

import typer

from blackbox.cli.ui.feeds import FeedOption, feed_text, load_feed
from blackbox.cli.ui.monitored import MetricsOption, monitored
from blackbox.cli.ui.options import JsonOption
from blackbox.cli.ui.status import exit_statuses
from blackbox.cli.ui.terminal import print_json, say
from blackbox.errors import JournalError

_LOOK_EVERY_S: Final = 0.5


def serve(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory of all recordings; DIR/FEED is served.")],
    feed: FeedOption = None,
    endpoint: Annotated[
        str | None,
        typer.Option(metavar="ENDPOINT", help="Endpoint to answer at. Default: the first of the feed's `archives`."),
    ] = None,
    metrics: MetricsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Answer readers of recorded blocks, as `record --serve` does while it records.

    Changes nothing; a recorder may write to DIR at the same time. Every process that reaches the endpoint can read all
    recordings of the feed, unless its `security` requires keys. Ends at Ctrl-C or SIGTERM.

    JSON is printed at the end: the archive's statistics.

    For example:

    blackbox serve recordings --endpoint tcp://127.0.0.1:17100

    blackbox serve /data/recordings --feed configs/nasdaq.toml
    """
    with exit_statuses():
        from blackbox.archive.serve.server import archive_of

        shape = load_feed(feed)
        place = directory / shape.name
        if not place.is_dir():
            raise JournalError(f"{place} was not a directory, expected the recordings of feed {shape.name!r}")
        archive = archive_of(place, shape, endpoint or True)
        with monitored(metrics, archive), archive:
            try:
                say(f"serving {place} of {feed_text(shape)} at {archive.endpoints[0]}")
                until = threading.Event()
                while not until.wait(_LOOK_EVERY_S):
                    pass  # a signal just before an unlimited wait would not end it
            finally:
                now = archive.statistics()
                if as_json:
                    print_json(now)
                say(f"{now.answered} requests answered, {now.refused} refused, {now.dropped} dropped")
