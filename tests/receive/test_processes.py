"""`processes=True`: one process per slice, started, supervised and stopped together."""

from __future__ import annotations

import os
import signal
import sys
import threading
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import msgspec
import numpy
import pytest

from blackbox import Batch, CallbackError, Message, Publisher, SlowPolicy, SlowSubscriberError, Subscriber
from blackbox.errors import SubscriberError
from blackbox.receive.callbacks.compiled_callback import little_endian, payload
from blackbox.receive.slices.slice_errors import SliceErrors
from blackbox.receive.supervise.supervisor import SubscriberLife
from blackbox.testing import RawPublisher, wait_until
from blackbox.transport.wakeup import Pipe
from tests.receive.subscribers import nothing, one_slice, published, sliced, topic_of_each
from tests.support import Script, in_child


def children_of(subscriber: Subscriber) -> list[int]:
    """Return the process ids of the live slices."""
    pids = [child._process.pid for child in subscriber._supervisor.slices.processes.values()]
    return [pid for pid in pids if pid is not None and is_alive(pid)]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_everything_is_delivered_and_counted_in_the_parent() -> None:
    transports = ["tcp", "shm" if sys.platform == "linux" else "tcp"]
    feed, shared = (sliced(2, transport=each) for each in transports)
    feed = msgspec.structs.replace(feed, slices=(feed.slices[0], shared.slices[1]))
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
    with published(feed, subscriber) as publisher:
        assert subscriber.state is SubscriberLife.RUNNING
        assert len(children_of(subscriber)) == 2
        publisher.publish_many(topics, numpy.arange(10_000) % 20, numpy.zeros((10_000, 8), numpy.uint8), range(10_000))
        for topic in topics:
            publisher.publish(topic, b"last", ts_event=0)
    statistics = subscriber.statistics()
    assert statistics.received.messages == 10_020
    assert [each.received.transport for each in statistics.slices] == transports
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


def test_compiled_states_are_visible_while_they_change_and_callbacks_cannot() -> None:
    subscriber = Subscriber(feed := one_slice(), processes=True)

    def last(batch: Any, state: Any) -> None:
        state[0] = little_endian(payload(batch, batch.rows[-1]), 0, 8)

    states = [subscriber.on_compiled(b"", state=numpy.zeros(1, numpy.int64), worker=w)(last) for w in (False, True)]
    with RawPublisher(feed) as publisher:
        subscriber.start(timeout=200)
        for number in (1, 2, 3):
            publisher.send(publisher.encode([(b"T", number.to_bytes(8, "little"))]))
            wait_until(lambda: [each.states[0][0] for each in states] == [number] * 2)
        wait_until(lambda: subscriber.statistics().delivery.delivered == 6)
        assert subscriber.statistics().lag.max_ns > 0
        for change in (
            lambda: subscriber.on(b"T")(nothing),
            lambda: subscriber.on_reset(lambda: None),
            lambda: subscriber.remove(states[0]),
        ):
            with pytest.raises(SubscriberError, match="cannot be changed while running with processes=True"):
                change()
        assert len(subscriber.callbacks) == 2
        subscriber.terminate()
    assert children_of(subscriber) == []


def test_a_killed_process_is_reported_and_ends_the_others() -> None:
    subscriber = Subscriber(feed := sliced(2), processes=True)
    subscriber.on(b"")(nothing)
    with Publisher(feed):
        subscriber.start(timeout=200)
        pids = children_of(subscriber)
        number = signal.SIGRTMIN + 1  # without a name
        os.kill(pids[0], number)
        with pytest.raises(SubscriberError, match=rf"slice \d: process {pids[0]} was killed by signal {number} "):
            subscriber.run()
    assert children_of(subscriber) == []
    assert subscriber.state is SubscriberLife.ENDED


