"""Every message for a callback is delivered, or counted once under the reason why not."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal

import msgspec
import numpy
import pytest

from blackbox import Batch, CallbackError, Feed, Message, Publisher, SlowPolicy, SlowSubscriberError, Subscriber
from blackbox.subscribe.statistics import Statistics
from blackbox.subscribe.supervisor import SubscriberLife
from blackbox.testing import Collector, RawPublisher, wait_until
from tests.gate import Gate

SECOND_NS = 10**9
HOUR_NS = 3_600 * SECOND_NS


def one_slice(**settings: Any) -> Feed:
    return msgspec.structs.replace(Feed.local("losses", slices=1), **settings)


def check_sum(statistics: Statistics) -> None:
    for done in (statistics.delivery, *(feed_slice.delivery for feed_slice in statistics.slices)):
        assert done.due == done.delivered + done.failed + done.dropped + done.conflated + done.discarded


def terminate_behind(gate: Gate, subscriber: Subscriber) -> None:
    ending = threading.Thread(target=subscriber.terminate)
    ending.start()
    wait_until(lambda: subscriber.state is SubscriberLife.STOPPING)
    gate.open.set()
    ending.join()


def test_terminate_counts_everything_queued_anywhere() -> None:
    """In a worker, in its queue, in the slice thread's queue, and held for the other line."""
    feed = Feed.local("losses", slices=1, lines=2, key_bytes=1)
    subscriber = Subscriber(feed, workers=1, slow=SlowPolicy(max_lag=3_600), queue_blocks=4, line_wait=1_000)
    gate = Gate()
    subscriber.on(b"A")(gate.message)
    subscriber.on_batch(b"")(gate.batch)
    with RawPublisher(feed) as publisher:
        subscriber.start()
        publisher.send(publisher.encode([(b"B1", b"")] * 3))
        gate.entered.wait(60)
        publisher.heartbeat(lines=[1])
        publisher.send(publisher.encode([(b"B2", b"")] * 5, sequence=1_000))  # held because of the large gap before it
        publisher.sequences[0] = 3
        wait_until(lambda: subscriber.statistics().received.held == 1)
        for _ in range(20):
            publisher.send(publisher.encode([(b"A", b"")] * 7 + [(b"AA", b"")]))
        wait_until(lambda: subscriber.statistics().delivery.waits > 2)
        assert subscriber.statistics().delivery.discarded == 0
        terminate_behind(gate, subscriber)
    statistics = subscriber.statistics()
    check_sum(statistics)
    assert statistics.received.messages == statistics.delivery.matched
    assert 3 + 5 + 8 * 4 <= statistics.received.messages < 3 + 5 + 8 * 20
    assert statistics.delivery.due == 3 + 5 + 2 * (statistics.received.messages - 8)
    assert statistics.delivery.delivered == gate.messages == 3


def test_a_slow_subscriber_that_ends_counts_undelivered_messages() -> None:
    feed = one_slice()
    gate = Gate()
    subscriber = Subscriber(
        feed, slow=SlowPolicy(max_lag=0.2, on_alert=lambda _: gate.open.set(), start_grace=0), queue_blocks=2
    )
    subscriber.on(b"")(gate.message)
    with RawPublisher(feed) as publisher:
        subscriber.start()
        for _ in range(60):
            publisher.send(publisher.encode([(b"T", b""), (b"U", b"")]))
        with pytest.raises(SlowSubscriberError):
            subscriber.run()
    statistics = subscriber.statistics()
    check_sum(statistics)
    assert statistics.delivery.delivered == gate.messages
    assert (
        statistics.received.messages
        == statistics.delivery.due
        == statistics.delivery.delivered + statistics.delivery.discarded
    )
    assert statistics.delivery.discarded > 0


