"""`processes=True`: one process per slice, started, supervised and stopped together."""

from __future__ import annotations

import os
import signal
import threading
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy
import pytest

from blackbox import Batch, Feed, Message, Publisher, SlowPolicy, SlowSubscriberError, Subscriber
from blackbox.errors import SubscriberError
from blackbox.subscribe.compiled_callback import little_endian, payload
from blackbox.subscribe.supervisor import SubscriberLife
from blackbox.testing import RawPublisher, wait_until
from tests.subscribe.subscribers import in_both_places
from tests.support import Script


def children_of(subscriber: Subscriber) -> list[int]:
    """Return the process ids of the live slices."""
    pids = [child._process.pid for child in subscriber._supervisor._children.values()]
    return [pid for pid in pids if pid is not None and is_alive(pid)]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_everything_is_delivered_and_counted_in_the_parent() -> None:
    feed = Feed.local("processes", slices=2)
    told = get_context("fork").SimpleQueue()
    subscriber = Subscriber(feed, processes=True)

    @subscriber.on(b"S1")
    def each(message: Message) -> None:
        if message.payload == b"last":
            told.put((message.topic, os.getpid()))

    batches = 0

    @subscriber.on_batch(b"")
    def many(batch: Batch) -> None:
        nonlocal batches
        batches += 1

    @subscriber.on_compiled(b"", state=numpy.zeros(2, numpy.int64))
    def total(batch: Any, state: Any) -> None:
        for row in batch.rows:
            state[0] += 1
            state[1] += batch.ts_event[row]

    topics = tuple(b"S%d" % number for number in range(20))
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start(timeout=60)
        assert subscriber.state is SubscriberLife.RUNNING
        assert len(children_of(subscriber)) == 2
        publisher.publish_many(topics, numpy.arange(10_000) % 20, numpy.zeros((10_000, 8), numpy.uint8), range(10_000))
        for topic in topics:
            publisher.publish(topic, b"last", ts_event=0)
    subscriber.run(until_end=True)
    statistics = subscriber.statistics()
    assert statistics.received.messages == 10_020
    assert statistics.delivery.delivered == 2 * 10_020 + 11 * 501
    assert (statistics.received.gaps, statistics.received.malformed, statistics.delivery.dropped) == (0, 0, 0)
    assert statistics.delivery.topics == 20
    assert sorted(subscriber.topics(0) + subscriber.topics(1)) == sorted(topics)
    assert total.total().tolist() == [10_020, sum(range(10_000))]
    assert sorted(total.states) == [0, 1]
    assert all(state[0] > 0 for state in total.states.values())
    seen = [told.get() for _ in range(11)]
    assert sorted(topic for topic, _ in seen) == sorted(topic for topic in topics if topic.startswith(b"S1"))
    assert len({pid for _, pid in seen} | {os.getpid()}) == 3
    assert batches == 0  # changes by a Python callback stay in its process
    assert children_of(subscriber) == []


@in_both_places
def test_compiled_state_is_visible_while_it_runs(worker: bool) -> None:
    feed = Feed.local("processes", slices=1)
    subscriber = Subscriber(feed, processes=True)

    @subscriber.on_compiled(b"", state=numpy.zeros(1, numpy.int64), worker=worker)
    def last(batch: Any, state: Any) -> None:
        state[0] = little_endian(payload(batch, batch.rows[-1]), 0, 8)

    with RawPublisher(feed) as publisher, subscriber:
        for number in (1, 2, 3):
            publisher.send(publisher.encode([(b"T", number.to_bytes(8, "little"))]))
            wait_until(lambda: last.states[0][0] == number)
        assert subscriber.statistics().delivery.delivered == 3
        assert subscriber.statistics().lag.max_ns > 0


def test_a_killed_process_is_reported_and_ends_the_others() -> None:
    feed = Feed.local("processes", slices=2)
    subscriber = Subscriber(feed, processes=True)
    subscriber.on(b"")(lambda message: None)
    with Publisher(feed):
        subscriber.start(timeout=60)
        pids = children_of(subscriber)
        os.kill(pids[0], signal.SIGKILL)
        with pytest.raises(SubscriberError, match=rf"slice \d: process {pids[0]} was killed by signal SIGKILL"):
            subscriber.run()
    assert children_of(subscriber) == []
    assert subscriber.state is SubscriberLife.ENDED


