"""Tables: the image first, then later messages, as a mapping that is kept current."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blackbox import Batch, CallbackError, ConfigError, Feed, Publisher, Recorder, Recording, Subscriber
from blackbox.archive.serve.server import ArchiveServer
from blackbox.block.form.block import Block, HeaderFields
from blackbox.block.form.rows import PayloadColumns
from blackbox.block.position import NOWHERE, Place, Position
from blackbox.errors import SubscriberError
from blackbox.subscriber.table import Table
from blackbox.testing import RawPublisher, wait_until
from tests.archive.archives import archived_feed
from tests.archive.recorders import feed_of, wait_recorded
from tests.archive.test_images import Told
from tests.examples import examples
from tests.receive.subscribers import nothing


def expected(told: Told, prefix: bytes = b"") -> dict[bytes, bytes]:
    return {topic: payload for topic, (_, _, payload) in told.newest.items() if topic.startswith(prefix)}


@pytest.mark.parametrize(("key_bytes", "slices", "prefix"), [(0, 1, b""), (3, 1, b"B"), (3, 2, b"")])
def test_a_table_is_synced_after_the_whole_image_and_then_the_newest_of_each_topic_at_all_times(
    tmp_path: Path, key_bytes: int, slices: int, prefix: bytes
) -> None:
    """A callback has each block of the image before the table has it."""
    feed, told, seen = archived_feed(key_bytes=key_bytes, slices=slices), Told(key_bytes), list[bool]()
    with Publisher(feed, when_full="wait") as publisher, Recorder(feed, tmp_path, serve=True) as recorder:
        told.publish(publisher, 1_000)
        wait_recorded(recorder, 1_000)
        subscriber = Subscriber(feed, queue_blocks=1, workers=1)
        subscriber.on_batch(prefix)(lambda _: seen.append(table.synced))
        table: Table = subscriber.table(prefix)
        assert (table.synced, len(table)) == (False, 0)
        subscriber.start(snapshot="latest")
        assert table.wait_synced(200)
        # A block of each key that has a value.
        assert seen == [False] * len({topic[:key_bytes] for topic in told.newest if topic.startswith(prefix)})
        assert dict(table) == expected(told, prefix)
        for count in (1, 500, 3):
            told.publish(publisher, count)
            wait_until(lambda: table.snapshot()[0] == expected(told, prefix))
        assert len(table) == len(expected(told, prefix))
        assert table.get(b"none") is None
        assert all(table[topic] == table.get(topic) for topic in table)
        if (slices, prefix) == (1, b""):
            wait_until(lambda: table.at == {0: Position(publisher.epoch, told.published)})
        subscriber.stop()


def test_a_silent_table_is_synced_and_ends_with_an_error_and_wrong_ones_are_rejected(
    tmp_path: Path,
) -> None:
    feed = archived_feed()
    with Publisher(feed) as publisher, Recorder(feed, tmp_path, serve=True):
        subscriber = Subscriber(feed)
        table = subscriber.table(b"")

        @table.on_change
        def changed(topic: bytes, _payload: bytes | None) -> None:
            raise KeyError(topic)

        with pytest.raises(ConfigError, match="snapshot was None with a table, expected 'latest'"):
            subscriber.start()
        subscriber.start(snapshot="latest")
        with pytest.raises(SubscriberError, match="table was called while running: call it before start"):
            subscriber.table(b"B")
        assert (table.wait_synced(200), dict(table), table.at) == (True, {}, {})
        publisher.publish(b"A", b"1")
        publisher.flush()
        with pytest.raises(CallbackError):
            table.wait(Place(0, publisher.epoch, 1 << 40), 60)
        with pytest.raises(CallbackError):
            subscriber.stop()
    assert dict(table) == {b"A": b"1"}
    apart = Subscriber(feed, processes=True)
    apart.on_batch(b"")(nothing)
    with pytest.raises(SubscriberError, match="table was called with processes=True"):
        apart.table(b"")


def test_two_tables_that_joined_at_other_times_have_one_digest(tmp_path: Path) -> None:
    feed, told = archived_feed(slices=2), Told(0)
    with Publisher(feed, when_full="wait") as publisher, Recorder(feed, tmp_path, serve=True) as recorder:
        subscribers, tables = [], []
        for _ in range(3):
            told.publish(publisher, 1_000)
            wait_recorded(recorder, told.published)
            subscribers.append(Subscriber(feed))
            tables.append(subscribers[-1].table(b""))
            subscribers[-1].start(snapshot="latest")
        told.publish(publisher, 1_000)
        publisher.close()
        for subscriber in subscribers:
            subscriber.run(until_end=True)
    assert [dict(table) for table in tables] == [expected(told)] * 3
    assert len({table.digest() for table in tables}) == 1
    assert all(table.synced for table in tables)
    other = dict(tables[0])
    tables[1]._rows._payloads[0] ^= 1
    assert (dict(tables[0]), tables[1].digest() == tables[0].digest()) == (other, False)


def test_messages_of_a_replay_are_not_part_of_the_image(tmp_path: Path) -> None:
    feed = archived_feed()
    with Publisher(feed) as publisher, Recorder(feed, tmp_path, serve=True) as recorder:
        for topic in (b"A", b"B"):
            publisher.publish(topic, b"1")
        publisher.flush()
        publisher.wait_recorded(60)  # so that it is in the file
        subscriber = Subscriber(feed)
        table = subscriber.table(b"")
        subscriber.replay(Recording.latest(tmp_path / feed.name))
        assert dict(table) == {b"A": b"1", b"B": b"1"}
        publisher.publish_many((b"B",), numpy.zeros(1, numpy.int32), numpy.zeros((1, 1), numpy.uint8), valid=[False])
        publisher.flush()
        wait_recorded(recorder, 3)
        subscriber.start(snapshot="latest")
        assert table.wait_synced(200)
        assert table.snapshot() == ({b"A": b"1"}, {0: Position(publisher.epoch, 3)})
        subscriber.stop()


@contextmanager
def live(directory: Path, *topics: bytes, **settings: int) -> Iterator[tuple[Publisher, Subscriber]]:
    """A publisher of those topics, and a subscriber that is to start with their image."""
    feed = archived_feed(**settings)
    with Publisher(feed, when_full="wait") as publisher, Recorder(feed, directory, serve=True) as recorder:
        for topic in topics:
            publisher.publish(topic, b"first " + topic, ts_event=0)
        publisher.flush()
        wait_recorded(recorder, len(topics))
        subscriber = Subscriber(feed)
        yield publisher, subscriber
        subscriber.stop()


Messages = list[list[tuple[int, int, bytes | None]]]
messages = st.lists(
    st.lists(
        st.tuples(st.integers(0, 6), st.integers(0, 99), st.one_of(st.none(), st.binary(max_size=30))),
        min_size=1,
        max_size=20,
    ),
    max_size=8,
)


@settings(max_examples=examples(160))
@given(messages, st.booleans())
def test_a_table_matches_a_dict_that_is_changed_message_by_message(blocks: Messages, is_part: bool) -> None:
    topics, feed = [b"%c.t" % (65 + number) for number in range(7)], Feed.local("table", slices=1)
    table, expected, sequence = Table(feed, b""), dict[bytes, tuple[bytes, int, Place]](), 10
    changes, told = list[tuple[bytes, bytes | None]](), list[tuple[bytes, bytes | None]]()

    @table.on_change
    def _(topic: bytes, payload: bytes | None) -> None:
        told.append((topic, payload))

    for epoch, block in enumerate(blocks, 1):
        payloads = [payload or b"" for _, _, payload in block]
        made = Block.encode(
            topics,
            [topic for topic, _, _ in block],
            PayloadColumns(
                b"".join(payloads),
                ts_event=[time for _, time, _ in block],
                offsets=numpy.cumsum([0, *map(len, payloads)]),
                valid=[payload is not None for _, _, payload in block],
            ),
            HeaderFields(epoch=epoch, sequence=sequence),
        )
        wanted = [row for row in range(len(block)) if not is_part or row % 3 != 1]
        table._take(Batch(made, numpy.array(wanted, numpy.int32) if is_part else None))
        last: dict[bytes, bytes | None] = {}
        for row in wanted:
            topic, time, payload = block[row]
            last.pop(topics[topic], None)
            last[topics[topic]] = payload
            expected.pop(topics[topic], None)
            if payload is not None:
                expected[topics[topic]] = payload, time, Place(0, epoch, sequence + row)
        changes += last.items()
        assert table.at == {0: Position(epoch, sequence + wanted[-1] + 1)}
        sequence += len(block)
    assert dict(table) == table.snapshot()[0] == {topic: payload for topic, (payload, _, _) in expected.items()}
    assert len(table) == len(expected)
    for name in topics:
        entry = table.entry(name)
        assert (entry and (entry.payload, entry.ts_event, entry.place)) == expected.get(name)
        assert table.revision(name) == (expected[name][2] if name in expected else NOWHERE)
    assert told == changes
    assert sorted(each.payload for batch in table.batches() for each in batch) == sorted(table.values())


def test_late_messages_of_a_key_do_not_move_the_position_back() -> None:
    table = Table(Feed.local("table", slices=1, key_bytes=1), b"")
    for topic, epoch, sequence in ((b"A", 7, 4), (b"B", 7, 2), (b"B", 3, 1)):
        table._take(
            Batch(
                Block.encode(
                    [topic],
                    [0],
                    PayloadColumns(b"x", offsets=[0, 1]),
                    HeaderFields(epoch=epoch, sequence=sequence),
                    key=topic,
                )
            )
        )
        assert table.at == {0: Position(7, 5) if epoch == 7 else Position(3, 2)}


def test_growing_payloads_keep_their_topics() -> None:
    table, topics = Table(Feed.local("table", slices=1), b""), [b"%03d.t" % number for number in range(500)]
    for size in (1, 40, 200, 3, 1_000):
        payloads = numpy.arange(500 * size).astype(numpy.uint8).reshape(500, size)
        table._take(Batch(Block.encode(topics, numpy.arange(500), PayloadColumns(payloads))))
        assert dict(table) == dict(zip(topics, map(bytes, payloads), strict=True))


def test_more_topics_or_bytes_than_the_limits_are_an_error() -> None:
    feed = msgspec.structs.replace(Feed.local("table", slices=1), max_topics=4)
    many = Batch(
        Block.encode(
            [b"%d" % number for number in range(5)], numpy.arange(5), PayloadColumns(numpy.zeros((5, 8), numpy.uint8))
        )
    )
    with pytest.raises(SubscriberError, match=r"table b'' had more than 4 topics, .*\(max_topics\)"):
        Table(feed, b"")._take(many)
    large = Batch(Block.encode([b"A"], [0], PayloadColumns(numpy.zeros((1, 1 << 17), numpy.uint8))))
    table = Table(feed, b"")
    table._rows._most_bytes = 1 << 16
    with pytest.raises(SubscriberError, match="had newest messages of 131072 bytes or more, expected at most 65536"):
        table._take(large)


def test_changes_reach_callbacks_reads_and_frames(tmp_path: Path) -> None:
    """The image comes first, then each block."""
    with live(tmp_path, b"A.bid", b"B.ask") as (publisher, subscriber):
        table, told = subscriber.table(b""), list[tuple[bytes, bytes | None, bytes | None]]()

        @table.on_change
        def changed(topic: bytes, payload: bytes | None) -> None:
            told.append((topic, payload, table.get(topic)))

        subscriber.start(snapshot="latest")
        assert table.wait_synced(200)
        with pytest.raises(SubscriberError, match="used once"):
            subscriber.start(snapshot="latest")
        items, values = iter(table.items()), iter(table.values())
        assert (next(items), next(values)) == ((b"A.bid", b"first A.bid"), b"first A.bid")
        publisher.publish(b"B.ask", None)
        publisher.flush()
        wait_until(lambda: len(told) == 3)
        publisher.publish(b"B.ask", b"next", ts_event=0)
        publisher.publish(b"A.bid", b"new", ts_event=1_700_000_000_000_000_000)
        publisher.publish(b"C.bid", None)
        publisher.flush()
        wait_until(lambda: len(told) == 6)
        assert told[:2] == [(topic, b"first " + topic, b"first " + topic) for topic in (b"A.bid", b"B.ask")]
        assert told[2:4] == [(b"B.ask", None, None), (b"B.ask", b"next", b"next")]
        assert told[4:] == [(b"A.bid", b"new", b"new"), (b"C.bid", None, None)]
        assert (list(items), list(values)) == ([(b"B.ask", b"first B.ask")], [b"first B.ask"])  # as at their start
        wanted = {
            "topic": ["B.ask", "A.bid"],
            "type": ["ask", "bid"],
            "sequence": [3, 4],
            "payload": [b"next", b"new"],
        }
        assert table.to_arrow().select([*wanted]).to_pydict() == wanted
        assert table.to_pandas()[[*wanted]].to_dict("list") == wanted
        assert table.to_polars()["topic"].to_list() == wanted["topic"]
        assert table.to_arrow(b"A", times="integer")["ts_event"].to_pylist() == [1_700_000_000_000_000_000]
        assert table.to_arrow()["ts_event"].to_pylist()[0] is None
        with pytest.raises(ConfigError, match=r"options were \['epoch'\], expected none of these for a table"):
            table.to_arrow(epoch=1)
        subscriber.stop()
        with pytest.raises(SubscriberError, match="table b'': its subscriber ended during"):
            table.wait(Place(0, publisher.epoch, 1 << 40), 60)


def test_a_wait_for_a_message_ends_once_the_table_has_it(tmp_path: Path) -> None:
    with live(tmp_path, b"A", key_bytes=1) as (publisher, subscriber):
        table = subscriber.table(b"")
        place = Place(0, publisher.epoch, 1)
        assert not table.wait(Place(0, 0, 0), 0.01), "it is not synced"
        subscriber.start(snapshot="latest")
        assert table.wait(Place(0, publisher.epoch, 0), 60)
        assert not table.wait(place, 0.01)
        seen = list[tuple[bool, bytes]]()
        waiting = threading.Thread(target=lambda: seen.append((table.wait(place, 200), table[b"A"])))
        waiting.start()
        publisher.publish(b"A", b"2")
        waiting.join(200)
        assert seen == [(True, b"2")]
        assert table.revision(b"A") == place
        assert table.wait(table.at, 0)
        assert table.wait({}, 0)


def test_a_wait_for_a_table_of_some_keys_ends_after_all_of_its_keys_are_repaired(tmp_path: Path) -> None:
    feed, elsewhere = archived_feed(key_bytes=2), feed_of(key_bytes=2)
    with (
        RawPublisher(feed) as publisher,
        RawPublisher(elsewhere, publisher.epoch) as other,
        Recorder(elsewhere, tmp_path) as recorder,
        ArchiveServer(tmp_path / feed.name, feed.archives),
    ):
        blocks = [publisher.encode([(topic, payload)]) for topic, payload in ((b"Aa.x", b"old"), (b"Ab.x", b"old"))]
        for block in blocks:
            other.send(block)
        wait_recorded(recorder, 2)
        subscriber = Subscriber(feed, on_gap="repair", repair_wait=60)
        table = subscriber.table(b"A")
        subscriber.start(snapshot="latest")
        publisher.heartbeat()
        subscriber.wait_live()
        blocks = [publisher.encode([(topic, b"new")]) for topic in (b"Aa.x", b"Ab.x")]
        publisher.send(blocks[1])  # the one before it is lost
        assert table.wait(Place(0, publisher.epoch, 3), 60)
        assert table[b"Aa.x"] == b"old"
        seen = list[tuple[bool, bytes]]()
        untils = Place(0, publisher.epoch, 2), table.at
        waiting = [
            threading.Thread(target=lambda until=until: seen.append((table.wait(until, 200), table[b"Aa.x"])))
            for until in untils
        ]
        for each in waiting:
            each.start()
        publisher.heartbeat()
        wait_until(lambda: subscriber.statistics().received.catching_up == 1)
        assert seen == []
        for block in blocks:
            other.send(block)
        for each in waiting:
            each.join(200)
        subscriber.stop()
    assert seen == [(True, b"new")] * 2


def test_records_of_a_schema_are_columns() -> None:
    table = Table(Feed.local("table", slices=1, schema="tape"), b"")
    (kind,) = list(table.schema.records)[:1]
    dtype = table.schema.dtype(kind)
    records = numpy.zeros(2, dtype)
    payloads = records.view(numpy.uint8).reshape(2, -1)
    payloads[:, table.schema.type_offset] = ord(kind)
    table._take(Batch(Block.encode([b"A", b"B"], [0, 1], PayloadColumns(payloads))))
    frame = table.to_arrow(message_type=kind)
    assert frame["topic"].to_pylist() == ["A", "B"]
    assert {field.name for field in table.schema.arrow(kind)} - {"payload"} <= {
        name.removeprefix("record_") for name in frame.column_names
    }
