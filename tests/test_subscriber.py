"""A subscriber's life: start, callbacks that come and go or raise, stop and signals, full queues, lost peers."""

from __future__ import annotations

import logging
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Literal

import msgspec
import numpy
import pytest

from blackbox import (
    Batch,
    CallbackError,
    ConfigError,
    Feed,
    Message,
    NotConfirmedError,
    Publisher,
    Subscriber,
    SubscriberError,
)
from blackbox.feed import Slice
from blackbox.layout import ACCEPT_KEY
from blackbox.statistics import SliceStatistics
from blackbox.subscriber import State
from blackbox.testing import Collector, RawPublisher, wait_until
from tests.support import Script


def one_slice(**settings: Any) -> Feed:
    return msgspec.structs.replace(Feed.local("subscriber", slices=1), **settings)


def numbers_of(got: Collector) -> list[int]:
    return [int(payload) for payload in got.payloads]


def nothing(_: Any) -> None:
    pass


# Life


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
        assert subscriber.statistics().received == 0
        assert not subscriber.is_finished


def test_start_names_the_slice_that_has_no_publisher() -> None:
    feed = Feed.local("subscriber", slices=2)
    with Publisher(msgspec.structs.replace(feed, slices=(msgspec.structs.replace(feed.slices[0], share=None),))):
        subscriber = Subscriber(feed)
        subscriber.on(b"")(nothing)
        with pytest.raises(NotConfirmedError) as caught:
            subscriber.start(timeout=0.3)
    endpoint = feed.slices[1].endpoints[0]
    assert f"slice 1: no publisher at {endpoint} confirmed the subscription in 0.3 s" in str(caught.value)
    assert isinstance(caught.value, TimeoutError)
    assert subscriber.state is State.ENDED


def test_a_publisher_that_does_not_answer_is_not_confirmed() -> None:
    feed = one_slice()
    with RawPublisher(feed) as publisher:
        publisher.confirms = False
        subscriber = Subscriber(feed)
        subscriber.on(b"")(nothing)
        with pytest.raises(NotConfirmedError):
            subscriber.run(timeout=0.2)


def test_a_publisher_may_start_after_the_subscriber() -> None:
    feed = Feed.local("subscriber", slices=2, key_bytes=3)
    subscriber = Subscriber(feed)
    got = Collector()
    subscriber.on(b"SYM")(got.message)
    starting = threading.Thread(target=subscriber.start, kwargs={"timeout": 20})
    starting.start()
    wait_until(lambda: subscriber.state is State.RUNNING)
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


def test_only_the_slices_that_a_prefix_can_fall_into_are_joined() -> None:
    feed = Feed.local("subscriber", slices=3)
    topic = b"SYMBOL.trade"
    subscriber = Subscriber(feed)
    subscriber.on(topic)(nothing)
    with Publisher(feed), subscriber:
        assert [part.slice_id for part in subscriber.statistics().slices] == [feed.slice_of(topic)]
        subscriber.on(b"")(nothing)
        subscriber.wait_confirmed()
        assert [part.slice_id for part in subscriber.statistics().slices] == [0, 1, 2]


def test_stop_delivers_what_was_received_and_terminate_does_not() -> None:
    for end, everything in ((Subscriber.stop, True), (Subscriber.terminate, False)):
        feed = one_slice()
        subscriber = Subscriber(feed, max_lag_ns=3_600 * 10**9, queue_blocks=100)
        got = Collector()
        entered, open_ = threading.Event(), threading.Event()

        @subscriber.on_batch(b"")
        def slow(batch: Batch) -> None:
            entered.set()
            open_.wait(20)
            got.batch(batch)

        with RawPublisher(feed) as publisher:
            subscriber.start()
            publisher.send(publisher.encode([(b"T", b"0")]))
            entered.wait(10)
            for number in range(1, 50):
                publisher.send(publisher.encode([(b"T", b"%d" % number)]))
            wait_until(lambda: subscriber.statistics().received == 50)
            ending = threading.Thread(target=end, args=(subscriber,))
            ending.start()
            wait_until(lambda: subscriber.state is State.STOPPING)
            open_.set()
            ending.join()
        assert numbers_of(got) == list(range(50 if everything else 1))
        statistics = subscriber.statistics()
        assert (statistics.delivered, statistics.queue_blocks) == ((50, 0) if everything else (1, 49))
        assert (statistics.due, statistics.discarded) == (50, 0 if everything else 49)


