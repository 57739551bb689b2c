"""SIGINT and SIGTERM stop run(), a second one terminates it, and no other signal changes anything."""

from __future__ import annotations

import signal
import threading

import pytest

from blackbox import Publisher, Subscriber
from blackbox.testing import Collector, RawPublisher, wait_until
from tests.examples import first_of
from tests.receive.subscribers import nothing, one_slice
from tests.support import Script

SIGNALLED = """
    subscriber = Subscriber(feed)
    got = Collector()
    subscriber.on(b"")(got.message)
    before = signal.getsignal(signal.SIGTERM)
    subscriber.start(timeout=60)
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


def test_signals_are_ignored_outside_the_main_thread() -> None:
    feed = one_slice()
    subscriber = Subscriber(feed)
    subscriber.on(b"")(nothing)
    before = signal.getsignal(signal.SIGTERM)
    with Publisher(feed):
        running = threading.Thread(target=subscriber.run)
        running.start()
        wait_until(lambda: subscriber.statistics().received.last_ns > 0)
        assert signal.getsignal(signal.SIGTERM) is before
        subscriber.stop()
        running.join()


def test_signals_received_by_its_threads_change_nothing() -> None:
    feed = one_slice()
    got = Collector()
    subscriber = Subscriber(feed)
    subscriber.on(b"")(got.message)
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        with Publisher(feed, when_full="wait") as publisher:
            subscriber.start()
            names = ("blackbox-sender", "blackbox-slice", "blackbox-worker")
            threads = [t for t in threading.enumerate() if t.name.startswith(names)]
            for number in range(1_000):
                for thread in threads:
                    signal.pthread_kill(thread.ident or 0, signal.SIGUSR1)
                publisher.publish(b"A", b"%d" % number)
        subscriber.run(until_end=True)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert got.payloads == [b"%d" % number for number in range(1_000)]
