"""A subscriber that cannot keep up: alert, end, and callbacks that hang, which the process survives by default."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from typing import Any, Literal

import msgspec
import pytest
import zmq

from blackbox import CallbackError, Feed, Message, SlowPolicy, SlowSubscriberError, Subscriber
from blackbox.feed.endpoint import free_endpoints
from blackbox.feed.monitor import Monitor
from blackbox.native.compile import compiling
from blackbox.receive import alerts
from blackbox.receive.alerts import ALERTS, Alert
from blackbox.receive.slow_subscriber import NO_LIMIT_NS
from blackbox.receive.supervise.supervisor import SubscriberLife
from blackbox.testing import Collector, RawPublisher, wait_until
from tests.examples import first_of
from tests.gate import Gate
from tests.patience import PATIENCE_S
from tests.receive.subscribers import LATE_NS, late, nothing, one_slice, publishing, subscribed
from tests.support import Script

HUNG_STATUS = 3


def test_a_late_block_of_one_slice_ends_all_and_the_alert_comes_first(caplog: pytest.LogCaptureFixture) -> None:
    feed = Feed.local("slow", slices=3)
    topics = [next(b"S%d" % n for n in range(50) if feed.slice_of(b"S%d" % n) == each) for each in range(3)]
    heard: list[tuple[str, SubscriberLife]] = []

    def broken(text: str) -> None:
        heard.append((text, subscriber.state))
        raise SystemExit(text)

    [[missing]] = free_endpoints("tcp", "console", 1, 1)
    subscriber, got = subscribed(
        feed, slow=SlowPolicy(max_lag=100, grace=60, console=missing, on_alert=broken, start_grace=0)
    )
    with pytest.raises(SlowSubscriberError) as caught, publishing(feed, subscriber) as publisher:
        for slice_id, topic in enumerate(topics):
            publisher.send(publisher.encode([(topic, b"in time")], slice_id=slice_id))
        got.wait(3)
        sent = time.time_ns() - LATE_NS
        publisher.send(publisher.encode([(topics[1], b"late")], slice_id=1, ts_out=sent))
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
    subscriber = Subscriber(feed := one_slice(), slow=SlowPolicy(start_grace=0))
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


def test_an_alert_may_name_a_file_whose_name_is_no_text() -> None:
    text = "caf\udce9"
    alert = Alert(kind="failed", severity="error", feed="f", host="h", pid=1, role="recorder", text=text, since_ns=1)
    assert ALERTS.decode(alert.encode()).text == "caf\\udce9"


@pytest.mark.parametrize(
    ("is_in_feed", "action", "kind", "severity"),
    [(False, "raise", "late_blocks", "error"), (True, "warn", "slow_callback", "warning")],
)
def test_the_operator_console_gets_the_alert_and_the_error_that_ended_a_subscriber(
    is_in_feed: bool, action: Literal["raise", "warn"], kind: str, severity: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alerts, "_LINGER_MS", 60_000)
    feed, gate, heard = one_slice(), Gate(), list[str]()
    [[endpoint]] = free_endpoints("tcp", "console", 1, 1)
    if is_in_feed:
        feed = msgspec.structs.replace(feed, monitor=Monitor(console=endpoint))
    with zmq.Context() as context, context.socket(zmq.PULL) as console, RawPublisher(feed) as publisher:
        console.bind(endpoint)
        console.rcvtimeo = 60_000
        settings: dict[str, Any] = {} if is_in_feed else {"console": endpoint}
        subscriber = Subscriber(feed, slow=SlowPolicy(action, on_alert=heard.append, start_grace=0, **settings))

        @subscriber.on(b"")
        def fail(message: Message) -> None:
            gate.wait()
            raise ValueError(message.payload)

        subscriber.start()
        if action == "warn":
            publisher.send(publisher.encode([(b"T", b"in time")]))
            assert gate.entered.wait(200)
        late(publisher, b"late")
        wait_until(lambda: heard, what="the alert")
        gate.open.set()
        with pytest.raises(SlowSubscriberError if action == "raise" else CallbackError) as caught:
            subscriber.run()
        alert = ALERTS.decode(console.recv())
        if action == "warn":
            ended = ALERTS.decode(console.recv())
            assert (ended.kind, ended.severity, ended.slice_id) == ("failed_callback", "error", None)
            assert str(caught.value) in ended.text
            assert ".<locals>.fail " in alert.text
    assert (alert.kind, alert.severity, alert.role, alert.slice_id) == (kind, severity, "subscriber", 0)
    assert (alert.feed, alert.host, alert.pid) == (feed.name, socket.gethostname(), os.getpid())
    assert alert.text.startswith(heard[0])
    assert 0 <= time.time_ns() - alert.since_ns < 60_000_000_000


def test_a_process_with_a_callback_that_hangs_with_the_interpreter_ends_itself() -> None:
    feed = one_slice()
    # The regular expression engine never releases the GIL, so no other Python code can run.
    code = """
        subscriber = Subscriber(feed, slow=SlowPolicy("exit_process", max_lag=1, grace=0.3, start_grace=0))
        @subscriber.on(b"")
        def hang(message):
            say("hangs")
            __import__('re').match('(a+)+$', 'a' * 64 + 'b')
        subscriber.start(timeout=200)
        say("started")
        subscriber.run()
    """
    with RawPublisher(feed) as publisher, Script(code, feed) as script:
        publisher.encode([(b"T", b"")])  # compiled before a callback waits for it
        script.expect("started")
        # While the callback hangs, the slice thread checks for silent lines, which needs the GIL.
        looks_at = time.monotonic() + 3 * feed.heartbeat_ns / 1e9
        wait_until(lambda: time.monotonic() > looks_at - 0.5)
        late(publisher, b"0", -LATE_NS)  # stamped by a clock that is ahead, so never late
        script.expect("hangs")
        publisher.send(publisher.encode([(b"T", b"1")]))
        status, _, errors = script.finish(timeout=200)
    assert status == HUNG_STATUS
    assert "a callback did not return in the grace time, the process ends itself" in errors


@pytest.mark.parametrize("worker", first_of([False, True]), ids=["in the slice thread", "on a worker"])
def test_a_process_with_a_hung_compiled_callback_ends_itself(worker: bool) -> None:
    feed = one_slice()
    code = f"""
        subscriber = Subscriber(feed, slow=SlowPolicy("exit_process", max_lag=1, grace=0.3, start_grace=0))
        @subscriber.on_compiled(b"", state=numpy.zeros(1), worker={worker})
        def hang(batch, state):
            while state[0] >= 0:
                state[0] += 1
        subscriber.start(timeout=200)
        say("started")
        subscriber.run()
    """
    with RawPublisher(feed) as publisher, Script(code, feed) as script:
        script.expect("started")
        late(publisher, b"", -LATE_NS)

        def has_ended() -> bool:
            publisher.send(publisher.encode([(b"T", b"")]))
            return script.process.poll() is not None

        wait_until(has_ended)
        status, _, errors = script.finish(timeout=200)
    assert status == HUNG_STATUS
    assert "a callback did not return in the grace time, the process ends itself" in errors


@pytest.mark.parametrize("rows", [1, 2])
def test_a_hung_callback_is_lag_while_blocks_of_its_worker_wait(rows: int) -> None:
    """Nothing is left in the queue then: the worker took all waiting blocks at once."""
    subscriber = Subscriber(feed := one_slice(), slow=SlowPolicy(max_lag=0.5, grace=60, start_grace=3_600))
    gates = {payload: Gate() for payload in (b"0", b"1", b"2")}

    @subscriber.on(b"")
    def busy(message: Message) -> None:
        gates[message.payload].wait()

    with RawPublisher(feed) as publisher:
        subscriber.start()
        publisher.send(publisher.encode([(b"T", b"0")] * rows))
        assert gates[b"0"].entered.wait(200)
        for payload in (b"1", b"2"):
            publisher.send(publisher.encode([(b"T", payload)] * rows))
        wait_until(lambda: subscriber.statistics().delivery.queue_blocks == 2)  # handed over
        gates[b"0"].open.set()
        assert gates[b"1"].entered.wait(200)
        assert subscriber.statistics().delivery.queue_blocks == 0
        [thread] = subscriber._supervisor.slices.running.values()

        def has_acted() -> bool:
            thread.status.state.acts_from_ns = time.monotonic_ns()  # as if an hour later
            return subscriber.state is SubscriberLife.STOPPING

        wait_until(has_acted)
        for gate in gates.values():
            gate.open.set()
        with pytest.raises(SlowSubscriberError):
            subscriber.run()


@pytest.mark.parametrize(("workers", "is_hook"), [(2, False), (0, True), (1, True)])
def test_a_breakpoint_in_a_callback_or_hook_is_named_in_the_error(workers: int, is_hook: bool) -> None:
    slow, gate = SlowPolicy(max_lag=0.5, grace=0.1, start_grace=0), Gate()
    subscriber, _ = subscribed(feed := one_slice(), b"other", workers=workers, slow=slow)

    def stands_at_a_breakpoint(*_: object) -> None:
        gate.wait()

    subscriber.on(b"")(nothing if is_hook else stands_at_a_breakpoint)
    if is_hook:
        subscriber.on_epoch(stands_at_a_breakpoint)
    with RawPublisher(feed) as publisher:
        subscriber.start()
        late(publisher, b"0", -LATE_NS)
        assert gate.entered.wait(200)
        if not is_hook:
            publisher.send(publisher.encode([(b"T", b"1")]))
        with pytest.raises(SlowSubscriberError) as caught:
            subscriber.run()
        with pytest.raises(SlowSubscriberError, match="stands_at_a_breakpoint"):
            subscriber.stop()
    text = str(caught.value)
    assert "test_a_breakpoint_in_a_callback_or_hook_is_named_in_the_error.<locals>." in text
    assert "stands_at_a_breakpoint (test_slow_subscriber.py, line " in text
    assert " has been running for " in text
    assert text.endswith(" and was left behind in its thread")
    assert subscriber.state is SubscriberLife.ENDED
    assert not subscriber.is_done
    gate.open.set()
    wait_until(lambda: subscriber.is_done)


def test_threads_left_behind_do_not_block_the_exit_of_the_interpreter() -> None:
    feed = one_slice()
    code = """
        subscribers = []
        for workers in (0, 2):
            slow = SlowPolicy(max_lag=0.5, grace=0.1, start_grace=0)
            subscribers.append(Subscriber(feed, workers=workers, slow=slow))
            @subscribers[-1].on(b"")
            def hang(message):
                say("hangs")
                time.sleep(1000)
            subscribers[-1].start()
        say("started")
        input()
        for subscriber in subscribers:
            try:
                subscriber.run()
            except SlowSubscriberError as error:
                say(str(error))
        say("alive")
    """
    with RawPublisher(feed) as publisher, Script(code, feed) as script:
        script.expect("started")
        late(publisher, b"0", -LATE_NS)
        script.expect("hangs")
        script.expect("hangs")
        publisher.send(publisher.encode([(b"T", b"1")]))
        script.tell("")
        status, output, _ = script.finish(timeout=200)
    assert status == 0
    assert output.count("callback hang (") == 2
    assert output.rstrip().endswith("alive")


READ_UNTIL_SLOW = """
        try:
            while True:
                stream.get(timeout=200)
        except SlowSubscriberError as error:
            say(str(error))
        say("alive")
