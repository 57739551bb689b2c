"""Every received message is on disk, once, in order and unchanged."""

from __future__ import annotations

import datetime
import random
import threading
import time
from pathlib import Path
from typing import Any

import numpy
import pytest

from blackbox import Publisher
from blackbox.archive.recorder import Recorder
from blackbox.archive.recording import Recording
from blackbox.testing import RawPublisher, wait_until
from tests.archive.recorders import (
    MIB,
    check_sum,
    days,
    feed_of,
    numbered,
    numbers_of,
    one_slice,
    payloads,
    publish_numbered,
    records,
    segments,
    wait_recorded,
)
from tests.journals import check_index, stored


def test_blocks_are_on_disk_as_they_were_sent(tmp_path: Path) -> None:
    choice = random.Random(1)
    with one_slice(tmp_path) as (feed, publisher, recorder):
        sent, messages = [], 0
        for size in (0, 1, 7, 100, 5_000, 40_000, 300_000, 2 * MIB):
            rows = [(b"T%d.x" % choice.randrange(3), choice.randbytes(size + extra)) for extra in (0, 1, 9)]
            block = publisher.encode(rows, ts_event=[choice.getrandbits(50) for _ in rows])
            publisher.send(block)
            sent.append((block.header, block.body.tobytes()))
            messages += len(rows)
        wait_recorded(recorder, messages)
    found = records(tmp_path, feed)
    assert [(record.header, record.body) for record in found] == sent
    assert all(record.first_row == record.codec == 0 for record in found)
    assert all(record.ts_recv >= record.fields.ts_out for record in found)
    statistics = recorder.statistics()
    assert (statistics.messages, statistics.blocks, statistics.lost) == (messages, len(sent), 0)
    assert statistics.stored_bytes == sum(record.stop - record.start for record in found)
    check_sum(statistics)
    check_index(segments(tmp_path, feed)[0])


def test_blocks_without_a_checksum_are_recorded_with_one(tmp_path: Path) -> None:
    with one_slice(tmp_path) as (feed, publisher, recorder):
        block = publisher.encode([(b"A.t", b"payload")], checksum=False)
        publisher.send(block)
        wait_recorded(recorder, 1)
    assert [record.header for record in records(tmp_path, feed)] == [block.header]


def test_messages_published_one_at_a_time(tmp_path: Path) -> None:
    feed, count = feed_of(), 100_000
    with Publisher(feed, when_full="wait") as publisher:
        recorder = Recorder(feed, tmp_path).start()
        for number in range(count):
            publisher.publish(b"A.t", number.to_bytes(8, "little"), number)
    recorder.run(until_end=True)
    assert payloads(tmp_path, feed) == [number.to_bytes(8, "little") for number in range(count)]
    assert recorder.statistics().messages == count


def test_several_slices_with_keys(tmp_path: Path) -> None:
    feed = feed_of(slices=3, key_bytes=2)
    names = [b"S%d.t" % number for number in range(40)]
    with Publisher(feed, when_full="wait") as publisher:
        recorder = Recorder(feed, tmp_path).start()
        index = numpy.arange(20_000) % len(names)
        publisher.publish_many(tuple(names), index, numbered(0, 20_000))
    recorder.run(until_end=True)
    found = [record for i in range(3) for record in records(tmp_path, feed, i)]
    messages = [row for record in found for row in record.messages()]
    assert len(messages) == recorder.statistics().messages == 20_000
    by_name: dict[bytes, list[int]] = {name: [] for name in names}
    for topic, payload, _ in messages:
        by_name[topic].append(int.from_bytes(payload[:8], "little"))
    assert by_name == {name: list(range(place, 20_000, len(names))) for place, name in enumerate(names)}
    for slice_id in range(3):
        check_index(segments(tmp_path, feed, slice_id)[0])


def test_segments_roll_and_their_indexes_are_complete(tmp_path: Path) -> None:
    feed, count = feed_of(), 0
    with Publisher(feed, when_full="wait") as publisher:
        recorder = Recorder(feed, tmp_path, segment_bytes=MIB).start()
        deadline, pause = time.monotonic() + 120, threading.Event()
        while count < 120_000 or (recorder.statistics().segments < 4 and time.monotonic() < deadline):
            publish_numbered(publisher, count, 1_000)
            count += 1_000
            pause.wait(0.01 if count > 120_000 else 0)  # another thread makes the next segment
    recorder.run(until_end=True)
    paths = segments(tmp_path, feed)
    assert len(paths) >= 3
    assert [int(path.stem) for path in paths] == list(range(len(paths)))
    assert all(path.stat().st_size >= MIB for path in paths[:-1])
    assert recorder.statistics().segments in (len(paths), len(paths) + 1)  # an empty last segment is removed
    assert numpy.concatenate([numbers_of(record) for record in records(tmp_path, feed)]).tolist() == [*range(count)]
    for path in paths:
        check_index(path)


