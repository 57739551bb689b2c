"""Gaps and epochs are reported between the messages before and after: to hooks, compiled callbacks and books."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from itertools import groupby
from typing import Any, NamedTuple
from unittest.mock import Mock

import numpy
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blackbox import Batch, CallbackError, Gap, GapError, Message, SlowPolicy, Subscriber
from blackbox.block.batch.received_block import NO_FEED
from blackbox.receive.callbacks.compiled_callback import sequence_of
from blackbox.receive.callbacks.gap_hooks import NO_RULES
from blackbox.receive.callbacks.match_table import WorkerTable
from blackbox.receive.callbacks.slice_hooks import SliceHookCaller, SliceHooks
from blackbox.receive.deliver.live_delivery import CallbackHost, LiveDelivery
from blackbox.receive.deliver.worker_loop import collect
from blackbox.receive.deliver.worker_state import GapNotice, WorkerReason
from blackbox.receive.state import SliceState
from blackbox.receive.statistics import Counters
from blackbox.testing import Collector, RawPublisher, wait_until
from tests.book.sessions import order
from tests.examples import examples
from tests.receive.subscribers import (
    LATE_NS,
    PATIENT,
    in_both_places,
    nothing,
    numbers_of,
    one_slice,
    publishing,
    subscribed,
)

KEYS = (b"A", b"B")
TOPICS = (b"A.x", b"A.y", b"B.x", b"C.x")
LOG_WORDS = 3
"""Words that a compiled callback stores per batch: its first number, its messages, and the lost messages."""


class Sent(NamedTuple):
    """A block: its topics, all of one key, and how often it is sent; a block that is not sent is lost."""

    topics: tuple[bytes, ...]
    copies: int


class Missed(NamedTuple):
    """Arguments of a gap hook."""

    key: bytes
    sequence: int
    many: int


def log_batch(batch: Any, state: Any) -> None:
    place = 1 + 3 * state[0]
    state[place] = sequence_of(batch, batch.rows[0])
    state[place + 1] = len(batch.rows)
    state[place + 2] = batch.lost
    state[0] += 1


def logged(state: Any) -> list[tuple[int, int, int]]:
    rows = state[1 : 1 + LOG_WORDS * state[0]].reshape(-1, LOG_WORDS)
    return [(int(first), int(count), int(lost)) for first, count, lost in rows]


def share(one: bytes, other: bytes) -> bool:
    return one.startswith(other) or other.startswith(one)


def expected(blocks: list[Sent], key_bytes: int, prefixes: list[bytes], hook: bytes) -> list[object]:
    """Return what the callbacks of one worker with these prefixes, and a gap hook, receive: a plain loop."""
    seen: list[object] = []
    following = 0
    sent: dict[bytes, int] = defaultdict(int)
    known: dict[bytes, int] = defaultdict(int)
    ends: dict[bytes, int] = defaultdict(int)

    def miss(key: bytes) -> None:
        if sent[key] > known[key]:
            gap = Missed(key, ends[key], sent[key] - known[key])
            known[key] = sent[key]
            if share(hook, key) and any(share(prefix, key) and share(prefix, hook) for prefix in prefixes):
                seen.append(gap)

    for block in blocks:
        key = block.topics[0][:key_bytes]
        if block.copies:
            miss(key)
            known[key] += len(block.topics)
            ends[key] = following + len(block.topics)
            for row, topic in enumerate(block.topics):
                seen += [(topic, following + row) for prefix in prefixes if topic.startswith(prefix)]
        sent[key] += len(block.topics)
        following += len(block.topics)
    for key in sorted(sent):
        miss(key)
    return seen


def in_order(events: list[object]) -> list[object]:
    """Return events with adjacent gaps sorted by key: gaps of one heartbeat may be in any order."""
    runs = groupby(events, key=lambda event: isinstance(event, Missed))
    return [event for is_gap, run in runs for event in (sorted(run) if is_gap else run)]  # type: ignore[type-var]


def expected_log(blocks: list[Sent], key_bytes: int, prefix: bytes) -> list[tuple[int, int, int]]:
    """Return what a compiled callback stores: a plain loop."""
    found, lost, following = [], 0, 0
    pending: dict[bytes, int] = defaultdict(int)
    for block in blocks:
        key = block.topics[0][:key_bytes]
        rows = [row for row, topic in enumerate(block.topics) if topic.startswith(prefix)]
        if not block.copies:
            pending[key] += len(block.topics)
        else:
            lost += pending.pop(key, 0) if share(prefix, key) else 0
            if rows:
                found.append((following + rows[0], len(rows), lost))
                lost = 0
        following += len(block.topics)
    return found


@st.composite
def schedules(draw: st.DrawFn) -> tuple[int, list[Sent]]:
    key_bytes = draw(st.sampled_from([0, 1]))
    one_key = st.sampled_from(KEYS).flatmap(
        lambda key: st.lists(st.sampled_from([t for t in TOPICS if t.startswith(key)]), min_size=1, max_size=4)
    )
    any_key = st.lists(st.sampled_from(TOPICS), min_size=1, max_size=4)
    topics = st.tuples(one_key if key_bytes else any_key, st.integers(0, 2))
    return key_bytes, [Sent(tuple(each), copies) for each, copies in draw(st.lists(topics, max_size=25))]


@settings(deadline=None, max_examples=examples(40), suppress_health_check=[HealthCheck.too_slow])
@given(schedules(), st.sampled_from([b"", b"A.", b"B", b"A.x", b"C"]), st.sampled_from([0, 2]), st.booleans())
def test_gaps_are_reported_between_the_messages_before_and_after(
    schedule: tuple[int, list[Sent]], hook: bytes, workers: int, compiled_on_worker: bool
) -> None:
    key_bytes, blocks = schedule
    subscriber = Subscriber(feed := one_slice(key_bytes=key_bytes), workers=workers)
    seen: dict[int, list[object]] = defaultdict(list)  # by thread

    @subscriber.on(b"A.")
    def _(message: Message) -> None:
        seen[threading.get_ident()].append((message.topic, message.sequence))

    @subscriber.on_batch(b"B" if workers else b"A.", independent=True)
    def _(batch: Batch) -> None:
        seen[threading.get_ident()].extend(zip(batch.topics_per_message(), batch.sequence.tolist(), strict=True))

    @subscriber.on_gap(hook)
    def _(gap: Gap) -> None:
        seen[threading.get_ident()].append(Missed(gap.key, gap.sequence, gap.count))

    compiled = subscriber.on_compiled(
        b"A.", state=numpy.zeros(100, numpy.int64), worker=bool(compiled_on_worker and workers)
    )(log_batch)
    with publishing(feed, subscriber) as publisher:
        for block in blocks:
            encoded = publisher.encode([(topic, b"") for topic in block.topics])
            for _copy in range(block.copies):
                publisher.send(encoded)
    assert logged(compiled.total()) == expected_log(blocks, key_bytes, b"A.")
    wanted_keys = (b"A", b"B") if workers else (b"A",)
    sent = [block for block in blocks if not key_bytes or block.topics[0].startswith(wanted_keys)]
    received = subscriber.statistics().received
    assert received.gaps == sum(len(block.topics) for block in sent if block.copies == 0)
    assert received.duplicates == sum(len(block.topics) for block in sent if block.copies == 2)
    if workers:
        each = [expected(blocks, key_bytes, prefixes, hook) for prefixes in ([b"A."], [b"B"])]
        in_slice = [gap for gap in each[0] if isinstance(gap, Missed) and not compiled_on_worker]
        wanted: list[list[object]] = [*each, [*in_slice]]
        found = sorted(repr(in_order(events)) for events in seen.values())
        assert found == sorted(repr(in_order(events)) for events in wanted if events)


def logging_state() -> Any:
    return numpy.zeros(100, numpy.int64)


def lose(publisher: RawPublisher, topic: bytes = b"A.x", count: int = 1) -> None:
    publisher.encode([(topic, b"lost")] * count)


def send(publisher: RawPublisher, *payloads: bytes, topic: bytes = b"A.x") -> None:
    publisher.send(publisher.encode([(topic, payload) for payload in payloads]))


@pytest.mark.parametrize("processes", [False, True])
def test_a_gap_ends_a_subscriber_that_stops_at_gaps_after_the_messages_before_it(processes: bool) -> None:
    subscriber, may_go_on = Subscriber(feed := one_slice(), on_gap="stop", processes=processes), threading.Event()
    subscriber.on(b"")(lambda message: may_go_on.wait(0 if processes else 60))
    counted = subscriber.on_compiled(b"", state=logging_state())(log_batch)
    on_worker = subscriber.on_compiled(b"", state=logging_state(), worker=True)(log_batch)
    lost = "slice 0: 3 messages were lost, from sequence 3 of epoch 1 on"
    with pytest.raises(GapError, match=lost), publishing(feed, subscriber) as publisher:
        send(publisher, b"1", b"2")
        send(publisher, b"3")
        lose(publisher, count=3)
        send(publisher, b"4")
        wait_until(lambda: subscriber.statistics().received.gaps == 3)
        may_go_on.set()
    assert logged(counted.total()) == logged(on_worker.total()) == [(0, 2, 0), (2, 1, 0)]
    assert subscriber.statistics().delivery.delivered == 9


def test_a_hook_of_a_group_is_called_only_on_the_worker_of_the_group() -> None:
    subscriber = Subscriber(feed := one_slice(), workers=3)
    threads: dict[str, int] = {}
    told: list[int] = []
    for name in ("one", "other", "third"):
        subscriber.on(b"", group=name)(lambda _, name=name: threads.update({name: threading.get_ident()}))
    subscriber.on_gap(b"", group="other")(lambda _: told.append(threading.get_ident()))
    with publishing(feed, subscriber) as publisher:
        lose(publisher)
        send(publisher, b"1")
    assert told == [threads["other"]]
    assert len(set(threads.values())) == 3


def test_hooks_are_added_and_removed_while_it_runs() -> None:
    subscriber, _ = subscribed(feed := one_slice(), workers=2)
    told: list[Gap] = []

    def hook() -> None: ...

    with publishing(feed, subscriber) as publisher:
        subscriber.on_gap(b"A")(told.append)
        for _ in range(2):
            subscriber.on_reset(hook)
        subscriber.wait_confirmed()
        lose(publisher)
        send(publisher, b"1")
        wait_until(lambda: told)
        for each in (told.append, hook):
            subscriber.remove(each)
        assert subscriber._registry.registered.hooks.on_reset == []
        subscriber.wait_confirmed()
        lose(publisher)
        send(publisher, b"2")
    assert [(gap.slice_id, gap.epoch, gap.key, gap.sequence, gap.count) for gap in told] == [(0, 1, b"", 0, 1)]
    assert subscriber.statistics().received.gaps == 2


@pytest.mark.parametrize("workers", [0, 2])
def test_a_gap_hook_that_raises_ends_the_subscriber_like_a_callback(workers: int) -> None:
    subscriber, got = subscribed(feed := one_slice(), workers=workers)

    @subscriber.on_gap(b"")
    def hook(gap: Gap) -> None:
        raise ValueError(f"{gap.count} are too many")

    error = "hook, called for a gap, raised ValueError: 1 are too many"
    with pytest.raises(CallbackError, match=error), publishing(feed, subscriber) as publisher:
        send(publisher, b"1")
        lose(publisher)
        send(publisher, b"2")
    assert numbers_of(got) == [1]


@in_both_places
def test_dropped_messages_are_reported_before_the_next_messages_or_at_the_end(worker: bool) -> None:
    slow = SlowPolicy("drop", start_grace=0)
    subscriber, got = Subscriber(feed := one_slice(), workers=2 if worker else 0, slow=slow), Collector()
    told: list[tuple[int, Gap]] = []
    subscriber.on(b"", group="same")(got.message)
    group = "same" if worker else None
    counted = subscriber.on_compiled(b"", state=logging_state(), group=group)(log_batch)
    subscriber.on_gap(b"", group="same")(lambda gap: told.append((len(got), gap)))
    with publishing(feed, subscriber) as publisher:
        send(publisher, b"1")
        for _ in range(2):
            publisher.send(publisher.encode([(b"A.x", b"late")] * 3, ts_out=time.time_ns() - LATE_NS))
        send(publisher, b"2")
        publisher.send(publisher.encode([(b"A.x", b"late")] * 3, ts_out=time.time_ns() - LATE_NS))
    assert numbers_of(got) == [1, 2]
    gaps = [(before, gap.epoch, gap.sequence, gap.count, gap.key) for before, gap in told]
    assert gaps == [(1, 1, -1, 6, b""), (2, 1, -1, 3, b"")]
    assert logged(counted.total()) == [(0, 1, 0), (7, 1, 6)]


@pytest.mark.parametrize(("workers", "key_bytes"), [(0, 0), (1, 1)])
def test_a_new_epoch_resets_callbacks_and_its_lost_first_messages_are_reported(workers: int, key_bytes: int) -> None:
    subscriber, seen = Subscriber(feed := one_slice(key_bytes=key_bytes), workers=workers), list[object]()
    subscriber.on(b"")(lambda message: seen.append(message.payload))
    counted = subscriber.on_compiled(b"", state=logging_state(), worker=bool(workers))(log_batch)
    subscriber.on_epoch(lambda slice_id, epoch: seen.append((slice_id, epoch)))
    subscriber.on_reset(lambda: seen.append("void"))
    subscriber.on_gap(b"")(lambda gap: seen.append((gap.epoch, gap.sequence, gap.count)))
    with publishing(feed, subscriber) as publisher:
        send(publisher, b"1")
        publisher.epoch, publisher.sequences, publisher.ends = 1 << 40, [0], [{}]
        lose(publisher)
        lose(publisher)
        send(publisher, b"2")
        send(publisher, b"3")
    assert seen == [(0, 1), b"1", (0, 1 << 40), "void", (1 << 40, 0, 2), b"2", b"3"]
    assert logged(counted.total()) == [(2, 1, 2), (3, 1, 0)]


@pytest.mark.parametrize("is_full", [True, False])
def test_books_that_may_lack_messages_are_flagged(is_full: bool) -> None:
    """The keys of missing messages are known only if not all keys are wanted."""
    subscriber = Subscriber(feed := one_slice(schema="itch50", key_bytes=1), slow=PATIENT)
    book = subscriber.book(b"" if is_full else b"A")
    other = book if is_full else subscriber.book(b"B")
    with publishing(feed, subscriber) as publisher:
        send(publisher, order(1, b"B", 100), topic=b"A.A")
        send(publisher, order(2, b"B", 100), topic=b"B.A")
        lose(publisher, b"A.A")
        send(publisher, order(3, b"B", 101), topic=b"B.A")
        send(publisher, order(4, b"B", 101), topic=b"A.A")
        send(publisher, order(5, b"B", 101), topic=b"A2.A")
        wait_until(lambda: {b"A", b"B", b"A2"} == {*book.symbols, *other.symbols})
        assert [book.counters(symbol)["unsynced"] for symbol in (b"A", b"A2")] == [1, 1]
        assert other.counters(b"B")["unsynced"] == is_full
        assert not book.synced


class BusyWorker:
    is_idle = staticmethod(lambda: False)

    def __init__(self, number: int) -> None:
        self.number = number


def test_workers_without_messages_of_the_same_epochs_do_not_wait_for_each_other() -> None:
    told: list[int] = []
    hooks, workers = SliceHooks([lambda _, epoch: told.append(epoch)], [], []), [BusyWorker(0), BusyWorker(1)]
    caller, is_over = SliceHookCaller(0, lambda: hooks, workers), threading.Event()  # type: ignore[arg-type]

    def enter(number: int, epoch: int) -> None:
        caller.enter(number, epoch, is_over.is_set, lambda: None, lambda _: True, is_first=False)

    later = threading.Thread(target=enter, args=(1, 3))
    later.start()
    wait_until(lambda: caller._epochs._reached.get(1) == 3)
    earlier = threading.Thread(target=enter, args=(0, 2))
    earlier.start()
    earlier.join(200)
    is_stuck = earlier.is_alive()
    if is_stuck:
        is_over.set()
    enter(0, 3)
    later.join(200)
    assert (is_stuck, told) == (False, [2, 3])


def a_worker(caller: Any, counters: Counters, image_epoch: int = 0) -> tuple[LiveDelivery, WorkerTable]:
    host = CallbackHost(0, NO_FEED, SliceState(), counters, caller, lambda _: True, print, image_epoch)
    table = WorkerTable(1, 0, [], [], [[]], NO_RULES)
    return LiveDelivery(host, 0, table), table


def test_a_worker_that_waits_for_others_at_an_epoch_is_not_busy() -> None:
    counters, busy = Counters(2), list[int]()
    hooks, workers = SliceHooks([lambda _, epoch: None], [], []), [BusyWorker(0), BusyWorker(1)]
    live, _ = a_worker(SliceHookCaller(0, lambda: hooks, workers), counters)  # type: ignore[arg-type]
    live.delivery.state.next_epoch = 1

    def is_over() -> bool:
        busy.append(counters.workers[0].busy_since_ns)
        return True

    live.delivery.is_over = is_over  # type: ignore[method-assign]
    live.enter_epoch()
    assert busy[0] == 0


def test_the_epoch_of_an_image_is_told_once_although_a_worker_comes_after_the_next_one() -> None:
    told: list[Any] = []
    hooks = SliceHooks([lambda _, epoch: told.append(epoch)], [lambda: told.append("reset")], [])
    workers = [Mock(number=0), Mock(number=1)]  # both are idle
    caller = SliceHookCaller(0, lambda: hooks, workers)
    for number in range(2):
        live, table = a_worker(caller, Counters(2), image_epoch=7)
        live.set_table(table, 0)
        live._number, live.delivery.state.next_epoch = number, 8
        live.enter_epoch()
        assert live.delivery.state.epoch == 8
    assert told == [7, 8, "reset"]


def test_a_loss_in_an_epoch_that_archives_have_left_does_not_bring_the_epoch_back() -> None:
    live, table = a_worker(None, Counters(1))
    table.at = table.at._replace(listens=1)
    live.set_table(table, 0)
    notice, state = GapNotice(), live.delivery.state
    notice.version, notice.epoch, notice.count = 1, 1, 3
    state.epoch, state.notice = 2, notice.address
    assert collect(live.delivery.memory.kept.address) == WorkerReason.GAP


@pytest.mark.parametrize("workers", [0, 1])
def test_messages_dropped_last_are_reported_at_the_end(workers: int) -> None:
    subscriber = Subscriber(feed := one_slice(), workers=workers, slow=SlowPolicy("drop", start_grace=0))
    told = list[Gap]()
    subscriber.on(b"")(nothing)
    subscriber.on_gap(b"")(told.append)
    with publishing(feed, subscriber) as publisher:
        publisher.send(publisher.encode([(b"A.x", b"late")] * 3, ts_out=time.time_ns() - LATE_NS))
    assert [(gap.epoch, gap.sequence, gap.count) for gap in told] == [(1, -1, 3)]
