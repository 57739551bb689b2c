"""Process of a Zenoh router: a session of the Python package in `router` mode."""

from __future__ import annotations

import zenoh

from bench.processes.child import answer, orders
from bench.rivals.plain_zenoh import config


def route(address: str) -> None:
    """Route between its clients until the end."""
    with zenoh.open(config("router", "listen", address)):
        for _ in orders():
            answer()
