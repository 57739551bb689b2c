"""Process of our relay, from one feed to the next."""

from __future__ import annotations

from typing import Any

import msgspec

from bench.processes.child import answer, orders
from blackbox import Feed, Relay


def pass_on(above: Any, below: Any, **settings: Any) -> None:
    """Run a relay until the end; orders are answered without effect. `settings` are those of `Relay`."""
    with Relay(msgspec.convert(above, Feed), msgspec.convert(below, Feed), **settings):
        for _ in orders():
            answer()
