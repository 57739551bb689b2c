"""A subscriber that cannot keep up: alert, end, hung callbacks, and the policies drop and warn."""

from __future__ import annotations

import logging
import os
import socket
import time
from typing import Any

import msgspec
import pytest
import zmq

from blackbox import CallbackError, Feed, Message, SlowPolicy, SlowSubscriberError, Subscriber
from blackbox.feed.endpoint import free_endpoints
from blackbox.feed.monitor import Monitor
from blackbox.receive.alerts import ALERTS
from blackbox.receive.supervise.supervisor import SubscriberLife
from blackbox.testing import Collector, RawPublisher, wait_until
from tests.examples import first_of
from tests.gate import Gate
from tests.receive.late import LATE_NS, late, one_slice
from tests.receive.subscribers import nothing
from tests.support import Script

HUNG_STATUS = 3


def test_a_late_block_of_one_slice_ends_all_and_the_alert_comes_first(caplog: pytest.LogCaptureFixture) -> None:
    feed = Feed.local("slow", slices=3)
    topics = [next(b"S%d" % n for n in range(50) if feed.slice_of(b"S%d" % n) == each) for each in range(3)]
    heard: list[tuple[str, SubscriberLife]] = []

    def broken(text: str) -> None:
        heard.append((text, subscriber.state))
        raise RuntimeError(text)

    [[missing]] = free_endpoints("tcp", "console", 1, 1)
    subscriber = Subscriber(feed, slow=SlowPolicy(max_lag=100, console=missing, on_alert=broken, start_grace=0))
    got = Collector()
    subscriber.on(b"")(got.message)
    with RawPublisher(feed) as publisher:
        subscriber.start()
        for slice_id, topic in enumerate(topics):
            publisher.send(publisher.encode([(topic, b"in time")], slice_id=slice_id))
        got.wait(3)
        sent = time.time_ns() - LATE_NS
        publisher.send(publisher.encode([(topics[1], b"late")], slice_id=1, ts_out=sent))
        with pytest.raises(SlowSubscriberError) as caught:
            subscriber.run()
    text = str(caught.value)
    assert text.startswith("slow subscriber: feed 'slow' slice 1 lags 50")
    assert text.endswith("s, limit 100.000 s, policy raise")
    assert heard == [(text, SubscriberLife.RUNNING)]
    assert ("blackbox", logging.CRITICAL, text) in caplog.record_tuples
    assert got.payloads == [b"in time"] * 3
    assert subscriber.statistics().lag.slow_blocks == 1
    assert subscriber.state is SubscriberLife.ENDED


def test_a_subscriber_that_was_too_slow_is_finished_and_raises() -> None:
    """A loop on `is_finished` ends; the next call of the program raises."""
    feed = one_slice()
    subscriber = Subscriber(feed, slow=SlowPolicy(start_grace=0))
    subscriber.on(b"")(nothing)
    with RawPublisher(feed) as publisher, pytest.raises(SlowSubscriberError), subscriber:
        assert not subscriber.is_finished
        late(publisher, b"late")
        wait_until(lambda: subscriber.is_finished)
        for ask in (
            subscriber.run,
            subscriber.wait_confirmed,
            subscriber.wait_live,
            lambda: subscriber.on(b"other")(nothing),
            lambda: subscriber.checkpoint().__enter__(),
        ):
            with pytest.raises(SlowSubscriberError, match="policy raise"):
                ask()
    with pytest.raises(SlowSubscriberError):
        subscriber.stop()
    assert subscriber.is_finished


