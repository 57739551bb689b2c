"""`blackbox hub`: take what clients put, store it once, and publish it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from blackbox.cli.ui.feeds import feed_text
from blackbox.cli.ui.status import exit_statuses
from blackbox.cli.ui.terminal import say


def hub(
    file: Annotated[Path, typer.Argument(metavar="HUB.toml", help="Hub file: the feed file, and where all is kept.")],
    alone: Annotated[
        bool,
        typer.Option("--alone", help="Of two hubs: lead without having heard from the other one, which has ended."),
    ] = False,
) -> None:
    """Run the hub of a feed: it takes what clients put, numbers it, keeps it, answers, and publishes it.

    It is the publisher of its feed, and answers at the first of the feed's archives. One that was killed goes on: what
    it had answered is published once. Whoever can reach its endpoint may put, where the feed's `security` does not ask
    for keys. Ends at Ctrl-C or SIGTERM, with status 1 when the disk refuses.

    With a table `pair` it is one of two: it stands by, or leads. With --alone it leads at once: what only the other one
    has is lost, and that must not run as the active one.

    For example:

    blackbox hub hub.toml

    blackbox hub /etc/blackbox/orders-hub.toml
    """
    with exit_statuses():
        from blackbox.hub.load import load_hub

        running = load_hub(file, alone=alone)
        with running:
            say(f"hub of {feed_text(running.feed)}: takes puts at {running.endpoint}")
            try:
                running.run()
            finally:
                done = running.statistics()
                say(
                    f"{done.stored} puts stored, {done.known} known before, {done.refused} refused, "
                    f"{done.unread} answers unread"
                )
