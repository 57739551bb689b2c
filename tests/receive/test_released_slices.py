"""A slice without callbacks is released, and starts again when a callback needs it."""

from __future__ import annotations

import gc
import logging
import resource
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from blackbox import Message, Publisher, Recorder, SlowPolicy, Subscriber
from blackbox.errors import LimitError, SubscriberError
from blackbox.receive.supervise import slice_set
from blackbox.testing import Collector, RawPublisher, wait_until
from tests.archive.archives import free_endpoint
from tests.archive.recorders import wait_recorded
from tests.gate import Gate
from tests.process_state import held, linux_only, wait_given_back
from tests.receive.shared import mapped
from tests.receive.subscribers import PATIENT, nothing, numbers_of, published, sliced, subscribed

_TOPICS = [b"%c%d.t" % (letter, number) for letter in b"ST" for number in range(50)]
_slice_of = sliced(2, transport="inproc").slice_of
FIRST = next(topic for topic in _TOPICS if _slice_of(topic) == 0)
SECOND, OTHER = [topic for topic in _TOPICS if _slice_of(topic) == 1][:2]


def running(subscriber: Subscriber) -> list[int]:
    return sorted(subscriber._supervisor.slices.running)


def wait_released(subscriber: Subscriber, *left: int) -> None:
    """Wait until only these slices are left and the others have ended."""
    released = subscriber._supervisor.slices.released
    wait_until(lambda: running(subscriber) == list(left) and not released.leaving, what=f"only {left} left")


