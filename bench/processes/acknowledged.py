"""Processes of a publisher that waits until its messages are recorded or synced, and of its recorder."""

from __future__ import annotations

import time
from typing import Any, Final

import msgspec
import numpy

from bench.processes.child import answer, orders
from blackbox import Feed, Publisher, Recorder

PAYLOAD_BYTES: Final = 100
_TOPICS: Final = (b"AAPL.trade",)


def publish(feed: Any) -> None:
    """Publish `at_once` messages `calls` times and wait after each; answer with the seconds."""
    with Publisher(msgspec.convert(feed, Feed), when_full="wait") as publisher:
        wait = {"recorded": publisher.wait_recorded, "synced": publisher.wait_synced, "sent": publisher.flush}
        for order in orders():
            publisher.wait_for_subscribers()
            rows = numpy.random.default_rng(1).integers(0, 256, (order["at_once"], PAYLOAD_BYTES), numpy.uint8)
            index = numpy.zeros(len(rows), numpy.int32)
            began = time.perf_counter()
            for _ in range(order["calls"]):
                publisher.publish_many(_TOPICS, index, rows)
                wait[order["what"]](60.0)
            answer(seconds=time.perf_counter() - began, put_out=publisher.statistics().put_out)


def record(feed: Any, directory: str, fsync: Any) -> None:
    """Record; answer each order with the number of messages recorded."""
    with Recorder(msgspec.convert(feed, Feed), directory, fsync=fsync, fsync_interval=0.001) as recorder:
        for _ in orders():
            answer(messages=recorder.statistics().messages)
