"""Consistent checkpoints: no callback runs meanwhile, and the positions cover exactly what was delivered."""

from __future__ import annotations

import threading
from typing import Any

import numpy
import pytest

from blackbox import Batch, Feed, Message, Publisher, SlowPolicy, Subscriber
from blackbox.errors import SubscriberError
from blackbox.testing import wait_until
from tests.gate import Gate
from tests.subscribe.subscribers import PATIENT, nothing


def publish(publisher: Publisher, first: int, count: int) -> None:
    """Publish numbers in eight topics, at least one block per 50."""
    for start in range(first, first + count, 50):
        for number in range(start, start + 50):
            publisher.publish(b"%c" % (65 + number % 8), b"%d" % number)
        publisher.flush()


def subscribed() -> tuple[Feed, Subscriber]:
    """Return a feed of one slice, and a subscriber whose callback does nothing."""
    feed = Feed.local("cut", slices=1)
    subscriber = Subscriber(feed, slow=PATIENT)
    subscriber.on(b"")(nothing)
    return feed, subscriber


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_a_cut_is_the_same_for_all_callbacks_of_all_workers(workers: int) -> None:
    """Callbacks of every kind have received all messages before each checkpoint, and none after it."""
    feed = Feed.local("cut", slices=2)
    subscriber = Subscriber(feed, workers=workers, slow=PATIENT)
    seen: dict[str, dict[int, int]] = {}

    def note(who: str, slice_id: int, following: int) -> None:
        seen.setdefault(who, {})[slice_id] = following

    subscriber.on(b"")(lambda message: note("messages", message.slice_id, message.sequence + 1))
    subscriber.on_batch(b"")(lambda batch: note("batches", batch.block.slice_id, int(batch.sequence[-1]) + 1))

    def count(batch: Any, state: Any) -> None:
        state[0] = batch.sequence + batch.rows[len(batch.rows) - 1] + 1

    compiled = [
        subscriber.on_compiled(b"", state=numpy.zeros(1), worker=worker)(count) for worker in (False, bool(workers))
    ]
    ending = threading.Event()

    def go_on(publisher: Publisher) -> None:
        first = 0
        while not ending.is_set():
            publish(publisher, first, 100)
            first += 100

    with Publisher(feed, when_full="wait") as publisher, subscriber:
        thread = threading.Thread(target=go_on, args=(publisher,))
        thread.start()
        before = {0: 0, 1: 0}
        for _ in range(30):
            with subscriber.checkpoint() as positions:
                heard = {slice_id: position.sequence for slice_id, position in positions.items()}
                for who in ("messages", "batches"):
                    assert {n: seen.get(who, {}).get(n, 0) for n in heard} == heard
                for callback in compiled:
                    assert {n: int(state[0]) for n, state in callback.states.items()} == heard
                assert all(heard[n] >= before[n] for n in heard)
                assert {position.epoch for position in positions.values()} <= {publisher.epoch}
                before = heard
            wait_until(lambda: all(seen.get("messages", {}).get(n, 0) > before[n] for n in before))
        ending.set()
        thread.join()
    assert min(before.values()) > 0


def test_after_the_end_a_checkpoint_returns_the_last_positions() -> None:
    feed, subscriber = subscribed()
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        publish(publisher, 0, 500)
    subscriber.run(until_end=True)
    with subscriber.checkpoint() as positions:
        assert positions == {0: (publisher.epoch, 500)}


def test_a_checkpoint_before_the_first_message_is_at_0() -> None:
    feed = Feed.local("cut", slices=1)
    subscriber = Subscriber(feed)
    subscriber.on(b"")(nothing)
    with Publisher(feed) as publisher, subscriber, subscriber.checkpoint() as positions:
        assert positions == {0: (publisher.epoch, 0)}


def test_tickers_wait_for_a_checkpoint() -> None:
    feed, subscriber = subscribed()
    calls: list[int] = []
    subscriber.every(0.001)(calls.append)
    with Publisher(feed), subscriber:
        wait_until(lambda: len(calls) > 5)
        with subscriber.checkpoint():
            before = len(calls)
            late = threading.Event()
            assert not late.wait(0.02)
            assert len(calls) == before
        wait_until(lambda: len(calls) > before)


