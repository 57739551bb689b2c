"""A slice without callbacks is released, and starts again when a callback needs it."""

from __future__ import annotations

import gc
import logging
import resource
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy
import pytest

from blackbox import Feed, Message, Publisher, Recorder, SlowPolicy, Subscriber
from blackbox.errors import LimitError, SubscriberError
from blackbox.subscribe import released_slices
from blackbox.testing import Collector, RawPublisher, wait_until
from tests.archive.archives import free_endpoint
from tests.archive.recorders import wait_recorded
from tests.callbacks import count_rows
from tests.process_state import held, linux_only
from tests.subscribe.shared import mapped
from tests.subscribe.subscribers import PATIENT, nothing, numbers_of


def two_slices(**settings: Any) -> tuple[Feed, bytes, bytes]:
    """A feed, and a topic in each of its two slices."""
    feed = Feed.local("released", slices=2, transport=settings.pop("transport", "tcp"))
    feed = msgspec.structs.replace(feed, **{"max_lag_ns": 60_000_000_000} | settings)
    topics = [b"S%d.t" % number for number in range(100)]
    first, second = (next(topic for topic in topics if feed.slice_of(topic) == n) for n in range(2))
    return feed, first, second


def running(subscriber: Subscriber) -> list[int]:
    return sorted(subscriber._supervisor._slices)


