"""Compiled callbacks behave the same in the slice thread, where they run by default, and on a worker."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy
import pytest

from blackbox import Message, Publisher, SlowPolicy, Subscriber
from blackbox.native.intrinsics import load_acquire
from blackbox.subscribe.compiled_callback import little_endian, payload, topic
from blackbox.testing import RawPublisher, wait_until
from tests.callbacks import count_rows
from tests.subscribe.subscribers import in_both_places, one_slice

HOUR_NS = 3_600 * 10**9


def hold(batch: Any, state: Any) -> None:
    """Take the block, and stay in it until the first word is written."""
    state[1] += len(batch.rows)
    while load_acquire(state.ctypes.data) == 0:
        pass


def newest(batch: Any, state: Any) -> None:
    for row in batch.rows:
        state[topic(batch, row)[1] - 48] = little_endian(payload(batch, row), 0, 8)


def ascending(batch: Any, state: Any) -> None:
    for row in batch.rows:
        state[1] += batch.ts_event[row] != state[0]
        state[0] += 1


def too_far(batch: Any, state: Any) -> None:
    for row in batch.rows:
        state[batch.ts_event[row]] += 1


def blocks_of_places(subscriber: Subscriber) -> list[int]:
    """Return the blocks taken by each worker, and by the slice thread's callbacks."""
    [thread] = subscriber._supervisor._slices.values()
    return [place.blocks for place in thread.counters.workers]


@pytest.mark.parametrize(
    ("workers", "settings", "place"), [(2, {}, 2), (63, {}, 63), (2, {"worker": True}, 0), (2, {"group": "g"}, 0)]
)
def test_a_compiled_callback_runs_in_the_slice_thread_unless_worker_is_set(
    workers: int, settings: dict[str, Any], place: int
) -> None:
    subscriber = Subscriber(feed := one_slice(), workers=workers)
    counted = subscriber.on_compiled(b"T", state=numpy.zeros(1, numpy.int64), **settings)(count_rows)
    with RawPublisher(feed) as publisher:
        subscriber.start()
        for _ in range(3):
            publisher.send(publisher.encode([(b"T", b"")] * 2))
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    assert counted.total().tolist() == [6]
    assert blocks_of_places(subscriber) == [3 if number == place else 0 for number in range(workers + 1)]
    delivery = subscriber.statistics().delivery
    assert (delivery.due, delivery.delivered, delivery.queue_blocks) == (6, 6, 0)
    assert subscriber.statistics().lag.max_ns > 0


@in_both_places
def test_a_slow_compiled_callback_causes_a_lag_alert(worker: bool) -> None:
    heard: list[str] = []
    policy = SlowPolicy("warn", max_lag=0.05, on_alert=heard.append, start_grace=0)
    subscriber = Subscriber(feed := one_slice(), slow=policy)
    held = subscriber.on_compiled(b"", state=numpy.zeros(2, numpy.int64), worker=worker)(hold)
    with RawPublisher(feed) as publisher:
        subscriber.start()
        for _ in range(3):
            publisher.send(publisher.encode([(b"T", b"")]))
        wait_until(lambda: heard, what="an alert while the callback runs")
        assert held.states[0][1] == 1
        held.states[0][0] = 1
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    assert "policy warn" in heard[0]
    assert subscriber.statistics().delivery.delivered == 3


@in_both_places
def test_terminate_leaves_a_hung_compiled_callback_behind(worker: bool, caplog: pytest.LogCaptureFixture) -> None:
    policy = SlowPolicy(max_lag=3_600, grace=0.1, start_grace=0)
    subscriber = Subscriber(feed := one_slice(), slow=policy)
    held = subscriber.on_compiled(b"", state=numpy.zeros(2, numpy.int64), worker=worker)(hold)
    with RawPublisher(feed) as publisher:
        subscriber.start()
        publisher.send(publisher.encode([(b"T", b"")]))
        wait_until(lambda: held.states[0][1] == 1)
        subscriber.terminate()
    assert " and was left behind in its thread" in caplog.text
    held.states[0][0] = 1
    wait_until(lambda: subscriber._supervisor.is_done, what="its thread has ended once it returned")


