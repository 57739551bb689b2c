"""Conflation delivers the newest message of each topic and counts the others."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any, Literal

import numpy
import pytest

from blackbox import Batch, SlowPolicy, Subscriber
from blackbox.archive.serve.server import ArchiveServer
from blackbox.receive.callbacks.compiled_callback import topic as topic_of
from blackbox.testing import Collector, RawPublisher, wait_until
from tests.archive.archives import archived_feed
from tests.gate import Gate
from tests.journals import Day, Put, Row
from tests.process_state import linux_only
from tests.receive.subscribers import LATE_NS, SECOND_NS, CollectingGate, numbers_of, one_slice, published, publishing


def newest(batch: Any, state: Any) -> None:
    for row in batch.rows:
        state[topic_of(batch, row)[1] - 48] = batch.ts_event[row]


@pytest.mark.parametrize("workers", [0, 2])
def test_conflate_gives_each_kind_of_callback_the_newest_of_each_topic_and_counts_the_rest(workers: int) -> None:
    feed, got = one_slice(), Collector()
    subscriber = Subscriber(feed, slow=SlowPolicy("conflate", start_grace=0), workers=workers)
    batches: list[tuple[bool, list[tuple[bytes, bytes, int, int]]]] = []

    @subscriber.on_batch(b"T")
    def note(batch: Batch) -> None:
        columns = batch.topics_per_message(), batch.payload_list(), batch.ts_event.tolist(), batch.sequence.tolist()
        batches.append((batch.conflated, list(zip(*columns, strict=True))))

    subscriber.on(b"T")(got.message)
    seen = subscriber.on_compiled(b"T", state=numpy.zeros(7, numpy.int64))(newest)
    rows = [(b"T%d" % (n % 7), b"%d" % n * (1 + n % 5)) for n in range(700)] + [(b"U", b"not wanted")]
    expected = [(*rows[n], n, n) for n in range(693, 700)]
    with publishing(feed, subscriber) as publisher:
        publisher.send(publisher.encode(rows, ts_event=range(701), ts_out=time.time_ns() - LATE_NS))
        got.wait(7)
        wait_until(lambda: seen.total().tolist() == list(range(693, 700)))
        publisher.send(publisher.encode([(b"T0", b"in time")], ts_event=[1]))
    assert [(conflated, sorted(rows)) for conflated, rows in batches] == [
        (True, expected),
        (False, [(b"T0", b"in time", 1, 701)]),
    ]
    assert sorted(got.messages[:7]) == expected
    assert got.messages[7:] == [(b"T0", b"in time", 1, 701)]
    statistics = subscriber.statistics()
    delivery = statistics.delivery
    assert (statistics.received.messages, delivery.matched, delivery.due) == (702, 701, 3 * 701)
    assert (delivery.conflated, delivery.delivered) == (3 * 693, 3 * 8)
    assert (delivery.dropped, statistics.received.gaps, statistics.lag.slow_blocks) == (0, 0, 1)


@pytest.mark.parametrize("transport", ["tcp", pytest.param("shm", marks=linux_only)])
def test_conflate_keeps_a_blocked_subscriber_up_to_date(transport: Literal["tcp", "shm"]) -> None:
    feed = one_slice(transport=transport)
    subscriber = Subscriber(feed, slow=SlowPolicy("conflate", start_grace=0), queue_blocks=2)
    gate, total = CollectingGate(), 4_000
    subscriber.on(b"")(gate.message)
    with published(feed, subscriber) as publisher:
        for number in range(total):
            publisher.publish(b"T%d" % (number % 13), b"%d" % number)
            if number % 100 == 99:
                publisher.flush()
                assert gate.entered.wait(200)  # a worker that arrives later takes everything that waits
        wait_until(lambda: subscriber.statistics().received.messages == total)
        gate.open.set()
    order: dict[bytes, list[int]] = {}
    for message in gate.got.messages:
        order.setdefault(message.topic, []).append(message.sequence)
    assert numbers_of(gate.got) == [message.sequence for message in gate.got.messages]
    newest = {topic: numbers[-1] for topic, numbers in order.items()}
    assert newest == {b"T%d" % (n % 13): n for n in range(total - 13, total)}
    assert all(numbers == sorted(set(numbers)) for numbers in order.values())
    statistics = subscriber.statistics()
    assert statistics.delivery.delivered + statistics.delivery.conflated == total
    assert statistics.delivery.delivered < total // 2
    assert (statistics.delivery.dropped, statistics.received.gaps) == (0, 0)
    assert statistics.received.transport == transport


def test_conflated_messages_keep_their_epoch_order_and_age_when_an_epoch_begins_after_a_gap() -> None:
    slow = SlowPolicy("conflate", start_grace=0)
    subscriber, gate = Subscriber(feed := one_slice(), slow=slow, queue_blocks=2, workers=1), Gate()
    seen: list[object] = []
    subscriber.on_epoch(lambda _, epoch: seen.append(epoch))
    subscriber.on_gap(b"")(lambda gap: seen.append((gap.epoch, gap.count)))

    @subscriber.on_batch(b"")
    def note(batch: Batch) -> None:
        gate.wait()
        rows = [row for row in zip(batch.sequence.tolist(), batch.payload_list(), strict=True) if row[1] != b"fill"]
        if rows:
            seen.append((batch.conflated, batch.block.epoch, batch.ts_in, rows))

    with publishing(feed, subscriber) as publisher:
        begin = time.time_ns() - SECOND_NS // 100
        for _ in range(4):  # more than a worker and its queue take
            publisher.send(publisher.encode([(b"W", b"fill")], ts_in=begin))
            assert gate.entered.wait(200)
        wait_until(lambda: subscriber.statistics().received.messages == 4)
        for place, topics in enumerate((b"AB", b"CA", b"B")):
            rows = [(b"%c" % topic, b"1%c" % topic) for topic in topics]
            publisher.send(publisher.encode(rows, ts_in=begin + place))
        publisher.epoch, publisher.sequences[0] = 2, 3
        publisher.send(publisher.encode([(b"%c" % topic, b"2%c" % topic) for topic in b"BCB"], ts_in=begin + 9))
        publisher.heartbeat()  # one block alone does not begin an epoch
        wait_until(lambda: subscriber.statistics().received.epochs == 2)
        assert subscriber.statistics().received.messages == 4 + 5 + 3
        gate.open.set()
    of_epochs = (
        (True, 1, begin, [(6, b"1C"), (7, b"1A"), (8, b"1B")]),
        (True, 2, begin + 9, [(4, b"2C"), (5, b"2B")]),
    )
    assert seen == [1, of_epochs[0], 2, (2, 3), of_epochs[1]]


def test_conflate_with_payloads_that_fill_its_memory() -> None:
    subscriber = Subscriber(feed := one_slice(), slow=SlowPolicy("conflate", start_grace=0))
    sizes: list[tuple[bytes, int]] = []
    subscriber.on(b"")(lambda message: sizes.append((message.topic, len(message.payload))))
    with publishing(feed, subscriber) as publisher:
        for size in (1_000_000, 9_000_000, 20_000_000, 8_000_000):
            rows = [(b"T%d" % number, bytes(size)) for number in range(3)]
            publisher.send(publisher.encode(rows, ts_out=time.time_ns() - LATE_NS, checksum=False))
    statistics = subscriber.statistics()
    assert statistics.delivery.delivered + statistics.delivery.conflated == 12
    assert statistics.delivery.dropped == 0
    assert {topic for topic, _ in sizes} == {b"T0", b"T1", b"T2"}
    assert dict(sizes) == dict.fromkeys([b"T0", b"T1", b"T2"], 8_000_000)


def test_conflated_blocks_are_of_one_key_and_do_not_wait_for_a_worker_with_room_for_some() -> None:
    feed = one_slice(key_bytes=1)
    subscriber = Subscriber(feed, slow=SlowPolicy("conflate", max_lag=3_600, start_grace=0), queue_blocks=1, workers=1)
    calls, steps = threading.Semaphore(0), threading.Semaphore(0)
    newest: dict[bytes, list[bytes]] = {}

    @subscriber.on_batch(b"")
    def note(batch: Batch) -> None:
        calls.release()
        steps.acquire(timeout=200)
        topics = batch.topics_per_message()
        assert len({topic[:1] for topic in topics}) == 1
        for topic, payload in zip(topics, batch.payload_list(), strict=True):
            newest.setdefault(topic, []).append(payload)

    keys = [b"%c" % letter for letter in range(ord("A"), ord("Z") + 1)]
    with publishing(feed, subscriber) as publisher:
        publisher.send(publisher.encode([(b"first", b"")]))
        assert calls.acquire(timeout=200)
        publisher.send(publisher.encode([(b"second", b"")]))
        for number in range(3):
            for key in keys:
                publisher.send(publisher.encode([(key, b"%d" % number), (key + b"2", b"%d" % number)]))
        wait_until(lambda: subscriber.statistics().received.messages == 2 + 3 * 2 * 26)
        steps.release()
        assert calls.acquire(timeout=200)  # it has taken the second block: there is room for one of 26
        for key in keys:
            publisher.send(publisher.encode([(key, b"3"), (key + b"2", b"3")]))
        wait_until(lambda: subscriber.statistics().received.messages == 2 + 4 * 2 * 26)
        steps.release(1_000)
    topics = sorted([*keys, *(key + b"2" for key in keys)])
    assert sorted(newest) == [*topics, b"first", b"second"]
    assert all(newest[topic] in ([b"3"], [b"2", b"3"]) for topic in topics)


def test_conflated_messages_of_archives_are_no_lag(tmp_path: Path) -> None:
    slow = SlowPolicy("conflate")
    subscriber, gate = Subscriber(feed := archived_feed(), workers=1, queue_blocks=1, slow=slow), Gate()
    got: list[tuple[bytes, bool]] = []

    @subscriber.on_batch(b"")
    def note(batch: Batch) -> None:
        gate.wait()
        got.append((batch.payload(-1), batch.is_recorded))

    directory = tmp_path / feed.name
    day = Day(directory / "2026-11-20", feed)
    day.put(0, *(Put((Row(b"T", b"%d" % number),), number, ts_out=1, epoch=5) for number in range(100)))
    with ArchiveServer(directory, feed.archives), RawPublisher(feed, 5) as publisher:
        publisher.sequences[0] = 100
        subscriber.start(since=0)
        wait_until(lambda: subscriber.statistics().received.repaired == 100)
        gate.open.set()
        wait_until(lambda: got and got[-1][0] == b"99")
        subscriber.stop()
    assert all(is_recorded for _, is_recorded in got)
    assert subscriber.statistics().delivery.conflated > 0
    assert subscriber.statistics().lag.max_ns == 0
