"""Archives for tests: a feed with archives, recorded days, and the contents of answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy

from blackbox import Feed, Publisher
from blackbox.archive.record.recorder import Recorder
from blackbox.archive.serve.connection import Fetched
from blackbox.archive.serve.protocol import Gone
from blackbox.feed.endpoint import free_endpoints
from tests.archive.recorders import MIB, ROW_BYTES, feed_of, publish_numbered, wait_recorded

PART = 500


def free_endpoint() -> str:
    return free_endpoints("tcp", "archive", 1, 1)[0][0]


def archived_feed(archives: int = 1, **settings: Any) -> Feed:
    return feed_of(archives=tuple(free_endpoint() for _ in range(archives)), **settings)


def numbers(found: Fetched) -> list[int]:
    """Return the numbers from `numbered` in the requested messages."""
    rows = found.block.payloads[: found.block.count * ROW_BYTES].reshape(-1, ROW_BYTES)
    wanted: list[int] = rows[found.first_row : found.stop_row, :8].copy().view(numpy.int64)[:, 0].tolist()
    return wanted


def all_numbers(found: Iterator[Fetched | Gone]) -> list[int]:
    wanted: list[int] = []
    for each in found:
        assert isinstance(each, Fetched), each
        wanted += numbers(each)
    return wanted


def publish_parts(publisher: Publisher, first: int, stop: int) -> None:
    for start in range(first, stop, PART):
        publish_numbered(publisher, start, min(PART, stop - start))
        publisher.flush()


def publish_over_segments(publisher: Publisher, recorder: Recorder, least: int = 3) -> int:
    """Publish until there are at least `least` segments. Return the number of messages."""
    count = 0
    while recorder.statistics().segments < least or count == 0:
        publish_parts(publisher, count, count + 10_000)
        count += 10_000
        wait_recorded(recorder, count)
        assert count < 10_000_000
    return count


def recorded(tmp_path: Path, feed: Feed, count: int, **settings: Any) -> int:
    """Record `count` messages of slice 0 in segments of 1 MiB. Return their epoch."""
    with Publisher(feed) as publisher, Recorder(feed, tmp_path, segment_bytes=MIB, **settings) as recorder:
        publish_parts(publisher, 0, count)
        wait_recorded(recorder, count)
        return publisher.epoch
