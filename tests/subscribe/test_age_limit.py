"""The slow-subscriber policy also limits age: the time since `publish`, which may be long without lag."""

from __future__ import annotations

import threading
import time

import pytest

from blackbox import Publisher, SlowPolicy, SlowSubscriberError, Subscriber
from blackbox.testing import Collector, RawPublisher, wait_until
from tests.publish.subscribers import held_up
from tests.subscribe.late import LATE_NS, LIMIT_NS, SECOND_NS, one_slice

_FOREVER_NS = 3_600 * SECOND_NS
_STALLED_NS = 3 * SECOND_NS


def old(publisher: RawPublisher, text: bytes, age_ns: int = LATE_NS) -> None:
    """Send a message that seems to have waited in the publisher: its lag is small."""
    publisher.send(publisher.encode([(b"T", text)], ts_in=time.time_ns() - age_ns))


def test_an_old_block_ends_the_subscriber_without_lag() -> None:
    feed = one_slice(max_lag_ns=_FOREVER_NS)
    subscriber, got = Subscriber(feed, slow=SlowPolicy(max_age=LIMIT_NS / 1e9, start_grace=0)), Collector()
    subscriber.on(b"")(got.message)
    with RawPublisher(feed) as publisher:
        subscriber.start()
        old(publisher, b"young", age_ns=0)
        got.wait(1)
        old(publisher, b"old")
        with pytest.raises(SlowSubscriberError, match=r"messages 5\d\d\.\d+ s old, limit 100\.000 s, policy raise"):
            subscriber.run()
    assert got.payloads == [b"young"]
    assert subscriber.statistics().lag.slow_blocks == 1


def test_only_old_blocks_are_dropped() -> None:
    feed = one_slice(max_lag_ns=_FOREVER_NS)
    alerts: list[str] = []
    slow = SlowPolicy("drop", max_age=LIMIT_NS / 1e9, on_alert=alerts.append, start_grace=0)
    subscriber, got = Subscriber(feed, slow=slow), Collector()
    subscriber.on(b"")(got.message)
    with RawPublisher(feed) as publisher:
        subscriber.start()
        old(publisher, b"old")
        old(publisher, b"young", age_ns=0)
        got.wait(1)
        wait_until(lambda: alerts, what="the alert")
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    assert got.payloads == [b"young"]
    assert subscriber.statistics().delivery.dropped == 1
    assert "messages 50" in alerts[0]


def test_without_a_limit_old_blocks_are_delivered() -> None:
    feed = one_slice(max_lag_ns=_FOREVER_NS)
    subscriber, got = Subscriber(feed), Collector()
    subscriber.on(b"")(got.message)
    with RawPublisher(feed) as publisher:
        subscriber.start()
        old(publisher, b"old")
        got.wait(1)
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    lag = subscriber.statistics().lag
    assert lag.slow_blocks == 0
    assert lag.max_ns < LATE_NS <= lag.age_max_ns


@pytest.mark.parametrize("value", [0, -1])
def test_an_age_below_one_is_rejected(value: int) -> None:
    with pytest.raises(ValueError, match=f"max_age was {value}"):
        SlowPolicy(max_age=value / 1e9, start_grace=0)


def test_a_full_ring_of_the_publisher_increases_age_but_not_lag() -> None:
    """Another subscriber delays the publisher: the fast one gets old messages that were sent just now."""
    feed = one_slice(max_lag_ns=_FOREVER_NS, block_bytes=65_536)
    alerts: list[str] = []
    quick = Subscriber(feed, slow=SlowPolicy("warn", max_age=_STALLED_NS / 1e9, on_alert=alerts.append, start_grace=0))
    got = Collector()
    quick.on_batch(b"")(got.batch)
    slow, gate = held_up(feed)
    payload = bytes(10_000)

    def publish() -> None:
        for _ in range(6_000):
            publisher.publish(b"T", payload)

    with Publisher(feed, when_full="wait", hwm_blocks=2) as publisher:
        quick.start()
        slow.start()
        thread = threading.Thread(target=publish)
        thread.start()
        wait_until(lambda: publisher.statistics().waits > 2, 60, "the publisher waits")
        since_ns = time.time_ns()
        wait_until(lambda: time.time_ns() - since_ns > _STALLED_NS, 60, "the publisher has waited for long")
        gate.open.set()
        thread.join()
        wait_until(lambda: alerts, what="the alert")
    slow.run(until_end=True)
    quick.run(until_end=True)
    lag = quick.statistics().lag
    assert len(got) == 6_000
    assert lag.max_ns < lag.age_max_ns
    assert lag.age_max_ns > _STALLED_NS
    assert lag.slow_blocks > 0
    assert "s old, limit 3.000 s, policy warn" in alerts[0]
