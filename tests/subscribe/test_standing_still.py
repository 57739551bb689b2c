"""By default a process survives a blocked callback: the subscriber ends and names the callback."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time

import pytest

from blackbox import Message, SlowPolicy, SlowSubscriberError, Subscriber
from blackbox.native import compiling
from blackbox.subscribe.slow_subscriber import NO_LIMIT_NS
from blackbox.subscribe.supervisor import SubscriberLife
from blackbox.testing import Collector, RawPublisher, wait_until
from tests.gate import Gate
from tests.subscribe.late import late, one_slice
from tests.support import Script


def test_a_breakpoint_in_a_callback_is_named_in_the_error() -> None:
    feed, gate = one_slice(), Gate()
    subscriber = Subscriber(feed, slow=SlowPolicy(max_lag=0.2, grace=0.1, start_grace=0))

    @subscriber.on(b"")
    def stands_at_a_breakpoint(message: Message) -> None:
        gate.wait()

    @subscriber.on(b"other")
    def returns(message: Message) -> None: ...

    with RawPublisher(feed) as publisher:
        subscriber.start()
        publisher.send(publisher.encode([(b"T", b"0")]))
        assert gate.entered.wait(10)
        publisher.send(publisher.encode([(b"T", b"1")]))
        with pytest.raises(SlowSubscriberError) as caught:
            subscriber.run()
        with pytest.raises(SlowSubscriberError, match="stands_at_a_breakpoint"):
            subscriber.stop()
    text = str(caught.value)
    assert "callback test_a_breakpoint_in_a_callback_is_named_in_the_error.<locals>." in text
    assert "stands_at_a_breakpoint (test_standing_still.py, line " in text
    assert " has been running for " in text
    assert text.endswith(" and was left behind in its thread")
    assert subscriber.state is SubscriberLife.ENDED
    assert not subscriber.is_done
    gate.open.set()
    wait_until(lambda: subscriber.is_done)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_thread_left_behind_does_not_block_the_exit_of_the_interpreter(workers: int) -> None:
    feed = one_slice()
    code = f"""
        subscriber = Subscriber(feed, workers={workers}, slow=SlowPolicy(max_lag=0.2, grace=0.1, start_grace=0))
        @subscriber.on(b"")
        def hang(message):
            say("hangs")
            time.sleep(1000)
        subscriber.start()
        say("started")
        try:
            subscriber.run()
        except SlowSubscriberError as error:
            say(str(error))
        say("alive")
    """
    with RawPublisher(feed) as publisher, Script(code, feed) as script:
        script.expect("started")
        publisher.send(publisher.encode([(b"T", b"0")]))
        script.expect("hangs")
        publisher.send(publisher.encode([(b"T", b"1")]))
        status, output, _ = script.finish(timeout=30)
    assert status == 0
    assert "callback hang (" in output
    assert output.rstrip().endswith("alive")


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
        try:
            while True:
                stream.get(timeout=20)
        except SlowSubscriberError as error:
            say(str(error))
        say("alive")
    """
    with RawPublisher(feed) as publisher, Script(code, feed) as script:
        script.expect("started")
        late(publisher, b"late")
        script.tell("x")
        status, output, _ = script.finish(timeout=30)
    assert status == 0
    assert "policy raise" in output
    assert output.rstrip().endswith("alive")


def test_a_process_stopped_for_a_minute_survives() -> None:
    feed = one_slice()
    code = """
        subscriber = Subscriber(feed, slow=SlowPolicy(max_lag=1, start_grace=0))
        subscriber.on(b"")(lambda message: None)
        subscriber.start()
        say("started")
        try:
            subscriber.run()
        except SlowSubscriberError as error:
            say(str(error))
        say("alive")
    """
    with RawPublisher(feed) as publisher, Script(code, feed) as script:
        script.expect("started")
        os.kill(script.process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, script.process.pid, os.WSTOPPED | os.WNOWAIT)
        # By the publisher's clock, this block was sent a minute before the process continues.
        publisher.send(publisher.encode([(b"T", b"")], ts_out=time.time_ns() - 60 * 10**9))
        os.kill(script.process.pid, signal.SIGCONT)
        status, output, _ = script.finish(timeout=30)
    assert status == 0
    assert "lags 60." in output
    assert output.rstrip().endswith("alive")


def test_the_policy_does_not_act_in_the_first_seconds() -> None:
    feed, got = one_slice(), Collector()
    subscriber = Subscriber(feed, slow=SlowPolicy(start_grace=3_600))
    subscriber.on(b"")(got.message)
    with RawPublisher(feed) as publisher:
        subscriber.start()
        late(publisher, b"at once")
        got.wait(1)
        assert subscriber.statistics().lag.slow_blocks == 0
        [thread] = subscriber._supervisor._slices.values()
        assert time.monotonic_ns() < thread.state.acts_from_ns < NO_LIMIT_NS
        thread.state.acts_from_ns = time.monotonic_ns()  # as if an hour later
        late(publisher, b"later")
        with pytest.raises(SlowSubscriberError):
            subscriber.run()
    assert got.payloads == [b"at once"]


def test_the_policy_does_not_act_while_the_process_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    feed, got = one_slice(), Collector()
    subscriber = Subscriber(feed, slow=SlowPolicy(start_grace=3_600))
    subscriber.on(b"")(got.message)
    with RawPublisher(feed) as publisher:
        subscriber.start()
        [thread] = subscriber._supervisor._slices.values()
        before = thread.state.acts_from_ns = time.monotonic_ns()  # as if an hour later
        compiling._compilations.active.append(time.monotonic())
        try:
            wait_until(lambda: thread.state.acts_from_ns > max(before, time.monotonic_ns()))
            late(publisher, b"late")
            got.wait(1)
        finally:
            compiling._compilations.active.pop()
        subscriber.stop()


def test_start_logs_once_what_it_waits_for_and_continues(caplog: pytest.LogCaptureFixture) -> None:
    feed = one_slice()
    subscriber = Subscriber(feed)
    subscriber.on(b"")(lambda message: None)
    starting = threading.Thread(target=subscriber.start)
    starting.start()
    endpoint = feed.slices[0].lines[0]
    why = "only this process knows the endpoints of Feed.local: load one feed file in all processes"
    text = f"feed {feed.name!r}: waiting for the publisher of slice 0 at {endpoint} ({why})"
    wait_until(lambda: ("blackbox", logging.WARNING, text) in caplog.record_tuples, 30)
    with RawPublisher(feed):
        starting.join(30)
        assert not starting.is_alive()
        subscriber.stop()
    assert caplog.record_tuples.count(("blackbox", logging.WARNING, text)) == 1


@pytest.mark.parametrize("wait", ["subscriber.start()", "subscriber.run()"])
def test_ctrl_c_ends_the_wait_for_publishers(wait: str) -> None:
    feed = one_slice()
    code = f"""
        import logging
        subscriber = Subscriber(feed)
        subscriber.on(b"")(lambda message: None)
        class Said(logging.Handler):
            def emit(self, record):
                say("log " + record.getMessage())
        logging.getLogger("blackbox").addHandler(Said())
        try:
            {wait}
        except KeyboardInterrupt:
            say(f"interrupted {{subscriber.state.value}} {{subscriber.is_done}}")
    """
    with Script(code, feed) as script:
        assert script.read().startswith(f"log feed {feed.name!r}: waiting for the publisher of slice 0 at ")
        script.process.send_signal(signal.SIGINT)
        status, output, errors = script.finish(timeout=30)
    assert (status, errors) == (0, "")
    assert output.rstrip().endswith("interrupted ended True")
