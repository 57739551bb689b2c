"""Threads, sockets, file descriptors and mappings are released, also by a start that fails midway."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import numpy
import pytest
import zmq

from blackbox import Batch, BlackBoxError, Feed, Publisher, SlowPolicy, Subscriber
from blackbox.errors import EndpointError, LimitError, SubscriberError
from blackbox.publish.send.slice_writer import SliceWriter
from blackbox.receive.slices.slice_status import SliceStatus
from blackbox.receive.supervise import confirmation_wait
from blackbox.receive.supervise.supervisor import SubscriberLife
from blackbox.testing import Collector, wait_until
from blackbox.transport.shared_memory.attached import SharedReader, attach
from blackbox.transport.wakeup import Pipe
from tests.callbacks import count_rows
from tests.examples import first_of
from tests.process_state import held, linux_only, wait_given_back
from tests.receive.shared import mapped, numbers_in, publish_numbers, shared_feed
from tests.receive.subscribers import nothing, published, sliced, subscribed

pytestmark = [linux_only, pytest.mark.own_process]


@pytest.fixture(autouse=True)
def no_log() -> Iterator[None]:
    """pytest keeps log records, whose tracebacks keep the objects of failed threads."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


def two_slices(**settings: Any) -> Feed:
    return Feed.local("failed-starts", slices=2, **settings)


class Lack(NamedTuple):
    """Calls of a function that fail in turn, their error, and the error of the start."""

    owner: Any
    name: str
    calls: range
    error: Callable[[], Exception]
    """Makes a new one each time, because its traceback keeps objects."""
    type: type[Exception]
    text: str

    def at(self, patch: pytest.MonkeyPatch, call: int) -> Callable[[], bool]:
        """Make a call fail; return a function that is true once it has."""
        real = getattr(self.owner, self.name)
        calls = iter(range(1_000))  # an iterator is atomic across threads
        failed = threading.Event()

        def function(*args: Any, **kwargs: Any) -> Any:
            if next(calls) == call:
                failed.set()
                raise self.error()
            return real(*args, **kwargs)

        patch.setattr(self.owner, self.name, function)
        return failed.is_set


def refuse_thread(patch: pytest.MonkeyPatch, name: str) -> None:
    real = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name == name:
            raise RuntimeError("can't start new thread")
        real(thread)

    patch.setattr(threading.Thread, "start", start)


def check_start_fails(made: Publisher | Subscriber, error: type[Exception], text: str, timeout: float = 60.0) -> None:
    if isinstance(made, Subscriber):
        made.on(b"")(nothing)
    with pytest.raises(error, match=text or None):
        made.start(timeout=timeout) if isinstance(made, Subscriber) else made.start()
    assert not isinstance(made, Subscriber) or made.state is SubscriberLife.ENDED


@contextmanager
def starting(role: str) -> Iterator[tuple[Callable[[], Publisher | Subscriber], tuple[int, int]]]:
    """Yield a function that makes a publisher, or a subscriber with a running one, and the resources held before.

    After the block a publisher can start.
    """
    feed = two_slices(lines=2 if role == "publisher" else 1)
    with ExitStack() as stack:
        if role == "subscriber":
            stack.enter_context(Publisher(feed))
        yield lambda: Publisher(feed) if role == "publisher" else Subscriber(feed), held()
    with Publisher(feed):
        pass


NO_FILES = 24, os.strerror(24)
PIPE = Lack(os, "pipe", range(2), lambda: OSError(*NO_FILES), LimitError, "no pipe could be opened")
SOCKET = Lack(zmq.Context, "socket", range(4), lambda: zmq.ZMQError(24), BlackBoxError, f"failed: {NO_FILES[1]}")
MEMORY = Lack(SliceWriter, "warm_up", range(1), MemoryError, MemoryError, "")


