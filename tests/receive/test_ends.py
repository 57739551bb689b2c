"""The end of a subscriber, which is used once: stop, terminate, errors, signals, and publishers that fall silent."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import pytest

from blackbox import Message, Publisher, Recorder, Recording, SlowPolicy, Subscriber
from blackbox.errors import SilentPublisherError, SubscriberError
from blackbox.feed.schema.schema import load_schema
from blackbox.receive.slices.slice_thread import SliceThread
from blackbox.receive.state import Stopping
from blackbox.receive.supervise import shared_slices, supervisor
from blackbox.receive.supervise.stop_signals import stopping_at_signals
from blackbox.receive.supervise.supervisor import SubscriberLife
from blackbox.testing import Collector, RawPublisher, wait_until
from tests.archive.recorders import wait_recorded
from tests.examples import first_of
from tests.gate import Gate
from tests.receive.subscribers import (
    PATIENT,
    CollectingGate,
    end_at,
    nothing,
    numbers_of,
    one_slice,
    sliced,
    subscribed,
    topic_of_each,
)
from tests.support import Script


def test_a_subscriber_goes_through_its_stages_once() -> None:
    subscriber = Subscriber(feed := one_slice())
    subscriber.on(b"")(nothing)
    assert subscriber.state is SubscriberLife.NEW
    with Publisher(feed), pytest.raises(KeyError, match="mine"), subscriber as entered:
        assert entered is subscriber
        assert subscriber.state is SubscriberLife.RUNNING
        raise KeyError("mine")
    assert subscriber.state is SubscriberLife.ENDED
    with pytest.raises(SubscriberError, match="start was called when ended; a subscriber is used once"):
        subscriber.start()
    for change in (
        lambda: subscriber.on(b"T")(nothing),
        lambda: subscriber.on_epoch(lambda slice_id, epoch: None),
        lambda: subscriber.on_reset(lambda: None),
        lambda: subscriber.remove(nothing),
    ):
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


@pytest.mark.parametrize("is_sharer", [False, True])
@pytest.mark.parametrize(("end", "most"), [(Subscriber.stop, 50), (Subscriber.terminate, 1)])
def test_stop_delivers_received_messages_and_terminate_does_not(
    end: Callable[[Subscriber], None], most: int, is_sharer: bool
) -> None:
    feed, gate = one_slice(), CollectingGate()
    owner = Subscriber(feed, slow=SlowPolicy(max_lag=3_600, grace=60), queue_blocks=100, workers=2)
    others = Collector()
    if is_sharer:
        owner.on(b"")(others.message)
    subscriber = owner.share() if is_sharer else owner
    subscriber.on_batch(b"")(gate.batch)
    with RawPublisher(feed) as publisher:
        for each in dict.fromkeys((owner, subscriber)):
            each.start()
        publisher.send(publisher.encode([(b"T", b"0")]))
        assert gate.entered.wait(200)
        for number in range(1, 50):
            publisher.send(publisher.encode([(b"T", b"%d" % number)]))
        wait_until(lambda: owner.statistics().delivery.matched == 50)
        end_at(gate, subscriber, end)
        assert numbers_of(gate.got) == list(range(most))
        if is_sharer:
            others.wait(50)
            owner.stop()
    assert subscriber.state is SubscriberLife.ENDED
    delivery = owner.statistics().delivery
    if not is_sharer:
        assert (delivery.due, delivery.delivered, delivery.discarded) == (50, most, 50 - most)
        assert delivery.queue_blocks == 50 - most


def test_stop_gives_up_a_callback_that_does_not_return() -> None:
    subscriber = Subscriber(feed := one_slice(), slow=SlowPolicy(max_lag=3_600, grace=0.1))
    gate = Gate()
    subscriber.on(b"")(gate.message)
    with RawPublisher(feed) as publisher:
        subscriber.start()
        publisher.send(publisher.encode([(b"T", b"0")]))
        assert gate.entered.wait(200)
        with pytest.raises(SubscriberError, match="stop was not done in 0.3 s: a callback did not keep up"):
            subscriber.stop(timeout=0.3)
        gate.open.set()
        wait_until(lambda: subscriber.is_done)
        assert subscriber.state is SubscriberLife.ENDED


@pytest.mark.parametrize(
    ("end", "workers", "processes"),
    [
        *((end, workers, False) for end in (Subscriber.stop, Subscriber.terminate) for workers in (0, 1)),
        (Subscriber.stop, 0, True),
    ],
)
def test_a_callback_can_end_its_subscriber(end: Callable[[Subscriber], None], workers: int, processes: bool) -> None:
    feed, got = sliced(2), Collector()
    subscriber = Subscriber(feed, workers=workers, processes=processes)

    @subscriber.on(b"")
    def enough(message: Message) -> None:
        got.message(message)
        if len(got) == 10:
            end(subscriber)

    with Publisher(feed) as publisher:
        subscriber.start(timeout=200)
        for number in range(100):
            publisher.publish(b"S%d" % number, b"%d" % number)
        subscriber.run()
    assert subscriber.state is SubscriberLife.ENDED
    assert (subscriber.statistics().delivery.delivered if processes else len(got)) >= 10
    assert not active_children()


def test_run_gives_up_a_killed_publisher_and_delivers_received_messages() -> None:
    """The publisher of slice 0 has ended, so its silence is no error."""
    subscriber, got = subscribed(feed := sliced(2))
    topic = topic_of_each(feed)[1]
    with RawPublisher(feed) as publisher:
        subscriber.start()
        publisher.heartbeat(end=True, slice_id=0)
        for number in range(10):
            publisher.send(publisher.encode([(topic, b"%d" % number)], slice_id=1))
        got.wait(10)
        wait_until(lambda: subscriber._supervisor.slices.running[0].status.is_finished)
    with pytest.raises(SilentPublisherError, match=r"slice 1: nothing came from the publisher at tcp:.* for 0.3 s"):
        subscriber.run(until_end=True, silence_timeout=0.3)
    assert numbers_of(got) == list(range(10))


def test_a_publisher_is_not_silent_while_the_slice_does_not_look() -> None:
    gate, subscriber = Gate(), Subscriber(feed := one_slice(), workers=0, slow=PATIENT)
    subscriber.on(b"")(gate.message)
    with RawPublisher(feed) as publisher, subscriber:
        publisher.send(publisher.encode([(b"T", b"0")]))
        assert gate.entered.wait(200)
        publisher.heartbeat()
        subscriber._check_silence(1e-9)
        gate.open.set()


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


SIGNALLED = """
    subscriber = Subscriber(feed)
    got = Collector()
    subscriber.on(b"")(got.message)
    before = signal.getsignal(signal.SIGTERM)
    subscriber.start(timeout=200)
    say("started")
    {extra}
    try:
        subscriber.run()
    except SystemExit:
        say(len(got), signal.getsignal(signal.SIGTERM) == before)
        raise
    say("ended", len(got), subscriber.state.value, signal.getsignal(signal.SIGTERM) == before)
