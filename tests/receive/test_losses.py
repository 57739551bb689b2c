"""Every message for a callback is delivered, or counted once under the reason why not; counters agree."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Literal

import numpy
import pytest

from blackbox import Batch, CallbackError, Message, Publisher, SlowPolicy, SlowSubscriberError, Subscriber
from blackbox.receive.statistics import DeliveryStatistics
from blackbox.testing import Collector, RawPublisher, wait_until
from tests.callbacks import count_rows
from tests.gate import Gate
from tests.receive.subscribers import (
    LATE_NS,
    PATIENT,
    end_at,
    numbers_of,
    one_slice,
    published,
    publishing,
    sliced,
    subscribed,
    two_line_feed,
)

FOREVER = SlowPolicy(max_lag=3_600, grace=60)


def checked(subscriber: Subscriber) -> DeliveryStatistics:
    """Check that counts of deliveries add up, and return them."""
    statistics = subscriber.statistics()
    for done in (statistics.delivery, *(feed_slice.delivery for feed_slice in statistics.slices)):
        assert done.due == done.delivered + done.failed + done.dropped + done.conflated + done.discarded
    return statistics.delivery


def test_terminate_counts_everything_queued_anywhere() -> None:
    """In a worker, in its queue, in the slice thread's queue, and held for the other line."""
    feed = two_line_feed(key_bytes=1)
    subscriber = Subscriber(feed, workers=1, slow=FOREVER, queue_blocks=4, line_wait=1_000)
    gate = Gate()
    subscriber.on(b"A")(gate.message)
    subscriber.on_batch(b"")(gate.batch)
    with RawPublisher(feed) as publisher:
        subscriber.start()
        publisher.send(publisher.encode([(b"B1", b"")] * 3))
        gate.entered.wait(200)
        publisher.heartbeat(lines=[1])
        publisher.send(publisher.encode([(b"B2", b"")] * 5, sequence=1_000))  # held because of the large gap before it
        publisher.sequences[0] = 3
        wait_until(lambda: subscriber.statistics().received.held == 1)
        for _ in range(20):
            publisher.send(publisher.encode([(b"A", b"")] * 7 + [(b"AA", b"")]))
        wait_until(lambda: subscriber.statistics().delivery.waits > 2)
        assert subscriber.statistics().delivery.discarded == 0
        end_at(gate, subscriber, lambda each: each.terminate(60.0))
    delivery, messages = checked(subscriber), subscriber.statistics().received.messages
    assert messages == delivery.matched
    assert 3 + 5 + 8 * 4 <= messages < 3 + 5 + 8 * 20
    assert delivery.due == 3 + 5 + 2 * (messages - 8)
    assert delivery.delivered == gate.messages == 3


def test_a_slow_subscriber_that_ends_counts_undelivered_messages() -> None:
    feed, gate = one_slice(), Gate()
    slow = SlowPolicy(max_lag=0.2, grace=60, on_alert=lambda _: gate.open.set(), start_grace=0)
    subscriber = Subscriber(feed, slow=slow, queue_blocks=2)
    subscriber.on(b"")(gate.message)
    with pytest.raises(SlowSubscriberError), publishing(feed, subscriber) as publisher:
        for _ in range(60):
            publisher.send(publisher.encode([(b"T", b""), (b"U", b"")]))
    delivery = checked(subscriber)
    assert delivery.delivered == gate.messages
    assert subscriber.statistics().received.messages == delivery.due == delivery.delivered + delivery.discarded
    assert delivery.discarded > 0


@pytest.mark.parametrize("action", ["raise", "drop", "warn"])
def test_only_wanted_messages_of_late_blocks_are_counted(action: Literal["raise", "drop", "warn"]) -> None:
    feed, heard = one_slice(), list[str]()
    subscriber, got = subscribed(feed, b"T", b"T1", slow=SlowPolicy(action, on_alert=heard.append, start_grace=0))
    late = [number for number in range(12) if number % 4 == 3 and (number == 3 or action != "raise")]
    blocks = range(late[-1] + 1)
    delivered = [number for number in blocks if action == "warn" or number not in late]
    with RawPublisher(feed) as publisher:
        subscriber.start()
        for number in blocks:
            rows = [(topic, b"%d" % number) for topic in (b"T", b"T1", b"T1", b"U")]
            publisher.send(publisher.encode(rows, ts_out=time.time_ns() - (LATE_NS if number in late else 0)))
            got.wait(5 * len([each for each in delivered if each <= number]))
        if action == "raise":
            with pytest.raises(SlowSubscriberError):
                subscriber.run()
        else:
            publisher.heartbeat(end=True)
            subscriber.run(until_end=True)
    assert numbers_of(got) == [number for number in delivered for _ in range(5)]
    delivery, many = checked(subscriber), len(blocks)
    assert (subscriber.statistics().received.messages, delivery.matched, delivery.due) == (4 * many, 3 * many, 5 * many)
    left_out = 5 * (many - len(delivered))
    assert (delivery.discarded, delivery.dropped) == ((left_out, 0) if action == "raise" else (0, left_out))
    assert (subscriber.statistics().lag.slow_blocks, subscriber.statistics().received.gaps) == (len(late), 0)
    assert 1 <= len(heard) <= len(late)
    assert heard[0].endswith(f"policy {action}")


