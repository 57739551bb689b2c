"""Processes of a hub's client that puts updates and of a table that applies them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
import numpy

from bench.measure.contest import expect
from bench.processes.child import answer, orders
from blackbox import Feed, HubClient, Subscriber
from blackbox.block.position import Place

PAYLOAD_BYTES = 100
_AT_ONCE = 10_000


def topics_of(count: int) -> list[bytes]:
    """Return the topics of a table."""
    return [b"SYM%06d.price" % number for number in range(count)]


def put(feed: Any, topics: Any) -> None:
    """Put `updates` messages over all topics in turn; answer with the start time and the last positions."""
    names = topics_of(topics)
    with HubClient(msgspec.convert(feed, Feed)) as client:
        for order in orders():
            rows = numpy.full((order["updates"], PAYLOAD_BYTES), order["value"], numpy.uint8)
            index = numpy.arange(_AT_ONCE, dtype=numpy.int32)
            began, last = time.time_ns(), dict[int, list[int]]()
            for start in range(0, len(rows), _AT_ONCE):
                first = start % topics
                places = client.put_many(names[first : first + _AT_ONCE], index, rows[start : start + _AT_ONCE])
                for slice_id, _, _, epoch, sequence in places[-1:].tolist():
                    last[slice_id] = [slice_id, epoch, sequence]
            answer(began=began, last=list(last.values()))


def keep(feed: Any) -> None:
    """Keep a table; answer when it has reached an order's positions, with the number of right values."""
    feed = msgspec.convert(feed, Feed)
    began, before = time.perf_counter(), _resident()
    subscriber = Subscriber(feed, on_gap="repair")
    table = subscriber.table(b"")
    subscriber.start(60, snapshot="latest")
    expect("table synced", table.wait_synced(60), True)
    joined, grown = time.perf_counter() - began, _resident() - before
    for order in orders():
        if order == "joined":
            answer(seconds=joined, topics=len(table), bytes=grown)
            continue
        has = all(table.wait(Place(*place), 60) for place in order["last"])
        ended = time.time_ns()
        value = bytes([order["value"]]) * PAYLOAD_BYTES
        answer(ended=ended, right=has and sum(each == value for each in table.values()))
    subscriber.terminate()


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4_096
