"""A start that fails midway leaves no thread, no socket and no file descriptor."""

from __future__ import annotations

import logging
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import zmq

from blackbox import BlackBoxError, Feed, Publisher, SlowPolicy, Subscriber
from blackbox.errors import EndpointError, LimitError, SubscriberError
from blackbox.subscribe import supervisor
from blackbox.subscribe.slice_thread import SliceThread
from blackbox.subscribe.supervisor import SubscriberLife
from blackbox.testing import Collector, wait_until
from tests.examples import first_of
from tests.process_state import held, linux_only

pytestmark = [linux_only, pytest.mark.own_process]


@pytest.fixture(autouse=True)
def no_log() -> Iterator[None]:
    """pytest keeps log records, whose tracebacks keep the objects of failed threads."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


def two_slices(**settings: Any) -> Feed:
    return Feed.local("failed-starts", slices=2, **settings)


def nothing(_: Any) -> None:
    pass


def check_nothing_is_left(before: tuple[int, int]) -> None:
    # A thread joined just before may still be counted in `before`: hence "at most".
    wait_until(
        lambda: all(now <= then for now, then in zip(held(), before, strict=True)),
        what=f"threads and file descriptors are {before} again",
    )


def subscriber_of(feed: Feed, **settings: Any) -> Subscriber:
    subscriber = Subscriber(feed, **settings)
    subscriber.on(b"")(nothing)
    return subscriber


def fail_at(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, call: int, error: Exception) -> Callable[[], bool]:
    """Make the `call`-th call of a function fail; return a function that returns True once it has."""
    real = getattr(owner, name)
    calls = iter(range(1_000))  # an iterator is atomic across threads
    failed = threading.Event()

    def function(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == call:
            failed.set()
            raise error
        return real(*args, **kwargs)

    monkeypatch.setattr(owner, name, function)
    return failed.is_set


def refuse_thread(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    real = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name == name:
            raise RuntimeError("can't start new thread")
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)


def no_more_files() -> OSError:
    return OSError(24, os.strerror(24))


# Publishers


@pytest.mark.parametrize(("lines", "taken"), first_of([(2, 1), (1, 1), (2, 0)]))
def test_a_publisher_whose_port_is_in_use_leaves_nothing(lines: int, taken: int) -> None:
    feed = two_slices(lines=lines)
    endpoint = feed.slices[taken].endpoints[-1]
    with zmq.Context() as context, context.socket(zmq.PULL) as squatter:
        squatter.bind(endpoint)
        before = held()
        for _ in range(3):
            with pytest.raises(EndpointError, match=f"slice {taken}: endpoint {endpoint} is in use"):
                Publisher(feed).start()
            check_nothing_is_left(before)
    with Publisher(feed):  # the other ports are free
        pass


@pytest.mark.parametrize("name", first_of(["blackbox-sender-1", "blackbox-sender-0"]))
def test_a_publisher_whose_thread_cannot_start_leaves_nothing(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    feed = two_slices()
    before = held()
    with monkeypatch.context() as patch:
        refuse_thread(patch, name)
        with pytest.raises(LimitError, match="can't start new thread"):
            Publisher(feed).start()
        check_nothing_is_left(before)
    with Publisher(feed):
        pass


def test_a_publisher_that_lacks_a_pipe_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = two_slices()
    before = held()
    for call in range(4):
        with monkeypatch.context() as patch:
            fail_at(patch, os, "pipe", call, no_more_files())
            with pytest.raises(LimitError, match="no pipe could be opened"):
                Publisher(feed).start()
        check_nothing_is_left(before)


def test_a_publisher_that_lacks_a_socket_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = two_slices(lines=2)
    before = held()
    for call in range(4):
        with monkeypatch.context() as patch:
            has_failed = fail_at(patch, zmq.Context, "socket", call, zmq.ZMQError(24))
            with pytest.raises(BlackBoxError, match="sender failed: Too many open files"):
                Publisher(feed).start()
            assert has_failed()
        check_nothing_is_left(before)


def test_a_publisher_that_lacks_memory_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = two_slices()
    before = held()
    with monkeypatch.context() as patch:
        fail_at(patch, Publisher, "_warm_up", 0, MemoryError())
        with pytest.raises(MemoryError):
            Publisher(feed).start()
    check_nothing_is_left(before)


# Subscribers


THREADS = ["blackbox-worker-1.1", "blackbox-supervisor", "blackbox-slice-0", "blackbox-slice-1", "blackbox-worker-0.0"]


@pytest.mark.parametrize("name", first_of(THREADS, keep=2))
def test_a_subscriber_whose_thread_cannot_start_leaves_nothing(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    feed = two_slices()
    with Publisher(feed):
        before = held()
        with monkeypatch.context() as patch:
            refuse_thread(patch, name)
            subscriber = subscriber_of(feed)
            with pytest.raises(LimitError, match="can't start new thread"):
                subscriber.start()
            assert subscriber.state is SubscriberLife.ENDED
            del subscriber
        check_nothing_is_left(before)


def test_a_subscriber_that_lacks_a_pipe_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = two_slices()
    with Publisher(feed):
        before = held()
        for call in range(2):
            with monkeypatch.context() as patch:
                subscriber = subscriber_of(feed)
                fail_at(patch, os, "pipe", call, no_more_files())
                with pytest.raises(LimitError, match="no pipe could be opened"):
                    subscriber.start()
                assert subscriber.state is SubscriberLife.ENDED
                del subscriber
            check_nothing_is_left(before)


def test_a_subscriber_that_lacks_a_socket_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = two_slices()
    sockets = 2 * (1 + 2 + 1)  # for each slice: ROUTER, two workers' DEALERs, SUB
    with Publisher(feed):
        before = held()
        for call in range(sockets):
            with monkeypatch.context() as patch:
                has_failed = fail_at(patch, zmq.Context, "socket", call, zmq.ZMQError(24))
                subscriber = subscriber_of(feed)
                with pytest.raises(SubscriberError, match="failed: Too many open files"):
                    subscriber.start()
                assert has_failed()
                assert subscriber.state is SubscriberLife.ENDED
                del subscriber
            check_nothing_is_left(before)


def test_a_subscriber_whose_console_has_no_address_leaves_nothing() -> None:
    before = held()
    subscriber = subscriber_of(two_slices(), slow=SlowPolicy(console="tcp://nowhere"))
    with pytest.raises(EndpointError, match="cannot connect to operator console tcp://nowhere"):
        subscriber.start()
    assert subscriber.state is SubscriberLife.ENDED
    del subscriber
    check_nothing_is_left(before)


@pytest.mark.parametrize("call", first_of([1, 0]))
def test_a_subscriber_whose_process_cannot_fork_leaves_nothing(monkeypatch: pytest.MonkeyPatch, call: int) -> None:
    feed = two_slices()
    with Publisher(feed):
        before = held()
        with monkeypatch.context() as patch:
            subscriber = subscriber_of(feed, processes=True)
            fail_at(patch, os, "fork", call, BlockingIOError(11, os.strerror(11)))
            with pytest.raises(LimitError, match=os.strerror(11)):
                subscriber.start()
            assert subscriber.state is SubscriberLife.ENDED
            del subscriber
        assert not multiprocessing.active_children()
        # At most: a fork ends OpenBLAS's threads. multiprocessing leaves its pipes open if it cannot fork.
        wait_until(lambda: held()[0] <= before[0])


def test_a_slice_not_ready_in_time_is_not_reported_as_a_missing_publisher(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervisor, "_COMPILE_S", 0.0)
    monkeypatch.setattr(SliceThread, "is_ready", False)
    subscriber = Subscriber(Feed.local("slow-start"))
    subscriber.on(b"")(nothing)
    with pytest.raises(SubscriberError, match="a slice was not ready after 0 s: it may still compile"):
        subscriber.start(timeout=10)
    wait_until(lambda: subscriber.is_done)


def test_an_unconfirmed_subscriber_leaves_nothing() -> None:
    before = held()
    subscriber = subscriber_of(two_slices())
    with pytest.raises(SubscriberError, match="no publisher"):
        subscriber.start(timeout=0)
    del subscriber
    check_nothing_is_left(before)


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
        check_nothing_is_left(before)
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
