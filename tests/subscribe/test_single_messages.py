"""Small blocks take a short path to callbacks, with the same results as larger blocks."""

from __future__ import annotations

import threading
from typing import Any

import numpy
import pytest
from numba import njit

from blackbox import CallbackError, Message, Subscriber
from blackbox.testing import RawPublisher, wait_until
from tests.subscribe.subscribers import one_slice

in_both_threads = pytest.mark.parametrize("workers", [0, 1], ids=["in the slice thread", "on a worker"])
MANY = 100
"""More than a burst holds."""
ENOUGH_S = 60.0


@njit(nogil=True)
def count_rows(batch: Any, state: Any) -> None:
    state[0] += len(batch.rows)


@in_both_threads
def test_fields_of_kept_messages(workers: int) -> None:
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
def test_a_callback_that_raises_sometimes(workers: int) -> None:
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
        subscriber.remove(once)

    subscriber.on(b"B")(lambda _: None)
    with RawPublisher(feed) as publisher:
        subscriber.start()
        for number in range(MANY):
            publisher.send(publisher.encode([(b"A", b"%d" % number)]))
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    assert seen == [b"0"]


@in_both_threads
@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 40])
@pytest.mark.parametrize("fixed", [True, False], ids=["of one size", "of many sizes"])
def test_messages_of_a_block_of_any_size(workers: int, count: int, fixed: bool) -> None:
    """16 messages take the short path; larger blocks take the long one."""
    subscriber = Subscriber(feed := one_slice(), workers=workers)
    kept: list[Message] = []
    subscriber.on(b"A")(kept.append)
    payloads = [b"%03d" % number + b"x" * (0 if fixed else number) for number in range(count)]
    with RawPublisher(feed) as publisher:
        subscriber.start()
        for _ in range(10):
            publisher.send(publisher.encode([(b"A%d" % (n % 3), text) for n, text in enumerate(payloads)]))
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    assert [message.payload for message in kept] == payloads * 10
    assert [message.topic for message in kept] == [b"A%d" % (n % 3) for n in range(count)] * 10
    assert [message.sequence for message in kept] == list(range(10 * count))
    assert [message.index for message in kept] == list(range(count)) * 10
    assert all(len(message.batch) == count for message in kept)
    delivery = subscriber.statistics().delivery
    assert delivery.delivered == delivery.due == 10 * count


def test_a_burst_with_one_block_for_python_among_compiled_ones() -> None:
    """The block left for Python may be any block of the burst, not only the first."""
    subscriber = Subscriber(feed := one_slice(), workers=1, queue_blocks=64)
    got: list[tuple[bytes, bytes | None, int]] = []
    counted = subscriber.on_compiled(b"A", state=numpy.zeros(1), group="together")(count_rows)
    held = threading.Event()

    @subscriber.on(b"B", group="together")
    def message(message: Message) -> None:
        held.wait(ENOUGH_S)  # so that the others form one burst
        got.append((message.topic, message.payload, message.sequence))

    expected = [(b"B", b"%d" % number, number) for number in range(0, 60, 7)]
    with RawPublisher(feed) as publisher:
        subscriber.start()
        for number in range(60):
            publisher.send(publisher.encode([(b"B" if number % 7 == 0 else b"A", b"%d" % number)]))
        publisher.heartbeat(end=True)
        wait_until(lambda: subscriber.statistics().delivery.due == 60, what="all messages are handed over")
        held.set()
        subscriber.run(until_end=True)
    assert got == expected
    assert counted.total()[0] == 60 - len(expected)
