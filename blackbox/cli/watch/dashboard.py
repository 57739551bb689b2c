"""`blackbox dashboard`: a page in the browser with feeds and processes while they run."""

from __future__ import annotations

from typing import Annotated

import typer

from blackbox.cli.ui.event_loop import run_in_loop
from blackbox.cli.ui.status import exit_statuses
from blackbox.cli.ui.terminal import say
from blackbox.cli.watch.watched import FeedsArgument, WatchedPositions, WatchOption, watcher_of
from blackbox.errors import BlackBoxError


def dashboard(
    feeds: FeedsArgument = None,
    listen: Annotated[
        str, typer.Option("--listen", metavar="ADDRESS", help="Address of the page, HOST:PORT; port 0: a free one.")
    ] = "127.0.0.1:9500",
    watch: WatchOption = None,
    positions: WatchedPositions = None,
) -> None:
    """Serve a page with rates, lag, gaps, processes, what is wrong, and prices and books of chosen symbols.

    It needs no other server. Anyone who can connect sees the page: beyond this machine serve it behind a proxy with a
    login, or through ssh. A slow browser gets fewer states and delays nothing.

    For example:

    blackbox dashboard feed.toml --watch http://10.0.0.5:9300

    blackbox dashboard feed.toml --listen 127.0.0.1:0
    """
    with exit_statuses():
        from blackbox.services.monitor.listening import address_of
        from blackbox.services.monitor.watch.watch import Watch

        try:
            import uvloop

            from blackbox.services.monitor.page.server import PageServer
        except ImportError as error:
            text = f"dashboard needs the extra monitor: pip install 'blackbox-md[monitor]' ({error})"
            raise BlackBoxError(text) from None
        host, port = address_of(listen)
        with watcher_of(feeds, watch, positions) as watcher:
            server = PageServer(Watch(watcher), host, port, lambda url: say(f"the page is at {url}"))
            run_in_loop(server.run(), uvloop.new_event_loop)
