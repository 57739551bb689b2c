"""`blackbox repair`: make a day's manifest anew."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from blackbox.cli.ui.feeds import load_feed
from blackbox.cli.ui.status import exit_statuses, warn
from blackbox.cli.ui.terminal import say
from blackbox.report.numbers import counted


def repair(
    day: Annotated[Path, typer.Argument(metavar="DAY", help="The day's directory, named by its date.")],
    feed: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="The feed file (TOML) that was recorded. Default: what the feed's nearest other day says.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write the `manifest.json` of a day whose own is damaged or missing. No segment is changed.

    Key bytes, schema and slices are read from the segments, and when the day was begun is found by their checksums. The
    feed's other settings are in no segment: they come from --feed, or from another day of the feed. A feed of one slice
    can do without. Every topic must be in the slice where these settings put it. What could not be known is said.

    The damaged file stays, as `manifest.json.damaged`. Run `blackbox verify` afterwards.

    For example:

    blackbox repair recordings/nasdaq/2026-11-20

    blackbox repair recordings/nasdaq/2026-11-20 --feed configs/nasdaq.toml
    """
    with exit_statuses():
        from blackbox.archive.manifest_repair import repair as repair_day

        done = repair_day(day.resolve(), None if feed is None else load_feed(feed))
        say(f"{day}: manifest.json was made anew for {counted(done.messages, 'message')}, settings from {done.source}")
        if done.kept is not None:
            say(f"the damaged one is {done.kept.name}")
        for unknown in done.unknown:
            warn(f"not known: {unknown}")
