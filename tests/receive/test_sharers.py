"""Subscribers of a process share sockets and threads: each gets its messages, and the last one ends the slices."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blackbox import CallbackError, Feed, Gap, Message, Publisher, Subscriber
from blackbox.errors import NotConfirmedError, SubscriberError
from blackbox.receive.callbacks.callbacks import CompiledCallback
from blackbox.receive.supervise.supervisor import SubscriberLife
from blackbox.testing import Collector, RawPublisher, wait_until
from tests.book.sessions import order
from tests.callbacks import count_rows
from tests.examples import examples
from tests.receive.subscribers import PATIENT, nothing, numbers_of, one_slice, sliced, subscribed, topic_of_each
from tests.support import in_child

ENOUGH_S = 60.0
PREFIXES = (b"", b"A", b"AA", b"AB", b"B", b"S1")
TOPICS = (b"A", b"AA.t", b"AB.t", b"B.t", b"S1.t", b"S2.t", b"S3.t")


def two(feed: Feed, **options: Any) -> tuple[Subscriber, Collector, Subscriber, Collector]:
    """Two subscribers to everything that share slices."""
    first, of_first = subscribed(feed, **options)
    second, of_second = first.share(), Collector()
    second.on(b"")(of_second.message)
    return first, of_first, second, of_second


class Wanting:
    """A subscriber with a callback of each kind for each of its prefixes."""

    def __init__(self, subscriber: Subscriber, prefixes: list[bytes]) -> None:
        self.subscriber = subscriber
        self.got = [(prefix, kind, Collector()) for prefix in prefixes for kind in ("message", "batch")]
        self.counted: list[CompiledCallback] = []
        for prefix, kind, collector in self.got:
            register: Any = subscriber.on if kind == "message" else subscriber.on_batch
            register(prefix)(getattr(collector, kind))
        for prefix in prefixes:
            self.counted.append(subscriber.on_compiled(prefix, state=numpy.zeros(1, numpy.int64))(count_rows))

    def heard(self) -> list[Any]:
        """Everything received, in order by topic, and the counters."""
        by_topic = [
            (prefix, kind, {topic: [m.payload for m in got.messages if m.topic == topic] for topic in TOPICS})
            for prefix, kind, got in self.got
        ]
        return [*by_topic, *(int(each.total()[0]) for each in self.counted)]


@settings(max_examples=examples(12))
@given(
    wishes=st.lists(st.lists(st.sampled_from(PREFIXES), min_size=1, max_size=3), min_size=2, max_size=3),
    topics=st.lists(st.sampled_from(TOPICS), min_size=1, max_size=60),
    slices=st.integers(1, 2),
    key_bytes=st.sampled_from([0, 2]),
)
def test_each_sharer_gets_what_it_would_get_alone(
    wishes: list[list[bytes]], topics: list[bytes], slices: int, key_bytes: int
) -> None:
    feed = sliced(slices, key_bytes=key_bytes)
    alone = [Wanting(Subscriber(feed, slow=PATIENT), prefixes) for prefixes in wishes]
    owner = Subscriber(feed, slow=PATIENT)
    owner.on(b"S9")(nothing)
    sharing = [Wanting(owner.share(), prefixes) for prefixes in wishes]
    with Publisher(feed, when_full="wait") as publisher:
        for each in (*alone, *sharing):
            each.subscriber.start()
        for number, topic in enumerate(topics):
            publisher.publish(topic, b"%d" % number)
    for each in (*alone, *sharing):
        each.subscriber.run(until_end=True)
    owner.stop()  # it was never started
    for mine, shared in zip(alone, sharing, strict=True):
        assert shared.heard() == mine.heard()
        assert shared.subscriber.statistics().received.gaps == mine.subscriber.statistics().received.gaps == 0
    assert sum(len(got) for _, _, got in alone[0].got) > 0 or not any(
        topic.startswith(prefix) for topic in topics for prefix in wishes[0]
    )


def test_a_leaving_sharer_gets_all_up_to_a_point_and_the_others_miss_nothing() -> None:
    stays = Subscriber(feed := sliced(1, key_bytes=1), slow=PATIENT)
    kept = Collector()
    stays.on_batch(b"")(kept.batch)
    lost: list[Gap] = []
    over = threading.Event()
    sent = 0

    def publish() -> None:
        nonlocal sent
        while not over.wait(0.001):
            for _ in range(100):
                publisher.publish(b"T", b"%d" % sent)
                sent += 1

    with Publisher(feed, when_full="wait") as publisher:
        stays.start()
        publishing = threading.Thread(target=publish)
        publishing.start()
        try:
            for _ in range(3):
                goes, got = stays.share(), Collector()
                goes.on(b"T")(got.message)
                goes.on_gap(b"")(lost.append)
                goes.start()
                got.wait(1_000)
                goes.stop()
                numbers = numbers_of(got)
                assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
                assert goes.state is SubscriberLife.ENDED
                assert goes.is_done
        finally:
            over.set()
            publishing.join()
    stays.run(until_end=True)
    assert numbers_of(kept) == list(range(sent))
    assert (lost, stays.statistics().received.gaps) == ([], 0)
    assert len(got) == len(numbers), "nothing arrived after its end"


def test_an_error_in_one_sharer_ends_all() -> None:
    feed = one_slice()
    first, _, second, _ = two(feed)
    gone = first.share()
    gone.on(b"")(nothing)
    stream = first.stream(b"")

    @second.on(b"")
    def fails(_: Message) -> None:
        raise KeyError("mine")

    with Publisher(feed) as publisher:
        for each in (first, second, gone):
            each.start()
        gone.stop()
        publisher.publish(b"T", b"")
        publisher.flush()
        for each in (first, second):
            with pytest.raises(CallbackError, match="fails .* raised KeyError"):
                each.run()
            assert each.state is SubscriberLife.ENDED
        with pytest.raises(CallbackError, match="raised KeyError"):
            list(stream)
        gone.stop()
        with pytest.raises(SubscriberError, match="share was called|start was called after the shared slices"):
            first.share()


def test_invalid_sharing_is_rejected(tmp_path: Path) -> None:
    feed = one_slice()
    with pytest.raises(SubscriberError, match="share was called with processes=True"):
        Subscriber(feed, processes=True).share()
    archived = msgspec.structs.replace(feed, archives=("ipc:///tmp/blackbox-never-asked",))
    with pytest.raises(SubscriberError, match="share was called on a subscriber with a name"):
        Subscriber(archived, name="mine", positions=tmp_path).share()
    first = Subscriber(archived, slow=PATIENT)
    first.on(b"")(nothing)
    late, timed, unused = first.share(), first.share(), first.share()
    timed.every(1)(nothing)
    with Publisher(archived), first:
        with pytest.raises(SubscriberError, match="start was called with since or back, but the shared slices"):
            late.start(since=10**18)
        with pytest.raises(SubscriberError, match="every was called, but the shared slices run already"):
            timed.start()
        assert late.state is timed.state is SubscriberLife.ENDED
        assert first.state is SubscriberLife.RUNNING
        with pytest.raises(SubscriberError, match="start was called when running"):
            first.start()
    with pytest.raises(SubscriberError, match="start was called after the shared slices had ended"):
        unused.start()


def test_a_sharer_whose_slice_has_no_publisher_does_not_affect_the_others() -> None:
    feed = sliced(2)
    topics = topic_of_each(feed)
    first, got = subscribed(feed, topics[0])
    with RawPublisher(feed) as publisher, ThreadPoolExecutor(1) as pool:
        publisher.close_line(0, slice_id=1)
        first.start()
        second, third = first.share(), first.share()
        second.on(topics[1])(nothing)
        third.on(topics[0])(got.message)
        refused = pool.submit(second.start, timeout=1.0)
        wait_until(lambda: second.state is not SubscriberLife.NEW)
        third.start()  # its slices are confirmed
        third._check_silence(60.0)
        with pytest.raises(NotConfirmedError, match="slice 1: no publisher"):
            refused.result(ENOUGH_S)
        assert second.state is SubscriberLife.ENDED
        publisher.send(publisher.encode([(topics[0], b"0")]))
        got.wait(2)
        third.stop()
        first.stop()


def test_run_until_the_end_waits_for_the_needed_slices() -> None:
    feed = sliced(2)
    topics = topic_of_each(feed)
    first, got = subscribed(feed, topics[0])
    second = first.share()
    second.on(topics[1])(got.message)
    with RawPublisher(feed) as publisher:
        first.start()
        second.start()
        publisher.heartbeat(end=True, slice_id=0)
        first.run(until_end=True)
        assert first.state is SubscriberLife.ENDED
        assert second.state is SubscriberLife.RUNNING
        publisher.send(publisher.encode([(topics[1], b"1")], slice_id=1))
        publisher.heartbeat(end=True, slice_id=1)
        second.run(until_end=True)
    assert numbers_of(got) == [1]
    assert second.is_done


def test_hooks_and_groups_belong_to_one_subscriber_and_leave_with_it() -> None:
    first = Subscriber(feed := one_slice(), slow=PATIENT)
    second = first.share()
    told: list[Gap] = []
    epochs: tuple[list[int], list[int]] = [], []
    first.on(b"", group="mine")(nothing)
    for _ in range(3):
        second.on(b"", group="mine")(nothing)  # all on another worker than the first one's
    first.on_gap(b"")(told.append)
    first.on_gap(b"", group="mine")(told.append)
    first.on_epoch(lambda _, epoch: epochs[0].append(epoch))
    second.on_epoch(lambda _, epoch: epochs[1].append(epoch))
    workers = [{callback.worker for callback in each.callbacks} for each in (first, second)]
    assert workers == [{0}, {1}]
    with RawPublisher(feed) as publisher:
        first.start()
        second.start()
        for epoch in (1, 2):
            publisher.epoch, publisher.sequences, publisher.ends = epoch, [0], [{}]
            publisher.send(publisher.encode([(b"T", b"")]))
            publisher.heartbeat()
            wait_until(lambda: all(each[-1:] == [epoch] for each in epochs))
        publisher.encode([(b"T", b"lost")])
        publisher.send(publisher.encode([(b"T", b"")]))
        wait_until(lambda: len(told) == 2)
        second.stop()
        publisher.epoch, publisher.sequences, publisher.ends = 3, [0], [{}]
        publisher.send(publisher.encode([(b"T", b"")]))
        publisher.heartbeat(end=True)
        first.run(until_end=True)
    assert [gap.count for gap in told] == [1, 1]
    assert epochs == ([1, 2, 3], [1, 2])


def test_a_checkpoint_covers_all_sharers_but_not_one_that_has_left() -> None:
    feed = one_slice()
    first, of_first, second, of_second = two(feed)
    stream = second.stream(b"")
    left = first.share()
    left.on(b"")(nothing)
    with Publisher(feed) as publisher:
        for each in (first, second, left):
            each.start()
        left.stop()
        for number in range(10):
            publisher.publish(b"T", b"%d" % number)
        publisher.flush()
        for got in (of_first, of_second):
            got.wait(10)
        assert [stream.get(ENOUGH_S).sequence for _ in range(4)] == [0, 1, 2, 3]
        with first.checkpoint() as positions:
            assert positions[0].sequence == 4
        with pytest.raises(SubscriberError, match="checkpoint was called when it had left"), left.checkpoint():
            pass
        second.stop()  # with it, what its reader had not done
        with first.checkpoint() as positions:
            assert positions[0].sequence == 10
            with pytest.raises(SubscriberError, match="stop was called in a checkpoint"):
                first.stop()
        first.stop()


def test_a_sharer_that_stops_in_a_callback_ends_with_its_stream_and_timers() -> None:
    first, got = subscribed(feed := one_slice())
    second, calls = first.share(), Collector()
    stream = second.stream(b"")
    ticks: list[int] = []
    second.every(0.001)(ticks.append)

    @second.on(b"")
    def once(message: Message) -> None:
        calls.message(message)
        second.stop()

    with Publisher(feed) as publisher:
        second.start()  # it starts first, because it has timers
        first.start()
        wait_until(lambda: len(ticks) > 2)
        publisher.publish(b"T", b"0")
        publisher.flush()
        assert [message.payload for message in stream] == [b"0"]  # it ends without a wait
        wait_until(lambda: second.state is SubscriberLife.ENDED)
        ticked = len(ticks)
        publisher.publish(b"T", b"1")
        publisher.flush()
        got.wait(2)
        begin = time.monotonic()
        wait_until(lambda: time.monotonic() - begin > 0.05)
        assert len(ticks) <= ticked + 1
        first.stop()
    assert calls.payloads == [b"0"]


def test_a_forked_process_can_use_none_of_them_and_an_error_in_a_with_block_ends_one() -> None:
    feed = one_slice()
    first, got, second, _ = two(feed)
    unused = first.share()
    unused.on(b"")(nothing)
    calls: tuple[Callable[[], object], ...] = (
        *(each for one in (first, second) for each in (one.stop, one.terminate, one.request_stop, one.run)),
        unused.start,
        lambda: first.remove(got.message),
        lambda: first.on(b"X")(print),
    )
    with Publisher(feed) as publisher, first:
        publisher.publish(b"T", b"1")
        with pytest.raises(KeyError, match="mine"), second:
            for call in calls:
                assert in_child(call).startswith("SubscriberError: feed 'subscriber': the subscriber belongs to proces")
            raise KeyError("mine")
        assert second.state is SubscriberLife.ENDED
        publisher.publish(b"T", b"2")
        assert [int(message.payload) for message in got.wait(2)] == [1, 2]
        assert first.state is SubscriberLife.RUNNING


def test_a_book_of_a_sharer_that_joins_late_is_not_synced() -> None:
    feed = one_slice(schema="itch50")
    first, got = subscribed(feed)
    second = first.share()
    book = second.book(b"")
    with Publisher(feed) as publisher, first.start():
        publisher.publish(b"A", order(1, b"B", 100))
        got.wait(1)
        with second.start():
            publisher.publish(b"A", order(2, b"B", 101))
            wait_until(lambda: book.symbols == [b"A"])
            assert not book.synced