def wait_longer_than_unneeded() -> None:
    begin = time.monotonic()
    wait_until(lambda: time.monotonic() - begin > 1.5 * slice_set._UNNEEDED_S)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Release slices sooner."""
    monkeypatch.setattr(slice_set, "_UNNEEDED_S", 0.2)


@pytest.mark.own_process
@linux_only
def test_threads_descriptors_and_memory_are_released_and_opened_again_and_another_slice_is_undisturbed() -> None:
    feed = sliced(2, transport="shm")
    got, (subscriber, stays) = Collector(), subscribed(feed, FIRST)
    with Publisher(feed, when_full="wait") as publisher, subscriber:
        for topic in (FIRST, SECOND):  # opens the publisher's resources for a connection
            publisher.publish(topic, b"0")
        stays.wait(1)
        before, mappings = held(), mapped()
        for round_ in range(1, 4):
            subscriber.on(SECOND)(got.message)
            subscriber.wait_confirmed()
            assert running(subscriber) == [0, 1]
            for topic in (FIRST, SECOND):
                publisher.publish(topic, b"%d" % round_)
            got.wait(round_)
            gone = weakref.ref(subscriber._supervisor.slices.running[1])
            gc.disable()  # no reference cycles: everything is freed at once
            try:
                subscriber.remove(got.message)
                wait_released(subscriber, 0)
                wait_until(lambda: gone() is None, what="the slice's memory is freed")
                wait_until(lambda: mapped() == mappings, what="shared memory is unmapped")
                wait_given_back(before, collect=False)
            finally:
                gc.enable()
        stays.wait(4)
    assert (numbers_of(got), numbers_of(stays)) == ([1, 2, 3], [0, 1, 2, 3])
    statistics = subscriber.statistics()
    assert (statistics.received.gaps, statistics.delivery.due, statistics.delivery.delivered) == (0, 7, 7)


def test_counters_continue_when_a_slice_starts_again() -> None:
    feed = sliced(2, heartbeat_ns=50_000_000)
    subscriber, got, late = Subscriber(feed), Collector(), Collector()
    subscriber.on(FIRST)(nothing)
    subscriber.on(SECOND)(got.message)
    with published(feed, subscriber) as publisher:
        for number in range(10):
            publisher.publish(SECOND, b"%d" % number)
        got.wait(10)
        subscriber.remove(got.message)
        wait_released(subscriber, 0)
        of_gone = subscriber.statistics().slices[1]
        assert (of_gone.slice_id, of_gone.received.messages, of_gone.delivery.delivered) == (1, 10, 10)
        assert (of_gone.received.transport, of_gone.received.subscriptions) == ("tcp", 0)
        assert subscriber.topics(1) == [SECOND]
        wait_until(lambda: not publisher.wants(SECOND), what="the slice's publisher is notified")
        assert publisher.wants(FIRST)
        publisher.publish(SECOND, b"10")  # without a subscriber
        publisher.flush()
        subscriber.on(OTHER)(late.message)
        subscriber.wait_confirmed()
        for number in range(11, 20):
            publisher.publish(OTHER, b"%d" % number)
    assert (numbers_of(got), numbers_of(late)) == (list(range(10)), list(range(11, 20)))
    assert subscriber.topics(1) == [SECOND, OTHER]
    statistics = subscriber.statistics()
    assert [each.slice_id for each in statistics.slices] == [0, 1]
    assert (statistics.received.messages, statistics.delivery.delivered, statistics.received.gaps) == (19, 19, 0)
    assert (statistics.delivery.due, statistics.delivery.discarded, statistics.delivery.queue_blocks) == (19, 0, 0)


def test_all_slices_are_released_and_start_again_after_a_callback_removed_itself_in_the_slice_thread() -> None:
    feed = sliced(2)
    subscriber, first, got = Subscriber(feed, workers=0), Collector(), Collector()

    @subscriber.on(b"")
    def once(message: Message) -> None:
        first.message(message)
        subscriber.remove(once)

    with published(feed, subscriber) as publisher:
        publisher.publish(SECOND, b"0")
        first.wait(1)
        publisher.publish(SECOND, b"1")
        wait_released(subscriber)
        subscriber.wait_confirmed()
        subscriber.wait_live()
        subscriber._check_silence(0.0)
        with subscriber.checkpoint() as positions:
            assert positions == {}
        assert not subscriber.is_finished
        subscriber.on(b"")(got.message)
        subscriber.wait_confirmed()
        publisher.publish(FIRST, b"2")
        publisher.publish(SECOND, b"3")
    assert (numbers_of(first), sorted(numbers_of(got))) == ([0], [2, 3])


def test_a_timer_keeps_its_slice_until_it_is_removed() -> None:
    subscriber, times = Subscriber(feed := sliced(2)), list[int]()
    subscriber.on(FIRST)(nothing)
    subscriber.every(0.01)(times.append)
    with Publisher(feed), subscriber:
        subscriber.remove(nothing)
        wait_longer_than_unneeded()
        seen = len(times)
        wait_until(lambda: len(times) > seen, what="another time is called")
        assert running(subscriber) == [0]
        subscriber.remove(times.append)
        wait_released(subscriber)
    assert subscriber.is_done


def test_a_running_callback_is_finished_first() -> None:
    feed, gate = sliced(2), Gate()
    subscriber = Subscriber(feed)
    subscriber.on(SECOND)(gate.message)
    with Publisher(feed, when_full="wait") as publisher, subscriber:
        publisher.publish(SECOND, b"x")
        assert gate.entered.wait(200)
        subscriber.remove(gate.message)
        wait_longer_than_unneeded()
        assert running(subscriber) == [1]
        gate.open.set()
        wait_released(subscriber)
        assert gate.messages == 1
        assert subscriber.statistics().delivery.delivered == 1


class _Held(logging.Handler):
    """Blocks while a slice logs, as it ends, how many errors were not logged."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on, self.holds = threading.Event(), threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if "more errors of callbacks" in record.getMessage():
            self.holds.set()
            self.go_on.wait(200)


def raises(_: Message) -> None:
    raise ValueError("no")


@pytest.fixture
def held_up() -> Iterator[_Held]:
    handler = _Held()
    logging.getLogger("blackbox").addHandler(handler)
    yield handler
    handler.go_on.set()
    logging.getLogger("blackbox").removeHandler(handler)


