"""A Zenoh router in a process of its own: the session of the Python package, opened in mode `router`."""

from __future__ import annotations

import zenoh

from bench.processes.child import answer, orders
from bench.rivals.plain_zenoh import config


def route(address: str) -> None:
    """Pass on between its clients until the end."""
    with zenoh.open(config("router", "listen", address)):
        for _ in orders():
            answer()
