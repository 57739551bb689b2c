"""Python callbacks behave the same in the slice thread (`workers=0`) and on workers, for blocks of any size."""

from __future__ import annotations

import threading
import time
from typing import Any, Literal

import numpy
import pytest

from blackbox import Batch, CallbackError, Message, Publisher, SlowPolicy, Subscriber
from blackbox.testing import RawPublisher, wait_until
from tests.callbacks import count_rows
from tests.gate import Gate
from tests.receive.subscribers import deliver, nothing, one_slice

HOUR_NS = 3_600 * 10**9
ENOUGH_S = 60.0

in_both_threads = pytest.mark.parametrize("workers", [0, 1], ids=["in the slice thread", "on a worker"])


@in_both_threads
def test_callbacks_of_all_kinds_get_the_same(workers: int) -> None:
    subscriber = Subscriber(feed := one_slice(), workers=workers)
    threads: set[str] = set()
    seen: list[tuple[str, bytes]] = []

    @subscriber.on(b"A")
    def first(message: Message) -> None:
        threads.add(threading.current_thread().name)
        seen.append(("first", bytes(message.payload)))

    @subscriber.on(b"")
    def second(message: Message) -> None:
        seen.append(("second", bytes(message.payload)))

    @subscriber.on_batch(b"B")
    def batch(batch: Batch) -> None:
        seen.extend(("batch", bytes(each.payload)) for each in batch)

    count = subscriber.on_compiled(b"", state=numpy.zeros(1, numpy.int64))(count_rows)
    deliver(subscriber, feed, [(b"A", b"1"), (b"B", b"2"), (b"A", b"3")], [(b"A", b"4")])
    turns = [("first", b"1"), ("second", b"1"), ("second", b"2"), ("first", b"3"), ("second", b"3")]
    assert seen == [*turns, ("batch", b"2"), ("first", b"4"), ("second", b"4")]
    assert count.total().tolist() == [4]
    assert threads == {"blackbox-worker-0.0" if workers else "blackbox-slice-0"}
    delivery = subscriber.statistics().delivery
    assert (delivery.due, delivery.delivered, delivery.queue_blocks) == (12, 12, 0)


@in_both_threads
@pytest.mark.parametrize("fixed", [True, False], ids=["of one size", "of many sizes"])
def test_fields_of_kept_messages_of_blocks_of_any_size(workers: int, fixed: bool) -> None:
    """Up to 16 messages take a short path; larger blocks take the long one."""
    subscriber = Subscriber(feed := one_slice(), workers=workers)
    kept: list[Message] = []
    subscriber.on(b"A")(kept.append)
    blocks = [
        [(b"A%d" % (n % 3), b"%03d" % n + b"x" * (0 if fixed else n)) for n in range(count)]
        for count in (*[1] * 100, 2, 15, 16, 17, 40)
    ]
    deliver(subscriber, feed, *blocks)
    assert [(message.topic, message.payload) for message in kept] == [row for rows in blocks for row in rows]
    assert [message.sequence for message in kept] == list(range(len(kept)))
    assert [message.index for message in kept] == [n for rows in blocks for n in range(len(rows))]
    assert [len(message.batch) for message in kept] == [len(rows) for rows in blocks for _ in rows]
    for message in kept:
        batch = message.batch
        assert (message.slice_id, message.epoch, message.ts_out) == (0, batch.block.epoch, batch.block.ts_out)
        assert message.ts_event == batch.ts_event[message.index]
        assert [each.payload for each in batch] == batch.payload_list()
        assert 0 < message.ts_in <= message.ts_out <= message.ts_recv or message.ts_in == 0
        assert not batch.is_recorded
    assert kept[-1].end_of_batch
    delivery = subscriber.statistics().delivery
    assert delivery.delivered == delivery.due == len(kept)


