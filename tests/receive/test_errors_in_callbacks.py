"""Callbacks that raise, in Python and compiled, under both values of `on_error`."""

from __future__ import annotations

import logging
import traceback
from typing import Any, Literal

import numpy
import pytest

from blackbox import Batch, CallbackError, Message, Publisher, SlowPolicy, Subscriber
from blackbox.receive.slices import slice_errors
from blackbox.testing import Collector, RawPublisher, wait_until
from tests.examples import first_of
from tests.gate import Gate
from tests.receive.subscribers import in_both_places, nothing, numbers_of, one_slice, publishing


class MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("kinds", "error", "text"),
    [
        (
            ["on"],
            LookupError("the third"),
            r"for b'T' raised LookupError: the third \(slice 0, topic b'T', sequence \d",
        ),
        (
            ["on_batch"],
            MuteError(),
            r"raised MuteError: \(its text is not readable: RuntimeError\) \(slice 0, topic b'T'",
        ),
        (["on_batch"], SystemExit("enough"), "raised SystemExit: enough"),
        (["on"], StopIteration(), "raised StopIteration: of the callback"),
        (["on", "on"], StopIteration(), "raised StopIteration: of the callback"),
    ],
)
def test_a_callback_that_raises_ends_the_subscriber_with_its_traceback_and_kept_batches_remain(
    kinds: list[str], error: BaseException, text: str
) -> None:
    """StopIteration, which ends loops in C, is not taken for the end of the messages."""
    subscriber = Subscriber(feed := one_slice(), workers=1)
    kept: list[Batch] = []
    subscriber.on_batch(b"T")(kept.append)

    def fail_at_three(taken: Message | Batch) -> None:
        payloads = [taken.payload] if isinstance(taken, Message) else taken.payload_list()
        if any(payload[0] == 3 for payload in payloads):
            raise error

    for kind in kinds:
        getattr(subscriber, kind)(b"T")(fail_at_three)
    rows = (numpy.arange(2_000) % 256).astype(numpy.uint8).repeat(100).reshape(-1, 100)
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        publisher.publish_many((b"T",), numpy.zeros(len(rows), numpy.int32), rows)
        with pytest.raises(CallbackError, match=text) as caught:
            subscriber.run()
        with pytest.raises(CallbackError):
            subscriber.stop()
    cause = caught.value.__cause__
    if not isinstance(error, StopIteration):
        assert cause is error
        assert traceback.extract_tb(cause.__traceback__)[-1].name == "fail_at_three"
        overwritten = [b"B" * rows.nbytes for _ in range(64)]
        assert numpy.array_equal(kept[0].payloads(), rows[: len(kept[0])])
        assert len(overwritten) == 64
    delivery = subscriber.statistics().delivery
    assert delivery.callback_errors == 1
    assert delivery.delivered + delivery.failed + delivery.discarded == delivery.due


def test_on_error_log_continues_with_the_next_message_and_batch(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slice_errors, "_EVERY_S", 1e6)  # the first ten errors are logged
    subscriber = Subscriber(feed := one_slice(), on_error="log")
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

    with publishing(feed, subscriber) as publisher:
        for first in (0, 9, 18):
            publisher.send(publisher.encode([(b"T%d" % number, b"%d" % number) for number in range(first, first + 9)]))
        wait_until(lambda: subscriber.statistics().delivery.callback_errors == 10)
        publisher.send(publisher.encode([(b"T", b"33")] * 1_000))
    assert numbers_of(got) == [number for number in range(27) if number % 3]
    assert numbers_of(batches) == [*range(9), *range(18, 27), *[33] * 1_000]
    delivery = subscriber.statistics().delivery
    assert (delivery.callback_errors, delivery.failed) == (9 + 1 + 1_000, 9 + 9 + 1_000)
    assert (delivery.due, delivery.delivered, delivery.discarded) == (2 * 1_027, 18 + 18 + 1_000, 0)
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert any("for b'T' raised LookupError: number 3 (slice 0, topic b'T3', sequence 3)" in text for text in errors)
    assert "Traceback" in caplog.text
    assert "fail_on_nine" in caplog.text
    assert errors[10:] == ["slice 0: 1000 more errors of callbacks were not logged"]