def test_stop_gives_up_on_a_callback_that_does_not_return() -> None:
    feed = one_slice()
    subscriber = Subscriber(feed, max_lag_ns=3_600 * 10**9)
    entered, open_ = threading.Event(), threading.Event()

    @subscriber.on(b"")
    def hang(message: Message) -> None:
        entered.set()
        open_.wait(4)

    with RawPublisher(feed) as publisher:
        subscriber.start()
        publisher.send(publisher.encode([(b"T", b"0")]))
        entered.wait(10)
        releasing = threading.Timer(0.6, open_.set)
        releasing.start()
        with pytest.raises(SubscriberError, match="stop was not done in 0.3 s: a callback did not keep up"):
            subscriber.stop(timeout=0.3)
        assert subscriber.state is State.ENDED


@pytest.mark.parametrize("how", ["stop", "terminate"])
def test_a_callback_may_end_its_subscriber(how: Literal["stop", "terminate"]) -> None:
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
        started = time.monotonic()
        for number in range(100):
            publisher.publish(b"S%d" % number, b"%d" % number)
        subscriber.run()
        assert time.monotonic() - started < 4
    assert len(got) >= 10


def test_run_returns_when_another_thread_stops() -> None:
    feed = one_slice()
    subscriber = Subscriber(feed)
    subscriber.on(b"")(nothing)
    with Publisher(feed):
        running = threading.Thread(target=subscriber.run)
        running.start()
        wait_until(lambda: subscriber.statistics().last_received_ns > 0)
        subscriber.stop()
        running.join(10)
        assert not running.is_alive()


def test_an_error_in_the_with_block_ends_the_subscriber_and_is_not_hidden() -> None:
    feed = one_slice()
    subscriber = Subscriber(feed)
    subscriber.on(b"")(nothing)
    with Publisher(feed), pytest.raises(KeyError, match="mine"), subscriber:
        raise KeyError("mine")
    assert subscriber.state is State.ENDED


SIGNALLED = """
    subscriber = Subscriber(feed)
    got = Collector()
    subscriber.on(b"")(got.message)
    before = signal.getsignal(signal.SIGTERM)
    subscriber.start(timeout=60)
    say("started")
    {extra}
    subscriber.run()
    say("ended", len(got), subscriber.state.value, signal.getsignal(signal.SIGTERM) == before)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_run_and_what_was_received_is_delivered(number: signal.Signals) -> None:
    feed = one_slice()
    with RawPublisher(feed) as publisher, Script(SIGNALLED.format(extra=""), feed) as script:
        script.expect("started")
        for _ in range(50):
            publisher.send(publisher.encode([(b"T", b"x")]))
        publisher.heartbeat()
        # The script says nothing more until it is stopped: it has installed its handlers once signals are not fatal.
        wait_until(lambda: _handles(script.process.pid, number), what="run() handles signals")
        script.process.send_signal(number)
        status, out, errors = script.finish()
    assert (status, out.strip()) == (0, "ended 50 ended True"), errors


def test_a_second_signal_terminates() -> None:
    feed = one_slice()
    extra = """
    @subscriber.on(b"")
    def block(message):
        say("blocks")
        threading.Event().wait(1.5)
    subscriber.wait_confirmed()
    say("ready")
    """
    code = SIGNALLED.format(extra=extra).replace("got.message)", "lambda message: None)")
    with RawPublisher(feed) as publisher, Script(code, feed) as script:
        script.expect("started")
        script.expect("ready")
        for _ in range(100):
            publisher.send(publisher.encode([(b"T", b"x")]))
        script.expect("blocks")
        wait_until(lambda: _handles(script.process.pid, signal.SIGINT), what="run() handles signals")
        script.process.send_signal(signal.SIGINT)
        script.process.send_signal(signal.SIGTERM)
        started = time.monotonic()
        status, _, errors = script.finish()
    assert status == 0, errors
    assert time.monotonic() - started < 10


def _handles(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal, as Linux tells it."""
    with open(f"/proc/{pid}/status") as status:  # noqa: PTH123
        caught = next(line for line in status if line.startswith("SigCgt"))
    # Python itself handles SIGINT from the beginning: SIGTERM tells that run() has begun.
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def test_signals_are_left_alone_outside_of_the_main_thread() -> None:
    feed = one_slice()
    subscriber = Subscriber(feed)
    subscriber.on(b"")(nothing)
    before = signal.getsignal(signal.SIGTERM)
    with Publisher(feed):
        running = threading.Thread(target=subscriber.run)
        running.start()
        wait_until(lambda: subscriber.statistics().last_received_ns > 0)
        assert signal.getsignal(signal.SIGTERM) is before
        subscriber.stop()
        running.join()