@pytest.mark.parametrize(("compression", "codec"), [("lz4", 1), ("zstd", 2)])
def test_compressed_bodies_decompress_to_the_sent_ones(tmp_path: Path, compression: Any, codec: int) -> None:
    with one_slice(tmp_path, compression=compression) as (feed, publisher, recorder):
        sent = []
        for size in (10, 1_000, 100_000, MIB):
            for data in (bytes(size), random.Random(size).randbytes(size)):
                block = publisher.encode([(b"T", data)] * 2)
                publisher.send(block)
                sent.append((block.header, block.body.tobytes()))
        wait_recorded(recorder, 2 * len(sent))
    found = records(tmp_path, feed)
    assert [(record.header, record.body) for record in found] == sent
    assert {record.codec for record in found} == {0, codec} or {record.codec for record in found} == {codec}
    check_index(segments(tmp_path, feed)[0])
    assert segments(tmp_path, feed)[0].stat().st_size < sum(len(body) for _, body in sent)


def test_a_reader_sees_messages_during_recording(tmp_path: Path) -> None:
    feed, count = feed_of(), 200_000
    seen = 0
    with Publisher(feed, when_full="wait") as publisher:
        recorder = Recorder(feed, tmp_path, segment_bytes=MIB).start()
        recording = Recording.open(days(tmp_path, feed)[0])
        for first in range(0, count, 10_000):
            publish_numbered(publisher, first, 10_000)
            recording.refresh()
            now = sum(int(segment.entries["messages"].sum()) for segment in dict(recording._segments_of()).get(0, []))
            assert now >= seen
            seen = now
    wait_recorded(recorder, count)

    def all_seen() -> bool:
        recording.refresh()
        return sum(int(segment.entries["messages"].sum()) for segment in dict(recording._segments_of())[0]) == count

    wait_until(all_seen, what="the reader saw all")
    recorder.run(until_end=True)
    recording.refresh()
    assert all_seen()
    assert not recording.damage


def test_messages_after_midnight_are_in_the_next_day(tmp_path: Path) -> None:
    """Midnight is two seconds ahead: a `day_start` in UTC."""
    now = datetime.datetime.now(datetime.UTC)
    midnight = (now + datetime.timedelta(seconds=3)).replace(microsecond=0)
    feed = feed_of(slices=2, day_start=f"{midnight:%H:%M:%S}")
    midnight_ns = int(midnight.timestamp()) * 10**9
    names = (b"S1.t", b"S2.t", b"S3.t", b"S4.t")
    with Publisher(feed, when_full="wait") as publisher:
        recorder = Recorder(feed, tmp_path).start()
        published = 0
        while len(days(tmp_path, feed)) < 2 or published % 2_000 or recorder.statistics().segments < 4:
            publisher.publish_many(names, numpy.arange(400) % 4, numbered(published, 400))
            publisher.flush()
            published += 400
    recorder.run(until_end=True)
    assert recorder.statistics().messages == published
    assert recorder.statistics().lost == recorder.statistics().received.gaps == 0
    first, second = days(tmp_path, feed)
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


def test_a_restarted_publisher_continues_in_the_same_segment(tmp_path: Path) -> None:
    feed = feed_of()
    with RawPublisher(feed, epoch=1) as publisher:
        recorder = Recorder(feed, tmp_path).start()
        publisher.send(publisher.encode([(b"T", b"0")]))
        wait_recorded(recorder, 1)
    with RawPublisher(feed, epoch=2) as publisher:
        wait_until(lambda: len(publisher.subscriptions()) >= 2)
        publisher.heartbeat()
        wait_until(lambda: recorder.statistics().received.epochs == 2)
        publisher.send(publisher.encode([(b"T", b"1")]))
        wait_recorded(recorder, 2)
        recorder.stop()
    assert [record.fields.epoch for record in records(tmp_path, feed)] == [1, 2]
    check_index(segments(tmp_path, feed)[0])
