"""Tables: the image first, then what follows, as a mapping that is kept current."""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest

from blackbox import ConfigError, Publisher, Recorder, Recording, Subscriber, SubscriberError
from blackbox.block.position import Position
from blackbox.testing import wait_until
from tests.archive.archives import archived_feed
from tests.archive.recorders import wait_recorded
from tests.archive.test_images import Told
from tests.subscribe.subscribers import nothing


def expected(told: Told, prefix: bytes = b"") -> dict[bytes, bytes]:
    return {topic: payload for topic, (_, _, payload) in told.newest.items() if topic.startswith(prefix)}


@pytest.mark.parametrize("key_bytes", [0, 3])
@pytest.mark.parametrize("prefix", [b"", b"B"])
def test_a_table_is_the_newest_of_each_topic_at_all_times(tmp_path: Path, key_bytes: int, prefix: bytes) -> None:
    feed, told = archived_feed(key_bytes=key_bytes), Told(key_bytes)
    with Publisher(feed, when_full="wait") as publisher, Recorder(feed, tmp_path, serve=True) as recorder:
        told.publish(publisher, 1_000)
        wait_recorded(recorder, 1_000)
        subscriber = Subscriber(feed)
        table = subscriber.table(prefix)
        assert (table.synced, len(table)) == (False, 0)
        subscriber.start(since="image")
        assert table.wait_synced(20)
        assert dict(table) == expected(told, prefix)
        for count in (1, 500, 3):
            told.publish(publisher, count)
            wait_until(lambda: dict(table) == expected(told, prefix), 20)
        assert len(table) == len(expected(told, prefix))
        assert table.get(b"none") is None
        assert all(table[topic] == table.get(topic) for topic in table)
        if not prefix:
            at = {(0, key): Position(publisher.epoch, number) for key, number in told.following.items()}
            wait_until(lambda: table.at == at, 20)
        subscriber.stop()


def test_it_is_synced_once_the_image_is_whole_and_never_before(tmp_path: Path) -> None:
    """A callback that has each block of the image before the table has it."""
    feed, told, seen = archived_feed(key_bytes=3, slices=2), Told(3), list[bool]()
    with Publisher(feed, when_full="wait") as publisher, Recorder(feed, tmp_path, serve=True) as recorder:
        told.publish(publisher, 1_000)
        wait_recorded(recorder, 1_000)
        subscriber = Subscriber(feed, queue_blocks=1, workers=1)

        @subscriber.on_batch(b"")
        def _(batch: object) -> None:
            seen.append(table.synced)

        table = subscriber.table(b"")
        subscriber.start(since="image")
        assert table.wait_synced(20)
        # A block for each key that has a value.
        assert seen == [False] * len({topic[:3] for topic in told.newest})
        assert dict(table) == expected(told)
        subscriber.stop()


def test_a_table_of_a_feed_that_has_sent_nothing_is_synced_and_empty(tmp_path: Path) -> None:
    feed = archived_feed()
    with Publisher(feed) as publisher, Recorder(feed, tmp_path, serve=True):
        subscriber = Subscriber(feed)
        table = subscriber.table(b"")
        subscriber.start(since="image")
        assert (table.wait_synced(20), dict(table), table.at) == (True, {}, {})
        publisher.publish(b"A", b"1")
        publisher.flush()
        wait_until(lambda: dict(table) == {b"A": b"1"}, 20)
        subscriber.stop()


def test_two_tables_that_joined_at_other_times_have_one_digest(tmp_path: Path) -> None:
    feed, told = archived_feed(slices=2), Told(0)
    with Publisher(feed, when_full="wait") as publisher, Recorder(feed, tmp_path, serve=True) as recorder:
        subscribers, tables = [], []
        for _ in range(3):
            told.publish(publisher, 1_000)
            wait_recorded(recorder, told.published)
            subscribers.append(Subscriber(feed))
            tables.append(subscribers[-1].table(b""))
            subscribers[-1].start(since="image")
        told.publish(publisher, 1_000)
        publisher.close()
        for subscriber in subscribers:
            subscriber.run(until_end=True)
    assert [dict(table) for table in tables] == [expected(told)] * 3
    assert len({table.digest() for table in tables}) == 1
    assert all(table.synced for table in tables)
    other = dict(tables[0])
    tables[1]._payloads[b"A0.t"] += b"x"
    assert (dict(tables[0]), tables[1].digest() == tables[0].digest()) == (other, False)