def test_a_late_block_that_ends_the_subscriber_is_counted() -> None:
    feed = one_slice()
    subscriber = Subscriber(feed, slow=SlowPolicy(start_grace=0))
    subscriber.on(b"T")(lambda message: None)
    with RawPublisher(feed) as publisher:
        subscriber.start()
        late = time.time_ns() - HOUR_NS
        publisher.send(publisher.encode([(b"T", b""), (b"T", b""), (b"U", b"")], ts_out=late))
        with pytest.raises(SlowSubscriberError):
            subscriber.run()
    statistics = subscriber.statistics()
    check_sum(statistics)
    assert (statistics.received.messages, statistics.delivery.due, statistics.delivery.discarded) == (3, 2, 2)


def test_terminate_while_conflating_counts_the_newest_undelivered_messages() -> None:
    feed = one_slice()
    subscriber = Subscriber(feed, slow=SlowPolicy("conflate", max_lag=3_600, start_grace=0), queue_blocks=2)
    gate = Gate()
    subscriber.on(b"")(gate.message)
    subscriber.on_batch(b"T")(gate.batch)
    rows = [(b"%c%d" % (b"TU"[n % 2], n % 26), b"") for n in range(100)]
    with RawPublisher(feed) as publisher:
        subscriber.start()
        for _ in range(50):
            publisher.send(publisher.encode(rows))
            assert gate.entered.wait(60)  # a worker that arrives later takes everything that waits
        wait_until(lambda: subscriber.statistics().received.messages == 5_000)
        terminate_behind(gate, subscriber)
    statistics = subscriber.statistics()
    check_sum(statistics)
    assert statistics.delivery.matched == 5_000
    assert statistics.delivery.due == 5_000 + 2_500
    assert statistics.delivery.delivered == gate.messages
    assert statistics.delivery.conflated > 5_000
    # The newest messages of 26 topics, half of them for two callbacks, were still in the slice thread.
    assert statistics.delivery.discarded >= 26 + 13


def test_an_error_counts_the_messages_that_it_kept_from_delivery() -> None:
    feed = one_slice()
    subscriber = Subscriber(feed, workers=1, slow=SlowPolicy(max_lag=3_600))
    gate = Gate()
    subscriber.on(b"gate")(gate.message)

    @subscriber.on(b"T")
    def fail_at_three(message: Message) -> None:
        if message.payload == b"3":
            raise LookupError

    @subscriber.on_batch(b"T")
    def never(batch: Batch) -> None:
        raise AssertionError("called after an error")

    with RawPublisher(feed) as publisher:
        subscriber.start()
        publisher.send(publisher.encode([(b"gate", b"")]))
        gate.entered.wait(60)
        publisher.send(publisher.encode([(b"T", b"%d" % number) for number in range(10)]))
        publisher.send(publisher.encode([(b"T", b"")] * 5))
        wait_until(lambda: subscriber.statistics().delivery.queue_blocks == 2)
        gate.open.set()
        with pytest.raises(CallbackError, match="LookupError"):
            subscriber.run()
    statistics = subscriber.statistics()
    check_sum(statistics)
    assert (statistics.delivery.due, statistics.delivery.delivered, statistics.delivery.failed) == (
        1 + 2 * 15,
        1 + 3,
        1,
    )
    assert statistics.delivery.discarded == 2 * 15 - 4