@pytest.mark.parametrize("is_in_feed", [False, True])
def test_the_operator_console_gets_the_alert(is_in_feed: bool) -> None:
    feed = one_slice()
    [[endpoint]] = free_endpoints("tcp", "console", 1, 1)
    if is_in_feed:
        feed = msgspec.structs.replace(feed, monitor=Monitor(console=endpoint))
    with zmq.Context() as context, context.socket(zmq.PULL) as console, RawPublisher(feed) as publisher:
        console.bind(endpoint)
        policy = SlowPolicy(start_grace=0) if is_in_feed else SlowPolicy(console=endpoint, start_grace=0)
        subscriber = Subscriber(feed, slow=policy)
        subscriber.on(b"")(lambda message: None)
        subscriber.start()
        late(publisher, b"late")
        with pytest.raises(SlowSubscriberError) as caught:
            subscriber.run()
        assert console.poll(60_000)
        alert = ALERTS.decode(console.recv())
    assert (alert.kind, alert.severity, alert.role, alert.slice_id) == ("late_blocks", "error", "subscriber", 0)
    assert (alert.feed, alert.host, alert.pid) == (feed.name, socket.gethostname(), os.getpid())
    assert alert.text == str(caught.value)
    assert 0 <= time.time_ns() - alert.since_ns < 60_000_000_000


def test_the_console_learns_which_callback_is_slow_and_which_error_ended_a_subscriber() -> None:
    feed = one_slice()
    [[endpoint]] = free_endpoints("tcp", "console", 1, 1)
    gate = Gate()
    with zmq.Context() as context, context.socket(zmq.PULL) as console, RawPublisher(feed) as publisher:
        console.bind(endpoint)
        subscriber = Subscriber(feed, workers=1, slow=SlowPolicy("warn", 0.05, console=endpoint, start_grace=0))

        @subscriber.on(b"")
        def slow_handler(message: Message) -> None:
            gate.wait()
            raise ValueError(message.payload)

        with pytest.raises(CallbackError), subscriber.start():
            for _ in range(3):
                publisher.send(publisher.encode([(b"T", b"bad")]))
            assert console.poll(60_000)
            slow = ALERTS.decode(console.recv())
            gate.open.set()
            while (ended := ALERTS.decode(console.recv())).kind == "slow_callback":
                pass
            subscriber.run()
    assert (slow.kind, slow.severity) == ("slow_callback", "warning")
    assert "slow_handler" in slow.text
    assert (ended.kind, ended.severity, ended.slice_id) == ("failed_callback", "error", None)
    assert "slow_handler" in ended.text


def test_a_process_with_a_callback_that_hangs_with_the_interpreter_ends_itself() -> None:
    feed = one_slice()
    # The regular expression engine never releases the GIL, so no other Python code can run.
    code = """
        subscriber = Subscriber(feed, slow=SlowPolicy("exit_process", max_lag=3, grace=0.3, start_grace=0))
        @subscriber.on(b"")
        def hang(message):
            say("hangs")
            __import__('re').match('(a+)+$', 'a' * 64 + 'b')
        subscriber.start(timeout=60)
        say("started")
        subscriber.run()
    """
    with RawPublisher(feed) as publisher, Script(code, feed) as script:
        publisher.encode([(b"T", b"")])  # compiled before a callback waits for it
        script.expect("started")
        # While the callback hangs, the slice thread checks for silent lines, which needs the GIL.
        looks_at = time.monotonic() + 3 * feed.heartbeat_ns / 1e9
        wait_until(lambda: time.monotonic() > looks_at - 0.5)
        publisher.send(publisher.encode([(b"T", b"0")]))
        script.expect("hangs")
        publisher.send(publisher.encode([(b"T", b"1")]))
        status, _, errors = script.finish(timeout=60)
    assert status == HUNG_STATUS
    assert "a callback did not return in the grace time, the process ends itself" in errors


@pytest.mark.parametrize("worker", first_of([False, True]), ids=["in the slice thread", "on a worker"])
def test_a_process_with_a_hung_compiled_callback_ends_itself(worker: bool) -> None:
    feed = one_slice()
    code = f"""
        subscriber = Subscriber(feed, slow=SlowPolicy("exit_process", max_lag=0.2, grace=0.3, start_grace=0))
        @subscriber.on_compiled(b"", state=numpy.zeros(1), worker={worker})
        def hang(batch, state):
            while state[0] >= 0:
                state[0] += 1
        subscriber.start(timeout=60)
        say("started")
        subscriber.run()
    """
    with RawPublisher(feed) as publisher, Script(code, feed) as script:
        script.expect("started")

        def has_ended() -> bool:
            publisher.send(publisher.encode([(b"T", b"")]))
            return script.process.poll() is not None

        wait_until(has_ended, 60)
        status, _, errors = script.finish(timeout=60)
    assert status == HUNG_STATUS
    assert "a callback did not return in the grace time, the process ends itself" in errors


