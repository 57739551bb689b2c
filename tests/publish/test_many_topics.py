"""Many topics, and more than a feed's limit."""

from __future__ import annotations

import msgspec
import numpy
import pytest

from blackbox import Batch, Feed, Publisher, SlowPolicy, Subscriber
from blackbox.errors import PublisherError
from blackbox.testing import Collector
from tests.publish.subscribers import collected, one_slice


@pytest.mark.long
def test_a_hundred_thousand_topics() -> None:
    feed = Feed.local("publisher", slices=2)
    subscriber = Subscriber(feed, slow=SlowPolicy(max_lag=3_600))
    count = 100_000
    topics = tuple(b"SYMBOL%d.trade" % number for number in range(count))
    seen: dict[bytes, int] = {}

    @subscriber.on_batch(b"")
    def note(batch: Batch) -> None:
        for row, topic in enumerate(batch.topics_per_message()):
            seen[topic] = int.from_bytes(batch.payload(row), "little")

    payloads = numpy.arange(count, dtype=numpy.int64).view(numpy.uint8).reshape(count, 8)
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        publisher.publish_many(topics, numpy.arange(count), payloads)
        assert publisher.statistics().topics == count
    subscriber.run(until_end=True)
    assert seen == {topic: number for number, topic in enumerate(topics)}
    assert subscriber.statistics().delivery.topics == count
    assert sorted(subscriber.topics(0) + subscriber.topics(1)) == sorted(topics)


def test_more_topics_than_the_limit_are_refused_and_the_rest_goes_on() -> None:
    feed = one_slice(max_topics=10)
    subscriber, got = collected(feed)
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        for number in range(10):
            publisher.publish(b"T%d" % number, b"")
        with pytest.raises(PublisherError, match="topic b'T10' did not fit: 10 topics .* max_topics = 10"):
            publisher.publish(b"T10", b"")
        with pytest.raises(PublisherError, match="max_topics = 10"):
            publisher.publish_many((b"T1", b"T11"), [0, 1], numpy.zeros((2, 1), numpy.uint8))
        publisher.publish(b"T9", b"")
    subscriber.run(until_end=True)
    assert [m.topic for m in got.messages] == [b"T%d" % number for number in [*range(10), 9]]


def test_a_subscriber_with_a_full_topic_table_still_delivers() -> None:
    feed = one_slice(max_topics=100)
    subscriber = Subscriber(msgspec.structs.replace(feed, max_topics=5))
    got = Collector()
    numbers: list[int] = []
    subscriber.on_batch(b"T")(got.batch)
    subscriber.on_batch(b"T")(lambda batch: numbers.extend(batch.topic_numbers.tolist()))
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        for number in range(40):
            publisher.publish(b"T%d" % (number % 20), b"%d" % number)
    subscriber.run(until_end=True)
    assert [int(p) for p in got.payloads] == list(range(40))
    assert set(numbers) == {-1, 0, 1, 2, 3, 4}
    statistics = subscriber.statistics()
    assert 0 < statistics.delivery.unnumbered <= statistics.received.blocks
