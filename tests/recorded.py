"""A source's messages on disk, the way they get there: published, received, recorded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from blackbox import Feed, Publisher, Recorder, Recording, Source


def recorded(directory: Path, make: Callable[[], Source], slices: int = 2, runs: int = 1, **settings: Any) -> Recording:
    """A source, published and recorded."""
    feed = msgspec.structs.replace(Feed.local("export", slices), schema=make().schema.name, **settings)
    for _ in range(runs):
        recorder = Recorder(feed, directory)
        with Publisher(feed, when_full="wait") as publisher:
            recorder.start()
            make().publish(publisher)
            publisher.flush()
        recorder.run(until_end=True)
    (day,) = (directory / feed.name).glob("*/manifest.json")
    return Recording.open(day.parent)
