"""A subscription is active once its publisher has confirmed it: all later messages arrive."""

from __future__ import annotations

import threading

import msgspec
import numpy
import pytest
import zmq

from blackbox import Batch, Feed, Publisher, SlowPolicy, Subscriber
from blackbox.block.format import ACCEPT_KEY
from blackbox.block.layout import VERSION
from blackbox.errors import NotConfirmedError
from blackbox.subscribe.supervisor import SubscriberLife
from blackbox.testing import Collector, RawPublisher, wait_until
from tests import wire
from tests.late_answers import late_answers
from tests.subscribe.subscribers import error_of_start, nothing, numbers_of, one_slice


def test_start_names_the_slice_without_a_publisher() -> None:
    feed = Feed.local("subscriber", slices=2)
    with Publisher(msgspec.structs.replace(feed, slices=(msgspec.structs.replace(feed.slices[0], share=None),))):
        subscriber = Subscriber(feed)
        subscriber.on(b"")(nothing)
        with pytest.raises(NotConfirmedError) as caught:
            subscriber.start(timeout=2.0)  # enough for slice 0 on a busy machine
    endpoint = feed.slices[1].endpoints[0]
    assert f"slice 1: no publisher at {endpoint} confirmed the subscription in 2.0 s" in str(caught.value)
    assert isinstance(caught.value, TimeoutError)
    assert subscriber.state is SubscriberLife.ENDED


def test_a_publisher_that_does_not_answer_is_not_confirmed() -> None:
    feed = one_slice()
    with RawPublisher(feed) as publisher:
        publisher.confirms = False
        subscriber = Subscriber(feed)
        subscriber.on(b"")(nothing)
        with pytest.raises(NotConfirmedError):
            subscriber.run(timeout=0.2)


def test_an_answer_after_a_long_queue_is_in_time() -> None:
    feed = msgspec.structs.replace(one_slice(), heartbeat_ns=20_000_000)
    subscriber = Subscriber(feed)
    subscriber.on(b"")(nothing)
    with late_answers(feed, beats=20):
        subscriber.start(timeout=60)
        subscriber.stop()


def test_a_publisher_may_start_after_the_subscriber() -> None:
    feed = Feed.local("subscriber", slices=2, key_bytes=3)
    subscriber = Subscriber(feed)
    got = Collector()
    subscriber.on(b"SYM")(got.message)
    starting = threading.Thread(target=subscriber.start, kwargs={"timeout": 60})
    starting.start()
    wait_until(lambda: subscriber.state is SubscriberLife.RUNNING)
    with Publisher(feed, when_full="wait") as publisher:
        starting.join()
        for number in range(1_000):
            publisher.publish(b"SYM%d" % (number % 10), b"%d" % number)
    subscriber.run(until_end=True)
    assert sorted(numbers_of(got)) == list(range(1_000))


def test_nothing_sent_after_start_is_missed() -> None:
    for _ in range(8):
        feed = Feed.local("subscriber", slices=2)
        with Publisher(feed, when_full="wait") as publisher:
            subscriber = Subscriber(feed)
            got = Collector()
            subscriber.on(b"")(got.message)
            subscriber.start()
            for number in range(20):
                publisher.publish(b"S%d" % number, b"%d" % number)
        subscriber.run(until_end=True)
        assert sorted(numbers_of(got)) == list(range(20))


def test_only_slices_that_match_the_prefix_are_joined() -> None:
    feed = Feed.local("subscriber", slices=3)
    topic = b"SYMBOL.trade"
    subscriber = Subscriber(feed)
    subscriber.on(topic)(nothing)
    with Publisher(feed), subscriber:
        assert [feed_slice.slice_id for feed_slice in subscriber.statistics().slices] == [feed.slice_of(topic)]
        subscriber.on(b"")(nothing)
        subscriber.wait_confirmed()
        assert [feed_slice.slice_id for feed_slice in subscriber.statistics().slices] == [0, 1, 2]


def test_killed_publishers_leave_no_acceptances() -> None:
    feed = one_slice()
    subscriber = Subscriber(feed)
    subscriber.on(b"")(lambda _: None)
    starting = threading.Thread(target=subscriber.start)
    starting.start()
    for epoch in range(1, 4):
        with RawPublisher(feed, epoch=epoch) as publisher:
            mine = epoch.to_bytes(8, "little") + b"\0"
            wait_until(lambda: [key[10:] for key in acceptances(publisher)] == [mine])
    starting.join()
    subscriber.terminate()


def acceptances(publisher: RawPublisher) -> list[bytes]:
    return [key for key in publisher.subscriptions() if key.startswith(ACCEPT_KEY)]


def test_a_callback_added_while_the_queue_is_full_is_confirmed() -> None:
    feed = one_slice(heartbeat_ns=20_000_000)
    subscriber = Subscriber(feed, hwm_blocks=1, queue_blocks=1, slow=SlowPolicy("warn", max_lag=1e6))
    hold, stop = threading.Event(), threading.Event()
    payloads = numpy.zeros((2_000, 100), numpy.uint8)
    index = numpy.zeros(2_000, numpy.int32)

    @subscriber.on_batch(b"")
    def wait(batch: Batch) -> None:
        hold.wait(60)

    def flood() -> None:
        while not stop.is_set():
            publisher.publish_many((b"A.t",), index, payloads)

    with Publisher(feed, hwm_blocks=2) as publisher:
        subscriber.start()
        flooding = threading.Thread(target=flood)
        flooding.start()
        wait_until(lambda: publisher.statistics().messages > 2_000_000)
        subscriber.on(b"Z")(print)
        wait_until(lambda: publisher.statistics().messages > 3_000_000)
        stop.set()
        flooding.join()
        hold.set()
        subscriber.wait_confirmed(60)
        subscriber.terminate()


def test_a_publisher_with_another_key_bytes_is_named() -> None:
    feed = Feed.local("keys", slices=1, key_bytes=2)
    other = msgspec.structs.replace(feed, key_bytes=3)

    def make() -> Subscriber:
        subscriber = Subscriber(other)
        subscriber.on(b"")(nothing)
        return subscriber

    with RawPublisher(feed):
        subscriber = error_of_start(make, "its blocks have key_bytes = 2, expected key_bytes = 3")
    assert subscriber.statistics().received.faults.keys() == {"key_rule"}


def test_a_publisher_of_another_version_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """Its headers may have any size."""
    feed = one_slice()
    subscribers = list[Subscriber]()

    def make() -> Subscriber:
        subscribers.append(Subscriber(feed))
        subscribers[-1].on(b"")(nothing)
        return subscribers[-1]

    header = wire.pack(wire.Fields(version=99)) + bytes(16)
    stop = threading.Event()
    with zmq.Context() as context, context.socket(zmq.PUB) as publisher:
        publisher.bind(feed.slices[0].endpoints[0])

        def send() -> None:
            while not stop.wait(0.01):
                publisher.send_multipart([b"\0H", header, b""])

        sending = threading.Thread(target=send)
        sending.start()
        try:
            text = f"block version was 99, expected {VERSION}: use the same release of blackbox on both sides"
            error_of_start(make, text)
        finally:
            stop.set()
            sending.join()
    assert text in caplog.text
