"""A callback gets a message of several topics once, under the first topic that it wants."""

from __future__ import annotations

import random
import time
from typing import Any, Literal

import numpy
import pytest

from blackbox import Publisher, SlowPolicy, Subscriber
from blackbox.block.form.rows import PayloadColumns, as_rows
from blackbox.feed.symbol_choice import TopicChoice
from blackbox.testing import Collector
from tests.callbacks import count_rows
from tests.receive.subscribers import LATE_NS, PATIENT, one_slice, published, publishing

TOPICS = (b"A.1", b"A.2", b"B.1", b"B.2", b"AB", b"C")
PREFIXES = (b"", b"A", b"A.", b"A.2", b"B", b"B.2", b"C", b"D")
Message = tuple[tuple[bytes, ...], bytes]


def messages_of(seed: int, count: int) -> list[Message]:
    """Return random messages, each with up to six topics in any order."""
    choice = random.Random(seed)
    return [
        (tuple(choice.sample(TOPICS, choice.choice([1, 1, 2, 3, 6]))), b"%d" % number * choice.randint(1, 3))
        for number in range(count)
    ]


def wanted(messages: list[Message], prefix: bytes) -> list[tuple[bytes, bytes]]:
    """Return topic and payload of each message as a callback gets it."""
    found = []
    for topics, payload in messages:
        found += [(topic, payload) for topic in topics if topic.startswith(prefix)][:1]
    return found


def told(got: Collector) -> list[tuple[bytes, bytes]]:
    return [(message.topic, message.payload) for message in got.messages]


def publish(publisher: Publisher, messages: list[Message], times: list[int] | None = None) -> None:
    """Publish messages of several topics as a hub does. `times`: `ts_event` of each; None: 1."""
    stamps = [1] * len(messages) if times is None else times
    payloads = [payload for topics, payload in messages for _ in topics]
    rows, _alive = as_rows(
        PayloadColumns(
            b"".join(payloads),
            ts_event=[stamp for stamp, (topics, _) in zip(stamps, messages, strict=True) for _ in topics],
            offsets=numpy.cumsum([0, *map(len, payloads)]),
            same=[place for topics, _ in messages for place in range(len(topics))],
        ),
        len(payloads),
    )
    index = numpy.array([TOPICS.index(topic) for topics, _ in messages for topic in topics], numpy.int32)
    publisher._publish_rows(publisher._routes.resolve(TOPICS), index, rows)