# Callbacks that come and go


def test_a_callback_added_while_running_gets_what_is_sent_once_confirmed() -> None:
    for key_bytes in (0, 4):
        feed = Feed.local("subscriber", slices=2, key_bytes=key_bytes)
        subscriber = Subscriber(feed)
        early, late = Collector(), Collector()
        subscriber.on(b"S1")(early.message)
        with Publisher(feed, when_full="wait") as publisher:
            subscriber.start()
            for number in range(100):
                publisher.publish(b"S%d" % (number % 3), b"%d" % number)
            publisher.flush()
            subscriber.on(b"S2")(late.message)
            subscriber.wait_confirmed()
            for number in range(100, 200):
                publisher.publish(b"S%d" % (number % 3), b"%d" % number)
        subscriber.run(until_end=True)
        assert numbers_of(early) == [n for n in range(200) if n % 3 == 1]
        assert [n for n in numbers_of(late) if n >= 100] == [n for n in range(100, 200) if n % 3 == 2]


def test_a_removed_callback_gets_nothing_more_and_others_miss_nothing() -> None:
    feed = one_slice()
    subscriber = Subscriber(feed)
    stays, goes = Collector(), Collector()
    subscriber.on(b"")(stays.message)
    subscriber.on_batch(b"T")(goes.batch)
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        for number in range(100):
            publisher.publish(b"T", b"%d" % number)
        goes.wait(100)
        subscriber.off(goes.batch)
        for number in range(100, 200):
            publisher.publish(b"T", b"%d" % number)
    subscriber.run(until_end=True)
    assert numbers_of(stays) == list(range(200))
    assert numbers_of(goes) == list(range(100))
    with pytest.raises(ValueError, match="not registered|ended"):
        Subscriber(feed).off(nothing)


def test_callbacks_come_and_go_from_within_callbacks() -> None:
    feed = one_slice()
    subscriber = Subscriber(feed)
    first, second = Collector(), Collector()

    @subscriber.on(b"T")
    def once(message: Message) -> None:
        first.message(message)
        subscriber.off(once)
        subscriber.on(b"T")(second.message)

    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        publisher.publish(b"T", b"0")
        first.wait(1)
        wait_until(lambda: len(subscriber.callbacks) == 1 and subscriber.callbacks[0].function == second.message)
        subscriber.wait_confirmed()
        for number in range(1, 50):
            publisher.publish(b"T", b"%d" % number)
    subscriber.run(until_end=True)
    assert numbers_of(first) == [0]
    assert numbers_of(second) == list(range(1, 50))


def test_callbacks_that_change_all_the_time_never_disturb_one_that_stays() -> None:
    choice = random.Random(5)
    feed = Feed.local("subscriber", slices=2, key_bytes=2)
    subscriber = Subscriber(feed, max_lag_ns=3_600 * 10**9)
    stays = Collector()
    subscriber.on_batch(b"")(stays.batch)
    others = [Collector() for _ in range(20)]
    stop = threading.Event()

    def change() -> None:
        active: list[Callable[[Message], None]] = []
        while not stop.is_set():
            if active and choice.random() < 0.5:
                subscriber.off(active.pop(choice.randrange(len(active))))
            else:
                other = choice.choice(others)
                if other.message not in active:
                    subscriber.on(choice.choice([b"", b"S", b"S1", b"S2.", b"X"]))(other.message)
                    active.append(other.message)

    total = 30_000
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        changing = threading.Thread(target=change)
        changing.start()
        for number in range(total):
            publisher.publish(b"S%d.t" % (number % 50), b"%d" % number)
        publisher.flush()
        stop.set()
        changing.join()
    subscriber.run(until_end=True)
    assert sorted(numbers_of(stays)) == list(range(total))
    statistics = subscriber.statistics()
    assert (statistics.gaps, statistics.duplicates, statistics.malformed, statistics.callback_errors) == (0, 0, 0, 0)
    for other in others:
        for topic in {m.topic for m in other.messages}:
            numbers = [m.sequence for m in other.messages if m.topic == topic]
            assert all(a < b for a, b in pairwise(numbers))


