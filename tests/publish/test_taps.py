"""Taps that stop reading: neither a publisher nor a relay with `when_full="wait"` waits for them."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import numpy
import pytest

from blackbox import Feed, Publisher, Relay
from blackbox.testing import wait_until
from tests.examples import first_of
from tests.publish.subscribers import collected, one_slice
from tests.support import Script

ROWS = 60
PAYLOADS = numpy.zeros((ROWS, 1_000), numpy.uint8)
BLOCKS = 1_000
"""60 MB: more than all buffers between a publisher and a process that reads nothing."""
TAP = """
from blackbox.services.monitor.tap import Tap
with Tap(feed) as tap:
    tap.wait_confirmed()
    say("confirmed")
    while True:
        for batch in tap.read():
            for message in batch:
                if len(message.payload) < 1000:
                    say(message.payload.decode())
        for note in tap.notes():
            say("note:", note)
"""


@contextmanager
def stopped_tap(feed: Feed, hop: Publisher | Relay) -> Iterator[Script]:
    """Yield a tap's process that is stopped, and known to the publisher or relay."""
    with Script(TAP, feed) as tap:
        tap.expect("confirmed")
        wait_until(lambda: any(each.is_tap for each in hop.statistics().peers))
        tap.suspend()
        yield tap


def publish_all(publisher: Publisher) -> None:
    for _ in range(BLOCKS):
        publisher.publish_many((b"AAPL.x",), numpy.zeros(ROWS, int), PAYLOADS)
    publisher.flush()


@pytest.mark.parametrize("transport", first_of(["tcp", "ipc"]))
def test_a_stopped_tap_is_disconnected_and_goes_on_later(transport: str, caplog: pytest.LogCaptureFixture) -> None:
    feed = one_slice(transport=transport, block_bytes=65_536)
    subscriber, got = collected(feed)
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        with stopped_tap(feed, publisher) as tap:
            publish_all(publisher)
            wait_until(lambda: publisher.statistics().put_out == 1)
            assert "did not keep up" in caplog.text
            assert publisher.statistics().subscribers == 1
            stopped_ns = time.time_ns()
            tap.process.send_signal(signal.SIGCONT)
            while not tap.read().startswith("note: feed 'publisher' slice 0 at"):
                pass
            wait_until(
                lambda: any(
                    each.is_tap and each.since_ns > stopped_ns and each.subscriptions > 2
                    for each in publisher.statistics().peers
                )
            )
            publisher.publish(b"AAPL.x", b"again")
            tap.expect("again")
    subscriber.run(until_end=True)
    assert (subscriber.statistics().received.gaps, len(got)) == (0, BLOCKS * ROWS + 1)


def test_a_stopped_tap_does_not_stop_a_relay() -> None:
    feed = one_slice(block_bytes=65_536)
    below = msgspec.structs.replace(feed, slices=one_slice().slices)
    subscriber, got = collected(below)
    with (
        Publisher(feed, when_full="wait") as publisher,
        Relay(feed, below, when_full="wait") as relay,
        stopped_tap(below, relay),
    ):
        subscriber.start()
        publish_all(publisher)
        got.wait(BLOCKS * ROWS)
        wait_until(lambda: relay.statistics().put_out == 1)
        subscriber.stop()
    assert subscriber.statistics().received.gaps == 0


def test_a_tap_that_reads_nothing_is_disconnected_without_a_wait() -> None:
    """With `when_full="drop"` its queue would take memory for as long as it is stopped."""
    feed = one_slice(block_bytes=65_536)
    with Publisher(feed) as publisher, stopped_tap(feed, publisher):
        publish_all(publisher)
        wait_until(lambda: publisher.statistics().put_out == 1)
