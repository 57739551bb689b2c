"""Callbacks that raise, in Python and compiled, under both values of `on_error`."""

from __future__ import annotations

import logging
import sys
import traceback
from typing import Any, Literal

import numpy
import pytest

from blackbox import Batch, CallbackError, Message, Publisher, SlowPolicy, Subscriber
from blackbox.testing import Collector, RawPublisher, wait_until
from tests.examples import first_of
from tests.gate import Gate
from tests.subscribe.subscribers import in_both_places, numbers_of, one_slice


def fail_at_three(message: Message) -> None:
    if message.payload == b"3":
        raise LookupError("the third")


@pytest.mark.parametrize("kind", ["message", "batch"])
def test_a_callback_that_raises_ends_the_subscriber_with_its_traceback(kind: str) -> None:
    feed = one_slice()
    subscriber = Subscriber(feed)
    if kind == "message":
        subscriber.on(b"T")(fail_at_three)
    else:

        @subscriber.on_batch(b"T")
        def fail_in_batch(batch: Batch) -> None:
            for message in batch:
                fail_at_three(message)

    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        for number in range(10):
            publisher.publish(b"T", b"%d" % number)
        with pytest.raises(CallbackError) as caught:
            subscriber.run()
        with pytest.raises(CallbackError):
            subscriber.stop()
    assert "for b'T' raised LookupError: the third" in str(caught.value)
    cause = caught.value.__cause__
    assert isinstance(cause, LookupError)
    assert traceback.extract_tb(cause.__traceback__)[-1].name == "fail_at_three"
    assert subscriber.statistics().delivery.callback_errors == 1


@pytest.mark.parametrize("kind", ["message", "batch"])
def test_a_callback_that_exits_ends_the_subscriber_and_kept_batches_remain(kind: str) -> None:
    feed = one_slice()
    subscriber = Subscriber(feed, workers=1)
    kept: list[Batch] = []
    subscriber.on_batch(b"T")(kept.append)
    leave = lambda _: sys.exit("enough")  # noqa: E731
    subscriber.on(b"T")(leave) if kind == "message" else subscriber.on_batch(b"T")(leave)
    rows = numpy.full((2_000, 100), 65, numpy.uint8)
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        publisher.publish_many((b"T",), numpy.zeros(len(rows), numpy.int32), rows)
        with pytest.raises(CallbackError, match="raised SystemExit: enough"):
            subscriber.run()
    overwritten = [b"B" * rows.nbytes for _ in range(64)]
    assert numpy.array_equal(kept[0].payloads(), rows)
    assert len(overwritten) == 64
    seen = subscriber.statistics()
    assert (
        seen.delivery.callback_errors,
        seen.delivery.delivered + seen.delivery.failed + seen.delivery.discarded,
    ) == (1, seen.delivery.due)


def test_on_error_log_continues_with_the_next_message_and_batch(caplog: pytest.LogCaptureFixture) -> None:
    feed = one_slice()
    subscriber = Subscriber(feed, on_error="log")
    got, batches = Collector(), Collector()

    @subscriber.on(b"T")
    def fail_at_every_third(message: Message) -> None:
        if int(message.payload) % 3 == 0:
            raise LookupError(f"number {message.payload.decode()}")
        got.message(message)

    @subscriber.on_batch(b"T")
    def fail_on_nine(batch: Batch) -> None:
        if batch.payload(0) == b"9":
            raise KeyError("nine")
        batches.batch(batch)

    with RawPublisher(feed) as publisher:
        subscriber.start()
        for first in (0, 9, 18):
            publisher.send(publisher.encode([(b"T", b"%d" % number) for number in range(first, first + 9)]))
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    assert numbers_of(got) == [number for number in range(27) if number % 3]
    assert numbers_of(batches) == [*range(9), *range(18, 27)]
    statistics = subscriber.statistics()
    assert statistics.delivery.callback_errors == 9 + 1
    assert (statistics.delivery.failed, statistics.delivery.due, statistics.delivery.discarded) == (9 + 9, 2 * 27, 0)
    assert statistics.delivery.delivered == 18 + 18
    assert "raised LookupError: number 24" in caplog.text
    assert "Traceback" in caplog.text
    assert "fail_on_nine" in caplog.text


class MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_errors_are_logged_with_topic_and_sequence_up_to_a_limit(caplog: pytest.LogCaptureFixture) -> None:
    feed = one_slice()
    subscriber = Subscriber(feed, on_error="log")

    @subscriber.on(b"T")
    def fail(message: Message) -> None:
        raise LookupError(f"number {message.payload.decode()}")

    with RawPublisher(feed) as publisher:
        subscriber.start()
        publisher.send(publisher.encode([(b"T%d" % number, b"%d" % number) for number in range(1_000)]))
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert "for b'T' raised LookupError: number 3 (slice 0, topic b'T3', sequence 3)" in errors[3]
    assert errors[10:] == ["slice 0: 990 more errors of callbacks were not logged"]
    assert subscriber.statistics().delivery.callback_errors == 1_000


