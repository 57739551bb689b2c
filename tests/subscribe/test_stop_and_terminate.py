"""Stop delivers received messages, terminate does not; both end in time from any thread."""

from __future__ import annotations

import threading
from typing import Literal

import pytest

from blackbox import Batch, Feed, Message, Publisher, SlowPolicy, Subscriber
from blackbox.errors import SubscriberError
from blackbox.subscribe.supervisor import SubscriberLife
from blackbox.testing import Collector, RawPublisher, wait_until
from tests.gate import Gate
from tests.subscribe.subscribers import nothing, numbers_of, one_slice


def test_stop_delivers_received_messages_and_terminate_does_not() -> None:
    for end, everything in ((Subscriber.stop, True), (Subscriber.terminate, False)):
        feed = one_slice()
        subscriber = Subscriber(feed, slow=SlowPolicy(max_lag=3_600), queue_blocks=100)
        got = Collector()
        gate = Gate()

        @subscriber.on_batch(b"")
        def slow(batch: Batch) -> None:
            gate.wait()
            got.batch(batch)

        with RawPublisher(feed) as publisher:
            subscriber.start()
            publisher.send(publisher.encode([(b"T", b"0")]))
            assert gate.entered.wait(60)
            for number in range(1, 50):
                publisher.send(publisher.encode([(b"T", b"%d" % number)]))
            wait_until(lambda: subscriber.statistics().received.messages == 50)
            ending = threading.Thread(target=end, args=(subscriber,))
            ending.start()
            wait_until(lambda: subscriber.state is SubscriberLife.STOPPING)
            gate.open.set()
            ending.join()
        assert numbers_of(got) == list(range(50 if everything else 1))
        statistics = subscriber.statistics()
        assert (statistics.delivery.delivered, statistics.delivery.queue_blocks) == ((50, 0) if everything else (1, 49))
        assert (statistics.delivery.due, statistics.delivery.discarded) == (50, 0 if everything else 49)


def test_stop_gives_up_a_callback_that_does_not_return() -> None:
    feed = one_slice()
    subscriber = Subscriber(feed, slow=SlowPolicy(max_lag=3_600))
    gate = Gate()

    @subscriber.on(b"")
    def hang(message: Message) -> None:
        gate.wait()

    with RawPublisher(feed) as publisher:
        subscriber.start()
        publisher.send(publisher.encode([(b"T", b"0")]))
        assert gate.entered.wait(60)
        with pytest.raises(SubscriberError, match="stop was not done in 0.3 s: a callback did not keep up"):
            subscriber.stop(timeout=0.3)
        gate.open.set()
        wait_until(lambda: subscriber.state is SubscriberLife.ENDED)


@pytest.mark.parametrize("how", ["stop", "terminate"])
def test_a_callback_can_end_its_subscriber(how: Literal["stop", "terminate"]) -> None:
    feed = Feed.local("subscriber", slices=2)
    subscriber = Subscriber(feed)
    got = Collector()

    @subscriber.on(b"")
    def enough(message: Message) -> None:
        got.message(message)
        if len(got) == 10:
            getattr(subscriber, how)()

    with Publisher(feed) as publisher:
        subscriber.start()
        for number in range(100):
            publisher.publish(b"S%d" % number, b"%d" % number)
        subscriber.run()
    assert len(got) >= 10


def test_run_returns_when_another_thread_stops() -> None:
    feed = one_slice()
    subscriber = Subscriber(feed)
    subscriber.on(b"")(nothing)
    with Publisher(feed):
        running = threading.Thread(target=subscriber.run)
        running.start()
        wait_until(lambda: subscriber.statistics().received.last_ns > 0)
        subscriber.stop()
        running.join(60)
        assert not running.is_alive()