def test_topics_that_go_away_while_all_are_read_harm_nobody(tmp_path: Path) -> None:
    feed = archived_feed()
    with Publisher(feed, when_full="wait") as publisher, Recorder(feed, tmp_path, serve=True) as recorder:
        publisher.publish_many((b"A", b"B"), numpy.arange(2, dtype=numpy.int32), numpy.zeros((2, 4), numpy.uint8))
        publisher.flush()
        wait_recorded(recorder, 2)
        subscriber = Subscriber(feed)
        table = subscriber.table(b"")
        subscriber.start(since="image")
        assert table.wait_synced(20)
        items, values = iter(table.items()), iter(table.values())
        assert (next(items), next(values)) == ((b"A", bytes(4)), bytes(4))
        publisher.publish_many((b"B",), numpy.zeros(1, numpy.int32), numpy.zeros((1, 4), numpy.uint8), valid=[False])
        publisher.flush()
        wait_until(lambda: b"B" not in table, 20)
        assert (list(items), list(values)) == ([(b"B", bytes(4))], [bytes(4)])
        assert table == {b"A": bytes(4)}
        subscriber.stop()


def test_what_a_replay_has_left_is_no_part_of_the_image(tmp_path: Path) -> None:
    feed = archived_feed()
    with Publisher(feed) as publisher, Recorder(feed, tmp_path, serve=True) as recorder:
        for topic in (b"A", b"B"):
            publisher.publish(topic, b"1")
        publisher.flush()
        wait_recorded(recorder, 2)
        subscriber = Subscriber(feed)
        table = subscriber.table(b"")
        subscriber.replay(Recording.open(next((tmp_path / feed.name).iterdir())))
        assert dict(table) == {b"A": b"1", b"B": b"1"}
        publisher.publish_many((b"B",), numpy.zeros(1, numpy.int32), numpy.zeros((1, 1), numpy.uint8), valid=[False])
        publisher.flush()
        wait_recorded(recorder, 3)
        subscriber.start(since="image")
        assert table.wait_synced(20)
        assert table.snapshot() == ({b"A": b"1"}, {(0, b""): Position(publisher.epoch, 3)})
        subscriber.stop()


def test_it_says_nothing_of_keys_that_it_has_no_topics_of(tmp_path: Path) -> None:
    feed = archived_feed(key_bytes=1)
    with Publisher(feed, when_full="wait") as publisher, Recorder(feed, tmp_path, serve=True) as recorder:
        for topic in (b"A.t", b"B.t"):
            publisher.publish(topic, b"")
        publisher.flush()
        wait_recorded(recorder, 2)
        subscriber = Subscriber(feed)
        subscriber.on_batch(b"B")(nothing)
        table = subscriber.table(b"A.")
        subscriber.start(since="image")
        assert table.wait_synced(20)
        assert table.at == {(0, b"A"): Position(publisher.epoch, 1)}
        subscriber.stop()


def test_what_no_table_can_be_is_refused(tmp_path: Path) -> None:
    feed = archived_feed()
    with Publisher(feed), Recorder(feed, tmp_path, serve=True):
        subscriber = Subscriber(feed)
        subscriber.table(b"A")
        with pytest.raises(ConfigError, match="since was None with a table, expected 'image'"):
            subscriber.start()
        subscriber.start(since="image")
        with pytest.raises(SubscriberError, match="table was called while running, expected it before start"):
            subscriber.table(b"B")
        subscriber.stop()
    apart = Subscriber(feed, processes=True)
    apart.on_batch(b"")(nothing)
    with pytest.raises(SubscriberError, match="table was called with processes=True"):
        apart.table(b"")
