"""Callbacks that are added and removed while messages arrive."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from itertools import pairwise

import pytest

from blackbox import Feed, Message, Publisher, SlowPolicy, Subscriber
from blackbox.testing import Collector, wait_until
from tests.subscribe.subscribers import nothing, numbers_of, one_slice


def test_a_callback_added_while_running_gets_messages_once_confirmed() -> None:
    for key_bytes in (0, 4):
        feed = Feed.local("subscriber", slices=2, key_bytes=key_bytes)
        subscriber = Subscriber(feed)
        early, late = Collector(), Collector()
        subscriber.on(b"S1")(early.message)
        with Publisher(feed, when_full="wait") as publisher:
            subscriber.start()
            for number in range(100):
                publisher.publish(b"S%d" % (number % 3), b"%d" % number)
            publisher.flush()
            subscriber.on(b"S2")(late.message)
            subscriber.wait_confirmed()
            for number in range(100, 200):
                publisher.publish(b"S%d" % (number % 3), b"%d" % number)
        subscriber.run(until_end=True)
        assert numbers_of(early) == [n for n in range(200) if n % 3 == 1]
        assert [n for n in numbers_of(late) if n >= 100] == [n for n in range(100, 200) if n % 3 == 2]


def test_a_removed_callback_gets_nothing_and_others_miss_nothing() -> None:
    feed = one_slice()
    subscriber = Subscriber(feed)
    stays, goes = Collector(), Collector()
    subscriber.on(b"")(stays.message)
    subscriber.on_batch(b"T")(goes.batch)
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        for number in range(100):
            publisher.publish(b"T", b"%d" % number)
        goes.wait(100)
        subscriber.remove(goes.batch)
        for number in range(100, 200):
            publisher.publish(b"T", b"%d" % number)
    subscriber.run(until_end=True)
    assert numbers_of(stays) == list(range(200))
    assert numbers_of(goes) == list(range(100))
    with pytest.raises(ValueError, match="not registered|ended"):
        Subscriber(feed).remove(nothing)


def test_callbacks_are_added_and_removed_by_callbacks() -> None:
    feed = one_slice()
    subscriber = Subscriber(feed)
    first, second = Collector(), Collector()

    @subscriber.on(b"T")
    def once(message: Message) -> None:
        first.message(message)
        subscriber.remove(once)
        subscriber.on(b"T")(second.message)

    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        publisher.publish(b"T", b"0")
        first.wait(1)
        wait_until(lambda: len(subscriber.callbacks) == 1 and subscriber.callbacks[0].function == second.message)
        subscriber.wait_confirmed()
        for number in range(1, 50):
            publisher.publish(b"T", b"%d" % number)
    subscriber.run(until_end=True)
    assert numbers_of(first) == [0]
    assert numbers_of(second) == list(range(1, 50))


def test_changing_callbacks_do_not_disturb_one_that_stays() -> None:
    choice = random.Random(5)
    feed = Feed.local("subscriber", slices=2, key_bytes=2)
    subscriber = Subscriber(feed, slow=SlowPolicy(max_lag=3_600))
    stays = Collector()
    subscriber.on_batch(b"")(stays.batch)
    others = [Collector() for _ in range(20)]
    stop = threading.Event()

    def change() -> None:
        active: list[Callable[[Message], None]] = []
        while not stop.is_set():
            if active and choice.random() < 0.5:
                subscriber.remove(active.pop(choice.randrange(len(active))))
            else:
                other = choice.choice(others)
                if other.message not in active:
                    subscriber.on(choice.choice([b"", b"S", b"S1", b"S2.", b"X"]))(other.message)
                    active.append(other.message)

    total = 30_000
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        changing = threading.Thread(target=change)
        changing.start()
        for number in range(total):
            publisher.publish(b"S%d.t" % (number % 50), b"%d" % number)
        publisher.flush()
        stop.set()
        changing.join()
    subscriber.run(until_end=True)
    assert sorted(numbers_of(stays)) == list(range(total))
    statistics = subscriber.statistics()
    assert (
        statistics.received.gaps,
        statistics.received.duplicates,
        statistics.received.malformed,
        statistics.delivery.callback_errors,
    ) == (0, 0, 0, 0)
    for other in others:
        for topic in {m.topic for m in other.messages}:
            numbers = [m.sequence for m in other.messages if m.topic == topic]
            assert all(a < b for a, b in pairwise(numbers))


def test_the_same_function_for_two_prefixes_is_two_callbacks() -> None:
    feed = one_slice()
    subscriber = Subscriber(feed)
    got = Collector()
    subscriber.on(b"T")(got.message)
    subscriber.on(b"TT")(got.message)
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        publisher.publish(b"TT", b"0")
        got.wait(2)
        subscriber.remove(got.message)
        assert subscriber.callbacks == ()
        publisher.publish(b"TT", b"1")
    subscriber.stop()
    assert numbers_of(got) == [0, 0]
