"""A subscriber, its slices, workers and streams go through their stages once."""

from __future__ import annotations

import pytest

from blackbox import Publisher, Subscriber
from blackbox.errors import SubscriberError
from blackbox.subscribe.state import SliceLife
from blackbox.subscribe.stream import StreamLife
from blackbox.subscribe.supervisor import SubscriberLife
from blackbox.subscribe.worker import WorkerLife
from tests.subscribe.subscribers import nothing, one_slice


def test_a_subscriber_goes_through_its_stages_once() -> None:
    feed = one_slice()
    subscriber = Subscriber(feed)
    subscriber.on(b"")(nothing)
    assert subscriber.state is SubscriberLife.NEW
    with Publisher(feed):
        with subscriber as entered:
            assert entered is subscriber
            assert subscriber.state is SubscriberLife.RUNNING
        assert subscriber.state is SubscriberLife.ENDED
    with pytest.raises(SubscriberError, match="start was called when ended; a subscriber is used once"):
        subscriber.start()
    for change in (lambda: subscriber.on(b"T")(nothing), lambda: subscriber.remove(nothing)):
        with pytest.raises(SubscriberError, match="ended cannot be changed"):
            change()
    subscriber.stop()
    subscriber.terminate()


def test_invalid_stages_are_rejected() -> None:
    feed = one_slice()
    subscriber = Subscriber(feed)
    subscriber.on(b"")(nothing)
    stream = subscriber.stream(b"")
    with Publisher(feed), subscriber:
        supervisor = subscriber._supervisor
        slice_thread = supervisor._slices[0]
        with pytest.raises(RuntimeError, match="subscriber of .* to be new when it was running, expected stopping"):
            supervisor._enter(SubscriberLife.NEW)
        with pytest.raises(RuntimeError, match="slice 0 was to be ended when it was running, expected closing"):
            slice_thread._enter(SliceLife.ENDED)
        with pytest.raises(RuntimeError, match="slice 0 worker 0 was to be new when it was running, expected ended"):
            slice_thread.workers[0]._enter(WorkerLife.NEW)
        assert slice_thread.life is SliceLife.RUNNING
    with pytest.raises(RuntimeError, match="stream of b'' was to be ending when it was ended, expected ended or open"):
        stream._enter(StreamLife.ENDING)
    assert subscriber.state is SubscriberLife.ENDED


def test_a_subscriber_that_never_started_can_be_stopped() -> None:
    for end in (Subscriber.stop, Subscriber.terminate):
        subscriber = Subscriber(one_slice())
        subscriber.on(b"")(nothing)
        end(subscriber)
        assert subscriber.state is SubscriberLife.ENDED
        assert subscriber.statistics().received.messages == 0
        assert subscriber.is_finished


def test_an_error_in_the_with_block_ends_the_subscriber_and_is_raised() -> None:
    feed = one_slice()
    subscriber = Subscriber(feed)
    subscriber.on(b"")(nothing)
    with Publisher(feed), pytest.raises(KeyError, match="mine"), subscriber:
        raise KeyError("mine")
    assert subscriber.state is SubscriberLife.ENDED
