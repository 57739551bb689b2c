"""`blackbox bridge`: carry a feed over to other systems."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated
from urllib.parse import urlsplit

import typer

from blackbox.cli.ui.feeds import FeedOption, feed_text, load_feed
from blackbox.cli.ui.status import exit_statuses
from blackbox.cli.ui.terminal import say
from blackbox.errors import ConfigError
from blackbox.feed.feed import Feed


def bridge(
    url: Annotated[
        str, typer.Argument(metavar="URL", help="ws://HOST:PORT, where to serve it; or redis://HOST:PORT/DATABASE.")
    ],
    prefix: Annotated[str, typer.Argument(metavar="PREFIX", help="To Redis: topics that start with this.")] = "",
    feed: FeedOption = None,
    origin: Annotated[
        list[str] | None,
        typer.Option("--origin", metavar="ORIGIN", help="Pages that may connect to ws://, e.g. https://desk.example."),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Messages that wait for a client of ws:// before only the newest of each topic do. Default: 10,000.",
            show_default=False,
        ),
    ] = None,
    stream: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="What names of streams begin with. Default: the feed's.", show_default=False),
    ] = None,
    keep: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="About how many entries each stream keeps. Default: all.", show_default=False
        ),
    ] = None,
) -> None:
    """Carry a feed over: to browsers, by JSON over WebSocket; or to streams of a Redis, each message once.

    Browsers ask for prefixes, and what nobody asks for is not subscribed to. Whoever can connect may read all that this
    process may; without --origin any page may. To Redis a bridge goes on from the last entry when it is started again,
    if the feed has archives. Ends at Ctrl-C or SIGTERM.

    For example:

    blackbox bridge ws://127.0.0.1:8080 --feed feed.toml

    blackbox bridge redis://127.0.0.1:6379/0 AAPL. --feed feed.toml --keep 1000000
    """
    with exit_statuses():
        parts = urlsplit(url)
        try:
            if parts.scheme == "ws":
                _check_unused(url, {"PREFIX": prefix, "--stream": stream, "--keep": keep})
                _serve_browsers(load_feed(feed), url, origin, limit)
            elif parts.scheme == "redis":
                _check_unused(url, {"--origin": origin, "--limit": limit})
                _carry_to_redis(load_feed(feed), url, prefix, stream, keep)
            else:
                raise ConfigError(f"URL was {url!r}, expected ws://HOST:PORT or redis://HOST:PORT/DATABASE")
        except ImportError as error:
            raise ConfigError(str(error)) from error


def _check_unused(url: str, options: dict[str, object]) -> None:
    for name, value in options.items():
        if value:
            raise ConfigError(f"{name} was {value!r}, expected none with {url}")


def _serve_browsers(feed: Feed, url: str, origins: Sequence[str] | None, limit: int | None) -> None:
    from blackbox.bridge.websocket import WebSocketBridge
    from blackbox.cli.ui.event_loop import run_in_loop

    host, port = _address(url)
    settings = {} if limit is None else {"limit": limit}
    serving = WebSocketBridge(feed, host, port, origins=origins, **settings)
    try:
        run_in_loop(serving.serve(lambda: say(f"{feed_text(feed)} is served at ws://{host}:{serving.port}")))
    finally:
        done = serving.statistics()
        say(f"{done.sent} messages sent, {done.passed_over} passed over, {done.refused} clients refused")


def _carry_to_redis(feed: Feed, url: str, prefix: str, stream: str | None, keep: int | None) -> None:
    from blackbox.bridge.redis_streams import RedisStreams

    with RedisStreams(feed, url, prefix.encode(), stream=stream, keep=keep) as carrying:
        say(f"{feed_text(feed)} is carried to {url}")
        try:
            carrying.run()
        finally:
            done = carrying.statistics()
            say(f"{done.added} messages added, {done.known} known before, {done.missing} missing")
    raise KeyboardInterrupt  # it was: whatever else ends it is an error


def _address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = None
    if port is None or not parts.hostname or parts.path.strip("/"):
        raise ConfigError(f"URL was {url!r}, expected ws://HOST:PORT")
    return parts.hostname, port
