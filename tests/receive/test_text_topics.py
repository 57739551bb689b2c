"""Topics and prefixes may be text, which means its UTF-8 bytes, in every call."""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest

from blackbox import Feed, Publisher, Recording, Replay, Subscriber
from blackbox.block.gap import Gap
from blackbox.subscriber.table import Table
from blackbox.testing import Collector
from tests.callbacks import count_rows
from tests.journals import Day, Put, Row, feed_of
from tests.receive.subscribers import one_slice

CAFE = "Caf\u00e9.T"


def test_text_and_bytes_are_the_same_topic_for_every_way_to_send_and_to_receive() -> None:
    feed = one_slice()
    got, batches, gaps = Collector(), Collector(), list[Gap]()
    subscriber = Subscriber(feed)
    subscriber.on("Caf\u00e9.")(got.message)
    subscriber.on_batch("Caf\u00e9.")(batches.batch)
    subscriber.on_gap("Caf\u00e9.")(gaps.append)
    counted = subscriber.on_compiled("Caf\u00e9.", state=numpy.zeros(1, numpy.int64))(count_rows)
    stream = subscriber.stream("Caf\u00e9.")
    assert stream.prefix == "Caf\u00e9.".encode()
    with Publisher(feed, when_full="wait") as publisher, subscriber:
        subscriber.wait_confirmed(prefix="Caf\u00e9.")
        publisher.wait_for_subscribers("Caf\u00e9.")
        assert publisher.wants(CAFE)
        assert not publisher.wants("other")
        publisher.publish(CAFE, b"1", 1)
        publisher.publish(CAFE.encode(), b"2", 1)
        publisher.publish(CAFE, None, 1)
        publisher.publish_many([CAFE, CAFE.encode(), "other"], [0, 1, 2, 0], numpy.zeros((4, 1), numpy.uint8))
        publisher.publish(CAFE, b"last", 1)
        messages = got.wait(7)
        assert [message.topic for message in messages] == [CAFE.encode()] * 7
        assert [message.payload for message in messages] == [b"1", b"2", None, b"\0", b"\0", b"\0", b"last"]
        assert [message.sequence for message in messages] == [0, 1, 2, 3, 4, 6, 7]
        assert [stream.get(60).payload for _ in range(7)] == got.payloads
        assert subscriber.topics(0)[0] == CAFE.encode()
        with pytest.raises(TypeError, match="topics was 'AAPL', expected a list or tuple"):
            publisher.publish_many("AAPL", [0], numpy.zeros((1, 1), numpy.uint8))
    assert batches.payloads == got.payloads
    assert counted.total().tolist() == [7]
    assert gaps == []


def test_a_table_takes_text_for_its_topics() -> None:
    table = Table(Feed.local("table", slices=1), b"A.")
    assert table.get(b"A.x") is None
    assert "A.x" not in table
    assert table.entry("A.x") is None
    assert table.revision("A.x") == table.revision(b"A.x")
    assert list(table.batches("A.")) == []
    with pytest.raises(TypeError, match=r"topic was 5 \(int\), expected str or bytes"):
        table.entry(5)  # type: ignore[arg-type]


def test_recordings_and_replays_take_text(tmp_path: Path) -> None:
    day = Day(tmp_path / "2026-11-20", feed_of())
    rows = [Row(b"A.x", b"1", 10), Row(b"B.x", b"2", 11), Row(CAFE.encode(), b"3", 12)]
    day.put(0, Put(tuple(rows)))
    recording = Recording.open(day.path)
    for prefix in ("A.", "", "Caf\u00e9", "none"):
        data = prefix.encode()
        expected = [row.payload for row in rows if row.topic.startswith(data)]
        for given in (prefix, data):
            assert [payload for batch in recording.batches(given) for payload in batch.payload_list()] == expected
            assert recording.to_arrow(given)["payload"].to_pylist() == expected
            assert [payload for batch in recording.newest(given) for payload in batch.payload_list()] == expected
            got = Collector()
            subscriber = Subscriber(recording.feed)
            subscriber.on("")(got.message)
            subscriber.replay(Replay(recording, prefix=given))
            assert got.payloads == expected
    with pytest.raises(TypeError, match=r"prefix was \['A'\] \(list\), expected str or bytes"):
        recording.batches(["A"])  # type: ignore[arg-type]
