"""`blackbox bridge`: serve a feed to other systems."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

import typer

from blackbox.cli.ui.feeds import FeedOption, feed_text, load_feed
from blackbox.cli.ui.status import exit_statuses
from blackbox.cli.ui.terminal import say
from blackbox.errors import ConfigError


def bridge(
    url: Annotated[str, typer.Argument(metavar="URL", help="Where to serve it: ws://HOST:PORT.")],
    feed: FeedOption = None,
    origin: Annotated[
        list[str] | None,
        typer.Option("--origin", metavar="ORIGIN", help="Pages that may connect, e.g. https://desk.example.com."),
    ] = None,
    limit: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, help="Messages that wait for a client before only the newest of each topic do."
        ),
    ] = 10_000,
) -> None:
    """Serve a feed to browsers: JSON over WebSocket, each client the prefixes that it asks for.

    What nobody asks for is not subscribed to. Whoever can connect may read all that this process may; without --origin
    any page may. A client that is too slow gets the newest of each topic, and is told how many it was not sent. Ends at
    Ctrl-C or SIGTERM.

    For example:

    blackbox bridge ws://127.0.0.1:8080 --feed feed.toml

    blackbox bridge ws://0.0.0.0:8080 --feed feed.toml --origin https://desk.example.com
    """
    with exit_statuses():
        try:
            from blackbox.bridge.websocket import WebSocketBridge
        except ImportError as error:
            raise ConfigError(str(error)) from error
        from blackbox.cli.ui.event_loop import run_in_loop

        host, port = _address(url)
        serving = WebSocketBridge(load_feed(feed), host, port, origins=origin, limit=limit)
        try:
            run_in_loop(
                serving.serve(lambda: say(f"{feed_text(serving.feed)} is served at ws://{host}:{serving.port}"))
            )
        finally:
            done = serving.statistics()
            say(f"{done.sent} messages sent, {done.passed_over} passed over, {done.refused} clients refused")


def _address(url: str) -> tuple[str, int]:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        port = None
    if port is None or parts.scheme != "ws" or not parts.hostname or parts.path.strip("/"):
        raise ConfigError(f"URL was {url!r}, expected ws://HOST:PORT")
    return parts.hostname, port
