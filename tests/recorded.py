"""Record the messages of a source: published, received and written."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from blackbox import Feed, Publisher, Recorder, Recording, Source
from blackbox.archive.files.day import day_end_ns, session_date

AS_SENT: Any = {"prices": "integer", "times": "integer"}
"""Settings for frames with the venue's integers."""


def wait_for_whole_day(feed: Feed, seconds: float = 60.0) -> None:
    """Wait until the next session date if it begins within `seconds`: a recording over midnight would have two days."""
    now_ns = time.time_ns()
    if (left_s := (day_end_ns(feed, session_date(feed, now_ns)) - now_ns) / 1e9) < seconds:
        time.sleep(left_s + 0.1)


def record(
    directory: Path,
    name: str,
    make: Callable[[], Source],
    slices: int = 2,
    runs: int = 1,
    timeout: float = 60.0,
    **settings: Any,
) -> Path:
    """Publish and record a source; return the feed's directory."""
    feed = msgspec.structs.replace(Feed.local(name, slices), schema=make().schema.name, **settings)
    wait_for_whole_day(feed)
    for _ in range(runs):
        recorder = Recorder(feed, directory)
        with Publisher(feed, when_full="wait") as publisher:
            recorder.start()
            make().publish(publisher)
            publisher.flush()
        recorder.run(until_end=True, timeout=timeout)
    return directory / name


def recorded(directory: Path, make: Callable[[], Source], slices: int = 2, runs: int = 1, **settings: Any) -> Recording:
    """Publish and record a source; return its only day."""
    feed = record(directory, "export", make, slices, runs, timeout=10.0, **settings)
    (day,) = feed.glob("*/manifest.json")
    return Recording.open(day.parent)
