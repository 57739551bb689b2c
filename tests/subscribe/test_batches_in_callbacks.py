"""Arguments of callbacks: marks of the end of a batch, and batches that are kept."""

from __future__ import annotations

from typing import Any

import numpy

from blackbox import Batch, Message, Publisher, SlowPolicy, Subscriber
from blackbox.testing import RawPublisher, wait_until
from tests.gate import Gate
from tests.subscribe.subscribers import one_slice


def test_end_of_batch_marks_the_last_queued_message() -> None:
    feed = one_slice()
    subscriber = Subscriber(feed, slow=SlowPolicy(max_lag=3_600), workers=1)
    marks: list[tuple[bytes, bool]] = []
    other_marks: list[tuple[bytes, bool]] = []
    gate = Gate()

    @subscriber.on(b"")
    def note(message: Message) -> None:
        gate.wait()
        marks.append((message.payload, message.end_of_batch))

    @subscriber.on_batch(b"U")
    def note_batch(batch: Batch) -> None:
        other_marks.append((batch.payload(0), batch.end_of_batch))

    with RawPublisher(feed) as publisher:
        subscriber.start()
        publisher.send(publisher.encode([(b"T", b"first")]))
        assert gate.entered.wait(60)
        for number in range(5):
            publisher.send(publisher.encode([(b"T", b"%d" % number), (b"U", b"u%d" % number)]))
        wait_until(lambda: subscriber.statistics().delivery.queue_blocks == 5)
        gate.open.set()
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    payloads = [payload for n in range(5) for payload in (b"%d" % n, b"u%d" % n)]
    assert marks == [(b"first", True), *((payload, payload == b"u4") for payload in payloads)]
    assert other_marks == [(b"u%d" % n, n == 4) for n in range(5)]


def test_a_kept_batch_is_unchanged() -> None:
    feed = one_slice()
    subscriber = Subscriber(feed)
    kept: list[Batch] = []
    kept_messages: list[Message] = []
    columns: list[Any] = []

    @subscriber.on_batch(b"K")
    def keep(batch: Batch) -> None:
        kept.append(batch)
        columns.append((batch.ts_event, batch.topic_index, batch.block.payloads))

    subscriber.on(b"K")(kept_messages.append)
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        for number in range(3_000):
            publisher.publish(b"K%d" % (number % 5) if number % 7 else b"other", b"%d" % number * 5, ts_event=number)
            if number % 50 == 0:
                publisher.flush()
    subscriber.run(until_end=True)
    del subscriber
    expected = [number for number in range(3_000) if number % 7]
    assert [batch.payload(i) for batch in kept for i in range(len(batch))] == [b"%d" % n * 5 for n in expected]
    assert numpy.concatenate([times for times, _, _ in columns]).tolist() == expected
    assert [(m.topic, m.ts_event) for m in kept_messages] == [(b"K%d" % (n % 5), n) for n in expected]
    assert [m.payload for m in kept_messages] == [b"%d" % n * 5 for n in expected]