def test_undelivered_messages_of_a_removed_callback_are_not_a_loss() -> None:
    feed = one_slice()
    subscriber = Subscriber(feed, workers=1, slow=SlowPolicy(max_lag=3_600))
    gate = Gate()
    stays, goes = Collector(), Collector()
    subscriber.on(b"gate")(gate.message)
    subscriber.on(b"T")(stays.message)
    subscriber.on(b"T")(goes.message)

    @subscriber.on_compiled(b"T", state=numpy.zeros(1), worker=True)
    def goes_too(batch: Any, state: Any) -> None:
        state[0] += len(batch.rows)

    with RawPublisher(feed) as publisher:
        subscriber.start()
        publisher.send(publisher.encode([(b"gate", b"")]))
        gate.entered.wait(60)
        publisher.send(publisher.encode([(b"T", b"")] * 10))
        wait_until(lambda: subscriber.statistics().delivery.queue_blocks == 1)
        subscriber.remove(goes.message)
        subscriber.remove(goes_too)
        gate.open.set()
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    statistics = subscriber.statistics()
    check_sum(statistics)
    assert (len(stays), len(goes), goes_too.total().tolist()) == (10, 0, [0])
    assert (statistics.delivery.due, statistics.delivery.delivered, statistics.delivery.discarded) == (11, 11, 0)


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

    with RawPublisher(feed) as publisher:
        subscriber.start()
        for number in range(20):
            publisher.send(publisher.encode(rows))
            wait_until(lambda: is_done(number + 1))
        gate.open.set()
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    statistics = subscriber.statistics()
    check_sum(statistics)
    late = statistics.lag.slow_blocks  # none, unless the machine stalled
    assert free == {prefix: (20 - late) * each for prefix, each in wanted.items()}
    assert statistics.delivery.due == 20 * (stuck + sum(wanted.values()))
    assert statistics.delivery.delivered == gate.messages + sum(free.values())
    assert statistics.delivery.dropped == 20 * stuck - gate.messages + late * sum(wanted.values())
    assert gate.messages < 20 * stuck
    assert statistics.delivery.discarded == 0


def test_drop_counts_only_wanted_messages_of_a_late_block() -> None:
    feed = one_slice()
    subscriber = Subscriber(feed, slow=SlowPolicy("drop", start_grace=0))
    for prefix in (b"T", b"T1"):
        subscriber.on(prefix)(lambda message: None)
    with RawPublisher(feed) as publisher:
        subscriber.start()
        late = time.time_ns() - HOUR_NS
        publisher.send(publisher.encode([(b"T", b""), (b"T1", b""), (b"T1", b""), (b"U", b"")], ts_out=late))
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    statistics = subscriber.statistics()
    check_sum(statistics)
    assert (
        statistics.received.messages,
        statistics.delivery.matched,
        statistics.delivery.due,
        statistics.delivery.dropped,
    ) == (
        4,
        3,
        5,
        5,
    )


@pytest.mark.parametrize("end", ["stop", "terminate"])
def test_the_parent_of_processes_reports_discarded_messages(end: Literal["stop", "terminate"]) -> None:
    feed = Feed.local("losses", slices=2, key_bytes=1)
    subscriber = Subscriber(feed, processes=True, slow=SlowPolicy(max_lag=3_600))

    @subscriber.on(b"")
    def slow(message: Message) -> None:
        threading.Event().wait(0.001)

    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        for number in range(600):
            publisher.publish(b"%d" % (number % 50), b"")
        wait_until(lambda: subscriber.statistics().delivery.delivered > 0)
        getattr(subscriber, end)()
    statistics = subscriber.statistics()
    check_sum(statistics)
    assert statistics.delivery.due == statistics.received.messages
    if end == "stop":
        assert (statistics.delivery.delivered, statistics.delivery.discarded) == (statistics.received.messages, 0)


@pytest.mark.parametrize("shown", ["block", "heartbeat"])
def test_first_messages_of_a_new_epoch_before_we_reconnect_are_a_gap(shown: str) -> None:
    feed = Feed.local("losses", slices=1, key_bytes=1)
    subscriber, told = Subscriber(feed), list[tuple[str, int, int]]()
    subscriber.on(b"", fields=("topic", "epoch", "sequence"))(lambda _, epoch, n: told.append(("came", epoch, n)))
    subscriber.on_gap(b"")(lambda gap: told.append((gap.key.decode(), gap.sequence, gap.count)))
    with RawPublisher(feed, 1) as publisher:
        subscriber.start()
        publisher.send(publisher.encode([(b"A", b"")]))
        publisher.epoch, publisher.sequences, publisher.ends = 2, [0], [{}]
        publisher.encode([(b"B", b"")] * 3)
        for _ in range(2):
            if shown == "block":
                publisher.send(publisher.encode([(b"B", b"")]))
            else:
                publisher.heartbeat()
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    came = [("came", 2, 3), ("came", 2, 4)] if shown == "block" else []
    assert told == [("came", 1, 0), ("", 0, 3), *came]
