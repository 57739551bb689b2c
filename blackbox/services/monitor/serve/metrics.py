"""`serve_metrics`: metrics, status and health of running objects by HTTP. The metrics are in `metric_table`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from blackbox.errors import ConfigError
from blackbox.services.monitor.serve.watched import Watched

if TYPE_CHECKING:
    from blackbox.services.monitor.serve.http_server import HttpServer

DEFAULT_ADDRESS: Final = "127.0.0.1:9100"


@contextmanager
def serve_metrics(things: object | Sequence[object], address: str = DEFAULT_ADDRESS) -> Iterator[HttpServer]:
    """Serve `/metrics`, `/status`, `/healthz` and `/readyz` in a thread until the block is left.

    Args:
        things: a publisher, subscriber, recorder, relay, hub, archive server, bridge or replay, or a list of them. They
            need not run yet.
        address: `HOST:PORT` to listen at, or a port on 127.0.0.1; port 0: a free one, see `port` and `url` of the
            server. Every process that can connect can read everything: stay on 127.0.0.1, or use a firewall.

    Raises EndpointError if the address is in use, ConfigError if it is malformed or the extra `monitor` is not
    installed, TypeError for a thing of another kind.
    """
    server = server_of(Watched(*things) if isinstance(things, list | tuple) else Watched(things), address)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def server_of(watched: Watched, address: str) -> HttpServer:
    """Return a server, bound and not started. Raises the same errors as `serve_metrics`."""
    try:
        from blackbox.services.monitor.serve.http_server import HttpServer
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith("blackbox"):
            raise
        raise ConfigError(f"metrics need {error.name}: pip install 'blackbox-md[monitor]'") from error
    return HttpServer(watched, address)
