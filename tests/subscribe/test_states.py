"""A subscriber is used once, and goes through its states once."""

from __future__ import annotations

import pytest

from blackbox import Publisher, Subscriber, SubscriberError
from blackbox.subscribe.supervisor import State
from tests.subscribe.subscribers import nothing, one_slice


def test_a_subscriber_goes_through_its_states_once() -> None:
    feed = one_slice()
    subscriber = Subscriber(feed)
    subscriber.on(b"")(nothing)
    assert subscriber.state is State.NEW
    with Publisher(feed):
        with subscriber as entered:
            assert entered is subscriber
            assert subscriber.state is State.RUNNING
        assert subscriber.state is State.ENDED
    with pytest.raises(SubscriberError, match="start was called when ended; a subscriber is used once"):
        subscriber.start()
    for change in (lambda: subscriber.on(b"T")(nothing), lambda: subscriber.off(nothing)):
        with pytest.raises(SubscriberError, match="ended cannot be changed"):
            change()
    subscriber.stop()
    subscriber.terminate()


def test_a_subscriber_that_never_started_can_be_stopped() -> None:
    for end in (Subscriber.stop, Subscriber.terminate):
        subscriber = Subscriber(one_slice())
        subscriber.on(b"")(nothing)
        end(subscriber)
        assert subscriber.state is State.ENDED
        assert subscriber.statistics().received.messages == 0
        assert not subscriber.is_finished


def test_an_error_in_the_with_block_ends_the_subscriber_and_is_not_hidden() -> None:
    feed = one_slice()
    subscriber = Subscriber(feed)
    subscriber.on(b"")(nothing)
    with Publisher(feed), pytest.raises(KeyError, match="mine"), subscriber:
        raise KeyError("mine")
    assert subscriber.state is State.ENDED