@pytest.mark.parametrize("rows", [1, 2])
def test_a_hung_callback_is_lag_while_blocks_of_its_worker_wait(rows: int) -> None:
    """Nothing is left in the queue then: the worker took all waiting blocks at once."""
    feed = one_slice()
    subscriber = Subscriber(feed, slow=SlowPolicy(max_lag=3, grace=60, start_grace=0))
    gates = {payload: Gate() for payload in (b"0", b"1", b"2")}

    @subscriber.on(b"")
    def busy(message: Message) -> None:
        gates[message.payload].wait()

    with RawPublisher(feed) as publisher:
        subscriber.start()
        publisher.send(publisher.encode([(b"T", b"0")] * rows))
        assert gates[b"0"].entered.wait(60)
        for payload in (b"1", b"2"):
            publisher.send(publisher.encode([(b"T", payload)] * rows))
        wait_until(lambda: subscriber.statistics().received.blocks == 3)
        gates[b"0"].open.set()
        assert gates[b"1"].entered.wait(60)
        assert subscriber.statistics().delivery.queue_blocks == 0
        wait_until(lambda: subscriber.state is SubscriberLife.STOPPING)
        for gate in gates.values():
            gate.open.set()
        with pytest.raises(SlowSubscriberError):
            subscriber.run()


@pytest.mark.parametrize("action", ["drop", "warn"])
def test_late_blocks_are_dropped_or_delivered_and_counted(action: Any) -> None:
    feed = one_slice()
    heard: list[str] = []
    subscriber = Subscriber(feed, slow=SlowPolicy(action, on_alert=heard.append, start_grace=0))
    got = Collector()
    subscriber.on(b"")(got.message)
    with RawPublisher(feed) as publisher:
        subscriber.start()
        for number in range(20):
            lag_ns = LATE_NS if number % 4 == 3 else 0
            rows = [(b"T", b"%d" % number)] * 3
            publisher.send(publisher.encode(rows, ts_out=time.time_ns() - lag_ns))
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    delivered = [number for number in range(20) if action == "warn" or number % 4 != 3]
    assert got.payloads == [b"%d" % number for number in delivered for _ in range(3)]
    statistics = subscriber.statistics()
    assert statistics.delivery.dropped == 60 - len(got)
    assert (statistics.lag.slow_blocks, statistics.received.gaps) == (5, 0)
    assert 1 <= len(heard) <= 5
    assert heard[0].endswith(f"policy {action}")


def test_drop_discards_blocks_without_room_in_a_full_queue() -> None:
    feed = one_slice()
    subscriber = Subscriber(feed, slow=SlowPolicy("drop", max_lag=2, start_grace=0), queue_blocks=2)
    got = Collector()
    gate = Gate()

    @subscriber.on(b"")
    def note(message: Message) -> None:
        gate.wait()
        got.message(message)

    with RawPublisher(feed) as publisher:
        subscriber.start()
        for number in range(200):
            publisher.send(publisher.encode([(b"T", b"%d" % number)]))
            assert gate.entered.wait(60)  # a worker that arrives later takes everything that waits
        wait_until(lambda: subscriber.statistics().received.messages == 200)
        wait_until(lambda: subscriber.statistics().delivery.dropped > 0)
        gate.open.set()
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    statistics = subscriber.statistics()
    assert statistics.delivery.delivered + statistics.delivery.dropped == 200
    assert statistics.delivery.delivered == len(got)
    assert [int(p) for p in got.payloads] == sorted(int(p) for p in got.payloads)