@pytest.mark.parametrize(("lines", "taken"), first_of([(2, 1), (1, 1), (2, 0)]))
def test_a_publisher_whose_port_is_in_use(lines: int, taken: int) -> None:
    feed = two_slices(lines=lines)
    endpoint = feed.slices[taken].endpoints[-1]
    with zmq.Context() as context, context.socket(zmq.PULL) as squatter:
        squatter.bind(endpoint)
        before = held()
        for _ in range(3):
            with pytest.raises(EndpointError, match=f"slice {taken}: endpoint {endpoint} is in use"):
                Publisher(feed).start()
            wait_given_back(before)
    with Publisher(feed):  # the other ports are free
        pass


# For each slice of a subscriber: ROUTER, two workers' DEALERs, SUB.
LACKS = [
    *(("publisher", lack) for lack in (PIPE._replace(calls=range(4)), SOCKET, MEMORY)),
    *(("subscriber", lack) for lack in (PIPE, SOCKET._replace(calls=range(2 * (1 + 2 + 1))))),
]


@pytest.mark.parametrize(("role", "lack"), LACKS, ids=lambda each: getattr(each, "name", each))
def test_a_start_that_lacks_something(monkeypatch: pytest.MonkeyPatch, role: str, lack: Lack) -> None:
    with starting(role) as (make, before):
        for call in lack.calls:
            made = make()
            with monkeypatch.context() as patch:
                has_failed = lack.at(patch, call)
                check_start_fails(made, lack.type, lack.text)
                assert has_failed()
            del made
            wait_given_back(before)


THREADS = ["sender-1", "worker-1.1", "supervisor", "sender-0", "slice-0", "slice-1", "worker-0.0"]


@pytest.mark.parametrize("name", first_of(THREADS, keep=3))
def test_a_thread_that_cannot_start(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    with starting("publisher" if name.startswith("sender") else "subscriber") as (make, before):
        with monkeypatch.context() as patch:
            refuse_thread(patch, f"blackbox-{name}")
            check_start_fails(make(), LimitError, "can't start new thread")
        wait_given_back(before)


@pytest.mark.parametrize("call", first_of([1, 0]))
def test_a_subscriber_whose_process_cannot_fork(monkeypatch: pytest.MonkeyPatch, call: int) -> None:
    feed, text = two_slices(), os.strerror(11)
    with Publisher(feed):
        before = held()
        with monkeypatch.context() as patch:
            Lack(os, "fork", range(2), lambda: BlockingIOError(11, text), LimitError, text).at(patch, call)
            check_start_fails(Subscriber(feed, processes=True), LimitError, text)
        assert not multiprocessing.active_children()
        # At most: a fork ends OpenBLAS's threads. multiprocessing leaves its pipes open if it cannot fork.
        wait_until(lambda: held()[0] <= before[0])


def test_a_subscriber_without_a_console_or_a_publisher() -> None:
    before = held()
    policy, text = SlowPolicy(console="tcp://nowhere"), "cannot connect to operator console tcp://nowhere"
    check_start_fails(Subscriber(two_slices(), slow=policy), EndpointError, text)
    check_start_fails(Subscriber(two_slices()), SubscriberError, "no publisher", timeout=0)
    wait_given_back(before)


def test_a_slice_not_ready_in_time_is_not_reported_as_a_missing_publisher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confirmation_wait, "COMPILE_S", 0.0)
    monkeypatch.setattr(SliceStatus, "is_ready", False)
    subscriber = Subscriber(Feed.local("slow-start"))
    subscriber.on(b"")(nothing)
    with pytest.raises(SubscriberError, match="a slice was not ready after 0 s: it may still compile"):
        subscriber.start(timeout=10)
    wait_until(lambda: subscriber.is_done)


def test_a_callback_whose_slice_cannot_start_is_not_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = two_slices()
    topics = {feed.slice_of(b"S%d.t" % number): b"S%d.t" % number for number in range(50)}
    got, late = Collector(), Collector()
    with Publisher(feed) as publisher:
        subscriber = Subscriber(feed)
        subscriber.on(topics[0])(got.message)
        subscriber.start()
        before = held()
        with monkeypatch.context() as patch:
            refuse_thread(patch, "blackbox-slice-1")
            with pytest.raises(LimitError, match="can't start new thread"):
                subscriber.on(b"")(late.message)
        wait_given_back(before)
        assert [callback.function for callback in subscriber.callbacks] == [got.message]
        publisher.publish(topics[0], b"0")
        got.wait(1)
        subscriber.on(b"")(late.message)  # now it can
        subscriber.wait_confirmed()
        for topic in topics.values():
            publisher.publish(topic, b"1")
    subscriber.run(until_end=True)
    assert got.payloads == [b"0", b"1"]
    assert sorted(message.topic for message in late.messages) == sorted(topics.values())
    assert subscriber.statistics().delivery.discarded == 0


