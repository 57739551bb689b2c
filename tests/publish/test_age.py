"""`ts_in` is when a block's oldest message was handed to the publisher: never later, and not much earlier."""

from __future__ import annotations

import struct
import time
from functools import partial
from typing import Any, Literal

import numpy
import pytest
from numba import njit

from blackbox import Batch, Publisher
from blackbox.feed.schema.schema import RAW
from blackbox.publish.listeners.demand import Demand
from blackbox.publish.listeners.queue_policy import QueuePolicy
from blackbox.publish.send.packers import Packers
from blackbox.publish.send.ring import PAD, SURE, TAIL, Ring, RingAt, Sleep, answer, ask
from blackbox.publish.send.slice_sender import RING_BYTES, SliceSender
from blackbox.testing import wait_until
from tests.publish.subscribers import collected, held_up, one_slice
from tests.threads import in_threads


@pytest.mark.parametrize(("linger_ns", "when_full"), [(0, "wait"), (2_000_000, "wait"), (20_000, "drop")])
def test_ts_in_is_never_later_than_the_oldest_message(linger_ns: int, when_full: Literal["wait", "drop"]) -> None:
    feed = one_slice(linger_ns=linger_ns)
    batches: list[Batch] = []
    subscriber, _ = collected(feed)
    subscriber.on_batch(b"")(batches.append)
    returned: dict[bytes, list[int]] = {b"A": [], b"B": []}
    began = time.time_ns()

    def publish(topic: bytes) -> None:
        for number in range(1_500):
            publisher.publish(topic, b"%d" % number)
            returned[topic].append(time.time_ns())

    with Publisher(feed, when_full=when_full, hwm_blocks=10_000) as publisher:
        subscriber.start()
        with in_threads(*(partial(publish, topic) for topic in returned)):
            pass
        publisher.flush()
        before = time.time_ns()
        publisher.publish_many((b"C",), [0, 0], numpy.zeros((2, 3), numpy.uint8))
        after = time.time_ns()
    subscriber.run(until_end=True)
    columns = batches.pop()
    assert columns.topics_per_message() == [b"C", b"C"]
    assert before <= columns.ts_in <= after
    assert sum(map(len, batches)) == 3_000
    for batch in batches:
        oldest = min(returned[message.topic][int(message.payload)] for message in batch)
        assert began <= batch.ts_in <= min(oldest, batch.ts_out)
    assert [message.ts_in for message in batches[0]] == [batches[0].ts_in] * len(batches[0])


def test_waiting_for_room_makes_a_message_older() -> None:
    feed = one_slice()
    batches: list[Batch] = []
    subscriber, gate = held_up(feed)
    subscriber.on_batch(b"")(batches.append)
    called = 0
    payload = bytes(60_000)
    rows = 10 * RING_BYTES // len(payload)

    def publish() -> None:
        nonlocal called
        for _ in range(rows):
            called += 1
            publisher.publish(b"A", payload)

    with Publisher(feed, when_full="wait", hwm_blocks=1) as publisher:
        subscriber.start()
        with in_threads(publish) as (thread,):
            wait_until(lambda: publisher.statistics().waits >= 10)
            waiting = 0
            while waiting != called:  # until the last call waits
                waiting = called
                thread.join(0.5)
            opened_ns = time.time_ns()
            gate.open.set()
    subscriber.run(until_end=True)
    place = 0
    for batch in batches:
        assert batch.ts_in <= opened_ns or place >= waiting
        place += len(batch)
    assert place == rows


@njit
def told(ring: RingAt, asked_ns: int, asked_from: int) -> Any:
    return ask(ring, asked_ns, asked_from)


@njit
def answered(ring: RingAt, handed_over_ns: int) -> Any:
    return answer(ring, handed_over_ns)


def test_messages_before_the_first_pass_have_an_age() -> None:
    """So have messages that another thread answers for late."""
    before = time.time_ns()
    sender = SliceSender(one_slice(), 0, QueuePolicy(waits=True, hwm_blocks=8), 1, Demand())
    assert before <= told(sender.ring.at, sender.sent.asked_at, sender.sent.asked_from) <= time.time_ns()
    answered(sender.ring.at, before + 5)
    answered(sender.ring.at, before + 9)
    assert told(sender.ring.at, 1, SURE) == before + 5
    assert told(sender.ring.at, 1, SURE) == 1


def put(ring: Ring, payload: bytes) -> None:
    """Write a record without checking if the reader asks."""
    pack, size, payload_bytes, *_ = Packers(RAW)[len(payload)]
    pack(ring.view, ring.shared[TAIL], payload_bytes, 0, 0, payload)
    ring.shared[TAIL] += size


@pytest.mark.parametrize("start", [0, 64, "end"])
def test_an_answer_for_a_later_message_is_not_used_for_an_earlier_one(start: int | str) -> None:
    """`publish` has no fence, so its thread may miss the reader's request while the reader misses its message."""
    ring = Ring(1 << 12, 1 << 12, lambda: None, lambda _: None)
    asked_from = ring.shared[TAIL] = ring.at.capacity - 16 if start == "end" else int(start)
    told(ring.at, 1, SURE)
    if start == "end":
        struct.pack_into("<IIq", ring.view, asked_from, 0, PAD, 0)
        ring.shared[TAIL] = 0
    answered(ring.at, 3)  # before its message, as a writer that waits for room does
    assert told(ring.at, 1, asked_from) == 3
    put(ring, b"first")
    answered(ring.at, 5)
    assert told(ring.at, 1, asked_from) == 5
    put(ring, b"second")
    answered(ring.at, 7)
    assert told(ring.at, 1, asked_from) == 1


def test_a_reader_that_falls_asleep_before_a_waiting_writer_commits_is_woken() -> None:
    woken: list[int] = []

    def tell(handed_over_ns: int) -> None:
        if answered(ring.at, handed_over_ns):
            woken.append(ring.shared[TAIL])
        ring.state.sleeping = Sleep.ASLEEP

    ring = Ring(1 << 12, 1 << 12, lambda: None, tell)
    pack, size, payload_bytes, *_ = Packers(RAW)[5]
    ring.put_waiting(pack, size, payload_bytes, 0, 0, b"first")
    assert woken == [size]