def test_the_same_function_for_two_prefixes_is_two_callbacks() -> None:
    feed = one_slice()
    subscriber = Subscriber(feed)
    got = Collector()
    subscriber.on(b"T")(got.message)
    subscriber.on(b"TT")(got.message)
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        publisher.publish(b"TT", b"0")
        got.wait(2)
        subscriber.off(got.message)
        assert subscriber.callbacks == ()
        publisher.publish(b"TT", b"1")
    subscriber.stop()
    assert numbers_of(got) == [0, 0]


def test_wrong_callbacks_and_settings_are_refused() -> None:
    feed = Feed.local("subscriber", slices=1)
    part = msgspec.structs.replace(feed.slices[0], share=None, prefixes=("A.",))
    subscriber = Subscriber(msgspec.structs.replace(feed, slices=(part,)))
    with pytest.raises(TypeError, match="prefix was 'A', expected bytes"):
        subscriber.on("A")(nothing)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no slice can hold topics that start with b'B'"):
        subscriber.on(b"B")(nothing)
    with pytest.raises(ConfigError, match="reserved for control"):
        subscriber.on_batch(b"\0H")(nothing)
    with pytest.raises(TypeError, match="state of compiled callback nothing was list, expected a numpy array"):
        subscriber.on_compiled(b"A.", state=[0])(nothing)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"compiled callback nothing takes .*, expected \(batch, state\)"):
        subscriber.on_compiled(b"A.", state=numpy.zeros(1))(nothing)  # type: ignore[arg-type]
    with pytest.raises(CallbackError, match="compiled callback wrong could not be compiled"):

        @subscriber.on_compiled(b"A.", state=numpy.zeros(1))
        def wrong(batch: Any, state: Any) -> None:
            state[0] = batch.no_such_column

    assert subscriber.callbacks == ()
    for settings, text in (
        ({"workers": 0}, "workers was 0, expected 1 to 63"),
        ({"queue_blocks": 0}, "queue_blocks was 0"),
        ({"hwm_blocks": 0}, "hwm_blocks was 0"),
        ({"max_lag_ns": 0}, "max_lag_ns was 0"),
        ({"grace_ns": -1}, "grace_ns was -1"),
        ({"on_slow": "die"}, "on_slow was 'die', expected one of terminate, conflate, drop, warn"),
        ({"on_error": "raise"}, "on_error was 'raise', expected 'stop' or 'log'"),
    ):
        with pytest.raises(ValueError, match=text):
            Subscriber(feed, **settings)  # type: ignore[arg-type]


# Callbacks that raise


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
    assert subscriber.statistics().callback_errors == 1


@pytest.mark.parametrize("kind", ["message", "batch"])
def test_a_callback_that_exits_ends_the_subscriber_and_kept_batches_stay(kind: str) -> None:
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
    assert (seen.callback_errors, seen.delivered + seen.failed + seen.discarded) == (1, seen.due)


def test_on_error_log_goes_on_with_the_next_message_and_batch(caplog: pytest.LogCaptureFixture) -> None:
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
    assert statistics.callback_errors == 9 + 1
    assert (statistics.failed, statistics.due, statistics.discarded) == (9 + 9, 2 * 27, 0)
    assert statistics.delivered == 18 + 18
    assert "raised LookupError: number 24" in caplog.text
    assert "Traceback" in caplog.text
    assert "fail_on_nine" in caplog.text


@pytest.mark.parametrize("policy", ["stop", "log"])
def test_a_compiled_callback_that_raises_is_told_of(
    policy: Literal["stop", "log"], caplog: pytest.LogCaptureFixture
) -> None:
    feed = one_slice()
    subscriber = Subscriber(feed, on_error=policy)

    @subscriber.on_compiled(b"T", state=numpy.zeros(3))
    def too_far(batch: Any, state: Any) -> None:
        for row in batch.rows:
            state[batch.ts_event[row]] += 1

    with RawPublisher(feed) as publisher:
        subscriber.start()
        publisher.send(publisher.encode([(b"T", b""), (b"T", b"")], ts_event=[0, 1]))
        wait_until(lambda: subscriber.statistics().delivered == 2)
        publisher.send(publisher.encode([(b"T", b"")], ts_event=[3]))
        wait_until(lambda: subscriber.statistics().callback_errors == 1)
        publisher.send(publisher.encode([(b"T", b"")], ts_event=[2]))
        publisher.heartbeat(end=True)
        if policy == "stop":
            with pytest.raises(CallbackError, match="compiled callback .*too_far for b'T' raised an exception"):
                subscriber.run(until_end=True)
        else:
            subscriber.run(until_end=True)
            assert "too_far" in caplog.text
            assert too_far.total().tolist() == [1, 1, 1]
            assert subscriber.statistics().delivered == 3