@pytest.mark.parametrize(("workers", "transport"), [(0, "tcp"), (2, "shm"), (0, "shm")])
def test_each_callback_gets_a_message_once(workers: int, transport: Literal["tcp", "shm"]) -> None:
    feed = one_slice(transport=transport)
    messages = messages_of(seed=1, count=300)
    subscriber = Subscriber(feed, workers=workers, slow=PATIENT)
    singles, batches = {prefix: Collector() for prefix in PREFIXES}, {prefix: Collector() for prefix in PREFIXES}
    everything = Collector()
    counts: dict[bytes, Any] = {}
    for prefix in PREFIXES:
        subscriber.on(prefix)(singles[prefix].message)
        subscriber.on_batch(prefix, independent=True)(batches[prefix].batch)
        counts[prefix] = subscriber.on_compiled(prefix, state=numpy.zeros(1, numpy.int64))(count_rows)
    stream = subscriber.stream(b"B")
    subscriber._on_batch_of(TopicChoice.of(feed, (b"A", b"C"), None), everything.batch)
    with published(feed, subscriber) as publisher:
        for start in range(0, len(messages), 7):
            publish(publisher, messages[start : start + 7])
            publisher.publish(b"A.1", b"alone", 1)
    for start in range(0, len(messages) + len(messages) // 7 + 1, 8):
        messages.insert(start + 7, ((b"A.1",), b"alone"))
    for prefix in PREFIXES:
        expected = wanted(messages, prefix)
        assert told(singles[prefix]) == expected
        assert told(batches[prefix]) == expected
        assert counts[prefix].total()[0] == len(expected)
    assert [(message.topic, message.payload) for message in stream] == wanted(messages, b"B")
    rows = [(topic, payload) for topics, payload in messages for topic in topics if topic.startswith((b"A", b"C"))]
    assert told(everything) == rows
    delivery = subscriber.statistics().delivery
    assert delivery.due == delivery.delivered > 0
    assert delivery.dropped == 0


@pytest.mark.parametrize("workers", [0, 1])
def test_a_message_that_was_delivered_before_is_not_repeated_under_its_other_topics(workers: int) -> None:
    """A block whose first rows were received before begins in the middle of a message."""
    subscriber = Subscriber(feed := one_slice(), workers=workers, slow=PATIENT)
    got = {prefix: Collector() for prefix in (b"", b"A", b"B", b"C")}
    for prefix, each in got.items():
        subscriber.on(prefix)(each.message)
    with publishing(feed, subscriber) as publisher:
        publisher.send(publisher.encode([(b"B", b"0"), (b"A", b"1")], same=[0, 0]))
        rows = [(b"B", b"0"), (b"A", b"1"), (b"B", b"1"), (b"C", b"1"), (b"B", b"2")]
        publisher.send(publisher.encode(rows, sequence=0, same=[0, 0, 1, 2, 0]))
    assert {prefix: each.payloads for prefix, each in got.items()} == {
        b"": [b"0", b"1", b"2"],
        b"A": [b"1"],
        b"B": [b"0", b"1", b"2"],
        b"C": [b"1"],
    }


def test_a_conflated_message_is_delivered_once() -> None:
    """The newest message of T.1 is another one than that of T.0 and T.2, which is one message."""
    subscriber = Subscriber(feed := one_slice(), slow=SlowPolicy("conflate", start_grace=0))
    got = {prefix: Collector() for prefix in (b"T", b"T.1", b"T.2")}
    for prefix, each in got.items():
        subscriber.on(prefix)(each.message)
    with publishing(feed, subscriber) as publisher:
        rows = [(b"T.0", b"0"), (b"T.1", b"0"), (b"U", b"0"), (b"T.2", b"0"), (b"T.1", b"1"), (b"U", b"1")]
        same = [0, 1, 2, 3, 0, 1]
        publisher.send(publisher.encode(rows, same=same, ts_out=time.time_ns() - LATE_NS))
        got[b"T"].wait(2)
        publisher.send(publisher.encode([(b"T.0", b"in time"), (b"T.2", b"in time")], same=[0, 1]))
    assert told(got[b"T"]) == [(b"T.0", b"0"), (b"T.1", b"1"), (b"T.0", b"in time")]
    assert told(got[b"T.1"]) == [(b"T.1", b"1")]
    assert told(got[b"T.2"]) == [(b"T.2", b"0"), (b"T.2", b"in time")]
    delivery = subscriber.statistics().delivery
    assert delivery.due == delivery.delivered + delivery.conflated


@pytest.mark.parametrize("workers", [0, 1])
def test_a_block_that_lacks_room_for_its_rows_twice_is_delivered(workers: int) -> None:
    """Merged rows of A need more than the 65,536 that there is room for at first, then rows are left out."""
    subscriber, many = Subscriber(feed := one_slice(), workers=workers, slow=PATIENT), 35_000
    got = {prefix: Collector() for prefix in (b"A", b"A.1", b"B")}
    for prefix, each in got.items():
        subscriber.on_batch(prefix)(each.batch)
    rows = [(topic, b"") for _ in range(many) for topic in (b"A.1", b"A.2")] + [(b"B.1", b"")]
    with publishing(feed, subscriber) as publisher:
        publisher.send(publisher.encode(rows, same=[0, 1] * many + [0]))
    assert {prefix: len(each) for prefix, each in got.items()} == {b"A": many, b"A.1": many, b"B": 1}
    delivery = subscriber.statistics().delivery
    assert (delivery.due, delivery.discarded) == (delivery.delivered, 0)
