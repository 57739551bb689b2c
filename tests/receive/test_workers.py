"""Callbacks are distributed over workers, and a full queue of one worker delays the others without loss."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy

from blackbox import Batch, Message, Publisher, SlowPolicy, Subscriber
from blackbox.testing import Collector, wait_until
from tests.gate import Gate
from tests.receive.subscribers import one_slice


def test_a_new_callback_goes_to_the_worker_that_lost_one() -> None:
    subscriber = Subscriber(one_slice(), workers=2)
    functions: list[Callable[[Message], None]] = [lambda message, n=n: None for n in range(4)]  # type: ignore[misc]
    for function in functions:
        subscriber.on(b"")(function)
    assert [callback.worker for callback in subscriber.callbacks] == [0, 1, 0, 1]
    subscriber.remove(functions[1])
    subscriber.remove(functions[3])
    for function in functions[1::2]:
        subscriber.on(b"")(function)
    assert [callback.worker for callback in subscriber.callbacks] == [0, 0, 1, 1]


def test_a_full_worker_queue_is_bounded_and_loses_nothing() -> None:
    feed = one_slice(block_bytes=4_096)
    subscriber = Subscriber(feed, slow=SlowPolicy(max_lag=3_600), queue_blocks=4, hwm_blocks=8)
    blocked, free = Collector(), Collector()
    gate = Gate()

    @subscriber.on_batch(b"")
    def block(batch: Batch) -> None:
        gate.wait()
        blocked.batch(batch)

    subscriber.on_batch(b"")(free.batch)
    with Publisher(feed, when_full="wait", hwm_blocks=8) as publisher:
        subscriber.start()
        publishing = threading.Thread(
            target=publisher.publish_many,
            args=((b"T",), numpy.zeros(20_000, int), numpy.arange(20_000).reshape(-1, 1).view(numpy.uint8)),
        )
        publishing.start()
        assert gate.entered.wait(60)
        wait_until(lambda: subscriber.statistics().delivery.waits > 2)
        # Its own queue, messages ahead of it in the pipe, and one burst in the worker.
        assert subscriber.statistics().delivery.queue_blocks <= 4 + 2
        received = subscriber.statistics().received.blocks
        wait_until(lambda: subscriber.statistics().delivery.waits > 6)
        assert subscriber.statistics().received.blocks == received
        gate.open.set()
        publishing.join()
    subscriber.run(until_end=True)
    for got in (blocked, free):
        assert [int.from_bytes(p, "little") for p in got.payloads] == list(range(20_000))
    assert subscriber.statistics().received.gaps == 0