@pytest.mark.parametrize("policy", ["stop", "log"])
def test_every_compiled_callback_that_raises_in_a_burst_is_told_of(
    policy: Literal["stop", "log"], caplog: pytest.LogCaptureFixture
) -> None:
    feed = one_slice()
    subscriber = Subscriber(feed, on_error=policy, workers=1, max_lag_ns=3_600 * 10**9)
    entered, open_ = threading.Event(), threading.Event()

    @subscriber.on(b"gate")
    def wait(message: Message) -> None:
        entered.set()
        open_.wait(20)

    def late(batch: Any, state: Any) -> None:
        for row in batch.rows:
            state[batch.ts_event[row]] += 1

    def early(batch: Any, state: Any) -> None:
        for row in batch.rows:
            state[batch.ts_event[row] + 1] += 1

    def good(batch: Any, state: Any) -> None:
        state[0] += len(batch.rows)

    counts = [subscriber.on_compiled(b"T", state=numpy.zeros(3))(each) for each in (late, early, good)]
    with RawPublisher(feed) as publisher:
        subscriber.start()
        publisher.send(publisher.encode([(b"gate", b"")]))
        entered.wait(10)
        for ts_event in (0, 2, 3, 3, 0):  # `early` raises from the second block on, `late` from the third
            publisher.send(publisher.encode([(b"T", b"")], ts_event=[ts_event]))
        wait_until(lambda: subscriber.statistics().queue_blocks == 5)
        open_.set()
        publisher.heartbeat(end=True)
        if policy == "stop":
            with pytest.raises(CallbackError, match="early for b'T' raised an exception 3 times"):
                subscriber.run(until_end=True)
        else:
            subscriber.run(until_end=True)
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    told = [text.partition(" for ")[0].rpartition(".")[2] for text in errors]
    assert told == ([] if policy == "stop" else ["early", "late"])
    assert subscriber.statistics().callback_errors == 5
    assert [count.total().tolist() for count in counts] == [[2, 0, 1], [0, 2, 0], [5, 0, 0]]


# Batches


def test_end_of_batch_marks_the_last_of_what_was_queued() -> None:
    feed = one_slice()
    subscriber = Subscriber(feed, max_lag_ns=3_600 * 10**9, workers=1)
    marks: list[tuple[bytes, bool]] = []
    other_marks: list[tuple[bytes, bool]] = []
    entered, open_ = threading.Event(), threading.Event()

    @subscriber.on(b"")
    def note(message: Message) -> None:
        entered.set()
        open_.wait(20)
        marks.append((message.payload, message.end_of_batch))

    @subscriber.on_batch(b"U")
    def note_batch(batch: Batch) -> None:
        other_marks.append((batch.payload(0), batch.end_of_batch))

    with RawPublisher(feed) as publisher:
        subscriber.start()
        publisher.send(publisher.encode([(b"T", b"first")]))
        entered.wait(10)
        for number in range(5):
            publisher.send(publisher.encode([(b"T", b"%d" % number), (b"U", b"u%d" % number)]))
        wait_until(lambda: subscriber.statistics().queue_blocks == 5)
        open_.set()
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    payloads = [payload for n in range(5) for payload in (b"%d" % n, b"u%d" % n)]
    assert marks == [(b"first", True), *((payload, payload == b"u4") for payload in payloads)]
    assert other_marks == [(b"u%d" % n, n == 4) for n in range(5)]


def test_a_batch_that_is_kept_stays_as_it_was() -> None:
    feed = one_slice()
    subscriber = Subscriber(feed)
    kept: list[Batch] = []
    kept_messages: list[Message] = []
    columns: list[Any] = []

    @subscriber.on_batch(b"K")
    def keep(batch: Batch) -> None:
        kept.append(batch)
        columns.append((batch.ts_event, batch.topic_index, batch.block.payloads))

    subscriber.on(b"K")(kept_messages.append)
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        for number in range(3_000):
            publisher.publish(b"K%d" % (number % 5) if number % 7 else b"other", b"%d" % number * 5, ts_event=number)
            if number % 50 == 0:
                publisher.flush()
    subscriber.run(until_end=True)
    del subscriber
    expected = [number for number in range(3_000) if number % 7]
    assert [batch.payload(i) for batch in kept for i in range(len(batch))] == [b"%d" % n * 5 for n in expected]
    assert numpy.concatenate([times for times, _, _ in columns]).tolist() == expected
    assert [(m.topic, m.ts_event) for m in kept_messages] == [(b"K%d" % (n % 5), n) for n in expected]
    assert [m.payload for m in kept_messages] == [b"%d" % n * 5 for n in expected]


