"""`blackbox hub`: store the messages of clients once, and publish them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from blackbox.cli.ui.feeds import feed_text
from blackbox.cli.ui.monitored import MetricsOption, monitored
from blackbox.cli.ui.options import JsonOption
from blackbox.cli.ui.status import exit_statuses
from blackbox.cli.ui.terminal import print_json, say


def hub(
    file: Annotated[
        Path, typer.Argument(metavar="HUB.toml", help="Hub file: it names the feed file and the hub's directory.")
    ],
    alone: Annotated[
        bool,
        typer.Option("--alone", help="Hub of a pair: lead without contact to the other hub, which has ended."),
    ] = False,
    metrics: MetricsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run the hub of a feed: it stores and numbers the messages that clients put, acknowledges and publishes them.

    The hub publishes its feed, and answers at the first of the feed's archives. After a kill it continues, and
    publishes each acknowledged message once. Every process that reaches its endpoint can put messages, unless the
    feed's `security` requires keys. Ends at Ctrl-C or SIGTERM, with status 1 if the disk fails.

    A hub file with a table `pair` runs one of two hubs, which waits or leads. With --alone it leads at once: messages
    that only the other hub has are lost, and the other hub must not lead.

    JSON is printed at the end: the hub's statistics.

    For example:

    blackbox hub hub.toml

    blackbox hub /etc/blackbox/orders-hub.toml --json
    """
    with exit_statuses():
        from blackbox.services.hub.hub_file import load_hub

        running = load_hub(file, alone=alone)
        with monitored(metrics, running), running:
            try:
                say(f"hub of {feed_text(running.feed)}: takes puts at {running.endpoint}")
                running.run()
            finally:
                done = running.statistics()
                if as_json:
                    print_json(done)
                say(
                    f"{done.stored} puts stored, {done.known} known before, {done.refused} refused, "
                    f"{done.unread} answers unread"
                )
