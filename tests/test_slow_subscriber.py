"""Lag: every policy for a subscriber that cannot keep up, the squawk before it acts, hung callbacks, and odd clocks."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from typing import Any

import msgspec
import pytest
import zmq

from blackbox import Batch, Feed, Message, Publisher, SlowSubscriberError, Subscriber
from blackbox.endpoint import free_endpoints
from blackbox.subscriber import State
from blackbox.testing import Collector, RawPublisher, wait_until
from tests.support import Script

SECOND_NS = 10**9
HUNG_STATUS = 3


def one_slice(**settings: Any) -> Feed:
    return msgspec.structs.replace(Feed.local("slow", slices=1), **settings)


def late(publisher: RawPublisher, text: bytes, lag_ns: int = 5 * SECOND_NS, topic: bytes = b"T") -> None:
    """Send a message that seems to have left `lag_ns` ago."""
    publisher.send(publisher.encode([(topic, text)], ts_out=time.time_ns() - lag_ns))


# terminate


def test_a_late_block_ends_the_subscriber_and_the_squawk_comes_first(caplog: pytest.LogCaptureFixture) -> None:
    feed = one_slice()
    heard: list[tuple[str, State]] = []
    subscriber = Subscriber(feed, on_squawk=lambda text: heard.append((text, subscriber.state)))
    got = Collector()
    subscriber.on(b"")(got.message)
    with RawPublisher(feed) as publisher:
        subscriber.start()
        publisher.send(publisher.encode([(b"T", b"in time")]))
        got.wait(1)
        late(publisher, b"late")
        with pytest.raises(SlowSubscriberError) as caught:
            subscriber.run()
    text = str(caught.value)
    assert text.startswith("slow subscriber: feed 'slow' slice 0 lags 5.0")
    assert text.endswith("s, limit 1.000 s, policy terminate")
    assert heard == [(text, State.RUNNING)]
    assert ("blackbox", logging.CRITICAL, text) in caplog.record_tuples
    assert got.payloads == [b"in time"]
    assert subscriber.statistics().slow_blocks == 1
    assert subscriber.state is State.ENDED
    with pytest.raises(SlowSubscriberError):
        subscriber.stop()


def test_the_operator_console_gets_the_squawk() -> None:
    feed = one_slice()
    [[endpoint]] = free_endpoints("tcp", "console", 1, 1)
    with zmq.Context() as context, context.socket(zmq.PULL) as console, RawPublisher(feed) as publisher:
        console.bind(endpoint)
        subscriber = Subscriber(feed, console=endpoint)
        subscriber.on(b"")(lambda message: None)
        subscriber.start()
        late(publisher, b"late")
        with pytest.raises(SlowSubscriberError) as caught:
            subscriber.run()
        assert console.poll(5_000)
        assert console.recv().decode() == str(caught.value)


def test_an_operator_who_is_not_there_delays_nothing() -> None:
    feed = one_slice()
    [[endpoint]] = free_endpoints("tcp", "console", 1, 1)

    def broken(text: str) -> None:
        raise RuntimeError(text)

    subscriber = Subscriber(feed, console=endpoint, on_squawk=broken)
    subscriber.on(b"")(lambda message: None)
    with RawPublisher(feed) as publisher:
        subscriber.start()
        late(publisher, b"late")
        started = time.monotonic()
        with pytest.raises(SlowSubscriberError):
            subscriber.run()
        assert time.monotonic() - started < 3


def test_the_end_of_the_with_block_tells_that_the_subscriber_was_slow() -> None:
    feed = one_slice()
    subscriber = Subscriber(feed)
    subscriber.on(b"")(lambda message: None)
    with RawPublisher(feed) as publisher, pytest.raises(SlowSubscriberError), subscriber:
        late(publisher, b"late")
        wait_until(lambda: subscriber.state is State.ENDED)


def test_a_callback_that_is_too_slow_fills_the_queue_and_ends_the_subscriber() -> None:
    feed = one_slice()
    subscriber = Subscriber(feed, max_lag_ns=SECOND_NS // 5, queue_blocks=2)
    done = threading.Event()

    @subscriber.on(b"")
    def slow(message: Message) -> None:
        done.wait(0.05)

    with RawPublisher(feed) as publisher:
        subscriber.start()
        for _ in range(60):
            publisher.send(publisher.encode([(b"T", b"")]))
        with pytest.raises(SlowSubscriberError, match="policy terminate"):
            subscriber.run()
    assert subscriber.statistics().waits > 0


def test_a_worker_that_is_stuck_is_noticed_without_new_blocks() -> None:
    feed = one_slice()
    let_go = threading.Event()
    subscriber = Subscriber(feed, max_lag_ns=SECOND_NS // 5, on_squawk=lambda text: let_go.set())
    entered = threading.Event()

    @subscriber.on(b"")
    def stuck(message: Message) -> None:
        entered.set()
        let_go.wait(20)

    with RawPublisher(feed) as publisher:
        subscriber.start()
        publisher.send(publisher.encode([(b"T", b"0")]))
        entered.wait(10)
        publisher.send(publisher.encode([(b"T", b"1")]))
        with pytest.raises(SlowSubscriberError):
            subscriber.run()


def test_one_slow_slice_ends_all() -> None:
    feed = Feed.local("slow", slices=3)
    topics = {feed.slice_of(b"S%d" % number): b"S%d" % number for number in range(50)}
    subscriber = Subscriber(feed)
    got = Collector()
    subscriber.on(b"")(got.message)
    with RawPublisher(feed) as publisher:
        subscriber.start()
        for slice_id, topic in topics.items():
            publisher.send(publisher.encode([(topic, b"")], slice_id=slice_id))
        got.wait(3)
        publisher.send(publisher.encode([(topics[1], b"")], slice_id=1, ts_out=1))
        with pytest.raises(SlowSubscriberError, match="slice 1 lags"):
            subscriber.run()


HUNG = {
    "in a sleep": "time.sleep(1000)",
    "in a loop": "while True: pass",
    # The regular expression engine never lets go of the interpreter, so that no other Python code can run.
    "with the interpreter": "__import__('re').match('(a+)+$', 'a' * 64 + 'b')",
}


@pytest.mark.parametrize("how", HUNG)
def test_a_process_whose_callback_hangs_ends_itself(how: str) -> None:
    feed = one_slice()
    [[endpoint]] = free_endpoints("tcp", "console", 1, 1)
    code = f"""
        subscriber = Subscriber(feed, max_lag_ns=200_000_000, grace_ns=300_000_000, console={endpoint!r})
        @subscriber.on(b"")
        def hang(message):
            say("hangs")
            {HUNG[how]}
        subscriber.start(timeout=60)
        say("started")
        subscriber.run()
    """
    with (
        zmq.Context() as context,
        context.socket(zmq.PULL) as console,
        RawPublisher(feed) as publisher,
        Script(code, feed) as script,
    ):
        console.bind(endpoint)
        script.expect("started")
        publisher.send(publisher.encode([(b"T", b"0")]))
        script.expect("hangs")
        publisher.send(publisher.encode([(b"T", b"1")]))
        started = time.monotonic()
        status, _, errors = script.finish(timeout=20)
        assert time.monotonic() - started < 5
        assert status == HUNG_STATUS
        assert "a callback did not return in the grace time, the process ends itself" in errors
        if how != "with the interpreter":
            assert "policy terminate" in console.recv().decode()


def test_a_callback_that_returns_within_the_grace_time_lets_the_process_live() -> None:
    feed = one_slice()
    subscriber = Subscriber(feed, max_lag_ns=SECOND_NS // 10, grace_ns=20 * SECOND_NS)
    entered, let_go = threading.Event(), threading.Event()

    @subscriber.on(b"")
    def busy(message: Message) -> None:
        entered.set()
        let_go.wait(20)

    with RawPublisher(feed) as publisher:
        subscriber.start()
        publisher.send(publisher.encode([(b"T", b"0")]))
        entered.wait(10)
        publisher.send(publisher.encode([(b"T", b"1")]))
        wait_until(lambda: subscriber.state is State.STOPPING)
        let_go.set()
        with pytest.raises(SlowSubscriberError):
            subscriber.run()


# conflate


def test_conflate_delivers_the_newest_of_each_topic_and_counts_the_rest() -> None:
    feed = one_slice()
    subscriber = Subscriber(feed, on_slow="conflate")
    batches: list[tuple[bool, list[tuple[bytes, bytes, int]]]] = []

    @subscriber.on_batch(b"T")
    def note(batch: Batch) -> None:
        rows = zip(batch.topics_per_message(), map(batch.payload, range(len(batch))), batch.ts_event, strict=True)
        batches.append((batch.conflated, [(topic, data, int(ts)) for topic, data, ts in rows]))

    with RawPublisher(feed) as publisher:
        subscriber.start()
        long_ago = time.time_ns() - 5 * SECOND_NS
        rows = [(b"T%d" % (n % 7), b"%d" % n * (1 + n % 5)) for n in range(700)] + [(b"U", b"not wanted")]
        publisher.send(publisher.encode(rows, ts_event=list(range(701)), ts_out=long_ago))
        wait_until(lambda: sum(len(rows) for _, rows in batches) == 7)
        publisher.send(publisher.encode([(b"T0", b"in time")]))
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    assert [conflated for conflated, _ in batches] == [True, False]
    assert sorted(batches[0][1]) == sorted((*rows[n], n) for n in range(693, 700))
    assert batches[1][1] == [(b"T0", b"in time", 0)]
    statistics = subscriber.statistics()
    assert (statistics.received, statistics.matched, statistics.conflated) == (702, 701, 693)
    assert (statistics.dropped, statistics.gaps, statistics.slow_blocks) == (0, 0, 1)


def test_conflate_keeps_a_blocked_subscriber_up_to_date() -> None:
    feed = one_slice()
    subscriber = Subscriber(feed, on_slow="conflate", queue_blocks=2)
    newest: dict[bytes, int] = {}
    order: dict[bytes, list[int]] = {}
    entered, open_ = threading.Event(), threading.Event()

    @subscriber.on(b"")
    def note(message: Message) -> None:
        entered.set()
        open_.wait(20)
        newest[message.topic] = int(message.payload)
        order.setdefault(message.topic, []).append(int(message.payload))

    total = 20_000
    with RawPublisher(feed) as publisher:
        subscriber.start()
        for first in range(0, total, 100):
            publisher.send(publisher.encode([(b"T%d" % (n % 13), b"%d" % n) for n in range(first, first + 100)]))
        entered.wait(10)
        wait_until(lambda: subscriber.statistics().received == total)
        open_.set()
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    assert newest == {b"T%d" % (n % 13): n for n in range(total - 13, total)}
    for numbers in order.values():
        assert numbers == sorted(set(numbers))
    statistics = subscriber.statistics()
    assert statistics.delivered + statistics.conflated == total
    assert statistics.delivered < total // 2
    assert statistics.dropped == 0


def test_conflate_with_payloads_that_fill_its_memory() -> None:
    feed = one_slice()
    subscriber = Subscriber(feed, on_slow="conflate")
    sizes: list[tuple[bytes, int]] = []
    subscriber.on(b"")(lambda message: sizes.append((message.topic, len(message.payload))))
    with RawPublisher(feed) as publisher:
        subscriber.start()
        for size in (1_000_000, 9_000_000, 20_000_000, 8_000_000):
            rows = [(b"T%d" % number, bytes(size)) for number in range(3)]
            publisher.send(publisher.encode(rows, ts_out=time.time_ns() - 5 * SECOND_NS, checksum=False))
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    statistics = subscriber.statistics()
    assert statistics.delivered + statistics.conflated == 12
    assert statistics.dropped == 0
    assert {topic for topic, _ in sizes} == {b"T0", b"T1", b"T2"}
    assert dict(sizes) == dict.fromkeys([b"T0", b"T1", b"T2"], 8_000_000)


# drop and warn


def test_drop_drops_late_blocks_and_counts_them() -> None:
    feed = one_slice()
    heard: list[str] = []
    subscriber = Subscriber(feed, on_slow="drop", on_squawk=heard.append)
    got = Collector()
    subscriber.on(b"")(got.message)
    with RawPublisher(feed) as publisher:
        subscriber.start()
        for number in range(20):
            lag_ns = 2 * SECOND_NS if number % 4 == 3 else 0
            rows = [(b"T", b"%d" % number)] * 3
            publisher.send(publisher.encode(rows, ts_out=time.time_ns() - lag_ns))
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    assert got.payloads == [b"%d" % number for number in range(20) if number % 4 != 3 for _ in range(3)]
    statistics = subscriber.statistics()
    assert (statistics.dropped, statistics.slow_blocks, statistics.gaps) == (15, 5, 0)
    assert 1 <= len(heard) <= 5
    assert heard[0].endswith("policy drop")


def test_drop_gives_up_what_a_full_queue_has_no_room_for() -> None:
    feed = one_slice()
    subscriber = Subscriber(feed, on_slow="drop", max_lag_ns=SECOND_NS // 10, queue_blocks=2)
    got = Collector()
    entered, open_ = threading.Event(), threading.Event()

    @subscriber.on(b"")
    def note(message: Message) -> None:
        entered.set()
        open_.wait(20)
        got.message(message)

    with RawPublisher(feed) as publisher:
        subscriber.start()
        for number in range(200):
            publisher.send(publisher.encode([(b"T", b"%d" % number)]))
        entered.wait(10)
        wait_until(lambda: subscriber.statistics().received == 200)
        wait_until(lambda: subscriber.statistics().dropped > 0)
        open_.set()
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    statistics = subscriber.statistics()
    assert statistics.delivered + statistics.dropped == 200
    assert statistics.delivered == len(got)
    assert [int(p) for p in got.payloads] == sorted(int(p) for p in got.payloads)


def test_warn_squawks_and_delivers_everything() -> None:
    feed = one_slice()
    heard: list[str] = []
    subscriber = Subscriber(feed, on_slow="warn", on_squawk=heard.append)
    got = Collector()
    subscriber.on(b"")(got.message)
    with RawPublisher(feed) as publisher:
        subscriber.start()
        for number in range(50):
            late(publisher, b"%d" % number)
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    assert [int(p) for p in got.payloads] == list(range(50))
    assert heard[0].endswith("policy warn")
    assert subscriber.statistics().slow_blocks == 50
    assert subscriber.statistics().dropped == 0


@pytest.mark.parametrize("policy", ["terminate", "conflate", "drop", "warn"])
def test_a_subscriber_in_time_gets_everything_under_every_policy(policy: Any) -> None:
    feed = Feed.local("slow", slices=2)
    subscriber = Subscriber(feed, on_slow=policy, max_lag_ns=3_600 * SECOND_NS, queue_blocks=4_096)
    counts: Counter[bytes] = Counter()
    got = Collector()
    subscriber.on_batch(b"")(got.batch)
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        for number in range(5_000):
            publisher.publish(b"S%d" % (number % 30), b"%d" % number)
    subscriber.run(until_end=True)
    counts.update(message.topic for message in got.messages)
    statistics = subscriber.statistics()
    assert len(got) == statistics.delivered == 5_000
    assert (statistics.slow_blocks, statistics.dropped, statistics.conflated) == (0, 0, 0)


# Clocks


def test_a_clock_ahead_is_estimated_and_taken_off_every_lag() -> None:
    feed = one_slice()
    subscriber = Subscriber(feed, on_slow="warn", max_lag_ns=SECOND_NS)
    got = Collector()
    subscriber.on(b"")(got.message)
    ahead = 5 * SECOND_NS
    with RawPublisher(feed) as publisher:
        subscriber.start()
        for number in range(10):
            late(publisher, b"%d" % number, lag_ns=-ahead)
        got.wait(10)
        statistics = subscriber.statistics()
        assert statistics.negative_lags == 10
        assert statistics.slow_blocks == 0
        assert 0.9 * ahead < statistics.clock_offset_ns <= ahead
        late(publisher, b"two seconds late by that clock", lag_ns=2 * SECOND_NS - ahead)
        got.wait(11)
        subscriber.stop()
    statistics = subscriber.statistics()
    assert statistics.slow_blocks == 1
    assert statistics.negative_lags == 11
    assert 1.9 * SECOND_NS < statistics.lag_max_ns < 2.5 * SECOND_NS


def test_a_clock_ahead_is_never_fatal() -> None:
    feed = one_slice()
    subscriber = Subscriber(feed, max_lag_ns=1_000_000_000)
    got = Collector()
    subscriber.on(b"")(got.message)
    with RawPublisher(feed) as publisher:
        subscriber.start()
        for hours in (1, 24, 24 * 365 * 50):
            late(publisher, b"%d" % hours, lag_ns=-hours * 3_600 * SECOND_NS)
        got.wait(3)
        subscriber.stop()
    assert subscriber.statistics().negative_lags == 3


def test_a_negative_lag_is_counted_once_for_each_block_however_long_a_queue_is_full() -> None:
    feed = one_slice()
    subscriber = Subscriber(feed, queue_blocks=1)
    entered, open_ = threading.Event(), threading.Event()

    @subscriber.on(b"")
    def block(message: Message) -> None:
        entered.set()
        open_.wait(20)

    with RawPublisher(feed) as publisher:
        subscriber.start()
        for number in range(10):
            late(publisher, b"%d" % number, lag_ns=-3_600 * SECOND_NS)
        entered.wait(10)
        wait_until(lambda: subscriber.statistics().waits > 5)
        open_.set()
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    assert subscriber.statistics().negative_lags == 10


def test_lag_percentiles_are_those_of_the_messages() -> None:
    feed = one_slice()
    subscriber = Subscriber(feed, on_slow="warn")
    got = Collector()
    subscriber.on(b"")(got.message)
    with RawPublisher(feed) as publisher:
        subscriber.start()
        for number in range(200):
            lag_s = 10 if number == 199 else 4 if number >= 190 else 2
            late(publisher, b"", lag_ns=lag_s * SECOND_NS)
        got.wait(200)
        subscriber.stop()
    statistics = subscriber.statistics()
    assert 2.0 * SECOND_NS <= statistics.lag_p50_ns < 2.4 * SECOND_NS
    assert 4.0 * SECOND_NS <= statistics.lag_p99_ns < 4.5 * SECOND_NS
    assert 10.0 * SECOND_NS <= statistics.lag_max_ns < 11.0 * SECOND_NS