def test_processes_end_when_their_parent_is_killed() -> None:
    feed = Feed.local("processes", slices=2)
    code = """
        subscriber = Subscriber(feed, processes=True)
        subscriber.on(b"")(lambda message: None)
        subscriber.start(timeout=60)
        from multiprocessing import active_children
        say(*(child.pid for child in active_children()))
        subscriber.run()
    """
    with Publisher(feed), Script(code, feed) as script:
        pids = [int(pid) for pid in script.read().split()]
        assert len(pids) == 2
        assert all(map(is_alive, pids))
        script.process.kill()
        wait_until(lambda: not any(map(is_alive, pids)), what="the children of a killed parent are gone")


@pytest.mark.parametrize("end", ["stop", "terminate"])
def test_no_process_is_left_behind(end: str) -> None:
    feed = Feed.local("processes", slices=3)
    subscriber = Subscriber(feed, processes=True)
    subscriber.on(b"")(lambda message: None)
    with Publisher(feed) as publisher:
        subscriber.start(timeout=60)
        for number in range(100):
            publisher.publish(b"S%d" % number, b"")
        wait_until(lambda: subscriber.statistics().delivery.delivered == 100)
        getattr(subscriber, end)()
    assert children_of(subscriber) == []
    assert subscriber.statistics().delivery.delivered == 100


def test_a_signal_to_the_whole_group_stops_cleanly() -> None:
    feed = Feed.local("processes", slices=2)
    code = """
        os.setpgrp()
        subscriber = Subscriber(feed, processes=True)
        subscriber.on(b"")(lambda message: None)
        subscriber.start(timeout=60)
        def interrupt():
            wait_until(lambda: subscriber.statistics().delivery.delivered == 10)
            os.killpg(0, signal.SIGINT)
        threading.Thread(target=interrupt, daemon=True).start()
        say("started")
        subscriber.run()
        say("delivered", subscriber.statistics().delivery.delivered)
    """
    with RawPublisher(feed) as publisher, Script(code, feed) as script:
        script.expect("started")
        for number in range(10):
            slice_id = number % 2
            topic = next(b"S%d" % n for n in range(50) if feed.slice_of(b"S%d" % n) == slice_id)
            publisher.send(publisher.encode([(topic, b"")], slice_id=slice_id))
        status, out, errors = script.finish()
    assert (status, out.strip()) == (0, "delivered 10"), errors


def test_a_callback_that_raises_in_its_process_raises_with_its_traceback() -> None:
    feed = Feed.local("processes", slices=2)
    subscriber = Subscriber(feed, processes=True)

    @subscriber.on(b"")
    def fail_over_there(message: Message) -> None:
        raise LookupError(f"over there {message.payload.decode()}")

    with Publisher(feed) as publisher:
        subscriber.start(timeout=60)
        publisher.publish(b"T", b"42")
        with pytest.raises(SubscriberError) as caught:
            subscriber.run()
    assert "LookupError: over there 42" in str(caught.value)
    assert "in fail_over_there" in str(caught.value)
    assert subscriber.statistics().delivery.callback_errors == 1


def test_a_slow_slice_alerts_in_the_parent_and_ends_all() -> None:
    feed = Feed.local("processes", slices=2)
    heard: list[str] = []
    subscriber = Subscriber(feed, processes=True, slow=SlowPolicy(on_alert=heard.append, start_grace=0))
    subscriber.on(b"")(lambda message: None)
    topic = next(b"S%d" % n for n in range(50) if feed.slice_of(b"S%d" % n) == 1)
    with RawPublisher(feed) as publisher:
        subscriber.start(timeout=60)
        publisher.send(publisher.encode([(topic, b"")], slice_id=1, ts_out=time.time_ns() - 500 * 10**9))
        with pytest.raises(SlowSubscriberError, match="slice 1 lags 50"):
            subscriber.run()
    assert len(heard) == 1
    assert children_of(subscriber) == []