def test_terminate_while_conflating_counts_the_newest_undelivered_messages() -> None:
    feed, gate = one_slice(), Gate()
    subscriber = Subscriber(feed, slow=SlowPolicy("conflate", max_lag=3_600, grace=60, start_grace=0), queue_blocks=2)
    subscriber.on(b"")(gate.message)
    subscriber.on_batch(b"T")(gate.batch)
    rows = [(b"%c%d" % (b"TU"[n % 2], n % 26), b"") for n in range(100)]
    with RawPublisher(feed) as publisher:
        subscriber.start()
        for _ in range(50):
            publisher.send(publisher.encode(rows))
            assert gate.entered.wait(200)  # a worker that arrives later takes everything that waits
        wait_until(lambda: subscriber.statistics().received.messages == 5_000)
        end_at(gate, subscriber, lambda each: each.terminate(60.0))
    delivery = checked(subscriber)
    assert (delivery.matched, delivery.due, delivery.delivered) == (5_000, 5_000 + 2_500, gate.messages)
    assert delivery.conflated > 5_000
    # The newest messages of 26 topics, half of them for two callbacks, were still in the slice thread.
    assert delivery.discarded >= 26 + 13


def test_an_error_counts_the_messages_that_it_kept_from_delivery() -> None:
    feed, gate = one_slice(), Gate()
    subscriber = Subscriber(feed, workers=1, slow=FOREVER)
    subscriber.on(b"gate")(gate.message)

    @subscriber.on(b"T")
    def fail_at_three(message: Message) -> None:
        if message.payload == b"3":
            raise LookupError

    @subscriber.on_batch(b"T")
    def never(batch: Batch) -> None:
        raise AssertionError("called after an error")

    with pytest.raises(CallbackError, match="LookupError"), publishing(feed, subscriber) as publisher:
        publisher.send(publisher.encode([(b"gate", b"")]))
        gate.entered.wait(200)
        publisher.send(publisher.encode([(b"T", b"%d" % number) for number in range(10)]))
        publisher.send(publisher.encode([(b"T", b"")] * 5))
        wait_until(lambda: subscriber.statistics().delivery.queue_blocks == 2)
        gate.open.set()
    delivery = checked(subscriber)
    assert (delivery.due, delivery.delivered, delivery.failed) == (1 + 2 * 15, 1 + 3, 1)
    assert delivery.discarded == 2 * 15 - 4


def test_undelivered_messages_of_a_removed_callback_are_not_a_loss() -> None:
    feed, gate = one_slice(), Gate()
    subscriber = Subscriber(feed, workers=1, slow=FOREVER)
    stays, goes = Collector(), Collector()
    subscriber.on(b"gate")(gate.message)
    subscriber.on(b"T")(stays.message)
    subscriber.on(b"T")(goes.message)
    goes_too = subscriber.on_compiled(b"T", state=numpy.zeros(1, numpy.int64), worker=True)(count_rows)
    with publishing(feed, subscriber) as publisher:
        publisher.send(publisher.encode([(b"gate", b"")]))
        gate.entered.wait(200)
        publisher.send(publisher.encode([(b"T", b"")] * 10))
        wait_until(lambda: subscriber.statistics().delivery.queue_blocks == 1)
        subscriber.remove(goes.message)
        subscriber.remove(goes_too)
        gate.open.set()
    delivery = checked(subscriber)
    assert (len(stays), len(goes), goes_too.total().tolist()) == (10, 0, [0])
    assert (delivery.due, delivery.delivered, delivery.discarded) == (11, 11, 0)


