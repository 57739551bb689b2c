"""Lag is corrected for the publisher's clock; age also includes the time before a message was sent."""

from __future__ import annotations

import re
import time

import pytest

from blackbox import Message, SlowPolicy, Subscriber
from blackbox.testing import wait_until
from tests.gate import Gate
from tests.receive.late import LATE_NS, LIMIT_NS, SECOND_NS, late, one_slice
from tests.receive.subscribers import publishing, subscribed


def test_a_clock_ahead_is_subtracted_and_never_ends_a_subscriber() -> None:
    feed = one_slice()
    subscriber, got = subscribed(feed, slow=SlowPolicy(max_lag=LIMIT_NS / 1e9, start_grace=0))
    with publishing(feed, subscriber) as publisher:
        for number in range(10):
            late(publisher, b"%d" % number, lag_ns=-LATE_NS)
        got.wait(10)
        lag = subscriber.statistics().lag
        assert (lag.negative, lag.slow_blocks) == (10, 0)
        assert 0.9 * LATE_NS < lag.clock_offset_ns <= LATE_NS
        assert lag.max_ns < LIMIT_NS
        for hours in (1, 24, 24 * 365 * 50):
            late(publisher, b"%d" % hours, lag_ns=-hours * 3_600 * SECOND_NS)
        got.wait(13)
    assert subscriber.statistics().lag.negative == 13


def test_a_negative_lag_is_counted_once_per_block_however_long_a_queue_is_full() -> None:
    feed = one_slice()
    subscriber, gate = Subscriber(feed, queue_blocks=1), Gate()

    @subscriber.on(b"")
    def block(message: Message) -> None:
        gate.wait()

    with publishing(feed, subscriber) as publisher:
        for number in range(10):
            late(publisher, b"%d" % number, lag_ns=-3_600 * SECOND_NS)
            assert gate.entered.wait(60)  # a worker that arrives later takes everything that waits
        wait_until(lambda: subscriber.statistics().delivery.waits > 5)
        gate.open.set()
    assert subscriber.statistics().lag.negative == 10


def test_lag_percentiles_are_over_messages() -> None:
    feed = one_slice()
    subscriber, _ = subscribed(feed, slow=SlowPolicy("warn", start_grace=0))
    with publishing(feed, subscriber) as publisher:
        for lag_s, messages in ((10_000, 1), (4_000, 9), (2_000, 190)):
            ts_out = time.time_ns() - lag_s * SECOND_NS
            publisher.send(publisher.encode([(b"T", b"")] * messages, ts_out=ts_out))
    lag = subscriber.statistics().lag
    assert 2_000 * SECOND_NS <= lag.p50_ns < 2_400 * SECOND_NS
    assert 4_000 * SECOND_NS <= lag.p99_ns < 4_500 * SECOND_NS
    assert 10_000 * SECOND_NS <= lag.max_ns < 11_000 * SECOND_NS


@pytest.mark.parametrize("max_age", [None, LIMIT_NS / 1e9])
def test_old_messages_that_were_just_sent_are_late_only_if_age_is_limited(max_age: float | None) -> None:
    feed = one_slice(max_lag_ns=3_600 * SECOND_NS)
    alerts: list[str] = []
    slow = SlowPolicy("drop", max_age=max_age, on_alert=alerts.append, start_grace=0)
    subscriber, got = subscribed(feed, slow=slow)
    with publishing(feed, subscriber) as publisher:
        publisher.send(publisher.encode([(b"T", b"old")], ts_in=time.time_ns() - LATE_NS))
        publisher.send(publisher.encode([(b"T", b"young")]))
        got.wait(1 if max_age else 2)
        wait_until(lambda: bool(alerts) == bool(max_age), what="the alert")
    lag, dropped = subscriber.statistics().lag, subscriber.statistics().delivery.dropped
    if max_age:
        assert re.search(r"messages 5\d\d\.\d+ s old, limit 100\.000 s, policy drop", alerts[0])
        assert (got.payloads, dropped, lag.slow_blocks) == ([b"young"], 1, 1)
    else:
        assert (got.payloads, dropped, lag.slow_blocks) == ([b"old", b"young"], 0, 0)
        assert lag.max_ns < LATE_NS <= lag.age_max_ns