def test_starting_and_stopping_frees_everything_at_once() -> None:
    def cycle() -> None:
        feed = two_slices(lines=2)
        subscriber = Subscriber(feed)
        counts = subscriber.on_compiled(b"", state=numpy.zeros(1, numpy.int64))(count_rows)
        messages: list[bytes] = []
        subscriber.on(b"")(lambda message: messages.append(message.payload))
        with Publisher(feed, when_full="wait") as publisher:
            subscriber.start()
            for number in range(10):
                publisher.publish(b"S%d" % number, b"%d" % number)
        subscriber.run(until_end=True)
        assert (len(messages), counts.total().tolist()) == (10, [10])

    cycle()
    before = held()
    gc.disable()  # no reference cycles
    try:
        for _ in range(10):
            cycle()
        wait_given_back(before, collect=False)
    finally:
        gc.enable()


def test_the_last_sharer_closes_sockets_and_threads() -> None:
    feed = sliced(2)
    with Publisher(feed, when_full="wait") as publisher:

        def share() -> None:
            first, _ = subscribed(feed)
            second, got = first.share(), Collector()
            second.on(b"")(got.message)
            first.start()
            before = held()
            second.start()
            wait_given_back(before)
            peers = publisher.statistics().peers
            assert sorted(peer.slice_id for peer in peers) == [0, 1], "publishers see one subscriber"
            first.stop()
            wait_given_back(before)
            publisher.publish(b"T", b"1")
            got.wait(1)
            second.stop()

        share()  # resources opened the first time are kept
        wait_until(lambda: not publisher.statistics().peers)
        before = held()
        share()
        wait_given_back(before)


def test_a_reader_that_keeps_its_batches_has_them_whole_without_copies() -> None:
    feed = shared_feed(block_bytes=4_096)
    keeper, other = Subscriber(feed, workers=0), Subscriber(feed, workers=0)
    kept: list[Batch] = []
    keeper.on_batch(b"")(kept.append)
    got: list[int] = []
    other.on_batch(b"")(lambda batch: got.extend(numbers_in(batch)))
    with published(feed, keeper, other, when_full="drop") as publisher:
        publisher.wait_for_subscribers(count=2)
        for first in range(0, 10_000, 500):
            publish_numbers(publisher, first, first + 500, 64)
            wait_until(lambda so_far=first + 500: len(got) >= so_far)  # type: ignore[misc]
        assert publisher.statistics().shared_memory_dropped == 0
    assert got == list(range(10_000))
    assert [number for batch in kept for number in numbers_in(batch)] == got
    assert len(kept) > 150
    assert mapped() == 2, "kept bodies are in the publisher's memory"
    kept.clear()
    assert mapped() == 0


def test_shared_memory_is_released() -> None:
    feed = shared_feed()
    before = 0, 0
    for _ in range(3):
        subscriber, got = subscribed(feed)
        publisher = Publisher(feed)
        with publisher:
            subscriber.start(60)
            publisher.publish(b"T", b"1")
        subscriber.run(until_end=True)
        assert got.payloads == [b"1"]
        before = before if any(before) else held()
    assert mapped() == 0
    wait_given_back(before)
    with pytest.raises(ConnectionRefusedError):
        attach(feed.slices[0].shared_memory, Pipe())
    with Publisher(feed):
        reader: SharedReader = attach(feed.slices[0].shared_memory, Pipe())
        assert mapped() == 3, "the publisher's mapping, the reader's, and the reader's slot"
        reader.close()
        assert mapped() == 1