@in_both_threads
def test_rows_that_need_more_room_are_delivered(workers: int) -> None:
    rows, got, others = 140_000, [], []
    subscriber = Subscriber(feed := one_slice(), workers=workers)
    subscriber.on_batch(b"A")(lambda batch: got.extend(batch.sequence.tolist()))
    subscriber.on_batch(b"A1")(lambda batch: others.append(len(batch)))
    deliver(subscriber, feed, [(b"A%d" % (row % 2), b"") for row in range(rows)])
    assert (got, sum(others)) == (list(range(rows)), rows // 2)


@in_both_threads
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("on_error", ["stop", "log"])
def test_a_callback_that_raises_ends_it_or_is_logged(workers: int, rows: int, on_error: Literal["stop", "log"]) -> None:
    subscriber = Subscriber(feed := one_slice(), workers=workers, on_error=on_error)
    seen: list[int] = []

    @subscriber.on(b"")
    def picky(message: Message) -> None:
        seen.append(message.sequence)
        if message.sequence % 10 == 7:
            raise SystemExit("no")

    blocks = [[(b"T", b"")] * rows] * (90 // rows)
    if on_error == "log":
        deliver(subscriber, feed, *blocks)
    else:
        with pytest.raises(CallbackError, match=r"picky for b'' raised SystemExit: no .*b'T', sequence 7"):
            deliver(subscriber, feed, *blocks)
    assert seen == list(range(90 if on_error == "log" else 8))
    delivery = subscriber.statistics().delivery
    assert delivery.failed == delivery.callback_errors == (9 if on_error == "log" else 1)
    assert delivery.due == delivery.delivered + delivery.failed + delivery.discarded


@in_both_threads
def test_a_callback_removed_by_its_own_message_gets_no_more(workers: int) -> None:
    subscriber = Subscriber(feed := one_slice(), workers=workers)
    seen: list[bytes] = []

    @subscriber.on(b"A")
    def once(message: Message) -> None:
        seen.append(message.payload)
        subscriber.remove(once)

    subscriber.on(b"B")(nothing)
    deliver(subscriber, feed, *([(b"A", b"%d" % number)] for number in range(100)))
    assert seen == [b"0"]


@in_both_threads
def test_a_callback_can_add_another(workers: int) -> None:
    subscriber = Subscriber(feed := one_slice(), workers=workers)
    got: list[bytes] = []
    begun = threading.Event()

    @subscriber.on(b"A")
    def add(message: Message) -> None:
        subscriber.on(b"B")(lambda message: got.append(bytes(message.topic)))
        begun.set()

    with Publisher(feed) as publisher:
        subscriber.start()
        publisher.publish(b"A", b"")
        assert begun.wait(ENOUGH_S)
        subscriber.wait_confirmed()
        publisher.publish(b"B", b"")
    subscriber.run(until_end=True)
    assert got == [b"B"]


def test_a_callback_in_the_slice_thread_cannot_wait_for_confirmations() -> None:
    subscriber = Subscriber(feed := one_slice(), workers=0)
    subscriber.on(b"")(lambda message: subscriber.wait_confirmed())
    with pytest.raises(CallbackError, match="in the slice's own thread, which receives the confirmations"):
        deliver(subscriber, feed, [(b"T", b"")])


@in_both_threads
def test_a_slow_callback_causes_a_lag_alert(workers: int) -> None:
    heard: list[str] = []
    policy = SlowPolicy("warn", max_lag=0.05, on_alert=heard.append, start_grace=0)
    subscriber, gate = Subscriber(feed := one_slice(), slow=policy, workers=workers), Gate()
    subscriber.on(b"")(gate.message)
    with RawPublisher(feed) as publisher:
        subscriber.start()
        publisher.send(publisher.encode([(b"T", b"")]))
        assert gate.entered.wait(ENOUGH_S)
        for _ in range(2):
            publisher.send(publisher.encode([(b"T", b"")]))
        wait_until(lambda: heard, what="an alert while the callback runs")
        gate.open.set()
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    assert "policy warn" in heard[0]
    assert subscriber.statistics().delivery.delivered == 3


def test_conflation_in_the_slice_thread_gives_the_newest_of_each_topic() -> None:
    policy = SlowPolicy("conflate", max_lag=60, start_grace=0)
    subscriber = Subscriber(feed := one_slice(), slow=policy, workers=0)
    got: dict[bytes, bytes] = {}
    subscriber.on(b"")(lambda message: got.update({bytes(message.topic): bytes(message.payload)}))
    with RawPublisher(feed) as publisher:
        subscriber.start()
        rows = [(b"T%d" % (number % 2), b"%d" % number) for number in range(40)]
        publisher.send(publisher.encode(rows, ts_out=time.time_ns() - HOUR_NS))
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    delivery = subscriber.statistics().delivery
    assert got == {b"T0": b"38", b"T1": b"39"}
    assert (delivery.due, delivery.conflated, delivery.delivered) == (40, 38, 2)


def test_a_burst_with_one_block_for_python_among_compiled_ones() -> None:
    """The block left for Python may be any block of the burst, not only the first."""
    subscriber = Subscriber(feed := one_slice(), workers=1, queue_blocks=64)
    got: list[tuple[bytes, bytes | None, int]] = []
    counted = subscriber.on_compiled(b"A", state=numpy.zeros(1, numpy.int64), group="together")(count_rows)
    held = threading.Event()

    @subscriber.on(b"B", group="together")
    def message(message: Message) -> None:
        held.wait(ENOUGH_S)  # so that the others form one burst
        got.append((message.topic, message.payload, message.sequence))

    expected: list[Any] = [(b"B", b"%d" % number, number) for number in range(0, 60, 7)]
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
