"""Commands that monitors can watch: metrics and status by HTTP with `--metrics`, and notifications to systemd."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Final

import typer

from blackbox.cli.ui.terminal import say
from blackbox.errors import ConfigError

METRICS_VARIABLE: Final = "BLACKBOX_METRICS"
_NOTIFY_VARIABLE: Final = "NOTIFY_SOCKET"

MetricsOption = Annotated[
    str | None,
    typer.Option(
        "--metrics",
        metavar="HOST:PORT",
        envvar=METRICS_VARIABLE,
        help="Serve metrics for Prometheus, status and health by HTTP there, to everyone who can connect. Port alone: "
        "on 127.0.0.1.",
        show_default=False,
    ),
]


@contextmanager
def monitored(metrics: str | None, *things: object) -> Iterator[None]:
    """Serve metrics at `metrics` and notify systemd until the block is left; neither: do nothing.

    `things`: publishers, subscribers ..., which need not run yet. Raises EndpointError if the address is in use,
    ConfigError if it is malformed, or for a plug-in without metrics.
    """
    if metrics is None and _NOTIFY_VARIABLE not in os.environ:
        yield
        return
    from blackbox.services.monitor.serve.metrics import server_of
    from blackbox.services.monitor.serve.observe import is_observable
    from blackbox.services.monitor.serve.systemd import Notifier
    from blackbox.services.monitor.serve.watched import Watched

    watched = Watched(*filter(is_observable, things))
    server = None
    if metrics is not None:
        for thing in things:
            if not is_observable(thing):
                raise ConfigError(f"--metrics was given for a {type(thing).__name__}, which has none")
        server = server_of(watched, metrics)
        server.start()
        say(f"metrics are at {server.url}/metrics")
    notifier = Notifier(watched)
    notifier.start()
    try:
        yield
    finally:
        notifier.stop()
        if server is not None:
            server.stop()
