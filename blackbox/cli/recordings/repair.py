"""`blackbox repair`: rewrite a day's manifest."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from blackbox.cli.ui.feeds import load_feed
from blackbox.cli.ui.options import JsonOption
from blackbox.cli.ui.status import exit_statuses, warn
from blackbox.cli.ui.terminal import print_json, say
from blackbox.numbers import counted


def repair(
    recording: Annotated[Path, typer.Argument(metavar="RECORDING", help="The day's directory, named by its date.")],
    feed: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Feed file (TOML) that was recorded. Default: the settings of the feed's nearest other day.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write the `manifest.json` of a day again if it is damaged or missing. No segment is changed.

    Key bytes, schema and slices are read from the segments; their checksums give the time at which the day began. The
    feed's other settings come from --feed, or from another day of the feed; a feed of one slice needs neither. Every
    topic must be in the slice that these settings give it. Settings that remain unknown are listed.

    The damaged file is renamed to `manifest.json.damaged`. Run `blackbox verify` afterwards.

    JSON has `recording`, `messages`, `source` (of the settings), `kept` (the damaged file) and `unknown`.

    For example:

    blackbox repair recordings/nasdaq/2026-11-20

    blackbox repair recordings/nasdaq/2026-11-20 --feed configs/nasdaq.toml
    """
    with exit_statuses():
        from blackbox.archive.maintain.manifest_repair import repair as repair_day

        done = repair_day(recording.resolve(), None if feed is None else load_feed(feed))
        if as_json:
            print_json(
                {
                    "recording": str(recording),
                    "messages": done.messages,
                    "source": str(done.source),
                    "kept": None if done.kept is None else str(done.kept),
                    "unknown": list(done.unknown),
                }
            )
        say(f"{recording}: wrote manifest.json for {counted(done.messages, 'message')}, settings from {done.source}")
        if done.kept is not None:
            say(f"the damaged file is now {done.kept.name}")
        for unknown in done.unknown:
            warn(f"unknown: {unknown}")