"""


def test_a_notebook_cell_that_holds_the_gil_ends_only_the_subscriber() -> None:
    """`PyDLL` holds the GIL while `read` waits for a line of the test."""
    feed = one_slice()
    code = """
        import ctypes
        subscriber = Subscriber(feed, slow=SlowPolicy(start_grace=0))
        stream = subscriber.stream(b"")
        subscriber.start()
        say("started")
        ctypes.PyDLL(None).read(0, ctypes.create_string_buffer(1), 1)
    """
    with RawPublisher(feed) as publisher, Script(code + READ_UNTIL_SLOW, feed) as script:
        script.expect("started")
        late(publisher, b"late")
        script.tell("x")
        status, output, _ = script.finish()
    assert status == 0
    assert "policy raise" in output
    assert output.rstrip().endswith("alive")


def test_a_suspended_process_ends_only_its_subscriber() -> None:
    """As when a laptop's lid is closed: a message waits for longer than `max_lag`."""
    feed = one_slice()
    code = """
        subscriber = Subscriber(feed, slow=SlowPolicy(max_lag=0.2, start_grace=0))
        stream = subscriber.stream(b"")
        subscriber.start()
        say("started")
    """
    with RawPublisher(feed) as publisher, Script(code + READ_UNTIL_SLOW, feed) as script:
        script.expect("started")
        script.suspend()
        sent_at = time.monotonic()
        publisher.send(publisher.encode([(b"T", b"1")]))
        wait_until(lambda: time.monotonic() > sent_at + 0.5)
        script.process.send_signal(signal.SIGCONT)
        status, output, _ = script.finish()
    assert status == 0
    assert "policy raise" in output
    assert output.rstrip().endswith("alive")


