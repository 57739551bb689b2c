"""Timers of a live subscriber."""

from __future__ import annotations

import threading
import time

import pytest

from blackbox import Feed, Message, Publisher, Subscriber
from blackbox.errors import CallbackError, SubscriberError
from blackbox.testing import wait_until

MS = 1_000_000
ENOUGH_S = 60.0


@pytest.mark.parametrize("workers", [0, 1])
def test_ticks_arrive_in_silence_and_not_early(workers: int) -> None:
    feed = Feed.local("ticks", slices=2)
    subscriber = Subscriber(feed, workers=workers)
    subscriber.on(b"")(lambda message: None)
    called: list[tuple[int, int, str]] = []
    enough = threading.Event()

    @subscriber.every(20 * MS / 1e9)
    def tick(ts_ns: int) -> None:
        called.append((ts_ns, time.time_ns(), threading.current_thread().name))
        if len(called) == 10:
            enough.set()

    began_ns = time.time_ns()
    with Publisher(feed), subscriber:
        assert enough.wait(ENOUGH_S)
        with pytest.raises(SubscriberError, match="every was called while running"):
            subscriber.every(1e-09)(print)
    assert called[0][0] > began_ns
    assert all(ts_ns % (20 * MS) == 0 and ts_ns <= now_ns for ts_ns, now_ns, _ in called)
    assert all(later[0] > earlier[0] for earlier, later in zip(called, called[1:], strict=False))
    assert {name for _, _, name in called} == {"blackbox-worker-0.0" if workers else "blackbox-slice-0"}


def test_ticks_run_on_the_worker_of_their_group() -> None:
    feed = Feed.local("ticks", slices=1)
    subscriber = Subscriber(feed, workers=3)
    names: dict[str, set[str]] = {"message": set(), "tick": set()}
    both = threading.Event()

    def note(kind: str) -> None:
        names[kind].add(threading.current_thread().name)
        if all(names.values()):
            both.set()

    subscriber.on(b"A")(lambda message: None)
    subscriber.on(b"", group="mine")(lambda message: note("message"))
    subscriber.every(5 * MS / 1e9, group="mine")(lambda ts_ns: note("tick"))
    with Publisher(feed) as publisher, subscriber:
        publisher.publish(b"A.x", b"1")
        assert both.wait(ENOUGH_S)
    assert names["message"] == names["tick"] == {"blackbox-worker-0.1"}


def test_a_busy_worker_calls_only_the_last_missed_tick() -> None:
    feed = Feed.local("ticks", slices=1)
    subscriber = Subscriber(feed, workers=1)
    called: list[int] = []
    busy_ns: list[int] = []
    began, go_on, enough = threading.Event(), threading.Event(), threading.Event()

    @subscriber.on(b"")
    def busy(message: Message) -> None:
        busy_ns.append(time.time_ns())
        began.set()
        assert go_on.wait(ENOUGH_S)
        busy_ns.append(time.time_ns())

    @subscriber.every(10 * MS / 1e9)
    def tick(ts_ns: int) -> None:
        called.append(ts_ns)
        if len(busy_ns) == 2:
            enough.set()

    with Publisher(feed) as publisher, subscriber:
        publisher.publish(b"A.x", b"1")
        assert began.wait(ENOUGH_S)
        wait_until(lambda: time.time_ns() - busy_ns[0] > 100 * MS, what="ten ticks are due")
        go_on.set()
        assert enough.wait(ENOUGH_S)
    assert not [ts_ns for ts_ns in called if busy_ns[0] < ts_ns <= busy_ns[1] - 10 * MS]
    assert [ts_ns for ts_ns in called if ts_ns > busy_ns[1] - 10 * MS]


@pytest.mark.parametrize("workers", [0, 2])
def test_messages_get_their_turn_among_ticks_that_are_always_due(workers: int) -> None:
    feed = Feed.local("ticks", slices=1)
    subscriber = Subscriber(feed, workers=workers)
    come: list[bytes] = []
    ticks: list[int] = []

    @subscriber.on(b"", group="mine")
    def take(message: Message) -> None:
        come.append(message.payload)

    subscriber.every(1e-09, group="mine")(ticks.append)  # the next one is due before a function can end
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        for number in range(100):
            publisher.publish(b"A.x", b"%d" % number)
        publisher.flush()
    subscriber.run(until_end=True, timeout=ENOUGH_S)
    assert come == [b"%d" % number for number in range(100)]
    assert ticks


@pytest.mark.parametrize("workers", [0, 2])
def test_a_tick_that_raises_ends_the_subscriber(workers: int) -> None:
    feed = Feed.local("ticks", slices=1)
    subscriber = Subscriber(feed, workers=workers)
    subscriber.on(b"")(lambda message: None)

    @subscriber.every(MS / 1e9)
    def fail(ts_ns: int) -> None:
        raise RuntimeError("no")

    with Publisher(feed), pytest.raises(CallbackError, match=r"fail at \d+ ns raised RuntimeError: no"):
        subscriber.run()
