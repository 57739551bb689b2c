"""Blocks of one message reach callbacks the short way, and are to them what messages of larger blocks are."""

from __future__ import annotations

import pytest

from blackbox import CallbackError, Message, Subscriber
from blackbox.testing import RawPublisher
from tests.subscribe.subscribers import one_slice

in_both_threads = pytest.mark.parametrize("workers", [0, 1], ids=["in the slice thread", "on a worker"])
MANY = 100
"""More than a burst holds."""


@in_both_threads
def test_fields_of_messages_that_a_callback_keeps(workers: int) -> None:
    subscriber = Subscriber(feed := one_slice(), workers=workers)
    kept: list[Message] = []
    subscriber.on(b"A")(kept.append)
    with RawPublisher(feed) as publisher:
        subscriber.start()
        for number in range(MANY):
            publisher.send(publisher.encode([(b"A%d" % (number % 3), b"x" * number)]))
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    assert [message.payload for message in kept] == [b"x" * number for number in range(MANY)]
    assert [message.topic for message in kept] == [b"A%d" % (number % 3) for number in range(MANY)]
    assert [message.sequence for message in kept] == list(range(MANY))
    for message in kept:
        batch = message.batch
        assert (message.slice_id, message.epoch, message.ts_out) == (0, batch.block.epoch, batch.block.ts_out)
        assert (message.ts_event, batch.ts_event.tolist(), len(batch)) == (message.ts_event, [message.ts_event], 1)
        assert [each.payload for each in batch] == batch.payload_list() == [message.payload]
        assert 0 < message.ts_in <= message.ts_out <= message.ts_recv or message.ts_in == 0
        assert not batch.is_recorded
    assert kept[-1].end_of_batch


@in_both_threads
def test_a_callback_that_raises_now_and_then(workers: int) -> None:
    subscriber = Subscriber(feed := one_slice(), workers=workers, on_error="log")
    seen: list[bytes] = []

    @subscriber.on(b"")
    def message(message: Message) -> None:
        seen.append(message.payload)
        if len(seen) % 10 == 0:
            raise ValueError("every tenth")

    with RawPublisher(feed) as publisher:
        subscriber.start()
        for number in range(MANY):
            publisher.send(publisher.encode([(b"A", b"%d" % number)]))
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    assert seen == [b"%d" % number for number in range(MANY)]
    delivery = subscriber.statistics().delivery
    assert (delivery.due, delivery.delivered, delivery.failed, delivery.callback_errors) == (
        MANY,
        MANY * 9 // 10,
        10,
        10,
    )


@in_both_threads
def test_a_callback_that_raises_ends_the_subscriber(workers: int) -> None:
    subscriber = Subscriber(feed := one_slice(), workers=workers)
    seen: list[bytes] = []

    @subscriber.on(b"")
    def message(message: Message) -> None:
        seen.append(message.payload)
        if message.payload == b"7":
            raise ValueError("seven")

    with RawPublisher(feed) as publisher, pytest.raises(CallbackError, match=r"ValueError: seven .*b'A', sequence 7"):
        subscriber.start()
        for number in range(MANY):
            publisher.send(publisher.encode([(b"A", b"%d" % number)]))
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    assert seen == [b"%d" % number for number in range(8)]


@in_both_threads
def test_a_callback_removed_by_its_own_message_gets_no_more(workers: int) -> None:
    subscriber = Subscriber(feed := one_slice(), workers=workers)
    seen: list[bytes] = []

    @subscriber.on(b"A")
    def once(message: Message) -> None:
        seen.append(message.payload)
        subscriber.off(once)

    subscriber.on(b"B")(lambda _: None)
    with RawPublisher(feed) as publisher:
        subscriber.start()
        for number in range(MANY):
            publisher.send(publisher.encode([(b"A", b"%d" % number)]))
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    assert seen == [b"0"]
