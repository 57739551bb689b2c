"""Recordings, made once per run by a real publisher and a real recorder."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from bench.measure.contest import Lost, expect
from bench.workload.load import Load, column_rows
from bench.workload.messages import TOPICS
from blackbox import Feed, Publisher, Recorder, Recording

_TIMEOUT_S: Final = 60.0


@cache
def directory() -> TemporaryDirectory[str]:
    """Return the directory of this process's recordings; it is removed at exit."""
    return TemporaryDirectory(prefix="blackbox-bench-")


def wait_until_recorded(
    recorder: Recorder, messages: int, timeout_s: float = _TIMEOUT_S, every_s: float = 0.01
) -> None:
    """Wait until `messages` messages are recorded or known to be lost. Raises Lost after the timeout."""
    deadline = time.monotonic() + timeout_s
    while (statistics := recorder.statistics()).messages + statistics.lost + statistics.received.gaps < messages:
        if time.monotonic() > deadline:
            raise Lost(f"messages recorded were {statistics.messages:,} after {timeout_s:g} s, expected {messages:,}")
        time.sleep(every_s)


def record(
    feed: Feed, messages: int, publish: Callable[[Publisher], None], place: str | os.PathLike[str] | None = None
) -> Path:
    """Record the messages of `publish`; return the day's directory. Raises Lost unless `messages` were recorded."""
    place = directory().name if place is None else place
    with Publisher(feed, when_full="wait") as publisher, Recorder(feed, place, fsync="never") as recorder:
        publish(publisher)
        publisher.flush()
        wait_until_recorded(recorder, messages)
    expect("messages recorded and lost", (recorder.statistics().messages, recorder.statistics().lost), (messages, 0))
    (day,) = (path for path in recorder.directory.iterdir() if path.is_dir())
    return day


@cache
def recording_of(messages: int, slices: int = 2, topics: int = TOPICS) -> Path:
    """Return the day's directory of a recording of `messages` messages; cached."""
    feed = Feed.local(f"bench-{messages}-{slices}-{topics}", slices=slices)
    return record(feed, messages, partial(publish_columns, Load(messages=messages, topics=topics)))


def publish_columns(load: Load, publisher: Publisher) -> None:
    """Publish all messages of a load as fast as possible."""
    pool = load.pool
    for start, rows in column_rows(load):
        times = pool.ts_event[: rows.stop - rows.start] + start + 1
        publisher.publish_many(pool.topics, pool.topic_index[rows], pool.payloads[rows], times)


def open_recording(messages: int) -> Recording:
    """Open the recording of `messages` messages."""
    return Recording.open(recording_of(messages))


def journals(day: Path) -> list[Path]:
    """Return all journal files of a day."""
    return sorted(day.glob("slice-*/*.journal"))


def read_whole(day: Path) -> int:
    """Read all journals into one reused buffer; return their bytes."""
    buffer = bytearray(1 << 20)
    size = 0
    for path in journals(day):
        with path.open("rb", buffering=0) as file:
            while got := file.readinto(buffer):
                size += got
    return size
