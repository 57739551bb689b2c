"""`blackbox client`: a client of a hub for programs in other languages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from blackbox.cli.hub.get import ClientName, KeepOption, PositionsOption
from blackbox.cli.ui.feeds import FeedOption, load_feed
from blackbox.cli.ui.status import exit_statuses
from blackbox.cli.ui.terminal import say


def client(
    endpoint: Annotated[
        str, typer.Argument(metavar="ENDPOINT", help="Endpoint to answer at: ipc, or tcp on a loopback address.")
    ],
    name: ClientName,
    feed: FeedOption = None,
    positions: PositionsOption = Path("positions"),
    keep: KeepOption = False,
    synced: Annotated[
        bool,
        typer.Option("--synced", help="Answer a put once it is on the hub's disk, not only in its page cache."),
    ] = False,
) -> None:
    """Run a client of a hub for programs in other languages, which send and receive JSON over a REQ or DEALER socket.

    `hub` in the docs describes the requests: put, get, subscribe, unsubscribe, commit. Every process that reaches the
    endpoint acts as this client. Ends at Ctrl-C or SIGTERM. Puts without an answer by then may be stored.

    For example:

    blackbox client tcp://127.0.0.1:17120 --name desk-1 --feed feed.toml

    blackbox client ipc:///run/desk-1 --name desk-1 --feed feed.toml --positions /var/lib/desk-1
    """
    with exit_statuses():
        from blackbox.cli.ui.event_loop import run_in_loop
        from blackbox.services.hub.client.async_client import AsyncHubClient
        from blackbox.services.hub.client.driven_client import DrivenClient

        known = load_feed(feed)
        driven = AsyncHubClient(known, name, positions, acknowledged="synced" if synced else "recorded", keep=keep)

        async def serve() -> None:
            async with driven:
                await DrivenClient(driven, endpoint).serve(lambda: say(f"{name} answers at {endpoint}"))

        run_in_loop(serve())
