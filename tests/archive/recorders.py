"""Feeds to record, numbered messages to publish, and what is on disk afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy

from blackbox import Feed, Publisher, Recording
from blackbox.archive.record.recorder import Recorder, RecorderStatistics
from blackbox.testing import RawPublisher, wait_until
from tests.journals import Stored, stored

A, B = 0, 1

MIB = 1 << 20

ROW_BYTES = 104

BEAT_NS = 200_000_000
"""A plain publisher that is silent for several of these intervals loses its connection and the data on it."""

FOREVER_NS = 3_600 * 10**9


def feed_of(slices: int = 1, lines: int = 1, key_bytes: int = 0, **settings: Any) -> Feed:
    feed = Feed.local("tape", slices=slices, lines=lines, key_bytes=key_bytes)
    return msgspec.structs.replace(feed, **{"heartbeat_ns": BEAT_NS, "max_lag_ns": FOREVER_NS} | settings)


def days(directory: Path, feed: Feed) -> list[Path]:
    return sorted(path.parent for path in (directory / feed.name).glob("*/manifest.json"))


def segments(directory: Path, feed: Feed, slice_id: int = 0) -> list[Path]:
    return [path for day in days(directory, feed) for path in sorted(day.glob(f"slice-{slice_id:05d}/*.journal"))]


def records(directory: Path, feed: Feed, slice_id: int = 0) -> list[Stored]:
    found = []
    for path in segments(directory, feed, slice_id):
        whole, torn = stored(path)
        assert torn == 0, path
        found += whole
    return found


def check_keys(*days: Path) -> None:
    """Check that the blocks of a slice and epoch are consecutive, each with the end of the earlier ones of its key."""
    following: dict[tuple[int, int], int] = {}
    ends: dict[tuple[int, int, bytes], tuple[int, int]] = {}
    for day in days:
        for batch in Recording.open(day).batches():
            block = batch.block
            run = block.slice_id, block.epoch
            assert block.sequence == following.get(run, 0)
            assert (block.previous, block.key_sequence) == ends.get((*run, block.key), (0, 0))
            following[run] = block.sequence + block.count
            ends[*run, block.key] = following[run], block.key_sequence + block.count


def payloads(directory: Path, feed: Feed, slice_id: int = 0) -> list[bytes]:
    return [payload for record in records(directory, feed, slice_id) for _, payload, _ in record.messages()]


def numbers_of(record: Stored) -> Any:
    """Return the numbers from `numbered` in the messages of a block."""
    return (
        numpy.frombuffer(record.body, numpy.uint8)[-record.fields.count * ROW_BYTES :]
        .reshape(-1, ROW_BYTES)[record.first_row :, :8]
        .copy()
        .view(numpy.int64)[:, 0]
    )


def numbered(first: int, count: int) -> Any:
    """Payloads that begin with a number, counted up."""
    rows = numpy.zeros((count, ROW_BYTES), numpy.uint8)
    rows[:, :8] = numpy.arange(first, first + count).view(numpy.uint8).reshape(-1, 8)
    return rows


def publish_numbered(publisher: Publisher, first: int, count: int) -> None:
    publisher.publish_many((b"A.t",), numpy.zeros(count, numpy.int32), numbered(first, count))


def wait_recorded(recorder: Recorder, count: int) -> None:
    wait_until(lambda: recorder.statistics().messages >= count, what=f"{count} messages were recorded")


def check_sum(statistics: RecorderStatistics) -> None:
    received = statistics.received
    assert statistics.messages + statistics.lost == received.messages - received.duplicates - received.stale


@contextmanager
def one_slice(tmp_path: Path, **settings: Any) -> Iterator[tuple[Feed, RawPublisher, Recorder]]:
    feed = feed_of()
    with RawPublisher(feed) as publisher, Recorder(feed, tmp_path, **settings) as recorder:
        yield feed, publisher, recorder