def test_workers_share_the_callbacks() -> None:
    feed = one_slice()
    subscriber = Subscriber(feed, workers=3)
    threads: dict[int, str] = {}
    for number in range(6):

        def note(message: Message, number: int = number) -> None:
            threads[number] = threading.current_thread().name

        subscriber.on(b"")(note)
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        publisher.publish(b"T", b"")
    subscriber.run(until_end=True)
    names = [f"blackbox-worker-0.{worker}" for worker in range(3)]
    assert sorted(threads.values()) == sorted(names * 2)


def test_a_new_callback_goes_to_the_worker_that_lost_one() -> None:
    subscriber = Subscriber(one_slice(), workers=2)
    functions: list[Callable[[Message], None]] = [lambda message, n=n: None for n in range(4)]  # type: ignore[misc]
    for function in functions:
        subscriber.on(b"")(function)
    assert [callback.worker for callback in subscriber.callbacks] == [0, 1, 0, 1]
    subscriber.off(functions[1])
    subscriber.off(functions[3])
    for function in functions[1::2]:
        subscriber.on(b"")(function)
    assert [callback.worker for callback in subscriber.callbacks] == [0, 0, 1, 1]


# Statistics


def test_statistics_agree_with_each_other() -> None:
    feed = Feed.local("subscriber", slices=3)
    subscriber = Subscriber(feed)
    got = [Collector() for _ in range(3)]
    for prefix, each in zip((b"S1", b"S1", b"S"), got, strict=True):
        subscriber.on(prefix)(each.message)
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        for number in range(5_000):
            publisher.publish(b"%c%d" % (b"SX"[number % 2], number % 30), bytes(number % 50))
    subscriber.run(until_end=True)
    statistics = subscriber.statistics()
    total = statistics.total
    assert total.slice_id == -1
    assert total.received == 5_000
    assert total.matched == 2_500 == len(got[2])
    assert total.delivered == total.due == sum(map(len, got))
    assert (total.failed, total.conflated, total.discarded) == (0, 0, 0)
    assert total.topics == 30
    assert total.subscriptions == 3
    assert (total.queue_blocks, total.held, total.dropped, total.malformed, total.stale) == (0, 0, 0, 0, 0)
    assert total.blocks == publisher.statistics().blocks
    assert total.body_bytes == publisher.statistics().body_bytes
    assert 0 < total.lag_p50_ns <= total.lag_p99_ns <= total.lag_max_ns
    assert statistics.received == total.received
    summed = [
        name
        for name in SliceStatistics.__struct_fields__
        if not name.startswith("lag_")
        and name not in ("slice_id", "clock_offset_ns", "last_received_ns", "last_lag_ns", "faults")
    ]
    for name in summed:
        assert sum(getattr(part, name) for part in statistics.slices) == getattr(total, name), name
    for name in ("last_received_ns", "last_lag_ns"):
        assert max(getattr(part, name) for part in statistics.slices) == getattr(total, name) > 0, name
    assert total.control_blocks >= 2 * 3  # a confirmation and a goodbye for each slice
    assert total.faults == {}
    with pytest.raises(AttributeError):
        statistics.no_such_field  # noqa: B018
    with pytest.raises(AttributeError):
        total.received = 0  # type: ignore[misc]


# Transports


@pytest.mark.parametrize("transport", ["tcp", "ipc", "inproc"])
@pytest.mark.parametrize("lines", [1, 2])
def test_every_transport_carries_everything(transport: Literal["tcp", "ipc", "inproc"], lines: int) -> None:
    feed = Feed.local("subscriber", slices=2, transport=transport, lines=lines, key_bytes=2)
    subscriber = Subscriber(feed)
    got = Collector()
    subscriber.on_batch(b"S1")(got.batch)
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        topics = tuple(b"S%d" % number for number in range(30))
        payloads = numpy.arange(30_000).reshape(-1, 1).view(numpy.uint8)
        publisher.publish_many(topics, numpy.arange(30_000) % 30, payloads)
        for number in range(1_000):
            publisher.publish(topics[number % 30], (30_000 + number).to_bytes(8, "little"))
    subscriber.run(until_end=True)
    numbers = sorted(int.from_bytes(payload, "little") for payload in got.payloads)
    wanted = [n for n in range(30_000) if str(n % 30).startswith("1")]
    wanted += [30_000 + n for n in range(1_000) if str(n % 30).startswith("1")]
    assert numbers == wanted
    assert subscriber.statistics().gaps == 0