def wait_released(subscriber: Subscriber, *left: int) -> None:
    """Wait until only these slices are left and the others have ended."""
    supervisor = subscriber._supervisor
    wait_until(lambda: running(subscriber) == list(left) and not supervisor._released.leaving, 60, f"only {left} left")


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Release slices as soon as no callback needs them."""
    monkeypatch.setattr(released_slices, "_UNNEEDED_S", 0.0)


@pytest.mark.own_process
@linux_only
@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_threads_descriptors_and_memory_are_released_and_opened_again(transport: str) -> None:
    feed, first, second = two_slices(transport=transport)
    got, subscriber = Collector(), Subscriber(feed, slow=PATIENT)
    subscriber.on(first)(nothing)
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        for topic in (first, second):  # opens the publisher's resources for a connection
            publisher.publish(topic, b"")
        wait_until(lambda: subscriber.statistics().delivery.delivered == 1)
        before, mappings = held(), mapped()
        for round_ in range(3):
            subscriber.on(second)(got.message)
            subscriber.wait_confirmed()
            assert running(subscriber) == [0, 1]
            publisher.publish(second, b"%d" % round_)
            got.wait(round_ + 1)
            gone = weakref.ref(subscriber._supervisor._slices[1])
            gc.disable()  # no reference cycles: everything is freed at once
            try:
                subscriber.remove(got.message)
                wait_released(subscriber, 0)
                wait_until(lambda: gone() is None, what="the slice's memory is freed")
                wait_until(lambda: mapped() == mappings, what="shared memory is unmapped")
                wait_until(lambda: held(collect=False) <= before, what=f"{before} threads and descriptors")
            finally:
                gc.enable()
        subscriber.stop()
    assert numbers_of(got) == [0, 1, 2]


def test_counters_continue_when_a_slice_starts_again() -> None:
    feed, first, second = two_slices()
    other = next(topic for topic in (b"T%d.t" % n for n in range(100)) if feed.slice_of(topic) == 1)
    subscriber, got, late = Subscriber(feed), Collector(), Collector()
    subscriber.on(first)(nothing)
    subscriber.on(second)(got.message)
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        for number in range(10):
            publisher.publish(second, b"%d" % number)
        got.wait(10)
        subscriber.remove(got.message)
        wait_released(subscriber, 0)
        of_gone = subscriber.statistics().slices[1]
        assert (of_gone.slice_id, of_gone.received.messages, of_gone.delivery.delivered) == (1, 10, 10)
        assert (of_gone.received.transport, of_gone.received.subscriptions) == ("tcp", 0)
        assert subscriber.topics(1) == [second]
        publisher.publish(second, b"10")  # without a subscriber
        publisher.flush()
        subscriber.on(other)(late.message)
        subscriber.wait_confirmed()
        for number in range(11, 20):
            publisher.publish(other, b"%d" % number)
    subscriber.run(until_end=True)
    assert (numbers_of(got), numbers_of(late)) == (list(range(10)), list(range(11, 20)))
    assert subscriber.topics(1) == [second, other]
    statistics = subscriber.statistics()
    assert [each.slice_id for each in statistics.slices] == [0, 1]
    assert (statistics.received.messages, statistics.delivery.delivered, statistics.received.gaps) == (19, 19, 0)
    assert (statistics.delivery.due, statistics.delivery.discarded, statistics.delivery.queue_blocks) == (19, 0, 0)


def test_all_slices_are_released_and_start_again() -> None:
    feed, first, second = two_slices()
    subscriber, got = Subscriber(feed, workers=0), Collector()
    subscriber.on(b"")(got.message)
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        subscriber.remove(got.message)
        wait_released(subscriber)
        subscriber.wait_confirmed()
        subscriber.wait_live()
        subscriber._check_silence(0.0)
        with subscriber.checkpoint() as positions:
            assert positions == {}
        assert not subscriber.is_finished
        subscriber.on(b"")(got.message)
        subscriber.wait_confirmed()
        publisher.publish(first, b"0")
        publisher.publish(second, b"1")
    subscriber.run(until_end=True)
    assert sorted(numbers_of(got)) == [0, 1]


def test_a_subscriber_without_slices_stops() -> None:
    feed, first, _ = two_slices()
    subscriber = Subscriber(feed)
    subscriber.on(first)(nothing)
    with Publisher(feed):
        subscriber.start()
        subscriber.remove(nothing)
        wait_released(subscriber)
        subscriber.stop()
    assert subscriber.is_done


def test_the_publisher_is_notified_of_a_released_slice() -> None:
    feed, first, second = two_slices(heartbeat_ns=50_000_000)
    subscriber = Subscriber(feed)
    subscriber.on(first)(nothing)
    subscriber.on(second)(nothing)
    with Publisher(feed) as publisher:
        subscriber.start()
        wait_until(lambda: publisher.wants(second))
        gone, stays = subscriber.callbacks[1], subscriber.callbacks[0]
        subscriber.remove(gone)
        wait_released(subscriber, 0)
        wait_until(lambda: not publisher.wants(second), what="the slice's publisher is notified")
        assert publisher.wants(first)
        assert stays in subscriber.callbacks
        subscriber.stop()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.usefixtures("at_once")
def test_a_callback_removes_itself_and_adds_another_in_its_slice(workers: int) -> None:
    feed, _, second = two_slices()
    subscriber, got, after = Subscriber(feed, workers=workers), Collector(), Collector()

    @subscriber.on(second)
    def once(message: Message) -> None:
        got.message(message)
        subscriber.remove(once)

    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        publisher.publish(second, b"0")
        got.wait(1)
        publisher.publish(second, b"1")
        wait_released(subscriber)
        subscriber.on(second)(after.message)
        subscriber.wait_confirmed()
        publisher.publish(second, b"2")
        after.wait(1)
        subscriber.stop()
    assert (numbers_of(got), numbers_of(after)) == ([0], [2])


def test_replacing_a_callback_keeps_the_slice() -> None:
    feed, _, second = two_slices()
    subscriber, got = Subscriber(feed), Collector()
    subscriber.on(second)(nothing)
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        thread = subscriber._supervisor._slices[1]
        subscriber.remove(nothing)
        subscriber.on(second)(got.message)
        subscriber.wait_confirmed()
        publisher.publish(second, b"0")
        got.wait(1)
        assert subscriber._supervisor._slices == {1: thread}
        subscriber.stop()


def test_closing_a_stream_releases_its_slice() -> None:
    feed, first, second = two_slices()
    subscriber = Subscriber(feed)
    subscriber.on(first)(nothing)
    stream = subscriber.stream(second)
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        publisher.publish(second, b"x")
        assert stream.get(60).payload == b"x"
        stream.close()
        wait_released(subscriber, 0)
        subscriber.stop()


def test_a_timer_keeps_its_slice_until_it_is_removed() -> None:
    feed, first, _ = two_slices()
    subscriber, times = Subscriber(feed), list[int]()
    subscriber.on(first)(nothing)
    subscriber.every(0.01)(times.append)
    with Publisher(feed):
        subscriber.start()
        subscriber.remove(nothing)
        begin = time.monotonic()
        wait_until(lambda: time.monotonic() - begin > 2 * released_slices._UNNEEDED_S)
        seen = len(times)
        wait_until(lambda: len(times) > seen, what="another time is called")
        assert running(subscriber) == [0]
        subscriber.remove(times.append)
        wait_released(subscriber)
        subscriber.stop()


def test_a_running_callback_is_finished_first() -> None:
    feed, _, second = two_slices()
    subscriber, entered, go_on, done = Subscriber(feed), threading.Event(), threading.Event(), list[int]()

    @subscriber.on(second)
    def slow(message: Message) -> None:
        entered.set()
        go_on.wait(60)
        done.append(message.sequence)

    with Publisher(feed) as publisher:
        subscriber.start()
        publisher.publish(second, b"x")
        assert entered.wait(60)
        subscriber.remove(slow)
        begin = time.monotonic()
        wait_until(lambda: time.monotonic() - begin > 1.5 * released_slices._UNNEEDED_S)
        assert running(subscriber) == [1]
        go_on.set()
        wait_released(subscriber)
        assert done == [0]
        assert subscriber.statistics().delivery.delivered == 1
        subscriber.stop()


@pytest.mark.usefixtures("at_once")
def test_slices_that_come_and_go_do_not_disturb_one_that_stays() -> None:
    feed, first, second = two_slices()
    subscriber, stays = Subscriber(feed, slow=PATIENT), Collector()
    subscriber.on_batch(first)(stays.batch)
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        wanted = 0
        for round_ in range(40):
            got = Collector()
            subscriber.on(second)(got.message)
            subscriber.wait_confirmed()
            for number in range(5):
                publisher.publish(second, b"%d" % number)
                publisher.publish(first, b"%d" % (5 * round_ + number))
            assert numbers_of_first(got, 5) == list(range(5))
            wanted += 5
            subscriber.remove(got.message)
            if round_ % 3 == 0:
                wait_released(subscriber, 0)
    subscriber.run(until_end=True)
    assert numbers_of(stays) == list(range(200))
    statistics = subscriber.statistics()
    assert (statistics.slices[1].delivery.delivered, statistics.received.gaps) == (wanted, 0)
    assert statistics.delivery.due == statistics.delivery.delivered


def numbers_of_first(got: Collector, count: int) -> list[int]:
    got.wait(count)
    return numbers_of(got)


class _Held(logging.Handler):
    """Blocks while a slice logs, as it ends, how many errors were not logged."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on, self.holds = threading.Event(), threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if "more errors of callbacks" in record.getMessage():
            self.holds.set()
            self.go_on.wait(60)


