"""Counters of a subscriber agree with each other and with the received messages."""

from __future__ import annotations

from blackbox import Feed, Publisher, Subscriber
from blackbox.testing import Collector
from tests.receive.subscribers import PATIENT


def test_statistics_agree_with_each_other_and_totals_are_sums_over_slices() -> None:
    feed = Feed.local("subscriber", slices=3)
    subscriber = Subscriber(feed, slow=PATIENT)
    got = [Collector() for _ in range(3)]
    for prefix, each in zip((b"S1", b"S1", b"S"), got, strict=True):
        subscriber.on(prefix)(each.message)
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        for number in range(5_000):
            publisher.publish(b"%c%d" % (b"SX"[number % 2], number % 30), bytes(number % 50))
    subscriber.run(until_end=True)
    statistics = subscriber.statistics()
    received, delivery, lag = statistics.received, statistics.delivery, statistics.lag
    assert received.messages == 5_000
    assert delivery.matched == 2_500 == len(got[2])
    assert delivery.delivered == delivery.due == sum(map(len, got))
    assert (delivery.failed, delivery.conflated, delivery.discarded) == (0, 0, 0)
    assert delivery.topics == 30
    assert received.subscriptions == 3
    assert (delivery.queue_blocks, delivery.dropped) == (0, 0)
    assert (received.held, received.malformed, received.stale) == (0, 0, 0)
    assert received.blocks == publisher.statistics().blocks
    assert received.body_bytes == publisher.statistics().body_bytes
    assert 0 < lag.p50_ns <= lag.p99_ns <= lag.max_ns
    assert lag.p50_ns <= lag.age_p50_ns <= lag.age_p99_ns <= lag.age_max_ns
    assert received.control_blocks >= 2 * 3  # a confirmation and an end for each slice
    assert received.faults == {}
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