@in_both_places
def test_changing_compiled_callbacks_do_not_disturb_one_that_stays(worker: bool) -> None:
    subscriber = Subscriber(feed := one_slice(), slow=SlowPolicy(max_lag=3_600))
    stays = subscriber.on_compiled(b"", state=numpy.zeros(1, numpy.int64), worker=worker)(count_rows)
    changes, stop = 0, threading.Event()

    def change() -> None:
        nonlocal changes
        while not stop.is_set():
            other = subscriber.on_compiled(b"S1", state=numpy.zeros(1, numpy.int64), worker=worker)(count_rows)
            subscriber.remove(other)
            changes += 1

    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        changing = threading.Thread(target=change)
        changing.start()
        for number in range(20_000):
            publisher.publish(b"S%d" % (number % 50), b"")
        publisher.flush()
        stop.set()
        changing.join()
    subscriber.run(until_end=True)
    statistics = subscriber.statistics()
    assert changes > 0
    assert stays.total().tolist() == [20_000]
    assert statistics.delivery.due == statistics.delivery.delivered
    assert (statistics.received.gaps, statistics.delivery.discarded) == (0, 0)


@in_both_places
def test_conflation_gives_a_compiled_callback_the_newest_of_each_topic(worker: bool) -> None:
    policy = SlowPolicy("conflate", max_lag=60, start_grace=0)
    subscriber = Subscriber(feed := one_slice(), slow=policy)
    seen = subscriber.on_compiled(b"", state=numpy.zeros(2, numpy.int64), worker=worker)(newest)
    with RawPublisher(feed) as publisher:
        subscriber.start()
        late = time.time_ns() - HOUR_NS
        rows = [(b"T%d" % (number % 2), number.to_bytes(8, "little")) for number in range(40)]
        publisher.send(publisher.encode(rows, ts_out=late))
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    delivery = subscriber.statistics().delivery
    assert seen.total().tolist() == [38, 39]
    assert (delivery.due, delivery.conflated, delivery.delivered) == (40, 38, 2)


@in_both_places
def test_rows_of_several_prefixes_are_in_order_however_many(worker: bool) -> None:
    rows = 70_000
    subscriber = Subscriber(feed := one_slice())
    got = subscriber.on_compiled(b"A", state=numpy.zeros(2, numpy.int64), worker=worker)(ascending)
    subscriber.on_compiled(b"A1", state=numpy.zeros(1, numpy.int64), worker=worker)(count_rows)
    with RawPublisher(feed) as publisher:
        subscriber.start()
        publisher.send(publisher.encode([(b"A%d" % (row % 2), b"") for row in range(rows)], ts_event=range(rows)))
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    assert got.total().tolist() == [rows, 0]


@in_both_places
def test_messages_after_an_error_are_not_delivered(worker: bool) -> None:
    subscriber = Subscriber(feed := one_slice())
    subscriber.on_compiled(b"", state=numpy.zeros(2), worker=worker)(too_far)
    with RawPublisher(feed) as publisher:
        subscriber.start()
        publisher.send(publisher.encode([(b"T", b"")], ts_event=[2]))
        with pytest.raises(Exception, match="too_far for b'' raised an exception"):
            subscriber.run()
    delivery = subscriber.statistics().delivery
    assert (delivery.due, delivery.failed, delivery.delivered, delivery.callback_errors) == (1, 1, 0, 1)


@in_both_places
def test_a_return_to_the_past_resets_a_compiled_callback_between_messages(worker: bool) -> None:
    subscriber = Subscriber(feed := one_slice(), workers=2, slow=SlowPolicy(max_lag=3_600))
    may_go_on, slow, at_reset = threading.Event(), [0], []

    @subscriber.on(b"A")
    def wait(message: Message) -> None:
        may_go_on.wait(60)
        slow[0] += 1

    counted = subscriber.on_compiled(b"B", state=numpy.zeros(1, numpy.int64), worker=worker)(count_rows)
    subscriber.on_reset(lambda: at_reset.append((slow[0], counted.total().tolist())))
    with Publisher(feed) as publisher:
        subscriber.start()
        publisher.publish(b"A", b"")
        for _ in range(5):
            publisher.publish(b"B", b"")
        publisher.flush()
        wait_until(lambda: counted.total()[0] == 5, what="all messages of the compiled callback")
        publisher.new_epoch()
        for _ in range(3):
            publisher.publish(b"B", b"")
        publisher.flush()
        may_go_on.set()
        wait_until(lambda: counted.total()[0] == 3, what="later messages, on a fresh state")
        subscriber.stop()
    assert at_reset == [(1, [5])]