def raises(_: Message) -> None:
    raise ValueError("no")


def ending(subscriber: Subscriber, publisher: Publisher, topic: bytes, held_up: _Held) -> None:
    """Release a slice, and hold it up as it ends."""
    for _ in range(20):
        publisher.publish(topic, b"")
    wait_until(lambda: subscriber.statistics().delivery.callback_errors == 20)
    subscriber.remove(raises)
    assert held_up.holds.wait(60)


@pytest.fixture
def held_up() -> Any:
    handler = _Held()
    logging.getLogger("blackbox").addHandler(handler)
    yield handler
    handler.go_on.set()
    logging.getLogger("blackbox").removeHandler(handler)


def test_a_slice_needed_while_it_ends_starts_again_after_that(held_up: _Held) -> None:
    feed, first, second = two_slices()
    subscriber, got = Subscriber(feed, on_error="log"), Collector()
    subscriber.on(first)(nothing)
    subscriber.on(second)(raises)
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        ending(subscriber, publisher, second, held_up)
        with subscriber.checkpoint() as positions:
            assert list(positions) == [0]
        subscriber.on(second)(got.message)
        confirmed = threading.Thread(target=subscriber.wait_confirmed)
        confirmed.start()
        assert running(subscriber) == [0]
        held_up.go_on.set()
        confirmed.join(60)
        assert running(subscriber) == [0, 1]
        publisher.publish(second, b"7")
        assert numbers_of_first(got, 1) == [7]
        subscriber.stop()
    assert subscriber.statistics().slices[1].delivery.callback_errors == 20


