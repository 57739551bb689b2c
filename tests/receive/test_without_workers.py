"""Callbacks behave the same in the slice thread (`workers=0`) and on workers, for blocks of any size."""

from __future__ import annotations

import threading
from typing import Any, Literal

import numpy
import pytest

from blackbox import Batch, CallbackError, Message, Subscriber
from blackbox.testing import wait_until
from tests.callbacks import count_rows
from tests.gate import Gate
from tests.receive.subscribers import deliver, one_slice, publishing

ENOUGH_S = 60.0

in_both_threads = pytest.mark.parametrize("workers", [0, 1], ids=["in the slice thread", "on a worker"])


@in_both_threads
@pytest.mark.parametrize("fixed", [True, False], ids=["of one size", "of many sizes"])
def test_kept_messages_batches_and_columns_of_blocks_of_any_size_are_unchanged(workers: int, fixed: bool) -> None:
    """Up to 16 messages take a short path; larger blocks take the long one."""
    subscriber = Subscriber(feed := one_slice(), workers=workers)
    kept, batches, columns = list[Message](), list[Batch](), list[Any]()
    subscriber.on(b"A")(kept.append)

    @subscriber.on_batch(b"A1")
    def keep(batch: Batch) -> None:
        batches.append(batch)
        columns.append((batch.sequence, batch.ts_event))

    blocks = [
        [(b"A%d" % (n % 3), b"%03d" % n + b"x" * (0 if fixed else n)) for n in range(count)]
        for count in (*[1] * 100, 2, 15, 16, 17, 40)
    ]
    with publishing(feed, subscriber) as publisher:
        for rows in blocks:
            first = publisher.sequences[0]
            publisher.send(publisher.encode(rows, ts_event=range(first, first + len(rows))))
    delivery = subscriber.statistics().delivery
    del subscriber
    sent = [(*row, number) for number, row in enumerate(row for rows in blocks for row in rows)]
    assert [(message.topic, message.payload, message.sequence) for message in kept] == sent
    assert [message.ts_event for message in kept] == list(range(len(sent)))
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
    some = [(payload, number) for topic, payload, number in sent if topic == b"A1"]
    assert [payload for batch in batches for payload in batch.payload_list()] == [payload for payload, _ in some]
    for column in zip(*columns, strict=True):
        assert numpy.concatenate(column).tolist() == [number for _, number in some]
    assert delivery.delivered == delivery.due == len(sent) + len(some)


@pytest.mark.parametrize(
    ("workers", "rows", "on_error"), [(0, 1, "log"), (0, 3, "stop"), (1, 1, "stop"), (1, 3, "log")]
)
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


def ascending(batch: Any, state: Any) -> None:
    for row in batch.rows:
        state[1] += batch.ts_event[row] != state[0]
        state[0] += 1


@in_both_threads
def test_rows_that_need_more_room_are_delivered_in_order(workers: int) -> None:
    rows, got, others = 140_000, [], []
    subscriber = Subscriber(feed := one_slice(), workers=workers)
    subscriber.on_batch(b"A")(lambda batch: got.extend(batch.sequence.tolist()))
    subscriber.on_batch(b"A1")(lambda batch: others.append(len(batch)))
    words: dict[str, Any] = {"state": numpy.zeros(2, numpy.int64), "worker": bool(workers)}
    compiled = subscriber.on_compiled(b"A", **words)(ascending)
    some = subscriber.on_compiled(b"A1", **words)(count_rows)
    with publishing(feed, subscriber) as publisher:
        publisher.send(publisher.encode([(b"A%d" % (row % 2), b"") for row in range(rows)], ts_event=range(rows)))
    assert (got, sum(others)) == (list(range(rows)), rows // 2)
    assert (compiled.total().tolist(), some.total().tolist()) == ([rows, 0], [rows // 2, 0])


@in_both_threads
def test_a_callback_can_add_another_and_remove_itself(workers: int) -> None:
    subscriber = Subscriber(feed := one_slice(), workers=workers)
    seen: list[bytes] = []
    begun = threading.Event()

    @subscriber.on(b"A")
    def once(message: Message) -> None:
        seen.append(message.payload)
        subscriber.on(b"B")(lambda message: seen.append(message.payload))
        subscriber.remove(once)
        begun.set()

    with publishing(feed, subscriber) as publisher:
        for number in range(100):
            publisher.send(publisher.encode([(b"A", b"%d" % number)]))
        assert begun.wait(ENOUGH_S)
        subscriber.wait_confirmed()
        publisher.send(publisher.encode([(b"A", b"100"), (b"B", b"101")]))
    assert seen == [b"0", b"101"]


def test_a_callback_in_the_slice_thread_cannot_wait_for_confirmations() -> None:
    subscriber = Subscriber(feed := one_slice(), workers=0)
    subscriber.on(b"")(lambda message: subscriber.wait_confirmed())
    with pytest.raises(CallbackError, match="in the slice's own thread, which receives the confirmations"):
        deliver(subscriber, feed, [(b"T", b"")])


def test_a_burst_with_one_block_for_python_among_compiled_ones() -> None:
    """The block left for Python may be any block of the burst, not only the first."""
    subscriber, gate = Subscriber(feed := one_slice(), workers=1, queue_blocks=64), Gate()
    got: list[tuple[bytes, bytes | None, int]] = []
    counted = subscriber.on_compiled(b"A", state=numpy.zeros(1, numpy.int64), group="together")(count_rows)

    @subscriber.on(b"B", group="together")
    def message(message: Message) -> None:
        gate.wait()  # so that the others form one burst
        got.append((message.topic, message.payload, message.sequence))

    expected: list[Any] = [(b"B", b"%d" % number, number) for number in range(0, 60, 7)]
    with publishing(feed, subscriber) as publisher:
        for number in range(60):
            publisher.send(publisher.encode([(b"B" if number % 7 == 0 else b"A", b"%d" % number)]))
        wait_until(lambda: subscriber.statistics().delivery.due == 60, what="all messages are handed over")
        gate.open.set()
    assert got == expected
    assert counted.total()[0] == 60 - len(expected)
