"""Traces from the records of slices and workers: none is torn, lost without need, or lacks some of its relays."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import numpy

from blackbox import Feed, Publisher, SlowPolicy, Subscriber
from blackbox.receive.trace.hops import Trace, TraceReader
from blackbox.receive.trace.rings import KEPT_BLOCKS, KEPT_RELAYS, OneRing, TraceRings
from blackbox.testing import wait_until
from blackbox.timestamps import DAY_NS

BEGIN_NS = 1_767_571_200_000_000_000


def put(ring: OneRing, **values: Any) -> None:
    """Write a record as compiled code does."""
    record = ring._records[ring._head.written % len(ring._records) :][:1]
    name = values.pop("name", b"")
    for field, value in values.items():
        record[field] = value
    if name:
        record["name_bytes"] = len(name)
        record["name"] = numpy.frombuffer(name.ljust(72, b"\0"), numpy.int64)
    ring._head.written += 1


def put_block(rings: TraceRings, sequence: int, *, worker: int = 0, noted_ns: int = 1, **values: Any) -> None:
    """Write a block of one message that took 100 ns for each hop."""
    at = BEGIN_NS + 1_000_000 * sequence
    names = ("ts_event", "ts_in", "ts_out", "ts_recv", "ts_match", "ts_call")
    times = dict(zip(names, range(at, at + 600, 100), strict=True))
    known = {"epoch": 1, "sequence": sequence, "end": sequence + 1, "noted_ns": noted_ns}
    put(rings.workers[worker], **{**known, **times, **values})


def put_relay(rings: TraceRings, sequence: int, place: int, name: bytes = b"london") -> None:
    at = BEGIN_NS + 1_000_000 * sequence
    times = {"ts_in": at + 200 + 10 * place, "ts_out": at + 205 + 10 * place, "ts_recv": at + 310}
    put(rings.relays, epoch=1, end=sequence + 1, place=place, name=b"12345678" + name, **times)


def read(rings: TraceRings, reader: TraceReader | None = None) -> list[Trace]:
    return (reader or TraceReader()).read({0: rings}, have_ended=True)


def labels(trace: Trace) -> list[str]:
    return [hop.label for hop in trace.hops]


def test_a_reader_gets_each_trace_once_and_the_newest_if_it_is_late() -> None:
    rings, reader = TraceRings(2), TraceReader()
    for sequence in range(3):
        put_block(rings, sequence, worker=sequence % 2)
    assert [(trace.worker, trace.sequence) for trace in read(rings, reader)] == [(0, 0), (0, 2), (1, 1)]
    assert read(rings, reader) == []
    for sequence in range(3, 10 + KEPT_BLOCKS):
        put_block(rings, sequence)
    newest = [trace.sequence for trace in read(rings, reader)]
    assert newest == [*range(11, 10 + KEPT_BLOCKS)]  # the oldest one may be replaced at any moment
    assert [trace.sequence for trace in read(rings) if trace.worker == 0] == newest


def test_a_running_subscriber_waits_until_relays_have_sent_their_times() -> None:
    rings, reader = TraceRings(1), TraceReader()
    put_block(rings, 0, noted_ns=time.monotonic_ns() - 10**10)
    put_block(rings, 1, noted_ns=time.monotonic_ns() + 10**12)
    assert [trace.sequence for trace in reader.read({0: rings}, have_ended=False)] == [0]
    assert [trace.sequence for trace in reader.read({0: rings}, have_ended=True)] == [1]


def test_traces_of_a_busy_slice_become_old_enough_to_be_read() -> None:
    """Many more blocks than a worker keeps come in the second before they are read."""
    feed = msgspec.structs.replace(Feed.local("busy", slices=1), trace_every=1)
    subscriber = Subscriber(feed, workers=1, slow=SlowPolicy("warn"))
    subscriber.on_batch(b"")(lambda _: None)
    with Publisher(feed, when_full="wait") as publisher, subscriber:
        publisher.wait_for_subscribers()

        def is_read() -> bool:
            for _ in range(KEPT_BLOCKS):
                publisher.publish(b"A.t", b"x")
                publisher.flush()
            return bool(subscriber.traces())

        wait_until(is_read, what="a trace")
        assert len(subscriber.traces()) < KEPT_BLOCKS


def test_a_trace_has_the_times_of_all_relays_or_of_none() -> None:
    rings = TraceRings(1)
    for sequence in range(4):
        put_block(rings, sequence)
    for sequence, places in ((0, (2, 1)), (1, (2,)), (2, (1, 1))):
        for place in places:
            put_relay(rings, sequence, place, b"desk" if place == 2 else b"london")
    direct = ["venue", "publish", "send", "receive", "match", "callback"]
    through = ["relay london in", "relay london out", "relay desk in", "relay desk out"]
    found = read(rings)
    assert [labels(trace) for trace in found] == [[*direct[:3], *through, *direct[3:]], direct, direct, direct]
    assert [trace.age_ns for trace in found] == [400] * 4
    assert [hop.took_ns for hop in found[0].hops] == [0, 100, 100, 10, 5, 5, 5, 75, 100, 100]


def test_unknown_times_are_left_out() -> None:
    rings = TraceRings(1)
    put_block(rings, 0, ts_event=0)
    put_block(rings, 1, ts_event=0, ts_in=0)
    first, second = read(rings)
    assert labels(first)[:2] == ["publish", "send"]
    assert labels(second)[:2] == ["send", "receive"]
    assert (first.age_ns, second.age_ns) == (400, 300)


def test_a_venue_time_of_another_day_is_left_out() -> None:
    rings = TraceRings(1)
    received = BEGIN_NS + 300
    for away in (DAY_NS, -DAY_NS, DAY_NS + 1, -DAY_NS - 1):
        put_block(rings, 0, ts_event=received - away)
    assert [labels(trace)[0] for trace in read(rings)] == ["venue", "venue", "publish", "publish"]


def test_a_trace_whose_relays_were_overwritten_is_left_out() -> None:
    rings, many = TraceRings(1), KEPT_RELAYS // 2
    for sequence in range(many + 50):
        if sequence % 4 == 0:
            put_block(rings, sequence)
        put_relay(rings, sequence, 1)
        put_relay(rings, sequence, 2)
    found = read(rings)
    assert [trace.sequence for trace in found] == [*range(52, many + 50, 4)]
    assert {len(trace.hops) for trace in found} == {10}
