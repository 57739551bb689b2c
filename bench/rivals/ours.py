"""Ours: columns or single messages in, blocks over TCP, compiled, batch or per-message callbacks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec
import numpy

from bench.bench_delivery import _count
from bench.loops import tally
from bench.receivers import FOREVER_NS, wait_for
from bench.rivals.records import Tally, many
from bench.workload import POOL_MESSAGES, TOPICS, make_pool
from blackbox import Batch, Feed, Message, Publisher, Subscriber

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from bench.rivals.orders import Orders


def publish(orders: Orders) -> None:
    pool = make_pool()
    one_by_one = [
        (pool.topics[topic], payload.tobytes(), int(event))
        for topic, payload, event in zip(pool.topic_index, pool.payloads, pool.ts_event, strict=True)
    ]
    with Publisher(_feed(orders), when_full="wait") as publisher:
        orders.ready()
        for messages in orders:
            publisher.wait_for_subscribers(timeout=60)
            started = time.perf_counter()
            if orders.form == "one by one":
                for topic, payload, event in many(one_by_one, messages):
                    publisher.publish(topic, payload, event)
            else:
                for start in range(0, messages, POOL_MESSAGES):
                    count = min(POOL_MESSAGES, messages - start)
                    publisher.publish_many(
                        pool.topics, pool.topic_index[:count], pool.payloads[:count], pool.ts_event[:count]
                    )
            publisher.flush()
            orders.sent(started)


def receive(orders: Orders) -> None:
    feed = _feed(orders)
    orders.ready()
    for messages in orders:
        subscriber = Subscriber(feed, workers=1, max_lag_ns=FOREVER_NS)
        state = callback_of(orders.form)(subscriber, messages)
        with subscriber:
            orders.receiving()
            wait_for(subscriber, messages)
            ended = time.perf_counter()
        orders.received(ended, state(), messages)


def callback_of(form: str) -> Callable[[Subscriber, int], Callable[[], Any]]:
    """What enters a callback of that form for so many messages, and returns what tells its state."""
    return {"compiled": _compiled, "batch": _batch}.get(form, _each)


def _feed(orders: Orders) -> Feed:
    return msgspec.convert(orders.arguments["feed"], Feed)


def _compiled(subscriber: Subscriber, _messages: int) -> Any:
    return subscriber.on_compiled(b"", state=numpy.zeros((TOPICS, 3), numpy.int64))(_count).total


def _batch(subscriber: Subscriber, _messages: int) -> Any:
    state: NDArray[numpy.int64] = numpy.zeros((TOPICS, 3), numpy.int64)
    every = numpy.arange(1 << 20, dtype=numpy.int32)

    @subscriber.on_batch(b"")
    def count(batch: Batch) -> None:
        block = batch.block
        rows = every[: len(batch)] if batch.rows is None else batch.rows
        tally(batch.topic_numbers, block.topic_index, rows, block.payloads, block.stride, state)

    return lambda: state


def _each(subscriber: Subscriber, messages: int) -> Any:
    totals = Tally(skip=0).begin(messages)
    count = totals.count

    @subscriber.on(b"")
    def take(message: Message) -> None:
        count(message.topic, message.payload)

    return totals.state