@contextmanager
def ending(held_up: _Held) -> Iterator[tuple[Subscriber, Publisher]]:
    """Start two slices, release the second, and hold it up as it ends."""
    subscriber = Subscriber(feed := sliced(2), on_error="log")
    subscriber.on(FIRST)(nothing)
    subscriber.on(SECOND)(raises)
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        for _ in range(20):
            publisher.publish(SECOND, b"")
        wait_until(lambda: subscriber.statistics().delivery.callback_errors == 20)
        subscriber.remove(raises)
        assert held_up.holds.wait(200)
        yield subscriber, publisher


def test_a_slice_needed_while_it_ends_starts_again_after_that(held_up: _Held) -> None:
    got = Collector()
    with ending(held_up) as (subscriber, publisher), ThreadPoolExecutor(1) as pool:
        with subscriber.checkpoint() as positions:
            assert list(positions) == [0]
        subscriber.on(SECOND)(got.message)
        confirmed = pool.submit(subscriber.wait_confirmed)
        assert running(subscriber) == [0]
        held_up.go_on.set()
        confirmed.result(200)
        assert running(subscriber) == [0, 1]
        publisher.publish(SECOND, b"7")
        assert got.wait(1)[0].payload == b"7"
        subscriber.stop()
    assert subscriber.statistics().slices[1].delivery.callback_errors == 20


@pytest.mark.parametrize("end", [Subscriber.stop, Subscriber.terminate])
def test_the_end_waits_for_a_slice_that_is_ending(held_up: _Held, end: Callable[[Subscriber], None]) -> None:
    with ending(held_up) as (subscriber, _):
        subscriber.on(SECOND)(nothing)  # it does not start again
        subscriber.request_stop()
        with pytest.raises(SubscriberError, match="ended before its subscriptions were confirmed"):
            subscriber.wait_confirmed()
        held_up.go_on.set()
        end(subscriber)
    wait_until(lambda: subscriber.is_done)
    assert running(subscriber) == [0]


@pytest.mark.own_process
def test_a_slice_that_cannot_start_again_ends_the_subscriber_with_the_limit(held_up: _Held) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ending(held_up) as (subscriber, _):
        subscriber.on(SECOND)(nothing)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (16, limits[1]))
            held_up.go_on.set()
            with pytest.raises(LimitError, match="RLIMIT_NOFILE"):
                subscriber.run()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_run_until_the_end_keeps_the_last_slice() -> None:
    subscriber = Subscriber(feed := sliced(2))
    subscriber.on(b"")(nothing)
    with ThreadPoolExecutor(1) as pool, Publisher(feed) as publisher:
        subscriber.start()
        waiting = pool.submit(subscriber.run, until_end=True)
        wait_until(lambda: subscriber._supervisor.stop_at_end)
        subscriber.remove(nothing)
        wait_released(subscriber, 0)
        wait_longer_than_unneeded()
        assert running(subscriber) == [0]
        publisher.close()
        waiting.result(200)
    assert subscriber.is_done


def test_a_slice_whose_publisher_has_ended_is_not_released() -> None:
    subscriber, got = Subscriber(feed := sliced(2)), Collector()
    subscriber.on(FIRST)(got.message)
    subscriber.on(SECOND)(nothing)
    with RawPublisher(feed) as publisher:
        subscriber.start()
        publisher.heartbeat(end=True, slice_id=1)
        wait_until(lambda: subscriber._supervisor.slices.running[1].status.is_finished)
        subscriber.remove(nothing)
        wait_longer_than_unneeded()
        assert running(subscriber) == [0, 1]
        subscriber.on(SECOND)(nothing)
        publisher.send(publisher.encode([(FIRST, b"0")]))
        publisher.heartbeat(end=True, slice_id=0)
        subscriber.run(until_end=True)
    assert numbers_of(got) == [0]