@pytest.mark.parametrize("end", [Subscriber.stop, Subscriber.terminate])
def test_the_end_waits_for_a_slice_that_is_ending(held_up: _Held, end: Callable[[Subscriber], None]) -> None:
    feed, first, second = two_slices()
    subscriber = Subscriber(feed, on_error="log")
    subscriber.on(first)(nothing)
    subscriber.on(second)(raises)
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        ending(subscriber, publisher, second, held_up)
        subscriber.on(second)(nothing)  # it does not start again
        subscriber.request_stop()
        with pytest.raises(SubscriberError, match="ended before its subscriptions were confirmed"):
            subscriber.wait_confirmed()
        held_up.go_on.set()
        end(subscriber)
    wait_until(lambda: subscriber.is_done)
    assert running(subscriber) == [0]


@pytest.mark.own_process
def test_a_slice_that_cannot_start_again_ends_the_subscriber_with_the_limit(held_up: _Held) -> None:
    feed, first, second = two_slices()
    subscriber = Subscriber(feed, on_error="log")
    subscriber.on(first)(nothing)
    subscriber.on(second)(raises)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        ending(subscriber, publisher, second, held_up)
        subscriber.on(second)(nothing)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (16, limits[1]))
            held_up.go_on.set()
            with pytest.raises(LimitError, match="RLIMIT_NOFILE"):
                subscriber.run()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_run_until_the_end_keeps_the_last_slice() -> None:
    feed, _, _ = two_slices()
    subscriber = Subscriber(feed)
    subscriber.on(b"")(nothing)
    with Publisher(feed) as publisher:
        subscriber.start()
        waiting = threading.Thread(target=lambda: subscriber.run(until_end=True))
        waiting.start()
        wait_until(lambda: subscriber._supervisor._stop_at_end)
        subscriber.remove(nothing)
        wait_released(subscriber, 0)
        begin = time.monotonic()
        wait_until(lambda: time.monotonic() - begin > 1.5 * released_slices._UNNEEDED_S)
        assert running(subscriber) == [0]
        publisher.close()
        waiting.join(60)
    assert not waiting.is_alive()
    assert subscriber.is_done


def test_a_slice_whose_publisher_has_ended_is_not_released() -> None:
    feed, first, second = two_slices()
    subscriber, got = Subscriber(feed), Collector()
    subscriber.on(first)(got.message)
    subscriber.on(second)(nothing)
    with RawPublisher(feed) as publisher:
        subscriber.start()
        publisher.heartbeat(end=True, slice_id=1)
        wait_until(lambda: subscriber._supervisor._slices[1].is_finished)
        subscriber.remove(nothing)
        begin = time.monotonic()
        wait_until(lambda: time.monotonic() - begin > 1.5 * released_slices._UNNEEDED_S)
        assert running(subscriber) == [0, 1]
        subscriber.on(second)(nothing)
        publisher.send(publisher.encode([(first, b"0")]))
        publisher.heartbeat(end=True, slice_id=0)
        subscriber.run(until_end=True)
    assert numbers_of(got) == [0]


