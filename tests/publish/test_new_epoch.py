"""`new_epoch` on a running publisher: later messages are in the next epoch, and `on_reset` is called."""

from __future__ import annotations

import threading
from typing import Literal

import msgspec
import numpy
import pytest

from blackbox import CallbackError, Feed, Message, Publisher, SlowPolicy, Subscriber
from blackbox.testing import wait_until
from tests.examples import first_of
from tests.publish.subscribers import collected, delivered, one_slice
from tests.receive.shared import sender_of
from tests.replay.audience import Audience, fingerprint
from tests.threads import in_threads

LAG_NS = 3_600 * 10**9
COUNT = 700


def publish(publisher: Publisher, start: int = 0, count: int = COUNT) -> None:
    for number in range(start, start + count):
        publisher.publish(b"%c.x" % (65 + number % 7), b"%d" % number)


@pytest.mark.parametrize(
    ("lines", "key_bytes", "transport"),
    first_of([(2, 1, "tcp"), (1, 0, "shm"), (1, 1, "tcp"), (2, 0, "shm")], keep=2),
)
def test_every_kind_of_callback_is_reset_once_per_slice_without_loss(
    lines: int, key_bytes: int, transport: Literal["tcp", "shm"]
) -> None:
    local = Feed.local("back", slices=2, lines=lines, transport=transport)
    feed = msgspec.structs.replace(local, key_bytes=key_bytes)
    audience = Audience(feed)
    with Publisher(feed, when_full="wait") as publisher:
        audience.subscriber.start()
        first = publisher.epoch
        publish(publisher)
        publisher.new_epoch()
        assert publisher.epoch == first + 1
        publish(publisher)
    audience.subscriber.run(until_end=True)
    assert len(audience.resets) == 2
    expected = sorted([b"%d" % number for number in range(COUNT)] * 2)
    assert sorted(m.payload for m in audience.by_message) == expected
    assert sorted(m.payload for m in audience.by_batch) == expected
    assert [sum(m.epoch == epoch for m in audience.by_message) for epoch in (first, first + 1)] == [COUNT, COUNT]
    assert audience.compiled.total()[0] == COUNT, "compiled callbacks start from zero"
    received = audience.subscriber.statistics().received
    assert (received.gaps, received.implausible, received.epochs) == (0, 0, 4)
    assert lines == 2 or (received.duplicates, received.stale) == (0, 0)


def test_slices_in_subprocesses_are_reset_too() -> None:
    feed = Feed.local("back", slices=2)
    subscriber = Subscriber(feed, processes=True, slow=SlowPolicy(max_lag=LAG_NS / 1e9))
    counted = subscriber.on_compiled(b"", state=numpy.zeros(2, numpy.int64))(fingerprint)
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start(timeout=200)
        publish(publisher)
        publisher.new_epoch()
        publish(publisher)
    subscriber.run(until_end=True)
    assert counted.total()[0] == COUNT
    assert subscriber.statistics().received.messages == 2 * COUNT


def test_hooks_run_between_the_messages_before_and_after_of_all_workers() -> None:
    feed = one_slice()
    subscriber = Subscriber(feed, workers=2, slow=SlowPolicy(max_lag=LAG_NS / 1e9))
    told: list[bytes] = []
    may_go_on = threading.Event()

    @subscriber.on(b"A.")
    def slow(message: Message) -> None:
        if message.payload == b"0":
            may_go_on.wait(200)
        told.append(message.payload)

    @subscriber.on(b"B.")
    def quick(message: Message) -> None:
        told.append(message.payload)

    subscriber.on_reset(lambda: told.append(b"reset"))
    with Publisher(feed) as publisher:
        subscriber.start()
        publish(publisher, 0, 70)
        wait_until(lambda: len(told) == 10, what="all messages of the quick callback")
        publisher.new_epoch()
        publish(publisher, 1_000, 70)
        assert len(told) == 10, "the quick callback waits"
        may_go_on.set()
        wait_until(lambda: len(told) == 41, what="all messages")
        subscriber.stop()
    assert told[20] == b"reset"
    assert all(int(payload) < 1_000 for payload in told[:20])
    assert all(int(payload) >= 1_000 for payload in told[21:])


def test_concurrent_messages_are_in_one_epoch_or_the_other() -> None:
    topics = tuple(b"%c.x" % (65 + number) for number in range(7))
    index, payloads = numpy.arange(700) % 7, numpy.zeros((700, 8), numpy.uint8)
    with delivered(one_slice(key_bytes=1)) as (publisher, got):

        def publish_columns() -> None:
            for _ in range(20):
                publisher.publish_many(topics, index, payloads)

        with in_threads(lambda: publish(publisher), publish_columns) as threads:
            while any(thread.is_alive() for thread in threads):
                publisher.new_epoch()
        wait_until(lambda: sender_of(publisher).subscriptions.subscriber_count(of_this_epoch=True) == 1)
    assert len(got) == COUNT + 20 * 700


def test_concurrent_new_epoch_calls_are_serialized() -> None:
    with delivered(Feed.local("back", slices=2)) as (publisher, got):
        publisher.wait_for_subscribers()
        first = publisher.epoch

        def go_back() -> None:
            for _ in range(10):
                publisher.new_epoch()
                publish(publisher, 0, 14)

        with in_threads(go_back, go_back, go_back):
            pass
        assert {each.sender.numbers.origin.epoch for each in publisher._slices} == {first + 30}
    assert len(got) == 30 * 14


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_hooks_that_raise_end_the_subscriber_as_callbacks_do(error: type[BaseException]) -> None:
    subscriber, got = collected(feed := one_slice())

    @subscriber.on_reset
    def hook() -> None:
        raise error("no way back")

    with Publisher(feed) as publisher:
        subscriber.start()
        publisher.publish(b"T", b"1")
        got.wait(1)
        publisher.new_epoch()
        publisher.publish(b"T", b"2")
        with pytest.raises(CallbackError, match=f"slice 0: on_reset raised {error.__name__}: no way back"):
            subscriber.run()
    assert got.payloads == [b"1"]
