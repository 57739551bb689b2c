"""Callbacks: their turns and arguments, and callbacks that are added and removed (see also `test_matching.py`)."""

from __future__ import annotations

import random
import threading
from itertools import pairwise
from typing import Any

import numpy
import pytest

from blackbox import Batch, Feed, Message, Publisher, SlowPolicy, Subscriber
from blackbox.testing import Collector, RawPublisher, wait_until
from tests.callbacks import count_rows
from tests.gate import Gate
from tests.receive.subscribers import nothing, numbers_of, one_slice, publishing

ZERO = numpy.zeros(1, numpy.int64)
MESSAGES = 600
EXPECTED = [
    (number, n) for n in range(MESSAGES) for number, wants in enumerate((n % 2 == 1, True, n % 2 == 0)) if wants
]
"""Callback and message: one callback gets all messages, two get half of them each."""


@pytest.mark.parametrize(("workers", "options"), [(1, {}), (3, {"group": "pair"}), (1, {"independent": True})], ids=str)
def test_each_message_reaches_all_callbacks_before_the_next_unless_they_are_independent(
    workers: int, options: dict[str, Any]
) -> None:
    feed = Feed.local("turns")
    subscriber = Subscriber(feed, workers=workers)
    came: list[tuple[int, int]] = []

    def register(number: int, prefix: bytes) -> None:
        @subscriber.on(prefix, **options)
        def _(message: Message) -> None:
            came.append((number, int(message.payload)))

    for number, prefix in enumerate((b"B", b"", b"A")):
        register(number, prefix)
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        for n in range(MESSAGES):
            publisher.publish((b"A.x", b"B.x")[n % 2], b"%04d" % n, n + 1)
    subscriber.run(until_end=True)
    if "independent" not in options:
        assert came == EXPECTED
    for number in range(3):
        assert [n for each, n in came if each == number] == [n for each, n in EXPECTED if each == number]


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

    with publishing(feed, subscriber) as publisher:
        publisher.send(publisher.encode([(b"T", b"first")]))
        assert gate.entered.wait(60)
        for number in range(5):
            publisher.send(publisher.encode([(b"T", b"%d" % number), (b"U", b"u%d" % number)]))
        wait_until(lambda: subscriber.statistics().delivery.queue_blocks == 5)
        gate.open.set()
    payloads = [payload for n in range(5) for payload in (b"%d" % n, b"u%d" % n)]
    assert marks == [(b"first", True), *((payload, payload == b"u4") for payload in payloads)]
    assert other_marks == [(b"u%d" % n, n == 4) for n in range(5)]


def test_kept_batches_columns_and_messages_are_unchanged() -> None:
    feed = one_slice()
    subscriber = Subscriber(feed)
    kept: list[Batch] = []
    messages: list[Message] = []
    columns: list[Any] = []

    @subscriber.on_batch(b"K")
    def keep(batch: Batch) -> None:
        kept.append(batch)
        columns.append((batch.ts_event, batch.topic_index, batch.block.payloads))

    subscriber.on(b"K")(messages.append)
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        for number in range(1_000):
            publisher.publish(b"K%d" % (number % 5) if number % 7 else b"other", b"%d" % number * 5, ts_event=number)
            if number % 50 == 0:
                publisher.flush()
    subscriber.run(until_end=True)
    del subscriber
    expected = [number for number in range(1_000) if number % 7]
    assert [payload for batch in kept for payload in batch.payload_list()] == [b"%d" % n * 5 for n in expected]
    assert numpy.concatenate([times for times, _, _ in columns]).tolist() == expected
    rows = [(b"K%d" % (n % 5), n, b"%d" % n * 5) for n in expected]
    assert [(m.topic, m.ts_event, m.payload) for m in messages] == rows


def test_changing_callbacks_do_not_disturb_those_that_stay() -> None:
    choice = random.Random(5)
    feed = Feed.local("subscriber", slices=2, key_bytes=2)
    subscriber = Subscriber(feed, slow=SlowPolicy(max_lag=3_600))
    stays = Collector()
    subscriber.on_batch(b"")(stays.batch)
    compiled = [subscriber.on_compiled(b"", worker=worker, state=ZERO)(count_rows) for worker in (False, True)]
    others = [Collector() for _ in range(20)]
    stop, changed = threading.Event(), threading.Event()

    def change() -> None:
        active: list[Any] = []
        while not stop.is_set():
            if active and choice.random() < 0.5:
                subscriber.remove(active.pop(choice.randrange(len(active))))
                changed.set()
            elif choice.random() < 0.5:
                worker = choice.random() < 0.5
                active.append(subscriber.on_compiled(b"S1", worker=worker, state=ZERO)(count_rows))
            else:
                other = choice.choice(others)
                if other.message not in active:
                    subscriber.on(choice.choice([b"", b"S", b"S1", b"S2.", b"X"]))(other.message)
                    active.append(other.message)

    total = 10_000
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        changing = threading.Thread(target=change)
        changing.start()
        assert changed.wait(60)
        for number in range(total):
            publisher.publish(b"S%d.t" % (number % 50), b"%d" % number)
        publisher.flush()
        stop.set()
        changing.join()
    subscriber.run(until_end=True)
    assert sorted(numbers_of(stays)) == list(range(total))
    assert [each.total().tolist() for each in compiled] == [[total], [total]]
    received, delivery = subscriber.statistics().received, subscriber.statistics().delivery
    assert (received.gaps, received.duplicates, received.malformed) == (0, 0, 0)
    assert (delivery.callback_errors, delivery.discarded, delivery.due - delivery.delivered) == (0, 0, 0)
    for other in others:
        for topic in {m.topic for m in other.messages}:
            numbers = [m.sequence for m in other.messages if m.topic == topic]
            assert all(a < b for a, b in pairwise(numbers))


def test_the_same_function_for_two_prefixes_is_two_callbacks() -> None:
    feed = one_slice()
    subscriber, got = Subscriber(feed), Collector()
    subscriber.on(b"T")(got.message)
    subscriber.on(b"TT")(got.message)
    with RawPublisher(feed) as publisher:
        subscriber.start()
        publisher.send(publisher.encode([(b"TT", b"0")]))
        got.wait(2)
        subscriber.remove(got.message)
        assert subscriber.callbacks == ()
        publisher.send(publisher.encode([(b"TT", b"1")]))
        subscriber.stop()
    assert numbers_of(got) == [0, 0]
    with pytest.raises(ValueError, match="not registered"):
        Subscriber(feed).remove(nothing)
