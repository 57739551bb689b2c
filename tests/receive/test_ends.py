"""The end of a subscriber, which is used once: stop, terminate, errors, and publishers that fall silent."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Literal

import pytest

from blackbox import Batch, Feed, Message, Publisher, Recorder, Recording, SlowPolicy, Subscriber
from blackbox.errors import SilentPublisherError, SubscriberError
from blackbox.receive.supervise.supervisor import SubscriberLife
from blackbox.testing import Collector, RawPublisher, wait_until
from tests.archive.recorders import wait_recorded
from tests.gate import Gate
from tests.receive.subscribers import nothing, numbers_of, one_slice


def test_a_subscriber_goes_through_its_stages_once() -> None:
    feed = one_slice()
    subscriber = Subscriber(feed)
    subscriber.on(b"")(nothing)
    assert subscriber.state is SubscriberLife.NEW
    with Publisher(feed), pytest.raises(KeyError, match="mine"), subscriber as entered:
        assert entered is subscriber
        assert subscriber.state is SubscriberLife.RUNNING
        raise KeyError("mine")
    assert subscriber.state is SubscriberLife.ENDED
    with pytest.raises(SubscriberError, match="start was called when ended; a subscriber is used once"):
        subscriber.start()
    for change in (lambda: subscriber.on(b"T")(nothing), lambda: subscriber.remove(nothing)):
        with pytest.raises(SubscriberError, match="ended cannot be changed"):
            change()
    subscriber.stop()
    subscriber.terminate()


@pytest.mark.parametrize("end", [Subscriber.stop, Subscriber.terminate])
def test_a_subscriber_that_never_started_can_be_stopped(end: object) -> None:
    subscriber = Subscriber(one_slice())
    subscriber.on(b"")(nothing)
    end(subscriber)  # type: ignore[operator]
    assert subscriber.state is SubscriberLife.ENDED
    assert subscriber.statistics().received.messages == 0
    assert subscriber.is_finished


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
    subscriber.on(b"")(gate.message)
    with RawPublisher(feed) as publisher:
        subscriber.start()
        publisher.send(publisher.encode([(b"T", b"0")]))
        assert gate.entered.wait(60)
        with pytest.raises(SubscriberError, match="stop was not done in 0.3 s: a callback did not keep up"):
            subscriber.stop(timeout=0.3)
        gate.open.set()
        wait_until(lambda: subscriber.state is SubscriberLife.ENDED)


@pytest.mark.parametrize("how", ["stop", "terminate"])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_callback_can_end_its_subscriber(how: Literal["stop", "terminate"], workers: int) -> None:
    feed = Feed.local("subscriber", slices=2)
    subscriber = Subscriber(feed, workers=workers)
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


def test_run_gives_up_a_killed_publisher_and_delivers_received_messages() -> None:
    subscriber, got = Subscriber(feed := one_slice()), Collector()
    subscriber.on(b"")(got.message)
    with RawPublisher(feed) as publisher:
        subscriber.start()
        for number in range(10):
            publisher.send(publisher.encode([(b"T", b"%d" % number)]))
        got.wait(10)
    with pytest.raises(SilentPublisherError, match=r"slice 0: nothing came from the publisher at tcp:.* for 0.3 s"):
        subscriber.run(until_end=True, silence_timeout=0.3)
    assert numbers_of(got) == list(range(10))


def test_an_ended_publisher_is_not_silent_while_another_continues() -> None:
    feed = Feed.local("silence", slices=2)
    subscriber = Subscriber(feed)
    subscriber.on(b"")(nothing)
    with RawPublisher(feed) as publisher:
        subscriber.start()
        publisher.heartbeat(end=True, slice_id=0)
        wait_until(lambda: subscriber._supervisor.slices.running[0].status.is_finished)
        with pytest.raises(SilentPublisherError, match="slice 1: nothing came"):
            subscriber.run(until_end=True, silence_timeout=0.5)


def test_a_recorder_gives_up_too_and_keeps_received_messages(tmp_path: Path) -> None:
    recorder = Recorder(feed := one_slice(), tmp_path)
    with RawPublisher(feed) as publisher:
        recorder.start()
        publisher.send(publisher.encode([(b"T", b"x")]))
        wait_recorded(recorder, 1)
    with pytest.raises(SilentPublisherError):
        recorder.run(until_end=True, silence_timeout=0.3)
    day = next(recorder.directory.glob("*-*-*"))
    assert [message.payload for batch in Recording.open(day).batches() for message in batch] == [b"x"]