def test_a_hung_callback_in_its_process_does_not_block_the_parent() -> None:
    feed = Feed.local("processes", slices=2)
    subscriber = Subscriber(feed, processes=True, slow=SlowPolicy(max_lag=2, grace=0.3, start_grace=0))
    hangs = get_context("fork").Event()

    @subscriber.on(b"")
    def hang(message: Message) -> None:
        hangs.set()
        threading.Event().wait()

    with RawPublisher(feed) as publisher:
        subscriber.start(timeout=60)
        topic = next(b"S%d" % n for n in range(50) if feed.slice_of(b"S%d" % n) == 0)
        publisher.send(publisher.encode([(topic, b"")]))
        assert hangs.wait(60)
        publisher.send(publisher.encode([(topic, b"")]))  # it waits, so the subscriber is slow
        with pytest.raises(SlowSubscriberError, match="slice 0 lags"):
            subscriber.run()
    assert children_of(subscriber) == []


@in_both_places
def test_a_hung_compiled_callback_in_its_process_does_not_block_the_parent(worker: bool) -> None:
    feed = Feed.local("processes", slices=2)
    subscriber = Subscriber(feed, processes=True, slow=SlowPolicy(max_lag=0.2, grace=0.3, start_grace=0))

    @subscriber.on_compiled(b"", state=numpy.zeros(1), worker=worker)
    def hang(batch: Any, state: Any) -> None:
        while state[0] >= 0:
            state[0] += 1

    with RawPublisher(feed) as publisher:
        subscriber.start(timeout=60)
        topic = next(b"S%d" % n for n in range(50) if feed.slice_of(b"S%d" % n) == 0)
        is_over = threading.Event()

        def send_on() -> None:
            while not is_over.wait(0.02):  # one of them waits for the hung callback
                publisher.send(publisher.encode([(topic, b"")]))

        sending = threading.Thread(target=send_on)
        sending.start()
        with pytest.raises(SlowSubscriberError, match="slice 0 lags"):
            subscriber.run()
        is_over.set()
        sending.join()
    assert children_of(subscriber) == []


def test_a_callback_in_its_process_may_stop_the_subscriber() -> None:
    feed = Feed.local("processes", slices=2)
    subscriber = Subscriber(feed, processes=True)

    @subscriber.on(b"T")
    def enough(message: Message) -> None:
        subscriber.stop()

    with Publisher(feed) as publisher:
        subscriber.start(timeout=60)
        publisher.publish(b"T", b"")
        subscriber.run()
    assert subscriber.state is SubscriberLife.ENDED
    assert children_of(subscriber) == []


def test_a_hung_callback_does_not_outlive_its_killed_parent() -> None:
    feed = Feed.local("processes", slices=1)
    code = """
        subscriber = Subscriber(feed, processes=True, slow=SlowPolicy(grace=0.3, start_grace=0))
        @subscriber.on(b"")
        def hang(message):
            say(os.getpid())
            time.sleep(1000)
        subscriber.start(timeout=60)
        say("started")
        subscriber.run()
    """
    with RawPublisher(feed) as publisher, Script(code, feed) as script:
        script.expect("started")
        publisher.send(publisher.encode([(b"T", b"")]))
        pid = int(script.read())
        script.process.kill()
        wait_until(lambda: not is_alive(pid), what="the hung child of a killed parent is gone")


def test_callbacks_cannot_change_while_processes_run() -> None:
    feed = Feed.local("processes", slices=1)
    subscriber = Subscriber(feed, processes=True)

    def first(message: Message) -> None:
        pass

    subscriber.on(b"")(first)
    with Publisher(feed), subscriber:
        with pytest.raises(SubscriberError, match="cannot be changed while running with processes=True"):
            subscriber.on(b"T")(lambda message: None)
        with pytest.raises(SubscriberError, match="cannot be changed while running with processes=True"):
            subscriber.remove(first)
        assert len(subscriber.callbacks) == 1