def test_lag_or_silence_of_a_released_slice_does_not_end_the_subscriber(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    feed, first, second = two_slices()
    alerts: list[str] = []
    slow = SlowPolicy("raise", max_lag=60, on_alert=alerts.append, start_grace=0)
    subscriber, got = Subscriber(feed, slow=slow), Collector()
    subscriber.on(first)(got.message)
    subscriber.on(second)(nothing)
    with RawPublisher(feed) as publisher:
        subscriber.start()
        subscriber.remove(nothing)
        wait_released(subscriber, 0)
        publisher.send(publisher.encode([(second, b"")], slice_id=1, ts_out=1))
        for number in range(3):
            publisher.send(publisher.encode([(first, b"%d" % number)]))
            got.wait(number + 1)
            publisher.heartbeat(slice_id=0)
            subscriber._check_silence(30.0)
        assert (subscriber.state.value, alerts) == ("running", [])
        monkeypatch.setattr(subscriber._supervisor._slices[0], "silence_s", lambda: 0.1)
        subscriber._check_silence(0.2)  # the other slice has been silent for longer
        subscriber.stop()


@pytest.mark.parametrize("key_bytes", [0, 2])
def test_a_named_consumer_keeps_the_position_of_a_released_slice(tmp_path: Path, key_bytes: int) -> None:
    archive = free_endpoint()
    feed, first, second = two_slices(key_bytes=key_bytes, archives=(archive,))
    settings: dict[str, Any] = {"name": "strategy", "positions": tmp_path / "positions", "slow": PATIENT}

    with Publisher(feed, when_full="wait") as publisher:
        recorder = Recorder(feed, tmp_path / "days", serve=True).start()
        subscriber, got, again, stays = Subscriber(feed, **settings), Collector(), Collector(), Collector()
        subscriber.on(first)(stays.message)
        subscriber.on(second)(got.message)
        subscriber.start()
        for number in range(5):
            publisher.publish(second, b"%d" % number)
            publisher.publish(first, b"%d" % number)
        got.wait(5)
        stays.wait(5)
        with subscriber.checkpoint() as positions:
            assert {n: each.sequence for n, each in positions.items()} == {0: 5, 1: 5}
        subscriber.remove(got.message)
        wait_released(subscriber, 0)
        for number in range(5, 10):  # without a subscriber
            publisher.publish(second, b"%d" % number)
        publisher.flush()
        with subscriber.checkpoint() as positions:
            assert list(positions) == [0]
        subscriber.stop()
        wait_recorded(recorder, 15)
        following = Subscriber(feed, **settings)
        following.on(first)(nothing)
        following.on(second)(again.message)
        following.start()
        following.wait_live()
        assert numbers_of_first(again, 5) == list(range(5, 10))
        following.stop()
        recorder.stop()
    assert numbers_of(got) == list(range(5))


def test_a_slice_that_began_in_the_past_starts_again_live(tmp_path: Path) -> None:
    feed, first, second = two_slices(archives=(free_endpoint(),))
    with Publisher(feed, when_full="wait") as publisher:
        recorder = Recorder(feed, tmp_path / "days", serve=True).start()
        for number in range(5):
            publisher.publish(second, b"%d" % number)
        publisher.flush()
        wait_recorded(recorder, 5)
        subscriber, got, again = Subscriber(feed, slow=PATIENT), Collector(), Collector()
        subscriber.on(first)(nothing)
        subscriber.on(second)(got.message)
        subscriber.start(since=0)
        subscriber.wait_live()
        assert numbers_of_first(got, 5) == list(range(5))
        subscriber.remove(got.message)
        wait_released(subscriber, 0)
        subscriber.on(second)(again.message)
        subscriber.wait_confirmed()
        subscriber.wait_live()
        publisher.publish(second, b"5")
        assert numbers_of_first(again, 1) == [5]
        subscriber.stop()
        recorder.stop()


def test_a_slice_that_catches_up_is_released_without_waiting(tmp_path: Path) -> None:
    feed, first, second = two_slices(archives=(free_endpoint(),))  # an archive that never answers
    subscriber = Subscriber(feed, slow=PATIENT)
    subscriber.on(first)(nothing)
    subscriber.on(second)(nothing)
    with Publisher(feed, when_full="wait") as publisher:
        recorder = Recorder(feed, tmp_path / "days", serve=True).start()
        publisher.publish(first, b"")
        publisher.publish(second, b"")
        publisher.flush()
        wait_recorded(recorder, 2)
        subscriber.start(since={1: (publisher.epoch, 0)})
        recorder.stop()
        subscriber.remove(subscriber.callbacks[1])
        wait_released(subscriber, 0)
        subscriber.wait_live(60)
        assert subscriber.statistics().received.catching_up == 0
        subscriber.stop()


def test_compiled_callbacks_keep_their_states_when_a_slice_starts_again() -> None:
    feed, first, second = two_slices()
    subscriber = Subscriber(feed)
    subscriber.on(first)(nothing)

    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        counts = []
        for _ in range(2):
            counted = subscriber.on_compiled(second, state=numpy.zeros(1, numpy.int64))(count_rows)
            subscriber.wait_confirmed()
            for _ in range(3):
                publisher.publish(second, b"")
            wait_until(lambda: counted.total()[0] == 3)
            subscriber.remove(counted)
            wait_released(subscriber, 0)
            counts.append(counted)
        subscriber.stop()
    assert [each.total().tolist() for each in counts] == [[3], [3]]