def too_far(batch: Any, state: Any) -> None:
    for row in batch.rows:
        state[batch.ts_event[row]] += 1


@in_both_places
@pytest.mark.parametrize("policy", ["stop", "log"])
def test_a_compiled_callback_that_raises_is_reported(
    policy: Literal["stop", "log"], worker: bool, caplog: pytest.LogCaptureFixture
) -> None:
    subscriber = Subscriber(feed := one_slice(), on_error=policy)
    counted = subscriber.on_compiled(b"T", state=numpy.zeros(3), worker=worker)(too_far)
    with RawPublisher(feed) as publisher:
        subscriber.start()
        publisher.send(publisher.encode([(b"T", b""), (b"T", b"")], ts_event=[0, 1]))
        wait_until(lambda: subscriber.statistics().delivery.delivered == 2)
        publisher.send(publisher.encode([(b"T", b"")], ts_event=[3]))
        wait_until(lambda: subscriber.statistics().delivery.callback_errors == 1)
        if policy == "stop":
            with pytest.raises(CallbackError, match="compiled callback .*too_far for b'T' raised an exception"):
                subscriber.run()
        else:
            publisher.send(publisher.encode([(b"T", b"")], ts_event=[2]))
            publisher.heartbeat(end=True)
            subscriber.run(until_end=True)
            assert "too_far" in caplog.text
            assert counted.total().tolist() == [1, 1, 1]
    delivery = subscriber.statistics().delivery
    done = 2 if policy == "stop" else 3
    assert (delivery.due, delivery.failed, delivery.delivered, delivery.callback_errors) == (done + 1, 1, done, 1)


@pytest.mark.parametrize("policy", first_of(["log", "stop"]))
def test_every_compiled_callback_that_raises_in_a_burst_is_reported(
    policy: Literal["stop", "log"], caplog: pytest.LogCaptureFixture
) -> None:
    subscriber = Subscriber(feed := one_slice(), on_error=policy, workers=1, slow=SlowPolicy(max_lag=3_600))
    gate = Gate()
    subscriber.on(b"gate")(gate.message)

    def early(batch: Any, state: Any) -> None:
        for row in batch.rows:
            state[batch.ts_event[row] + 1] += 1

    counts = [subscriber.on_compiled(b"T", state=numpy.zeros(3), worker=True)(each) for each in (too_far, early)]
    with RawPublisher(feed) as publisher:
        subscriber.start()
        publisher.send(publisher.encode([(b"gate", b"")]))
        assert gate.entered.wait(200)
        for ts_event in (0, 2, 3, 3, 0):  # `early` raises from the second block on, `too_far` from the third
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
    told = ["too_far" if "too_far" in text else "early" for text in errors]
    assert told == ([] if policy == "stop" else ["early", "too_far"])
    assert subscriber.statistics().delivery.callback_errors == 5
    assert [count.total().tolist() for count in counts] == [[2, 0, 1], [0, 2, 0]]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_hook_for_an_epoch_that_raises_does_not_keep_others_from_being_called(workers: int) -> None:
    subscriber, seen = Subscriber(feed := one_slice(), workers=workers, on_error="log"), list[object]()
    subscriber.on(b"")(nothing)

    @subscriber.on_epoch
    def broken(slice_id: int, epoch: int) -> None:
        raise ValueError(epoch)

    subscriber.on_epoch(lambda _, epoch: seen.append(epoch))
    subscriber.on_reset(lambda: seen.append("reset"))
    with publishing(feed, subscriber) as publisher:
        publisher.send(publisher.encode([(b"T", b"1")]))
        publisher.epoch, publisher.sequences = 2, [0]
        for _ in range(2):
            publisher.send(publisher.encode([(b"T", b"2")]))
    assert seen == [1, 2, "reset"]
    assert subscriber.statistics().delivery.callback_errors == 2
