"""Published replays over real sockets: subscribers receive the recorded messages as if they were live."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from blackbox import Batch, ConfigError, Feed, Publisher, Recorder, Recording, Replay, SlowPolicy, Subscriber
from blackbox.archive.files.format import MarkKind
from blackbox.archive.files.marks import marks_of
from blackbox.errors import PublisherError
from blackbox.feed.slice import Slice
from blackbox.receive.statistics import Statistics
from blackbox.replay.play.to_wire import LEAST_STORED_BYTES
from blackbox.testing import wait_until
from tests.damaged import damage_body
from tests.journals import Day, Put, Row, Told
from tests.replay.audience import Audience, Scripted, plainly, told_of

S = 1_000_000_000
LAG_NS = 60 * S
Sent = tuple[bytes, bytes, int]
"""Topic, payload, ts_event."""


def feed_with(slices: int = 1, key_bytes: int = 0, transport: Any = "tcp", **settings: Any) -> Feed:
    local = Feed.local("again", slices=slices, key_bytes=key_bytes, transport=transport)
    return msgspec.structs.replace(local, **settings)


class Heard:
    """The messages that a subscriber received, by topic, and its statistics."""

    def __init__(self) -> None:
        self.by_topic: dict[bytes, list[tuple[bytes, int]]] = defaultdict(list)
        self.blocks: list[int] = []
        self.ts_out: list[int] = []
        self.statistics: Statistics | None = None

    def take(self, batch: Batch) -> None:
        self.blocks.append(len(batch))
        self.ts_out.append(batch.ts_out)
        for message in batch:
            self.by_topic[message.topic].append((message.payload, message.ts_event))

    @property
    def count(self) -> int:
        return sum(map(len, self.by_topic.values()))


def hear(feed: Feed, publish: Callable[[Publisher], object], prefix: bytes = b"") -> Heard:
    """Publish to a subscriber and assert that it found no malformed, repeated, stale, late or dropped messages."""
    heard = Heard()
    subscriber = Subscriber(feed, workers=1, slow=SlowPolicy(max_lag=LAG_NS / 1e9))
    subscriber.on_batch(prefix)(heard.take)
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        publish(publisher)
    subscriber.run(until_end=True)
    total = heard.statistics = subscriber.statistics()
    assert (total.received.malformed, total.received.duplicates, total.received.stale) == (0, 0, 0)
    assert (total.lag.slow_blocks, total.delivery.dropped) == (0, 0)
    return heard


def replayed(path: Path, feed: Feed, **settings: Any) -> Heard:
    recording = Recording.open(path)
    return hear(feed, lambda publisher: Replay(recording, **settings).publish(publisher))


def by_topic(messages: Iterable[Sent]) -> dict[bytes, list[tuple[bytes, int]]]:
    found = defaultdict(list)
    for topic, payload, ts_event in messages:
        found[topic].append((payload, ts_event))
    return dict(found)


def sent_of(day: Day) -> list[Sent]:
    return [(m.topic, m.payload, m.ts_event) for m in day.told()]


def gappy_day(path: Path, feed: Feed, size: int, codec: int = 0) -> Day:
    """Write blocks of several keys with `size` bytes of padding per payload; some rows are repeated, some missing."""
    day = Day(path, feed)
    ends: dict[tuple[int, bytes], tuple[int, int]] = {}
    puts = []
    sequence = 0
    for i in range(60):
        letter = b"ABC"[i % 3 : i % 3 + 1]
        key = (letter + b"%d.x" % (i % 2))[: feed.key_bytes]
        rows = tuple(
            Row(letter + b"%d.x" % (i % 2), b"%d-%d-" % (i, j) + bytes(size), S + 10 * i + j) for j in range(3)
        )
        name = 1 + i // 40, key
        previous, count = ends.get(name, (0, 0))
        if i % 7 == 6 and name in ends:
            sequence, count = sequence + 4, count + 4
            previous = sequence
        block = Put(rows, sequence, S + i, first_row=i % 5 == 4, codec=codec, epoch=name[0])
        puts.append(replace(block, previous=previous, key_sequence=count))
        sequence += 3
        ends[name] = sequence, count + 3
    day.put(0, *puts)
    return day


def assert_gaps_are_kept_on_request(path: Path, feed: Feed, day: Day, missing: int) -> None:
    for keep, gaps in ((True, missing), (False, 0)):
        heard = replayed(path, feed, keep_gaps=keep)
        assert heard.statistics is not None
        assert heard.statistics.received.gaps == gaps
        assert heard.by_topic == by_topic(sent_of(day))


@pytest.mark.parametrize(
    ("transport", "key_bytes", "size", "codec"),
    [("tcp", 8, 1, 2), ("tcp", 1, LEAST_STORED_BYTES, 2), ("shm", 0, LEAST_STORED_BYTES, 0)],
)
def test_gaps_are_kept_only_on_request(tmp_path: Path, transport: str, key_bytes: int, size: int, codec: int) -> None:
    feed = feed_with(key_bytes=key_bytes, transport=transport)
    day = gappy_day(tmp_path, feed, size, codec)
    missing = sum(gap.count for gap in Recording.open(tmp_path).gaps())
    assert missing > 0
    assert_gaps_are_kept_on_request(tmp_path, feed, day, missing)


@pytest.mark.parametrize("size", [1, LEAST_STORED_BYTES])
def test_numbers_skipped_within_a_block_are_no_gap(tmp_path: Path, size: int) -> None:
    feed = feed_with(key_bytes=1)
    day = Day(tmp_path, feed)
    puts = []
    for place, numbers in enumerate([(0, 10, 20), (21, 22), (23, 30, 40), (45, 60), (63, 64), (62, 63, 65, 70)]):
        rows = tuple(Row(b"A.x", b"%d" % number + bytes(size)) for number in numbers)
        known = 2 if place == 5 else 0  # its first two rows arrived on the other line
        puts.append(Put(rows, numbers[0], S + place, first_row=known, sequences=numbers))
    day.put(0, *puts)
    missing = [(gap.sequence, gap.count) for gap in Recording.open(tmp_path).gaps()]
    assert missing == [(41, 4), (61, 2)]
    assert_gaps_are_kept_on_request(tmp_path, feed, day, 6)


@pytest.mark.parametrize("size", [1, LEAST_STORED_BYTES])
def test_only_chosen_topics_and_times_are_sent(tmp_path: Path, size: int) -> None:
    feed = feed_with(key_bytes=1)
    day = gappy_day(tmp_path, feed, size)
    for prefixes in ((b"A1.",), (b"B", b"zz")):
        wanted = [sent for sent in sent_of(day) if sent[0].startswith(prefixes)]
        assert replayed(tmp_path, feed, prefix=prefixes).by_topic == by_topic(wanted)
    start, stop = S + 101, S + 302
    heard = replayed(tmp_path, feed, start=start, stop=stop)
    assert heard.by_topic == by_topic(sent for sent in sent_of(day) if start <= sent[2] < stop)


def test_other_slices_and_keys_receive_the_same_messages(tmp_path: Path) -> None:
    day = gappy_day(tmp_path, feed_with(key_bytes=2), 100)
    for other in (feed_with(3, key_bytes=1), feed_with(key_bytes=4, block_bytes=4_096)):
        assert replayed(tmp_path, other).by_topic == by_topic(sent_of(day))


def test_days_of_other_slices_are_played_as_one(tmp_path: Path) -> None:
    feeds = [feed_with(), feed_with(2)]
    days = [Day(tmp_path / str(n), feed, date=f"2026-11-2{n}") for n, feed in enumerate(feeds)]
    days[0].put(0, Put((Row(b"A.x", b"first"),), ts_out=1))
    for slice_id in range(2):
        topic = next(b"A%d" % i for i in range(99) if feeds[1].slice_of(b"A%d" % i) == slice_id)
        days[1].put(slice_id, Put((Row(topic, b"second"),), ts_out=2))
    recordings = [Recording.open(day.path) for day in days]
    heard = hear(feeds[0], lambda publisher: Replay(recordings).publish(publisher))
    assert heard.count == 3


def test_small_blocks_are_merged_into_large_ones(tmp_path: Path) -> None:
    feed = feed_with()
    day = Day(tmp_path, feed)
    day.put(0, *(Put((Row(b"A%d" % (i % 9), b"%d" % i, i),), i, ts_out=S + i) for i in range(5_000)))
    heard = replayed(tmp_path, feed)
    assert heard.by_topic == by_topic(sent_of(day))
    assert len(heard.blocks) < 50


def test_large_and_small_blocks_keep_their_order_and_carry_the_present_time(tmp_path: Path) -> None:
    feed = feed_with()
    day = Day(tmp_path, feed)
    sizes = [1, 1, LEAST_STORED_BYTES, 1, LEAST_STORED_BYTES, LEAST_STORED_BYTES, 1] * 20
    day.put(0, *(Put((Row(b"A", b"%d " % i + bytes(size), i),), i, ts_out=S + i) for i, size in enumerate(sizes)))
    before = time.time_ns()
    heard = replayed(tmp_path, feed, keep_gaps=True)
    assert heard.by_topic == by_topic(sent_of(day))
    assert before <= min(heard.ts_out) <= max(heard.ts_out) <= time.time_ns()
    assert heard.statistics is not None
    assert heard.statistics.received.epochs == 1


def test_damaged_blocks_are_skipped(tmp_path: Path) -> None:
    feed = feed_with()
    day = gappy_day(tmp_path, feed, 100)
    damage_body(day.segments[0], 10)
    recording = Recording.open(tmp_path)
    replay = Replay(recording)
    heard = hear(feed, replay.publish)
    assert heard.count == len(day.told()) - 3 == replay.statistics().messages
    assert (replay.statistics().damaged, len(recording.damage)) == (3, 1)


def test_batches_over_inproc_outlive_the_publisher(tmp_path: Path) -> None:
    feed = Feed(name="again", slices=(Slice(endpoints=("inproc://replayed",)),))
    day = gappy_day(tmp_path, feed, LEAST_STORED_BYTES)
    kept: list[Batch] = []
    subscriber = Subscriber(feed, slow=SlowPolicy(max_lag=LAG_NS / 1e9))
    subscriber.on_batch(b"")(kept.append)
    publisher = Publisher(feed, when_full="wait").start()
    subscriber.start()
    Replay(Recording.open(tmp_path)).publish(publisher)
    publisher.close()
    subscriber.run(until_end=True)
    del publisher
    found = by_topic((m.topic, m.payload, m.ts_event) for batch in kept for m in batch)
    assert found == by_topic(sent_of(day))


def record(feed: Feed, directory: Path, publish: Callable[[Publisher], object]) -> Path:
    with Publisher(feed, when_full="wait") as publisher:
        recorder = Recorder(feed, directory, max_lag=LAG_NS / 1e9).start()
        publish(publisher)
    recorder.run(until_end=True)
    (day,) = (path.parent for path in directory.glob("*/*/manifest.json"))
    return day


def test_callbacks_receive_the_same_live_and_replayed(tmp_path: Path) -> None:
    feed = feed_with(2, key_bytes=1)
    live, again = Audience(feed), Audience(feed)
    with Publisher(feed, when_full="wait") as publisher:
        recorder = Recorder(feed, tmp_path, max_lag=LAG_NS / 1e9).start()
        live.subscriber.start()
        for i in range(1_000):
            publisher.publish(b"%c%d.x" % (65 + i % 5, i % 3), b"%d" % i, S + i)
    live.subscriber.run(until_end=True)
    recorder.run(until_end=True)
    (day,) = (path.parent for path in tmp_path.glob("*/*/manifest.json"))
    again.subscriber.replay(Recording.open(day))

    def seen(messages: list[Told]) -> dict[bytes, list[Told]]:
        """Group by key: live, the keys of a slice are delivered block by block."""
        found = defaultdict(list)
        for message in messages:
            found[message.topic[:1]].append(message._replace(ts_recv=0))
        return found

    assert len(live.by_message) == len(again.by_message) == 1_000
    assert seen(live.by_message) == seen(again.by_message)
    assert seen(live.by_batch) == seen(again.by_batch)
    assert live.compiled.total()[0] == again.compiled.total()[0] == 1_000


def test_a_slow_subscriber_loses_nothing(tmp_path: Path) -> None:
    feed = feed_with(transport="ipc")  # its buffers are small
    day = gappy_day(tmp_path, feed, LEAST_STORED_BYTES)
    heard = Heard()
    may_go_on = threading.Event()
    subscriber = Subscriber(feed, workers=1, slow=SlowPolicy(max_lag=LAG_NS / 1e9), queue_blocks=1, hwm_blocks=1)

    @subscriber.on_batch(b"")
    def take(batch: Batch) -> None:
        may_go_on.wait(200)
        heard.take(batch)

    with Publisher(feed, when_full="wait", hwm_blocks=1) as publisher:
        subscriber.start()
        thread = threading.Thread(target=Replay(Recording.open(tmp_path), loops=5).publish, args=(publisher,))
        thread.start()
        try:
            wait_until(lambda: publisher.statistics().waits > 0)
        finally:
            may_go_on.set()
        thread.join()
    subscriber.run(until_end=True)
    assert heard.count == 5 * len(day.told())
    assert subscriber.statistics().received.gaps == 0


@pytest.mark.parametrize(("size", "keep_gaps"), [(10, False), (LEAST_STORED_BYTES, True)])
def test_subscribers_are_notified_when_a_published_replay_seeks_back(
    tmp_path: Path, size: int, keep_gaps: bool
) -> None:
    feed = feed_with()
    day = Day(tmp_path / "first", feed)
    times = [S + i for i in range(12)]
    day.put(0, *(Put((Row(b"A.x", b"%d " % i + bytes(size), time),), i, ts_out=time) for i, time in enumerate(times)))
    script = [("go", 5), ("seek", S + 2), ("go", 4), ("seek", 0), ("seek", S + 9), ("go", 1), ("seek", S + 1)]
    expected, resets, since = plainly(day.told(), S, script)
    assert len(resets) == 3
    audience = Audience(feed)
    with Publisher(feed, when_full="wait") as publisher:
        recorder = Recorder(feed, tmp_path / "again", max_lag=LAG_NS / 1e9).start()
        audience.subscriber.start()
        Replay(Recording.open(day.path), controls=Scripted(script), keep_gaps=keep_gaps).publish(publisher)
    audience.subscriber.run(until_end=True)
    recorder.run(until_end=True)

    def payloads(messages: list[Told]) -> list[bytes]:
        return [message.payload for message in messages]

    assert payloads(audience.by_message) == payloads(audience.by_batch) == payloads(expected)
    assert audience.resets == resets
    assert audience.compiled.total()[0] == len(since)
    received = audience.subscriber.statistics().received
    assert (received.gaps, received.duplicates, received.stale, received.implausible) == (0, 0, 0, 0)
    (path,) = (each.parent for each in (tmp_path / "again").glob("*/*/manifest.json"))
    recording = Recording.open(path)
    ((_, segments),) = recording.segments.of()
    begun = [mark.epoch for mark in marks_of(segments) if mark.kind is MarkKind.EPOCH_BEGIN]
    assert begun == [publisher.epoch - 3 + n for n in range(4)]
    assert payloads([message for batch in recording.batches() for message in told_of(batch)]) == payloads(expected)
    assert recording.gaps() == []


@pytest.mark.parametrize(
    ("form", "settings", "error", "text"),
    [
        ({"slices": 2}, {"keep_gaps": True}, ConfigError, "gaps"),
        ({"schema": "itch50"}, {}, ConfigError, "schema"),
        ({}, {"books": True}, ConfigError, "books was set for a replay that is published"),
        ({"key_bytes": 4, "max_topics": 16}, {}, PublisherError, "expected at most max_topics = 16"),
    ],
)
def test_a_replay_that_does_not_fit_the_feed_is_refused(
    tmp_path: Path, form: Any, settings: Any, error: type[Exception], text: str
) -> None:
    puts = [Put((Row(b"K%03d" % n, bytes(LEAST_STORED_BYTES), S + n),), ts_out=S + n) for n in range(20)]
    Day(tmp_path, feed_with(key_bytes=4)).put(0, *puts)
    with Publisher(feed_with(**form)) as publisher, pytest.raises(error, match=text):
        Replay(Recording.open(tmp_path), **settings).publish(publisher)
