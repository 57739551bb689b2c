"""Every received message is on disk, once, in order and unchanged, from one line or two."""

from __future__ import annotations

import datetime
import random
import time
from pathlib import Path
from typing import Any

import numpy
import pytest

from blackbox import Publisher
from blackbox.archive.record.recorder import Recorder
from blackbox.archive.recording import Recording
from blackbox.testing import RawPublisher
from tests.archive.recorders import (
    MIB,
    A,
    B,
    check_sum,
    days,
    feed_of,
    numbered,
    numbers_of,
    one_slice,
    payloads,
    records,
    segments,
    wait_recorded,
)
from tests.journals import check_index, stored


@pytest.mark.parametrize(
    ("compression", "codec", "fsync"), [("none", 0, "never"), ("lz4", 1, "interval"), ("zstd", 2, "block")]
)
def test_blocks_are_on_disk_as_they_were_sent(tmp_path: Path, compression: Any, codec: int, fsync: Any) -> None:
    choice, settings = random.Random(1), {"compression": compression, "fsync": fsync, "fsync_interval": 0.001}
    with one_slice(tmp_path, **settings) as (feed, publisher, recorder):
        sent, messages = [], 0
        for size in (0, 1, 7, 100, 5_000, 40_000, 300_000, 2 * MIB):
            for data in (bytes(size), choice.randbytes(size)):
                rows = [(b"T%d.x" % choice.randrange(3), data + bytes(extra)) for extra in (0, 1, 9)]
                times = [choice.getrandbits(50) for _ in rows]
                block = publisher.encode(rows, ts_event=times, checksum=size != 7)
                publisher.send(block)
                sent.append((block.header, block.body.tobytes()))
                messages += len(rows)
        wait_recorded(recorder, messages)
    found = records(tmp_path, feed)
    assert [(record.header, record.body) for record in found] == sent
    assert {record.codec for record in found} | {0} == {0, codec}
    assert all(record.first_row == 0 and record.ts_recv >= record.fields.ts_out for record in found)
    statistics = recorder.statistics()
    assert (statistics.messages, statistics.blocks, statistics.lost) == (messages, len(sent), 0)
    assert statistics.stored_bytes == sum(record.stop - record.start for record in found)
    check_sum(statistics)
    check_index(segments(tmp_path, feed)[0])
    assert (segments(tmp_path, feed)[0].stat().st_size < sum(len(body) for _, body in sent)) == (codec > 0)


def publish_to_slices(publisher: Publisher, recorder: Recorder, first: int) -> int:
    """Publish and record 400 messages of two slices. Return the next number."""
    names = (b"S1.t", b"S2.t", b"S3.t", b"S4.t")
    publisher.publish_many(names, numpy.arange(400) % 4, numbered(first, 400))
    publisher.flush()
    wait_recorded(recorder, first + 400)
    return first + 400


def recorded_over_midnight(directory: Path, seconds: int) -> tuple[Recorder, int, int]:
    """Return a recorder, its number of messages, and the time of midnight, a `day_start` in some seconds.

    Without messages, midnight was before the first ones were recorded.
    """
    now = datetime.datetime.now(datetime.UTC)
    midnight = (now + datetime.timedelta(seconds=seconds)).replace(microsecond=0)
    feed, midnight_ns = feed_of(slices=2, day_start=f"{midnight:%H:%M:%S}"), int(midnight.timestamp()) * 10**9
    with Publisher(feed, when_full="wait") as publisher:
        recorder = Recorder(feed, directory).start()
        published = publish_to_slices(publisher, recorder, 0)
        is_late = time.time_ns() >= midnight_ns
        while not is_late and (
            len(days(directory, feed)) < 2 or published % 2_000 or recorder.statistics().segments < 4
        ):
            published = publish_to_slices(publisher, recorder, published)
    recorder.run(until_end=True)
    return recorder, 0 if is_late else published, midnight_ns


def test_messages_after_midnight_are_in_the_next_day(tmp_path: Path) -> None:
    for seconds in (3, 10, 60):  # more on a busy machine
        recorder, published, midnight_ns = recorded_over_midnight(tmp_path / str(seconds), seconds)
        if published:
            break
    assert recorder.statistics().messages == published
    assert recorder.statistics().lost == recorder.statistics().received.gaps == 0
    first, second = sorted(recorder.directory.glob("*-*-*"))
    assert datetime.date.fromisoformat(second.name) - datetime.date.fromisoformat(first.name) == datetime.timedelta(1)
    found: list[int] = []
    for slice_id in range(2):
        for day in (first, second):
            for path in sorted(day.glob(f"slice-{slice_id:05d}/*.journal")):
                for record in stored(path)[0]:
                    assert (record.ts_recv >= midnight_ns) == (day == second)
                    found += numbers_of(record).tolist()
                check_index(path)
    assert sorted(found) == list(range(published))
    assert Recording.open(second).date == datetime.date.fromisoformat(second.name)


def test_rows_received_on_the_other_line_are_left_out(tmp_path: Path) -> None:
    feed = feed_of(lines=2)
    with RawPublisher(feed) as publisher, Recorder(feed, tmp_path) as recorder:
        publisher.send(publisher.encode([(b"T", b"%d" % number) for number in range(3)]), [A])
        wait_recorded(recorder, 3)
        publisher.send(publisher.encode([(b"T", b"%d" % number) for number in range(5)], sequence=0), [B])
        wait_recorded(recorder, 5)
    assert [record.first_row for record in records(tmp_path, feed)] == [0, 3]
    assert payloads(tmp_path, feed) == [b"%d" % number for number in range(5)]
    check_index(segments(tmp_path, feed)[0])
