"""Lag is corrected for the publisher's clock, and its percentiles are over messages."""

from __future__ import annotations

from blackbox import Message, SlowPolicy, Subscriber
from blackbox.testing import Collector, RawPublisher, wait_until
from tests.gate import Gate
from tests.subscribe.late import LATE_NS, LIMIT_NS, SECOND_NS, late, one_slice


def test_a_clock_ahead_is_estimated_and_subtracted_from_every_lag() -> None:
    feed = one_slice()
    subscriber = Subscriber(feed, slow=SlowPolicy("warn", max_lag=LIMIT_NS / 1e9, start_grace=0))
    got = Collector()
    subscriber.on(b"")(got.message)
    ahead = LATE_NS
    with RawPublisher(feed) as publisher:
        subscriber.start()
        for number in range(10):
            late(publisher, b"%d" % number, lag_ns=-ahead)
        got.wait(10)
        statistics = subscriber.statistics()
        assert statistics.lag.negative == 10
        assert statistics.lag.slow_blocks == 0
        assert 0.9 * ahead < statistics.lag.clock_offset_ns <= ahead
        subscriber.stop()
    assert subscriber.statistics().lag.max_ns < LIMIT_NS


def test_one_block_stamped_ahead_does_not_affect_the_subscriber() -> None:
    feed = one_slice()
    subscriber = Subscriber(feed, slow=SlowPolicy(max_lag=LIMIT_NS / 1e9, start_grace=0))
    got = Collector()
    subscriber.on(b"")(got.message)
    with RawPublisher(feed) as publisher:
        subscriber.start()
        late(publisher, b"forged", lag_ns=-LATE_NS)
        for number in range(10):
            late(publisher, b"%d" % number, lag_ns=0)
        got.wait(11)
        subscriber.stop()
    lag = subscriber.statistics().lag
    assert (lag.negative, lag.slow_blocks, lag.clock_offset_ns, lag.clock_steps) == (1, 0, 0, 2)


def test_a_clock_ahead_never_ends_a_subscriber() -> None:
    feed = one_slice()
    subscriber = Subscriber(feed, slow=SlowPolicy(max_lag=LIMIT_NS / 1e9, start_grace=0))
    got = Collector()
    subscriber.on(b"")(got.message)
    with RawPublisher(feed) as publisher:
        subscriber.start()
        for hours in (1, 24, 24 * 365 * 50):
            late(publisher, b"%d" % hours, lag_ns=-hours * 3_600 * SECOND_NS)
        got.wait(3)
        subscriber.stop()
    assert subscriber.statistics().lag.negative == 3


def test_a_negative_lag_is_counted_once_per_block_however_long_a_queue_is_full() -> None:
    feed = one_slice()
    subscriber = Subscriber(feed, queue_blocks=1)
    gate = Gate()

    @subscriber.on(b"")
    def block(message: Message) -> None:
        gate.wait()

    with RawPublisher(feed) as publisher:
        subscriber.start()
        for number in range(10):
            late(publisher, b"%d" % number, lag_ns=-3_600 * SECOND_NS)
            assert gate.entered.wait(60)  # a worker that arrives later takes everything that waits
        wait_until(lambda: subscriber.statistics().delivery.waits > 5)
        gate.open.set()
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    assert subscriber.statistics().lag.negative == 10


def test_lag_percentiles_are_over_messages() -> None:
    feed = one_slice()
    subscriber = Subscriber(feed, slow=SlowPolicy("warn", start_grace=0))
    got = Collector()
    subscriber.on(b"")(got.message)
    with RawPublisher(feed) as publisher:
        subscriber.start()
        for number in range(200):
            lag_s = 10_000 if number == 199 else 4_000 if number >= 190 else 2_000
            late(publisher, b"", lag_ns=lag_s * SECOND_NS)
        got.wait(200)
        subscriber.stop()
    statistics = subscriber.statistics()
    assert 2_000 * SECOND_NS <= statistics.lag.p50_ns < 2_400 * SECOND_NS
    assert 4_000 * SECOND_NS <= statistics.lag.p99_ns < 4_500 * SECOND_NS
    assert 10_000 * SECOND_NS <= statistics.lag.max_ns < 11_000 * SECOND_NS