# Bounds and losses


def test_a_full_worker_queue_is_bounded_and_loses_nothing() -> None:
    feed = one_slice(block_bytes=4_096)
    subscriber = Subscriber(feed, max_lag_ns=3_600 * 10**9, queue_blocks=4, hwm_blocks=8)
    blocked, free = Collector(), Collector()
    entered, open_ = threading.Event(), threading.Event()

    @subscriber.on_batch(b"")
    def block(batch: Batch) -> None:
        entered.set()
        open_.wait(20)
        blocked.batch(batch)

    subscriber.on_batch(b"")(free.batch)
    with Publisher(feed, when_full="wait", hwm_blocks=8) as publisher:
        subscriber.start()
        publishing = threading.Thread(
            target=publisher.publish_many,
            args=((b"T",), numpy.zeros(50_000, int), numpy.arange(50_000).reshape(-1, 1).view(numpy.uint8)),
        )
        publishing.start()
        entered.wait(10)
        wait_until(lambda: subscriber.statistics().waits > 2)
        # Its own queue, what the pipe's flow control lets through ahead of it, and one burst in its hands.
        assert subscriber.statistics().queue_blocks <= 4 + 2
        received = subscriber.statistics().blocks
        wait_until(lambda: subscriber.statistics().waits > 6)
        assert subscriber.statistics().blocks == received
        open_.set()
        publishing.join()
    subscriber.run(until_end=True)
    for got in (blocked, free):
        assert [int.from_bytes(p, "little") for p in got.payloads] == list(range(50_000))
    assert subscriber.statistics().gaps == 0


def test_two_thousand_subscriptions_survive_a_restart_of_the_publisher() -> None:
    feed = Feed.local("subscriber", slices=2, key_bytes=8)
    subscriber = Subscriber(feed)
    got = Collector()
    topics = [b"%08d" % number for number in range(2_000)]
    for topic in topics:
        subscriber.on(topic)(got.message)
    for run in range(3):
        with Publisher(feed, when_full="wait") as publisher:
            if run == 0:
                subscriber.start(timeout=30)
                assert subscriber.statistics().subscriptions == 4_000
            for topic in topics:
                publisher.wait_for_subscribers(topic, timeout=30)
            for topic in topics:
                publisher.publish(topic, b"%d" % run)
            messages = got.wait(2_000 * (run + 1), timeout=30)
            assert sorted(m.topic for m in messages[2_000 * run :]) == topics
    subscriber.run(until_end=True)
    assert len(got) == 6_000
    assert subscriber.statistics().gaps == 0


def test_wait_for_subscribers_after_a_restart_means_all_their_filters() -> None:
    """libzmq sends the filters again in an order of its own, so the first one is no sign of the others."""
    feed = Feed.local("subscriber", slices=1, key_bytes=8)
    subscriber = Subscriber(feed)
    got = Collector()
    topics = [b"%08d" % number for number in range(2_000)]
    for topic in topics:
        subscriber.on(topic)(got.message)
    for run in range(3):
        with Publisher(feed, when_full="wait") as publisher:
            if run == 0:
                subscriber.start(timeout=30)
            publisher.wait_for_subscribers(topics[0])
            for topic in reversed(topics):
                publisher.publish(topic, b"%d" % run)
            got.wait(2_000 * (run + 1))
    subscriber.run(until_end=True)
    assert len(got) == 6_000


