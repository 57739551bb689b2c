"""A message without a value stays distinct from an empty payload on every path."""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest

from blackbox import Message, Publisher, Recorder, Recording, SlowPolicy, Subscriber
from blackbox.cli.ui.messages import describe
from blackbox.feed.schema.schema import RAW
from tests.publish.subscribers import one_slice


@pytest.mark.parametrize("conflated", [False, True])
def test_a_deleted_topic_is_not_an_empty_payload(conflated: bool) -> None:
    slow = SlowPolicy("conflate", max_lag=(1 if conflated else 3_600 * 10**9) / 1e9, start_grace=0)
    feed = one_slice()
    subscriber = Subscriber(feed, slow=slow)
    messages: list[Message] = []
    subscriber.on(b"")(messages.append)
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        publisher.publish(b"A", b"1")
        publisher.publish(b"B", None, 7)
        publisher.publish(b"C", b"")
        publisher.publish_many((b"D", b"E"), [0, 1], numpy.ones((2, 3), numpy.uint8), valid=numpy.array([False, True]))
        publisher.publish_many((b"F", b"G"), [0, 1], b"xyz", offsets=[0, 1, 3], valid=numpy.array([True, False]))
        with pytest.raises(ValueError, match=r"valid had shape \(1,\) of bool, expected \(2,\) of bool"):
            publisher.publish_many((b"A",), [0, 0], numpy.ones((2, 1), numpy.uint8), valid=numpy.array([True]))
    subscriber.run(until_end=True)
    expected = {b"A": b"1", b"B": None, b"C": b"", b"D": None, b"E": b"\1\1\1", b"F": b"x", b"G": None}
    assert {message.topic: message.payload for message in messages} == expected
    assert {message.topic: message.ts_event for message in messages}[b"B"] == 7


def test_a_recorded_deletion_is_null_in_arrow_and_in_text_and_is_not_a_record(tmp_path: Path) -> None:
    feed = one_slice(schema="itch50")
    with Publisher(feed, when_full="wait") as publisher:
        recorder = Recorder(feed, tmp_path).start()
        publisher.publish(b"A", None, 5)
        publisher.close()
        recorder.run(until_end=True)
    (day,) = (path.parent for path in tmp_path.rglob("manifest.json"))
    recording = Recording.open(day)
    assert recording.to_arrow()["payload"].to_pylist() == [None]
    (message,) = (message for batch in recording.batches() for message in batch)
    assert describe(message, RAW).endswith(" A deleted")
    with pytest.raises(ValueError, match="message 0 of topic b'A' had no value, expected a record"):
        message.record  # noqa: B018