def test_lag_or_silence_of_a_released_slice_does_not_end_the_subscriber(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = sliced(2)
    alerts: list[str] = []
    slow = SlowPolicy("raise", max_lag=60, on_alert=alerts.append, start_grace=0)
    subscriber, got = Subscriber(feed, slow=slow), Collector()
    subscriber.on(FIRST)(got.message)
    subscriber.on(SECOND)(nothing)
    with RawPublisher(feed) as publisher, subscriber:
        subscriber.remove(nothing)
        wait_released(subscriber, 0)
        publisher.send(publisher.encode([(SECOND, b"")], slice_id=1, ts_out=1))
        for number in range(3):
            publisher.send(publisher.encode([(FIRST, b"%d" % number)]))
            got.wait(number + 1)
            publisher.heartbeat(slice_id=0)
            subscriber._check_silence(30.0)
        assert (subscriber.state.value, alerts) == ("running", [])
        monkeypatch.setattr(subscriber._supervisor.slices.running[0].status, "silence_s", lambda: 0.1)
        subscriber._check_silence(0.2)  # the other slice has been silent for longer


def test_a_named_consumer_keeps_the_position_of_a_released_slice(tmp_path: Path) -> None:
    feed = sliced(2, key_bytes=2, archives=(free_endpoint(),))
    settings: dict[str, Any] = {"name": "strategy", "positions": tmp_path / "positions", "slow": PATIENT}
    subscriber, got, again, stays = Subscriber(feed, **settings), Collector(), Collector(), Collector()
    subscriber.on(FIRST)(stays.message)
    subscriber.on(SECOND)(got.message)
    with Publisher(feed, when_full="wait") as publisher, Recorder(feed, tmp_path / "days", serve=True) as recorder:
        subscriber.start()
        for number in range(5):
            publisher.publish(SECOND, b"%d" % number)
            publisher.publish(FIRST, b"%d" % number)
        got.wait(5)
        stays.wait(5)
        with subscriber.checkpoint() as positions:
            assert {n: each.sequence for n, each in positions.items()} == {0: 5, 1: 5}
        subscriber.remove(got.message)
        wait_released(subscriber, 0)
        for number in range(5, 10):  # without a subscriber
            publisher.publish(SECOND, b"%d" % number)
        publisher.flush()
        with subscriber.checkpoint() as positions:
            assert list(positions) == [0]
        subscriber.stop()
        wait_recorded(recorder, 15)
        following = Subscriber(feed, **settings)
        following.on(FIRST)(nothing)
        following.on(SECOND)(again.message)
        following.start()
        following.wait_live()
        assert [int(each.payload) for each in again.wait(5)] == list(range(5, 10))
        following.stop()
    assert numbers_of(got) == list(range(5))


def test_a_slice_that_began_in_the_past_starts_again_live_and_one_that_catches_up_is_released(tmp_path: Path) -> None:
    feed = sliced(2, archives=(free_endpoint(),))
    with Publisher(feed, when_full="wait") as publisher:
        recorder = Recorder(feed, tmp_path / "days", serve=True).start()
        for number in range(5):
            publisher.publish(SECOND, b"%d" % number)
        publisher.flush()
        wait_recorded(recorder, 5)
        subscriber, got, again = Subscriber(feed, slow=PATIENT), Collector(), Collector()
        subscriber.on(FIRST)(nothing)
        subscriber.on(SECOND)(got.message)
        subscriber.start(since=0)
        subscriber.wait_live()
        assert [int(each.payload) for each in got.wait(5)] == list(range(5))
        subscriber.remove(got.message)
        wait_released(subscriber, 0)
        subscriber.on(SECOND)(again.message)
        subscriber.wait_confirmed()
        subscriber.wait_live()
        publisher.publish(SECOND, b"5")
        assert again.wait(1)[0].payload == b"5"
        subscriber.stop()
        waiting = Subscriber(feed, slow=PATIENT)
        waiting.on(FIRST)(nothing)
        waiting.on(SECOND)(nothing)
        waiting.start(since={1: (publisher.epoch, 0)})
        recorder.stop()  # its archive never answers again
        waiting.remove(waiting.callbacks[1])
        wait_released(waiting, 0)
        waiting.wait_live(60)
        assert waiting.statistics().received.catching_up == 0
        waiting.stop()
