"""Processes of our relays, from one feed to the next."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

from bench.processes.child import answer, orders
from blackbox import Feed, Relay


def pass_on(above: Any, below: Any, **settings: Any) -> None:
    """Run a relay until the end; orders are answered without effect. `settings` are those of `Relay`."""
    with Relay(msgspec.convert(above, Feed), msgspec.convert(below, Feed), **settings):
        for _ in orders():
            answer()


def pass_on_to_many(above: Any, below: Any, images: str) -> None:
    """Run a relay to each feed below until the end, with images in that directory unless it is empty."""
    feed = msgspec.convert(above, Feed)
    with ExitStack() as stack:
        for number, each in enumerate(msgspec.convert(below, list[Feed])):
            place = Path(images) / str(number) if images else None
            stack.enter_context(Relay(feed, each, when_full="wait", images=place))
        for _ in orders():
            answer()
