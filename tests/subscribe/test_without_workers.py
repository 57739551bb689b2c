"""With `workers=0` Python callbacks run in the slice thread, and behave as on workers."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy
import pytest

from blackbox import Batch, CallbackError, Message, Publisher, SlowPolicy, Subscriber
from blackbox.testing import RawPublisher, wait_until
from tests.callbacks import count_rows
from tests.subscribe.subscribers import one_slice

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
    with RawPublisher(feed) as publisher:
        subscriber.start()
        publisher.send(publisher.encode([(b"A", b"1"), (b"B", b"2"), (b"A", b"3")]))
        publisher.send(publisher.encode([(b"A", b"4")]))
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    turns = [("first", b"1"), ("second", b"1"), ("second", b"2"), ("first", b"3"), ("second", b"3")]
    assert seen == [*turns, ("batch", b"2"), ("first", b"4"), ("second", b"4")]
    assert count.total().tolist() == [4]
    assert threads == {"blackbox-worker-0.0" if workers else "blackbox-slice-0"}
    delivery = subscriber.statistics().delivery
    assert (delivery.due, delivery.delivered, delivery.queue_blocks) == (12, 12, 0)


@in_both_threads
def test_kept_batches_are_unchanged(workers: int) -> None:
    subscriber = Subscriber(feed := one_slice(), workers=workers)
    kept: list[Batch] = []
    subscriber.on_batch(b"")(kept.append)
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        for number in range(300):
            publisher.publish(b"T", b"%d" % number)
            publisher.flush()
    subscriber.run(until_end=True)
    assert len(kept) > 100
    assert [bytes(each.payload) for batch in kept for each in batch] == [b"%d" % number for number in range(300)]


@in_both_threads
def test_rows_that_need_more_room_are_delivered(workers: int) -> None:
    rows, got, others = 140_000, [], []
    subscriber = Subscriber(feed := one_slice(), workers=workers)
    subscriber.on_batch(b"A")(lambda batch: got.extend(batch.ts_event.tolist()))
    subscriber.on_batch(b"A1")(lambda batch: others.append(len(batch)))
    with RawPublisher(feed) as publisher:
        subscriber.start()
        publisher.send(publisher.encode([(b"A%d" % (row % 2), b"") for row in range(rows)], ts_event=range(rows)))
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    assert (got, sum(others)) == (list(range(rows)), rows // 2)


@in_both_threads
@pytest.mark.parametrize(("on_error", "taken"), [("stop", [b"0"]), ("log", [b"0", b"2"])])
def test_a_callback_that_raises_ends_it_or_is_logged(workers: int, on_error: Any, taken: list[bytes]) -> None:
    subscriber = Subscriber(feed := one_slice(), workers=workers, on_error=on_error)
    got: list[bytes] = []

    @subscriber.on(b"")
    def picky(message: Message) -> None:
        if message.payload == b"1":
            raise SystemExit("no")
        got.append(bytes(message.payload))

    with RawPublisher(feed) as publisher:
        subscriber.start()
        publisher.send(publisher.encode([(b"T", b"%d" % number) for number in range(3)]))
        publisher.heartbeat(end=True)
        if on_error == "stop":
            with pytest.raises(CallbackError, match=r"picky for b'' raised SystemExit: no .*sequence 1"):
                subscriber.run(until_end=True)
        else:
            subscriber.run(until_end=True)
    assert got == taken
    delivery = subscriber.statistics().delivery
    assert delivery.due == delivery.delivered + delivery.failed + delivery.discarded


@in_both_threads
def test_a_callback_can_stop_its_own_subscriber(workers: int) -> None:
    subscriber = Subscriber(feed := one_slice(), workers=workers)
    subscriber.on(b"")(lambda message: subscriber.stop())
    with Publisher(feed) as publisher:
        subscriber.start()
        publisher.publish(b"T", b"")
        subscriber.run(timeout=ENOUGH_S)
    assert subscriber.statistics().delivery.delivered == 1


@in_both_threads
def test_a_callback_can_add_another(workers: int) -> None:
    subscriber = Subscriber(feed := one_slice(), workers=workers)
    got: list[bytes] = []
    begun = threading.Event()

    @subscriber.on(b"A")
    def add(message: Message) -> None:
        if not begun.is_set():
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
    with Publisher(feed) as publisher:
        subscriber.start()
        publisher.publish(b"T", b"")
        with pytest.raises(CallbackError, match="in the slice's own thread, which receives the confirmations"):
            subscriber.run(timeout=ENOUGH_S)


def test_a_missing_worker_is_rejected() -> None:
    subscriber = Subscriber(one_slice(), workers=0)
    with pytest.raises(ValueError, match="worker was True, but this subscriber has workers=0"):
        subscriber.on_compiled(b"", state=numpy.zeros(1), worker=True)(lambda batch, state: None)


@in_both_threads
def test_a_slow_callback_causes_a_lag_alert(workers: int) -> None:
    heard: list[str] = []
    policy = SlowPolicy("warn", max_lag=0.05, on_alert=heard.append, start_grace=0)
    subscriber = Subscriber(feed := one_slice(), slow=policy, workers=workers)
    held, go_on = threading.Event(), threading.Event()

    @subscriber.on(b"")
    def hang(message: Message) -> None:
        held.set()
        go_on.wait(ENOUGH_S)

    with RawPublisher(feed) as publisher:
        subscriber.start()
        publisher.send(publisher.encode([(b"T", b"")]))
        assert held.wait(ENOUGH_S)
        for _ in range(2):
            publisher.send(publisher.encode([(b"T", b"")]))
        wait_until(lambda: heard, what="an alert while the callback runs")
        go_on.set()
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    assert "policy warn" in heard[0]
    assert subscriber.statistics().delivery.delivered == 3


@in_both_threads
def test_terminate_leaves_a_hung_callback_behind(workers: int, caplog: pytest.LogCaptureFixture) -> None:
    policy = SlowPolicy(max_lag=3_600, grace=0.1, start_grace=0)
    subscriber = Subscriber(feed := one_slice(), slow=policy, workers=workers)
    held, go_on = threading.Event(), threading.Event()

    @subscriber.on(b"")
    def hang(message: Message) -> None:
        held.set()
        go_on.wait(ENOUGH_S)

    with RawPublisher(feed) as publisher:
        subscriber.start()
        publisher.send(publisher.encode([(b"T", b"")]))
        assert held.wait(ENOUGH_S)
        subscriber.terminate()
    assert " and was left behind in its thread" in caplog.text
    go_on.set()
    wait_until(lambda: subscriber._supervisor.is_done, what="its thread has ended once it returned")


@in_both_threads
def test_conflation_gives_the_newest_of_each_topic(workers: int) -> None:
    subscriber = Subscriber(
        feed := one_slice(), slow=SlowPolicy("conflate", max_lag=60, start_grace=0), workers=workers
    )
    got: dict[bytes, bytes] = {}

    @subscriber.on(b"")
    def take(message: Message) -> None:
        got[bytes(message.topic)] = bytes(message.payload)

    with RawPublisher(feed) as publisher:
        subscriber.start()
        rows = [(b"T%d" % (number % 2), b"%d" % number) for number in range(40)]
        publisher.send(publisher.encode(rows, ts_out=time.time_ns() - HOUR_NS))
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    delivery = subscriber.statistics().delivery
    assert got == {b"T0": b"38", b"T1": b"39"}
    assert (delivery.due, delivery.conflated, delivery.delivered) == (40, 38, 2)


def test_a_return_to_the_past_is_between_the_messages() -> None:
    subscriber = Subscriber(feed := one_slice(), workers=0)
    told: list[object] = []
    subscriber.on(b"")(lambda message: told.append(bytes(message.payload)))
    subscriber.on_reset(lambda: told.append("back"))
    with Publisher(feed) as publisher:
        subscriber.start()
        publisher.publish(b"T", b"1")
        publisher.flush()
        publisher.new_epoch()
        publisher.publish(b"T", b"2")
    subscriber.run(until_end=True)
    assert told == [b"1", "back", b"2"]


def test_ticks_arrive_in_silence_and_between_messages_in_the_slice_thread() -> None:
    subscriber = Subscriber(feed := one_slice(), workers=0)
    threads: list[str] = []
    messages: list[bytes] = []
    ticks: list[int] = []
    enough = threading.Event()

    @subscriber.on(b"")
    def take(message: Message) -> None:
        messages.append(bytes(message.payload))

    @subscriber.every(0.001)
    def tick(ts_ns: int) -> None:
        threads.append(threading.current_thread().name)
        ticks.append(ts_ns)
        if len(ticks) >= 20:
            enough.set()

    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        assert enough.wait(ENOUGH_S)
        for number in range(1_000):
            publisher.publish(b"T", b"%d" % number)
    subscriber.run(until_end=True, timeout=ENOUGH_S)
    assert messages == [b"%d" % number for number in range(1_000)]
    assert set(threads) == {"blackbox-slice-0"}
    assert all(later > earlier for earlier, later in zip(ticks, ticks[1:], strict=False))


def test_processes_without_workers_deliver_all() -> None:
    subscriber = Subscriber(feed := one_slice(), workers=0, processes=True)
    counted = subscriber.on_compiled(b"", state=numpy.zeros(1, numpy.int64))(count_rows)
    subscriber.on(b"")(_nothing)
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        for _ in range(1_000):
            publisher.publish(b"T", b"")
    subscriber.run(until_end=True)
    assert counted.total().tolist() == [1_000]
    assert subscriber.statistics().delivery.delivered == 2_000


def _nothing(message: Message) -> None:
    pass


def test_other_numbers_of_workers_are_rejected() -> None:
    with pytest.raises(ValueError, match="workers was -1, expected 0 to 63"):
        Subscriber(one_slice(), workers=-1)