def test_drop_counts_only_deliveries_of_the_full_worker() -> None:
    feed = one_slice()
    subscriber = Subscriber(feed, slow=SlowPolicy("drop", max_lag=0.05, start_grace=0), queue_blocks=2, workers=2)
    gate, free = Gate(), Counter[bytes]()

    def count(prefix: bytes) -> Callable[[Batch], None]:
        def note(batch: Batch) -> None:
            free[prefix] += len(batch)

        return note

    # Alternating on worker 0 and 1: all callbacks of worker 0 wait at the gate, none of worker 1.
    for prefix, is_stuck in ((b"T", True), (b"T", False), (b"T1", True), (b"", False), (b"T2", True), (b"T1", False)):
        subscriber.on_batch(prefix)(gate.batch if is_stuck else count(prefix))
    rows = [(topic, b"") for topic in (b"T1", b"T2", b"T", b"U", b"T1", b"T2", b"T", b"U", b"T1", b"T2")]
    stuck, wanted = 8 + 3 + 3, {b"T": 8, b"": 10, b"T1": 3}

    def is_done(blocks: int) -> bool:
        return free[b""] // 10 + int(subscriber.statistics().lag.slow_blocks) == blocks

    with publishing(feed, subscriber) as publisher:
        for number in range(20):
            publisher.send(publisher.encode(rows))
            wait_until(lambda: is_done(number + 1))
        gate.open.set()
    delivery = checked(subscriber)
    late_blocks = subscriber.statistics().lag.slow_blocks  # none, unless the machine stalled
    assert free == {prefix: (20 - late_blocks) * each for prefix, each in wanted.items()}
    assert delivery.due == 20 * (stuck + sum(wanted.values()))
    assert delivery.delivered == gate.messages + sum(free.values())
    assert delivery.dropped == 20 * stuck - gate.messages + late_blocks * sum(wanted.values())
    assert gate.messages < 20 * stuck
    assert delivery.discarded == 0


def test_the_parent_of_processes_reports_discarded_messages() -> None:
    subscriber = Subscriber(feed := sliced(2, key_bytes=1), processes=True, slow=FOREVER)

    @subscriber.on(b"")
    def slow(message: Message) -> None:
        threading.Event().wait(0.001)

    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        for number in range(300):
            publisher.publish(b"%d" % (number % 50), b"")
        wait_until(lambda: subscriber.statistics().delivery.delivered > 0)
        subscriber.terminate()
    assert checked(subscriber).due == subscriber.statistics().received.messages


def test_first_messages_of_a_new_epoch_that_only_heartbeats_show_are_a_gap() -> None:
    subscriber, told = Subscriber(feed := one_slice(key_bytes=1)), list[tuple[str, int, int]]()
    subscriber.on(b"", fields=("topic", "epoch", "sequence"))(lambda _, epoch, n: told.append(("came", epoch, n)))
    subscriber.on_gap(b"")(lambda gap: told.append((gap.key.decode(), gap.sequence, gap.count)))
    with publishing(feed, subscriber) as publisher:
        publisher.send(publisher.encode([(b"A", b"")]))
        publisher.epoch, publisher.sequences, publisher.ends = 2, [0], [{}]
        publisher.encode([(b"B", b"")] * 3)
        for _ in range(2):
            publisher.heartbeat()
    assert told == [("came", 1, 0), ("", 0, 3)]


def test_statistics_agree_with_each_other_and_totals_are_sums_over_slices() -> None:
    subscriber = Subscriber(feed := sliced(3), slow=PATIENT)
    got = [Collector() for _ in range(3)]
    for prefix, each in zip((b"S1", b"S1", b"S"), got, strict=True):
        subscriber.on(prefix)(each.message)
    with published(feed, subscriber) as publisher:
        for number in range(5_000):
            publisher.publish(b"%c%d" % (b"SX"[number % 2], number % 30), bytes(number % 50))
    statistics = subscriber.statistics()
    received, delivery, lag = statistics.received, statistics.delivery, statistics.lag
    assert received.messages == 5_000
    assert delivery.matched == 2_500 == len(got[2])
    assert delivery.delivered == delivery.due == sum(map(len, got))
    assert (delivery.topics, received.subscriptions) == (30, 3)
    unused = delivery.failed, delivery.conflated, delivery.discarded, delivery.dropped, delivery.queue_blocks
    assert {*unused, received.held, received.malformed, received.stale} == {0}
    assert received.blocks == publisher.statistics().blocks
    assert received.body_bytes == publisher.statistics().body_bytes
    assert 0 < lag.p50_ns <= lag.p99_ns <= lag.max_ns
    assert lag.p50_ns <= lag.age_p50_ns <= lag.age_p99_ns <= lag.age_max_ns
    assert received.control_blocks >= 2 * 3  # a confirmation and an end for each slice
    assert [feed_slice.slice_id for feed_slice in statistics.slices] == [0, 1, 2]
    largest = {"last_ns", "last_age_ns"}
    of_all = {"faults", "p50_ns", "p99_ns", "max_ns", "age_p50_ns", "age_p99_ns", "age_max_ns"}
    of_all |= {"clock_offset_ns", "transport", "datagrams"}
    for group in ("received", "delivery", "lag"):
        total = getattr(statistics, group)
        for name in set(total.__struct_fields__) - of_all:
            values = [getattr(getattr(feed_slice, group), name) for feed_slice in statistics.slices]
            assert getattr(total, name) == (max(values) if name in largest else sum(values)), (group, name)
    assert min(statistics.received.last_ns, statistics.lag.last_ns) > 0
