"""Callbacks: turns, arguments, workers and timers, and callbacks that come and go (see also `test_matching.py`)."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy
import pytest

from blackbox import Batch, Message, Publisher, SlowPolicy, Subscriber
from blackbox.errors import CallbackError, SubscriberError
from blackbox.receive.callbacks.timers import Timer, Timers
from blackbox.testing import Collector, RawPublisher, wait_until
from tests.callbacks import count_rows
from tests.gate import Gate
from tests.receive.subscribers import (
    CollectingGate,
    deliver,
    nothing,
    numbers_of,
    one_slice,
    published,
    publishing,
    sliced,
    subscribed,
)

MS = 1_000_000
ENOUGH_S = 60.0


ZERO = numpy.zeros(1, numpy.int64)


@pytest.mark.parametrize(
    ("workers", "options"), [(0, {}), (1, {}), (3, {"group": "pair"}), (1, {"independent": True})], ids=str
)
def test_each_message_reaches_all_callbacks_before_the_next_unless_they_are_independent(
    workers: int, options: dict[str, Any]
) -> None:
    subscriber, seen = Subscriber(feed := one_slice(), workers=workers), list[str]()
    subscriber.on(b"A", **options)(lambda message: seen.append(f"first {message.payload.decode()}"))
    subscriber.on(b"", **options)(lambda message: seen.append(f"second {message.payload.decode()}"))
    subscriber.on_batch(b"B", **options)(
        lambda batch: seen.extend(f"batch {payload!r}" for payload in batch.payload_list())
    )
    deliver(subscriber, feed, *[[(b"A", b"1"), (b"B", b"2"), (b"A", b"3")], [(b"A", b"4")], [(b"A", b"5")]] * 50)
    turns = ["first 1", "second 1", "second 2", "first 3", "second 3"]
    block = [*(sorted(turns) if "independent" in options else turns), "batch b'2'"]
    assert seen == [*block, "first 4", "second 4", "first 5", "second 5"] * 50


@pytest.mark.parametrize("workers", [0, 1])
def test_three_callbacks_take_turns_in_a_large_block(workers: int) -> None:
    subscriber, seen = Subscriber(feed := one_slice(), workers=workers), list[tuple[int, int]]()
    for number, prefix in enumerate((b"B", b"", b"A")):
        subscriber.on(prefix)(lambda message, number=number: seen.append((number, int(message.payload))))
    deliver(subscriber, feed, [(b"AB"[n % 2 : n % 2 + 1], b"%d" % n) for n in range(600)])
    assert seen == [(k, n) for n in range(600) for k, has in enumerate((n % 2, True, 1 - n % 2)) if has]


def test_end_of_batch_marks_the_last_queued_message() -> None:
    subscriber = Subscriber(feed := one_slice(), slow=SlowPolicy(max_lag=3_600), workers=1)
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
        assert gate.entered.wait(200)
        for number in range(5):
            publisher.send(publisher.encode([(b"T", b"%d" % number), (b"U", b"u%d" % number)]))
        wait_until(lambda: subscriber.statistics().delivery.queue_blocks == 5)
        gate.open.set()
    payloads = [payload for n in range(5) for payload in (b"%d" % n, b"u%d" % n)]
    assert marks == [(b"first", True), *((payload, payload == b"u4") for payload in payloads)]
    assert other_marks == [(b"u%d" % n, n == 4) for n in range(5)]


def test_changing_callbacks_do_not_disturb_those_that_stay() -> None:
    choice = random.Random(5)
    subscriber = Subscriber(feed := sliced(2, key_bytes=2), slow=SlowPolicy(max_lag=3_600))
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
    with published(feed, subscriber) as publisher:
        changing = threading.Thread(target=change)
        changing.start()
        assert changed.wait(200)
        for number in range(total):
            publisher.publish(b"S%d.t" % (number % 50), b"%d" % number)
        publisher.flush()
        stop.set()
        changing.join()
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
    subscriber, got = subscribed(feed := one_slice(), b"T")
    subscriber.on(b"TT")(got.message)
    with RawPublisher(feed) as publisher, subscriber:
        publisher.send(publisher.encode([(b"TT", b"0")]))
        got.wait(2)
        subscriber.remove(got.message)
        assert subscriber.callbacks == ()
        publisher.send(publisher.encode([(b"TT", b"1")]))
    assert numbers_of(got) == [0, 0]
    with pytest.raises(ValueError, match="not registered"):
        Subscriber(feed).remove(nothing)


def test_a_new_callback_goes_to_the_worker_that_lost_one() -> None:
    subscriber = Subscriber(one_slice(), workers=2)
    functions: list[Callable[[Message], None]] = [lambda message, n=n: None for n in range(4)]  # type: ignore[misc]
    for function in functions:
        subscriber.on(b"")(function)
    assert [callback.worker for callback in subscriber.callbacks] == [0, 1, 0, 1]
    subscriber.remove(functions[1])
    subscriber.remove(functions[3])
    for function in functions[1::2]:
        subscriber.on(b"")(function)
    assert [callback.worker for callback in subscriber.callbacks] == [0, 0, 1, 1]


def test_a_full_worker_queue_is_bounded_and_loses_nothing() -> None:
    feed = one_slice(block_bytes=4_096)
    subscriber = Subscriber(feed, slow=SlowPolicy(max_lag=3_600), queue_blocks=4, hwm_blocks=8)
    gate, free = CollectingGate(), Collector()
    subscriber.on_batch(b"")(gate.batch)
    subscriber.on_batch(b"")(free.batch)
    with published(feed, subscriber, hwm_blocks=8) as publisher:
        columns = numpy.zeros(20_000, int), numpy.arange(20_000).reshape(-1, 1).view(numpy.uint8)
        publishing = threading.Thread(target=publisher.publish_many, args=((b"T",), *columns))
        publishing.start()
        assert gate.entered.wait(200)

        def is_stuck() -> bool:
            """Return True if nothing was read during some waits; at first the free worker may be late."""
            before = subscriber.statistics()
            wait_until(lambda: subscriber.statistics().delivery.waits > before.delivery.waits + 4)
            return subscriber.statistics().received.blocks == before.received.blocks

        wait_until(is_stuck)
        # Its own queue, messages ahead of it in the pipe, and one burst in the worker.
        wait_until(lambda: subscriber.statistics().delivery.queue_blocks <= 4 + 2)
        gate.open.set()
        publishing.join()
    for got in (gate.got, free):
        assert [int.from_bytes(p, "little") for p in got.payloads] == list(range(20_000))
    assert subscriber.statistics().received.gaps == 0


@pytest.mark.parametrize("workers", [0, 1])
def test_ticks_arrive_in_silence_and_not_early(workers: int) -> None:
    subscriber = Subscriber(feed := sliced(2), workers=workers)
    subscriber.on(b"")(lambda message: None)
    called: list[tuple[int, int, str]] = []
    enough = threading.Event()

    @subscriber.every(20 * MS / 1e9)
    def tick(ts_ns: int) -> None:
        called.append((ts_ns, time.time_ns(), threading.current_thread().name))
        if len(called) == 10:
            enough.set()

    began_ns = time.time_ns()
    with Publisher(feed), subscriber:
        assert enough.wait(ENOUGH_S)
        with pytest.raises(SubscriberError, match="every was called while running"):
            subscriber.every(1e-09)(print)
    assert called[0][0] > began_ns
    assert all(ts_ns % (20 * MS) == 0 and ts_ns <= now_ns for ts_ns, now_ns, _ in called)
    assert all(later[0] > earlier[0] for earlier, later in zip(called, called[1:], strict=False))
    assert {name for _, _, name in called} == {"blackbox-worker-0.0" if workers else "blackbox-slice-0"}


def test_a_busy_worker_calls_only_the_last_missed_tick() -> None:
    subscriber = Subscriber(feed := one_slice(), workers=1)
    called: list[int] = []
    busy_ns: list[int] = []
    began, go_on, enough = threading.Event(), threading.Event(), threading.Event()

    @subscriber.on(b"")
    def busy(message: Message) -> None:
        busy_ns.append(time.time_ns())
        began.set()
        assert go_on.wait(ENOUGH_S)
        busy_ns.append(time.time_ns())

    @subscriber.every(10 * MS / 1e9)
    def tick(ts_ns: int) -> None:
        called.append(ts_ns)
        if len(busy_ns) == 2:
            enough.set()

    with Publisher(feed) as publisher, subscriber:
        publisher.publish(b"A.x", b"1")
        assert began.wait(ENOUGH_S)
        wait_until(lambda: time.time_ns() - busy_ns[0] > 100 * MS, what="ten ticks are due")
        go_on.set()
        assert enough.wait(ENOUGH_S)
    assert not [ts_ns for ts_ns in called if busy_ns[0] < ts_ns <= busy_ns[1] - 10 * MS]
    assert [ts_ns for ts_ns in called if ts_ns > busy_ns[1] - 10 * MS]


@pytest.mark.parametrize("workers", [0, 2])
def test_messages_get_their_turn_on_the_worker_of_their_group_among_ticks_that_are_always_due(workers: int) -> None:
    subscriber = Subscriber(feed := one_slice(), workers=workers)
    come, ticks, threads = list[bytes](), list[int](), set[tuple[str, str]]()
    subscriber.on(b"A")(nothing)  # on another worker

    @subscriber.on(b"", group="mine")
    def take(message: Message) -> None:
        threads.add(("message", threading.current_thread().name))
        come.append(message.payload)

    @subscriber.every(1e-09, group="mine")  # the next one is due before a function can end
    def tick(ts_ns: int) -> None:
        threads.add(("tick", threading.current_thread().name))
        ticks.append(ts_ns)

    with published(feed, subscriber) as publisher:
        for number in range(100):
            publisher.publish(b"A.x", b"%d" % number)
    assert come == [b"%d" % number for number in range(100)]
    assert ticks
    name = "blackbox-worker-0.1" if workers else "blackbox-slice-0"
    assert threads == {("message", name), ("tick", name)}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_tick_that_raises_ends_the_subscriber(workers: int) -> None:
    subscriber = Subscriber(feed := one_slice(), workers=workers)
    subscriber.on(b"")(lambda message: None)

    @subscriber.every(MS / 1e9)
    def fail(ts_ns: int) -> None:
        raise RuntimeError("no")

    with Publisher(feed), pytest.raises(CallbackError, match=r"fail at \d+ ns raised RuntimeError: no"):
        subscriber.run()


def test_a_slow_timer_waits_for_its_time_after_a_faster_one_was_removed() -> None:
    called: list[int] = []
    fast, slow = Timer(10, called.append, None), Timer(1_000, called.append, None)
    timers = Timers([fast, slow], lambda failure: False)
    timers.begin(5)
    fast.active = False
    timers.skip_to(11)
    assert timers.advance(11)
    assert (called, timers.next_ns, timers.least_ns) == ([], 1_000, 1_000)
    assert not timers.is_due(12)


def test_no_timer_is_called_after_the_error_of_a_callback() -> None:
    subscriber, seen = Subscriber(feed := one_slice(), workers=0), list[str]()

    @subscriber.on(b"")
    def fail(message: Message) -> None:
        seen.append("message")
        raise ValueError(message.payload)

    subscriber.every(1e-09)(lambda ts_ns: seen.append("tick"))  # always due
    with pytest.raises(CallbackError), publishing(feed, subscriber) as publisher:
        publisher.send(publisher.encode([(b"T", b"")]))
    assert seen[-1] == "message"
