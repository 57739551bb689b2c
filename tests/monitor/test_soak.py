"""A healthy installation raises no alarm: for 5 s, and at length in `make test-long` (`BLACKBOX_SOAK_S`, 900 s)."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path

import msgspec
import numpy
import pytest

from blackbox import Batch, Feed, Publisher, Recorder, Relay, Subscriber
from blackbox.services.monitor.console.console import Console
from blackbox.services.monitor.console.history import Event
from blackbox.services.monitor.watch.watcher import Watcher
from blackbox.testing import wait_until
from tests.monitor.test_twelve_faults import repeated, served

SECONDS = float(os.environ.get("BLACKBOX_SOAK_S", "900"))
ROWS, EVERY_S = 2_000, 0.02
"""100,000 messages a second."""
S = 1_000_000_000
TOPICS = tuple(b"S%02d.trade" % number for number in range(50))


@pytest.mark.timeout(SECONDS + 300)
@pytest.mark.parametrize(
    ("seconds", "limits"),
    [
        pytest.param(5.0, {"max_lag_ns": 60 * S, "heartbeat_ns": 2 * S}, id="busy machine"),
        pytest.param(SECONDS, {"max_lag_ns": S}, marks=pytest.mark.long, id="soak"),
    ],
)
def test_a_healthy_installation_at_full_load_raises_no_alarm(
    tmp_path: Path, seconds: float, limits: dict[str, int]
) -> None:
    feed = msgspec.structs.replace(Feed.local("soaked", slices=2), **limits)
    below = msgspec.structs.replace(feed, slices=Feed.local("soaked", slices=2).slices)
    events, received = list[Event](), Counter[int]()
    subscriber = Subscriber(below)

    @subscriber.on_batch(b"")
    def count(batch: Batch) -> None:
        received[batch.block.slice_id] += len(batch)

    rows = numpy.arange(ROWS, dtype=numpy.int32) % len(TOPICS)
    payloads = numpy.zeros((ROWS, 100), numpy.uint8)
    with (
        Publisher(feed) as publisher,
        Relay(feed, below, name="london") as relay,
        Recorder(feed, tmp_path) as recorder,
        subscriber,
        served(publisher) as first,
        served(relay) as second,
        served(recorder, subscriber) as third,
        Console(Watcher([feed], [first, second, third]), say=events.append) as console,
    ):
        with repeated(lambda: publisher.publish_many(TOPICS, rows, payloads), EVERY_S):
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline and not events:
                console.look(0.5)
        sent = publisher.statistics().messages
        print(f"{sent:,} messages in {seconds:g} s, {len(events)} events")
        wait_until(lambda: received.total() == sent == recorder.statistics().messages, what="all messages")
    assert (events, sent > 0) == ([], True)