@pytest.mark.parametrize("kind", ["message", "batch"])
def test_an_exception_without_readable_text_is_reported(kind: str) -> None:
    subscriber = Subscriber(feed := one_slice())

    def fail(_: object) -> None:
        raise MuteError

    subscriber.on(b"")(fail) if kind == "message" else subscriber.on_batch(b"")(fail)
    with RawPublisher(feed) as publisher:
        subscriber.start()
        publisher.send(publisher.encode([(b"T", b""), (b"U", b"")]))
        with pytest.raises(
            CallbackError, match=r"raised MuteError: \(its text is not readable: RuntimeError\) \(slice 0, topic b'T'"
        ):
            subscriber.run()


def test_a_callback_that_raises_in_a_separate_process_raises_the_same_error() -> None:
    subscriber = Subscriber(feed := one_slice(), processes=True)

    @subscriber.on(b"T")
    def fail(message: Message) -> None:
        raise LookupError("there")

    with RawPublisher(feed) as publisher:
        subscriber.start(timeout=60)
        publisher.send(publisher.encode([(b"T", b"")]))
        with pytest.raises(CallbackError, match="raised LookupError: there"):
            subscriber.run()


def too_far(batch: Any, state: Any) -> None:
    for row in batch.rows:
        state[batch.ts_event[row]] += 1


@in_both_places
@pytest.mark.parametrize("policy", ["stop", "log"])
def test_a_compiled_callback_that_raises_is_reported(
    policy: Literal["stop", "log"], worker: bool, caplog: pytest.LogCaptureFixture
) -> None:
    feed = one_slice()
    subscriber = Subscriber(feed, on_error=policy)
    counted = subscriber.on_compiled(b"T", state=numpy.zeros(3), worker=worker)(too_far)
    with RawPublisher(feed) as publisher:
        subscriber.start()
        publisher.send(publisher.encode([(b"T", b""), (b"T", b"")], ts_event=[0, 1]))
        wait_until(lambda: subscriber.statistics().delivery.delivered == 2)
        publisher.send(publisher.encode([(b"T", b"")], ts_event=[3]))
        wait_until(lambda: subscriber.statistics().delivery.callback_errors == 1)
        publisher.send(publisher.encode([(b"T", b"")], ts_event=[2]))
        publisher.heartbeat(end=True)
        if policy == "stop":
            with pytest.raises(CallbackError, match="compiled callback .*too_far for b'T' raised an exception"):
                subscriber.run(until_end=True)
        else:
            subscriber.run(until_end=True)
            assert "too_far" in caplog.text
            assert counted.total().tolist() == [1, 1, 1]
            assert subscriber.statistics().delivery.delivered == 3


@pytest.mark.parametrize("policy", first_of(["log", "stop"]))
def test_every_compiled_callback_that_raises_in_a_burst_is_reported(
    policy: Literal["stop", "log"], caplog: pytest.LogCaptureFixture
) -> None:
    feed = one_slice()
    subscriber = Subscriber(feed, on_error=policy, workers=1, slow=SlowPolicy(max_lag=3_600))
    gate = Gate()

    @subscriber.on(b"gate")
    def wait(message: Message) -> None:
        gate.wait()

    def late(batch: Any, state: Any) -> None:
        for row in batch.rows:
            state[batch.ts_event[row]] += 1

    def early(batch: Any, state: Any) -> None:
        for row in batch.rows:
            state[batch.ts_event[row] + 1] += 1

    def good(batch: Any, state: Any) -> None:
        state[0] += len(batch.rows)

    counts = [subscriber.on_compiled(b"T", state=numpy.zeros(3), worker=True)(each) for each in (late, early, good)]
    with RawPublisher(feed) as publisher:
        subscriber.start()
        publisher.send(publisher.encode([(b"gate", b"")]))
        assert gate.entered.wait(60)
        for ts_event in (0, 2, 3, 3, 0):  # `early` raises from the second block on, `late` from the third
            publisher.send(publisher.encode([(b"T", b"")], ts_event=[ts_event]))
        wait_until(lambda: subscriber.statistics().delivery.queue_blocks == 5)
        gate.open.set()
        publisher.heartbeat(end=True)
        if policy == "stop":
            with pytest.raises(CallbackError, match="early for b'T' raised an exception 3 times"):
                subscriber.run(until_end=True)
        else:
            subscriber.run(until_end=True)
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    told = [text.partition(" for ")[0].rpartition(".")[2] for text in errors]
    assert told == ([] if policy == "stop" else ["early", "late"])
    assert subscriber.statistics().delivery.callback_errors == 5
    assert [count.total().tolist() for count in counts] == [[2, 0, 1], [0, 2, 0], [5, 0, 0]]
