"""By default a process survives a blocked callback: the subscriber ends and names the callback."""

from __future__ import annotations

import logging
import signal
import threading
import time

import pytest

from blackbox import Message, SlowPolicy, SlowSubscriberError, Subscriber
from blackbox.native.compile import compiling
from blackbox.receive.slow_subscriber import NO_LIMIT_NS
from blackbox.receive.supervise.supervisor import SubscriberLife
from blackbox.testing import Collector, RawPublisher, wait_until
from tests.gate import Gate
from tests.receive.late import late, one_slice
from tests.support import Script


def test_a_breakpoint_in_a_callback_is_named_in_the_error() -> None:
    feed, gate = one_slice(), Gate()
    subscriber = Subscriber(feed, slow=SlowPolicy(max_lag=2, grace=0.1, start_grace=0))

    @subscriber.on(b"")
    def stands_at_a_breakpoint(message: Message) -> None:
        gate.wait()

    @subscriber.on(b"other")
    def returns(message: Message) -> None: ...

    with RawPublisher(feed) as publisher:
        subscriber.start()
        publisher.send(publisher.encode([(b"T", b"0")]))
        assert gate.entered.wait(60)
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


def test_threads_left_behind_do_not_block_the_exit_of_the_interpreter() -> None:
    feed = one_slice()
    code = """
        subscribers = []
        for workers in (0, 2):
            slow = SlowPolicy(max_lag=2, grace=0.1, start_grace=0)
            subscribers.append(Subscriber(feed, workers=workers, slow=slow))
            @subscribers[-1].on(b"")
            def hang(message):
                say("hangs")
                time.sleep(1000)
            subscribers[-1].start()
        say("started")
        for subscriber in subscribers:
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
        script.expect("hangs")
        publisher.send(publisher.encode([(b"T", b"1")]))
        status, output, _ = script.finish(timeout=60)
    assert status == 0
    assert output.count("callback hang (") == 2
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


def test_the_policy_does_not_act_in_the_first_seconds_and_while_the_process_compiles() -> None:
    feed, got = one_slice(), Collector()
    subscriber = Subscriber(feed, slow=SlowPolicy(start_grace=3_600))
    subscriber.on(b"")(got.message)
    with RawPublisher(feed) as publisher:
        subscriber.start()
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
        with pytest.raises(SlowSubscriberError):
            subscriber.run()
    assert got.payloads[:2] == [b"at once", b"compiling"]


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
        status, output, errors = script.finish(timeout=30)
    assert (status, errors) == (0, "")
    assert output.rstrip().endswith("interrupted ended True")