def test_a_killed_subscriber_hurts_neither_publisher_nor_other_subscribers() -> None:
    feed = one_slice(block_bytes=4_096)
    code = """
        subscriber = Subscriber(feed, max_lag_ns=3_600 * 10**9, queue_blocks=1, hwm_blocks=1)
        @subscriber.on(b"")
        def stuck(message):
            say("stuck")
            time.sleep(1000)
        subscriber.start(timeout=60)
        subscriber.run()
    """
    survivor = Subscriber(feed, max_lag_ns=3_600 * 10**9)
    got = Collector()
    survivor.on_batch(b"")(got.batch)
    with Publisher(feed, when_full="wait", hwm_blocks=2) as publisher, Script(code, feed) as script:
        survivor.start()
        publisher.wait_for_subscribers(b"", timeout=60, count=2)
        publisher.publish(b"T", b"0")
        script.expect("stuck")
        publishing = threading.Thread(
            target=publisher.publish_many,
            args=((b"T",), numpy.zeros(20_000, int), numpy.zeros((20_000, 1_000), numpy.uint8)),
        )
        publishing.start()
        wait_until(lambda: publisher.statistics().waits > 2)
        script.kill()
        publishing.join(30)
        assert not publishing.is_alive()
        publisher.publish(b"T", b"last")
        wait_until(lambda: publisher.statistics().subscribers == 1)
    survivor.run(until_end=True)
    assert len(got) == 20_002
    assert got.payloads[-1] == b"last"
    assert survivor.statistics().gaps == 0


def test_a_subscriber_on_inproc_survives_a_restart_of_the_publisher() -> None:
    part = Slice(endpoints=("inproc://restarted",))
    feed = Feed(name="restarted", slices=(part,), heartbeat_ns=50_000_000)
    subscriber = Subscriber(feed)
    got = Collector()
    subscriber.on(b"")(got.message)
    with Publisher(feed) as publisher:
        subscriber.start()
        publisher.publish(b"A", b"1")
    time.sleep(0.5)  # silent for longer than three heartbeats
    with Publisher(feed) as publisher:
        publisher.wait_for_subscribers(b"A", timeout=5.0)
        publisher.publish(b"A", b"2")
    subscriber.run(until_end=True)
    got.wait(2)


def test_publishers_that_were_killed_leave_no_acceptances_behind() -> None:
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


def test_signals_that_hit_its_threads_change_nothing() -> None:
    feed = one_slice()
    got = Collector()
    subscriber = Subscriber(feed)
    subscriber.on(b"")(got.message)
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        with Publisher(feed, when_full="wait") as publisher:
            subscriber.start()
            names = ("blackbox-line", "blackbox-slice", "blackbox-worker")
            threads = [t for t in threading.enumerate() if t.name.startswith(names)]
            for number in range(3_000):
                for thread in threads:
                    signal.pthread_kill(thread.ident or 0, signal.SIGUSR1)
                publisher.publish(b"A", b"%d" % number)
        subscriber.run(until_end=True)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert got.payloads == [b"%d" % number for number in range(3_000)]


def test_logs_tell_of_a_new_epoch(caplog: pytest.LogCaptureFixture) -> None:
    feed = one_slice()
    subscriber = Subscriber(feed)
    subscriber.on(b"")(nothing)
    with caplog.at_level(logging.INFO, "blackbox"), RawPublisher(feed, epoch=0xABCDEF) as publisher:
        subscriber.start()
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    assert "slice 0: publisher epoch 0000000000abcdef began" in caplog.text


def test_cpus_that_are_not_there_are_named() -> None:
    feed = one_slice()
    wrong = msgspec.structs.replace(feed, slices=(msgspec.structs.replace(feed.slices[0], cpus=(60_000,)),))
    subscriber = Subscriber(wrong)
    subscriber.on(b"")(print)
    with pytest.raises(ConfigError, match=r"cpus were \[60000\], expected some of \[.*\], which this process may use"):
        subscriber.start()
    with pytest.raises(ConfigError, match=r"cpus were \[60000\]"):
        Publisher(wrong).start()


def test_a_publisher_that_falls_silent_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    feed = one_slice(heartbeat_ns=10_000_000)
    subscriber = Subscriber(feed)
    subscriber.on(b"")(print)
    with RawPublisher(feed), subscriber:
        wait_until(lambda: "fell silent without an end" in caplog.text, what="the silence is told")
        told = caplog.text.count("fell silent")
    assert told == 1


def test_a_callback_added_while_the_queue_is_full_is_confirmed_in_the_end() -> None:
    feed = one_slice(heartbeat_ns=20_000_000)
    subscriber = Subscriber(feed, hwm_blocks=1, queue_blocks=1, on_slow="warn", max_lag_ns=10**15)
    hold, stop = threading.Event(), threading.Event()
    payloads = numpy.zeros((2_000, 100), numpy.uint8)
    index = numpy.zeros(2_000, numpy.int32)

    @subscriber.on_batch(b"")
    def wait(batch: Batch) -> None:
        hold.wait(30)

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
        subscriber.wait_confirmed(20)
        subscriber.terminate()
