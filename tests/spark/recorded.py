"""Real files, published and recorded, for Spark to read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from blackbox import Feed, Publisher, Recorder, Source


def record(directory: Path, name: str, make: Callable[[], Source], slices: int = 2, **settings: Any) -> Path:
    """Publish a source and record it; returns the feed's directory."""
    feed = msgspec.structs.replace(Feed.local(name, slices), schema=make().schema.name, **settings)
    recorder = Recorder(feed, directory)
    with Publisher(feed, when_full="wait") as publisher:
        recorder.start()
        make().publish(publisher)
        publisher.flush()
    recorder.run(until_end=True, timeout=60.0)
    return directory / name