def test_the_policy_does_not_act_in_the_first_seconds_and_while_the_process_compiles() -> None:
    feed, got = one_slice(), Collector()
    subscriber = Subscriber(feed, slow=SlowPolicy(start_grace=3_600))
    subscriber.on(b"")(got.message)
    with pytest.raises(SlowSubscriberError), publishing(feed, subscriber) as publisher:
        late(publisher, b"at once")
        got.wait(1)
        assert subscriber.statistics().lag.slow_blocks == 0
        [thread] = subscriber._supervisor.slices.running.values()
        assert time.monotonic_ns() < thread.status.state.acts_from_ns < NO_LIMIT_NS
        before = thread.status.state.acts_from_ns = time.monotonic_ns()  # as if an hour later
        compiling._compilations.active.append(time.monotonic())
        try:
            wait_until(lambda: thread.status.state.acts_from_ns > max(before, time.monotonic_ns()))
            late(publisher, b"compiling")
            got.wait(2)
        finally:
            compiling._compilations.active.pop()

        def is_over() -> bool:
            thread.status.state.acts_from_ns = time.monotonic_ns()  # the slice may still be postponing it
            late(publisher, b"later")
            return subscriber.is_finished

        wait_until(is_over)
    assert got.payloads[:2] == [b"at once", b"compiling"]