"""


@pytest.mark.parametrize("number", first_of([signal.SIGINT, signal.SIGTERM, signal.SIGHUP], keep=2))
def test_a_signal_stops_run_and_received_messages_are_delivered(number: signal.Signals) -> None:
    feed = one_slice()
    extra = """
    wait_until(lambda: subscriber.statistics().received.messages == 50)
    say("received")
    """
    with RawPublisher(feed) as publisher, Script(SIGNALLED.format(extra=extra), feed) as script:
        script.expect("started")
        for _ in range(50):
            publisher.send(publisher.encode([(b"T", b"x")]))
        publisher.heartbeat()
        script.expect("received")
        # The script prints nothing more until it is stopped: its handlers are installed once signals are not fatal.
        wait_until(lambda: _handles(script.process.pid), what="run() handles signals")
        script.process.send_signal(number)
        status, out, errors = script.finish()
    if number != signal.SIGINT:
        assert (status, out.strip()) == (128 + number, "50 True"), errors
    else:
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
        wait_until(lambda: _handles(script.process.pid), what="run() handles signals")
        script.process.send_signal(signal.SIGINT)
        script.process.send_signal(signal.SIGTERM)
        status, _, errors = script.finish()
    assert status == 143, errors  # before all was delivered, which would take longer than `finish` waits


def _handles(pid: int) -> bool:
    """Return True if `run` has begun to handle signals, according to Linux."""
    with open(f"/proc/{pid}/status") as status:  # noqa: PTH123
        caught = next(line for line in status if line.startswith("SigCgt"))
    # Python itself handles SIGINT from the beginning: SIGTERM shows that run() has begun.
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def test_a_second_signal_while_the_first_one_is_handled_terminates() -> None:
    calls = list[str]()

    def stop(number: int) -> None:
        calls.append(signal.Signals(number).name)
        if len(calls) == 1:
            signal.raise_signal(signal.SIGTERM)

    with stopping_at_signals(stop, lambda: calls.append("terminate")) as came:
        signal.raise_signal(signal.SIGINT)
    assert (calls, came) == (["SIGINT", "terminate"], {signal.SIGINT, signal.SIGTERM})


def test_signals_are_ignored_outside_the_main_thread() -> None:
    subscriber = Subscriber(feed := one_slice())
    subscriber.on(b"")(nothing)
    before = signal.getsignal(signal.SIGTERM)
    with Publisher(feed):
        running = threading.Thread(target=subscriber.run)
        running.start()
        wait_until(lambda: subscriber.statistics().received.last_ns > 0)
        assert signal.getsignal(signal.SIGTERM) is before
        subscriber.stop()
        running.join()


def test_run_that_is_stopped_before_a_confirmation_delivers_and_ends_without_an_error() -> None:
    gate, subscriber = CollectingGate(), Subscriber(feed := one_slice())
    subscriber.on_batch(b"")(gate.batch)
    with RawPublisher(feed) as publisher, ThreadPoolExecutor(1) as pool:
        publisher.confirms = False
        running = pool.submit(subscriber.run)
        wait_until(lambda: b"" in publisher.subscriptions())
        for number in range(3):
            publisher.send(publisher.encode([(b"T", b"%d" % number)]))
        wait_until(lambda: subscriber.statistics().received.messages == 3)
        assert not running.done()
        subscriber.request_stop()
        assert not running.done()
        gate.open.set()
        running.result(200)
    assert numbers_of(gate.got) == [0, 1, 2]


def test_run_that_is_stopped_before_its_slices_start_ends_without_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    subscriber = Subscriber(one_slice())
    subscriber.on(b"")(nothing)

    def load_and_stop(schema: Any) -> Any:  # the handler of a signal runs in the thread that starts
        subscriber.request_stop()
        return load_schema(schema)

    monkeypatch.setattr(supervisor, "load_schema", load_and_stop)
    subscriber.run()
    assert subscriber.state is SubscriberLife.ENDED


@pytest.mark.parametrize("how", [Stopping.STOP, Stopping.TERMINATE])
def test_run_that_is_stopped_or_terminated_between_two_slices_ends_both_so(
    how: Stopping, monkeypatch: pytest.MonkeyPatch
) -> None:
    subscriber, start = Subscriber(sliced(2)), SliceThread.start
    subscriber.on(b"")(nothing)

    def start_and_stop(thread: SliceThread) -> None:
        start(thread)
        if thread.slice_id == 0:  # the other one has not been made yet
            subscriber.request_stop()
            if how is Stopping.TERMINATE:
                subscriber._share.request_end(at_once=True)  # as a second signal does

    monkeypatch.setattr(SliceThread, "start", start_and_stop)
    monkeypatch.setattr(shared_slices, "_STOP_S", 600.0)
    subscriber.run()
    states = [thread.status.state for thread in subscriber._supervisor.slices.running.values()]
    assert [state.stopping for state in states] == [how, how]


def test_a_start_that_is_stopped_does_not_wait_forever_for_a_callback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_slices, "_STOP_S", 0.1)
    gate, subscriber = Gate(), Subscriber(feed := one_slice(), slow=SlowPolicy(grace=0.1))
    subscriber.on(b"")(gate.message)
    with RawPublisher(feed) as publisher, ThreadPoolExecutor(1) as pool:
        publisher.confirms = False
        starting = pool.submit(subscriber.start)
        wait_until(lambda: b"" in publisher.subscriptions())
        publisher.send(publisher.encode([(b"T", b"0")]))
        assert gate.entered.wait(200)
        subscriber.request_stop()
        with pytest.raises(SubscriberError, match="ended before its subscriptions were confirmed"):
            starting.result(200)
        gate.open.set()
        wait_until(lambda: subscriber.is_done)


def test_signals_received_by_its_threads_change_nothing() -> None:
    feed, others = one_slice(), set(threading.enumerate())
    got, subscriber = Collector(), Subscriber(feed)
    subscriber.on(b"")(got.message)
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        with Publisher(feed, when_full="wait") as publisher:
            subscriber.start()
            names = ("blackbox-sender", "blackbox-slice", "blackbox-worker")
            threads = [t for t in set(threading.enumerate()) - others if t.name.startswith(names)]
            for number in range(1_000):
                for thread in threads:
                    signal.pthread_kill(thread.ident or 0, signal.SIGUSR1)
                publisher.publish(b"A", b"%d" % number)
        subscriber.run(until_end=True)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert got.payloads == [b"%d" % number for number in range(1_000)]