def test_a_checkpoint_times_out_while_a_callback_runs() -> None:
    feed = Feed.local("cut", slices=1)
    subscriber = Subscriber(feed, slow=PATIENT)
    gate = Gate()
    subscriber.on(b"")(gate.message)
    with Publisher(feed, when_full="wait") as publisher, subscriber:
        publish(publisher, 0, 50)
        assert gate.entered.wait(60)
        with (
            pytest.raises(TimeoutError, match=r"callbacks of slices \[0\] had not returned in 0.1 s"),
            subscriber.checkpoint(timeout=0.1),
        ):
            pass
        gate.open.set()
        publish(publisher, 50, 50)
        wait_until(lambda: gate.messages == 100)
        with subscriber.checkpoint() as positions:
            assert positions[0].sequence == 100


def test_an_exception_in_the_block_resumes_delivery() -> None:
    feed = Feed.local("cut", slices=1)
    subscriber = Subscriber(feed, slow=PATIENT)
    got: list[bytes] = []
    subscriber.on(b"", fields=("payload",))(got.append)
    with Publisher(feed, when_full="wait") as publisher, subscriber:
        with pytest.raises(LookupError), subscriber.checkpoint():
            raise LookupError
        publish(publisher, 0, 50)
        wait_until(lambda: len(got) == 50)


def test_a_subscriber_that_is_terminated_ends_a_checkpoint() -> None:
    """Terminated while the block runs: its positions stay valid, and later checkpoints are rejected."""
    feed, subscriber = subscribed()
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        publish(publisher, 0, 50)
        wait_until(lambda: subscriber.statistics().delivery.delivered == 50)
        with subscriber.checkpoint() as positions:
            subscriber.terminate()
            assert positions[0].sequence == 50
        with (
            pytest.raises(SubscriberError, match="was terminated: queued messages were not delivered"),
            subscriber.checkpoint(),
        ):
            pass


def test_a_callback_that_raises_ends_the_checkpoint() -> None:
    feed = Feed.local("cut", slices=1)
    subscriber = Subscriber(feed, slow=PATIENT)

    @subscriber.on_batch(b"")
    def fail(batch: Batch) -> None:
        raise LookupError

    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        publish(publisher, 0, 50)
        with pytest.raises(SubscriberError):
            while True:
                with subscriber.checkpoint():
                    pass
        with pytest.raises(SubscriberError, match="LookupError"):
            subscriber.stop()


def test_checkpoints_that_are_rejected() -> None:
    feed = Feed.local("cut", slices=1)

    def refused(subscriber: Subscriber, match: str) -> None:
        with pytest.raises(SubscriberError, match=match), subscriber.checkpoint():
            pass

    refused(Subscriber(feed), "before start")
    refused(Subscriber(feed, processes=True), "with processes=True")
    refused(Subscriber(feed, slow=SlowPolicy("conflate")), "policy 'conflate'")
    own = Subscriber(feed)
    failed: list[str] = []

    @own.on(b"")
    def checkpoint(message: Message) -> None:
        try:
            with own.checkpoint():
                pass
        except SubscriberError as error:
            failed.append(str(error))

    with Publisher(feed, when_full="wait") as publisher, own:
        publish(publisher, 0, 50)
        wait_until(lambda: len(failed) == 50)
    assert "by a callback" in failed[0]


def test_checkpoints_without_a_pause_do_not_starve_messages() -> None:
    feed, subscriber = subscribed()
    with Publisher(feed, when_full="wait") as publisher, subscriber:
        publish(publisher, 0, 5_000)
        sequence = -1
        while sequence < 5_000:
            with subscriber.checkpoint() as positions:
                assert positions[0].sequence >= sequence
                sequence = positions[0].sequence


def test_stop_in_the_block_of_a_checkpoint_is_rejected_at_once() -> None:
    feed, subscriber = subscribed()
    with Publisher(feed), subscriber, subscriber.checkpoint():
        with pytest.raises(SubscriberError, match="in a checkpoint, where all callbacks wait"):
            subscriber.stop()
        subscriber.request_stop()