def test_start_logs_once_what_it_waits_for_and_continues(caplog: pytest.LogCaptureFixture) -> None:
    subscriber = Subscriber(feed := one_slice())
    subscriber.on(b"")(lambda message: None)
    starting = threading.Thread(target=subscriber.start)
    starting.start()
    endpoint = feed.slices[0].lines[0]
    why = "only this process knows the endpoints of Feed.local: load one feed file in all processes"
    text = f"feed {feed.name!r}: waiting for the publisher of slice 0 at {endpoint} ({why})"
    wait_until(lambda: ("blackbox", logging.WARNING, text) in caplog.record_tuples, PATIENCE_S)
    with RawPublisher(feed):
        starting.join(200)
        assert not starting.is_alive()
        subscriber.stop()
    assert caplog.record_tuples.count(("blackbox", logging.WARNING, text)) == 1


def test_ctrl_c_ends_the_wait_for_publishers() -> None:
    feed = one_slice()
    code = """
        import logging
        subscriber = Subscriber(feed)
        subscriber.on(b"")(lambda message: None)
        class Said(logging.Handler):
            def emit(self, record):
                say("log " + record.getMessage())
        logging.getLogger("blackbox").addHandler(Said())
        try:
            subscriber.run()
        except KeyboardInterrupt:
            say(f"interrupted {subscriber.state.value} {subscriber.is_done}")
    """
    with Script(code, feed) as script:
        assert script.read().startswith(f"log feed {feed.name!r}: waiting for the publisher of slice 0 at ")
        script.process.send_signal(signal.SIGINT)
        status, output, errors = script.finish()
    assert (status, errors) == (0, "")
    assert output.rstrip().endswith("interrupted ended True")
