"""A publisher with an idle line sends from the calling thread while its sender sleeps."""

from __future__ import annotations

import random
import threading
import time
from functools import partial

import pytest

from blackbox import Feed, Message, Publisher, Subscriber
from blackbox.publish.send.ring import Sleep
from blackbox.testing import wait_until
from tests.publish.subscribers import delivered, one_slice
from tests.receive.shared import sender_of
from tests.receive.subscribers import _PATIENT_NS, PATIENT, numbers_of, subscribed
from tests.threads import in_threads

_NO_BEAT_NS = 60_000_000_000
"""A heartbeat interval long enough that a test which depends on heartbeats to wake the sender fails."""


def idle_feed(transport: str = "tcp", linger_ns: int = 0) -> Feed:
    return one_slice(transport=transport, linger_ns=linger_ns, heartbeat_ns=_NO_BEAT_NS, max_lag_ns=_PATIENT_NS)


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_a_message_after_a_silence_is_sent_when_publish_returns(transport: str) -> None:
    with delivered(idle_feed(transport), when_full="drop") as (publisher, got):
        sender = sender_of(publisher)
        sent_at_once = 0
        for number in range(100):
            got.wait(number)
            wait_until(lambda: sender.ring.state.sleeping == Sleep.ASLEEP, what="the sender sleeps")
            publisher.publish(b"T", b"%d" % number)
            sent_at_once += publisher.statistics().messages == number + 1
        assert sent_at_once > 50  # fewer than all: a subscription may have just woken the thread
    assert numbers_of(got) == list(range(100))


def test_a_line_that_was_busy_within_linger_is_left_to_its_thread() -> None:
    with delivered(idle_feed(linger_ns=500_000_000), when_full="drop") as (publisher, got):
        sender = sender_of(publisher)
        wait_until(lambda: sender.ring.state.sleeping == Sleep.ASLEEP, what="the sender sleeps")
        publisher.publish(b"T", b"0")
        for number in range(1, 50):
            publisher.publish(b"T", b"%d" % number)
        got.wait(50)
        assert publisher.statistics().blocks < 10
    assert numbers_of(got) == list(range(50))


def test_a_publisher_that_may_wait_for_a_slow_subscriber_never_does_so_in_publish() -> None:
    with Publisher(idle_feed(), when_full="wait") as publisher:
        assert not sender_of(publisher).make_sender().others_send


@pytest.mark.parametrize("linger_ns", [20_000, 80_000])
def test_the_last_message_within_linger_is_sent(linger_ns: int) -> None:
    """The sender is woken for messages left in the ring, whether it sleeps or is about to."""
    rng = random.Random(linger_ns)
    published = 0
    with delivered(idle_feed(linger_ns=linger_ns), when_full="drop") as (publisher, got):
        for _ in range(100):
            for _ in range(rng.randint(2, 4)):
                publisher.publish(b"T", b"%d" % published)
                published += 1
                until = time.perf_counter() + rng.random() * 4 * linger_ns / 1e9
                while time.perf_counter() < until:
                    pass
            got.wait(published)
    assert numbers_of(got) == list(range(published))


@pytest.mark.parametrize(("transport", "linger_ns"), [("ipc", 0), ("shm", 0), ("tcp", 20_000)])
def test_threads_that_stand_in_by_turns_keep_order_and_lose_nothing(transport: str, linger_ns: int) -> None:
    """Four threads publish with pauses while subscribers come and go and the sender beats and confirms."""
    threads, each = 4, 600
    most_waiting = 100  # per thread: nothing is dropped even if the subscriber is slow
    feed = idle_feed(transport, linger_ns)
    subscriber = Subscriber(feed, slow=PATIENT)
    got: dict[bytes, list[int]] = {b"%d" % thread: [] for thread in range(threads)}

    @subscriber.on(b"")
    def message(message: Message) -> None:
        assert message.payload is not None
        got[bytes(message.topic)].append(int(message.payload))

    def publish(thread: int) -> None:
        rng = random.Random(thread)
        for number in range(each):
            while number - len(got[b"%d" % thread]) > most_waiting:
                time.sleep(0.0001)
            publisher.publish(b"%d" % thread, b"%d" % number)
            if rng.random() < 0.5:
                time.sleep(rng.choice((0.0, 0.00005, 0.0005)))  # so that the sender falls asleep at random moments

    with Publisher(feed) as publisher:
        subscriber.start()
        with in_threads(*(partial(publish, thread) for thread in range(threads))) as running:
            while any(thread.is_alive() for thread in running):
                with subscribed(feed, b"1")[0]:
                    pass
        wait_until(lambda: publisher.statistics().messages == threads * each, what="all is sent")
    subscriber.run(until_end=True)
    assert got == {b"%d" % thread: list(range(each)) for thread in range(threads)}
    assert subscriber.statistics().received.gaps == 0


@pytest.mark.parametrize("linger_ns", [0, 20_000])
def test_new_epochs_between_messages_sent_by_publishing_threads(linger_ns: int) -> None:
    """No message carries a sequence of an ended epoch: it would be dropped as old."""
    done = threading.Event()
    published = 0

    def publish() -> None:
        nonlocal published
        while not done.is_set():
            publisher.publish(b"T", b"%d" % published)
            published += 1
            time.sleep(0.0001)  # so that the sender falls asleep

    feed = idle_feed(linger_ns=linger_ns)
    with delivered(feed, when_full="drop", hwm_blocks=100_000) as (publisher, got), in_threads(publish):
        for _ in range(30):
            publisher.new_epoch()
        done.set()
    assert numbers_of(got) == list(range(published))
