"""Processes for recovery from an archive: publisher, recorder, and a subscriber that repairs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import msgspec

from bench.measure.contest import expect
from bench.processes.child import answer, orders
from bench.workload.load import Load
from bench.workload.messages import TOPICS, Pool
from bench.workload.recorded import publish_columns, wait_until_recorded
from blackbox import Feed, Publisher, Recorder, Subscriber
from blackbox.testing import RawPublisher, wait_until

_STEP_S: Final = 0.005
_LOST: Final = (b"AAPL.trade", bytes(100))


def publish(feed: Any, messages: int, rate: int, topics: int = TOPICS) -> None:
    """Publish `messages` messages over all topics, then continue at a rate; answer with the number published."""
    load = Load(messages=messages, topics=topics, in_turn=topics != TOPICS)
    with (
        Publisher(msgspec.convert(feed, Feed), when_full="wait") as publisher,
        _going_on(publisher, rate, load.pool) as begin,
    ):
        told = orders()
        next(told)
        publisher.wait_for_subscribers()
        publish_columns(load, publisher)
        publisher.flush()
        begin.set()
        answer()
        for _ in told:
            answer(published=publisher.statistics().messages)


@contextmanager
def _going_on(publisher: Publisher, rate: int, pool: Pool) -> Iterator[threading.Event]:
    """Publish at a rate once the event is set, until the end of the block."""
    begin, over = threading.Event(), threading.Event()
    step = round(rate * _STEP_S)

    def run() -> None:
        begin.wait()
        due = time.monotonic()
        while not over.is_set():
            due += _STEP_S
            if step:
                publisher.publish_many(pool.topics, pool.topic_index[:step], pool.payloads[:step])
            over.wait(max(0.0, due - time.monotonic()))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield begin
    finally:
        over.set()
        begin.set()
        thread.join()


def record(feed: Any, directory: str) -> None:
    """Record and serve readers; answer an order once its number of messages is recorded."""
    with Recorder(msgspec.convert(feed, Feed), directory, serve=True, fsync="never") as recorder:
        for order in orders():
            wait_until_recorded(recorder, order["messages"])
            answer()


def repair(feed: Any, directory: str) -> None:
    """Lose blocks on line A that the recorder has from line B; answer with each repair's time in ns."""
    both = msgspec.convert(feed, Feed)
    one = msgspec.structs.replace(
        both, slices=tuple(msgspec.structs.replace(part, endpoints=part.lines[:1]) for part in both.slices)
    )
    with RawPublisher(both) as publisher, Recorder(both, directory, serve=True, line_wait=0.001):
        subscriber = Subscriber(one, on_gap="repair", workers=1)
        came: list[tuple[int, int]] = []
        subscriber.on_batch(b"")(lambda batch: came.append((int(batch.sequence[0]), time.monotonic_ns())))
        with subscriber:
            for order in orders():
                took = [_lose_one(publisher, came) for _ in range(order["times"])]
                answer(took=took, gaps=subscriber.statistics().received.gaps)


def _lose_one(publisher: RawPublisher, came: list[tuple[int, int]]) -> int:
    came.clear()
    publisher.send(publisher.encode([_LOST]))
    wait_until(lambda: len(came) == 1)
    publisher.send(publisher.encode([_LOST]), [1])
    behind = publisher.encode([_LOST])
    began = time.monotonic_ns()
    publisher.send(behind)
    wait_until(lambda: len(came) == 3)
    expect("sequence numbers", [number - came[0][0] for number, _ in came], [0, 1, 2])
    return came[1][1] - began