def test_processes_end_when_their_parent_is_killed_also_with_a_hung_callback() -> None:
    feed = sliced(2)
    topics = topic_of_each(feed)
    code = """
        subscriber = Subscriber(feed, processes=True, slow=SlowPolicy(grace=0.3, start_grace=0))
        @subscriber.on(b"")
        def hang(message):
            say("hangs")
            time.sleep(1000)
        subscriber.start(timeout=200)
        from multiprocessing import active_children
        say(*(child.pid for child in active_children()))
        subscriber.run()
    """
    with RawPublisher(feed) as publisher, Script(code, feed) as script:
        pids = [int(pid) for pid in script.read().split()]
        assert len(pids) == 2
        assert all(map(is_alive, pids))
        publisher.send(publisher.encode([(topics[0], b"")]))
        script.expect("hangs")
        script.process.kill()
        wait_until(lambda: not any(map(is_alive, pids)), what="the children of a killed parent are gone")


def test_a_signal_to_the_whole_group_stops_cleanly() -> None:
    feed = sliced(2)
    topics = topic_of_each(feed)
    code = """
        os.setpgrp()
        subscriber = Subscriber(feed, processes=True)
        subscriber.on(b"")(lambda message: None)
        subscriber.start(timeout=200)
        def interrupt():
            wait_until(lambda: subscriber.statistics().delivery.delivered == 10)
            wait_until(lambda: signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL)  # run() handles signals
            os.killpg(0, signal.SIGINT)
        threading.Thread(target=interrupt, daemon=True).start()
        say("started")
        subscriber.run()
        say("delivered", subscriber.statistics().delivery.delivered)
    """
    with RawPublisher(feed) as publisher, Script(code, feed) as script:
        script.expect("started")
        for number in range(10):
            publisher.send(publisher.encode([(topics[number % 2], b"")], slice_id=number % 2))
        status, out, errors = script.finish()
    assert (status, out.strip()) == (0, "delivered 10"), errors


def test_a_callback_that_raises_in_its_process_raises_with_its_traceback() -> None:
    subscriber = Subscriber(feed := sliced(2), processes=True)

    @subscriber.on(b"")
    def fail_over_there(message: Message) -> None:
        raise LookupError(f"over there {message.payload.decode()}")

    with pytest.raises(CallbackError) as caught, published(feed, subscriber) as publisher:
        publisher.publish(b"T", b"42")
    assert "LookupError: over there 42" in str(caught.value)
    assert "in fail_over_there" in str(caught.value)
    assert subscriber.statistics().delivery.callback_errors == 1


def test_an_error_with_text_that_is_not_utf8_leaves_its_process() -> None:
    errors = SliceErrors(0, Pipe(), logs=False)
    assert in_child(lambda: errors.report(CallbackError("file-\udcff"))) == ""
    with pytest.raises(CallbackError, match=r"file-\\udcff"):
        raise errors.seen() or AssertionError


@pytest.mark.parametrize("is_compiled", [False, True])
def test_a_hung_callback_in_its_process_alerts_in_the_parent_once_and_does_not_block_it(is_compiled: bool) -> None:
    """A compiled one hangs in the slice thread itself."""
    feed = sliced(2)
    topics, heard = topic_of_each(feed), list[str]()
    slow = SlowPolicy(max_lag=0.2, grace=0.3, start_grace=0, on_alert=heard.append)
    subscriber = Subscriber(feed, processes=True, slow=slow)

    def hang(message: Message) -> None:
        threading.Event().wait()

    def hang_compiled(batch: Any, state: Any) -> None:
        while state[0] >= 0:
            state[0] += 1

    if is_compiled:
        subscriber.on_compiled(b"", state=numpy.zeros(1))(hang_compiled)
    else:
        subscriber.on(b"")(hang)
    with RawPublisher(feed) as publisher:
        subscriber.start(timeout=200)
        is_over = threading.Event()

        def send_on() -> None:
            while not is_over.wait(0.02):  # one of them waits for the hung callback
                publisher.send(publisher.encode([(topics[1], b"")], slice_id=1))

        sending = threading.Thread(target=send_on)
        sending.start()
        try:
            with pytest.raises(SlowSubscriberError, match="slice 1 lags"):
                subscriber.run()
        finally:
            is_over.set()
            sending.join()
    assert len(heard) == 1
    assert children_of(subscriber) == []
