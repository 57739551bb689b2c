"""Threads, file descriptors and memory stay constant, and nothing is compiled after the start."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import numpy
import pytest

from blackbox import Feed, Message, Publisher, SlowPolicy, Subscriber
from blackbox.receive.order.state import Order
from blackbox.receive.statistics import Counters
from tests.examples import first_of
from tests.process_state import linux_only, resident_bytes
from tests.receive.subscribers import one_slice
from tests.support import Script

BOUND_BYTES = 32 << 20


BUSY = """
    from tests.process_state import resident_bytes
    topics = tuple(b"S%d" % number for number in range(1_000))
    columns = numpy.arange(100_000, dtype=numpy.int32) % 1_000, numpy.zeros((100_000, 100), numpy.uint8)
    subscriber = Subscriber(feed, slow=SlowPolicy(max_lag=3_600))
    seen = 0
    @subscriber.on_batch(b"")
    def note(batch):
        global seen
        seen += int(batch.ts_event[-1]) + len(batch.payload(0))
    @subscriber.on(b"S77")
    def each(message):
        global seen
        seen += len(message.payload)
    @subscriber.on_compiled(b"S1", state=numpy.zeros(1))
    def count(batch, state):
        state[0] += len(batch.rows)
    resident, sent = [], 0
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start(timeout=200)
        for rounds in (5, 30):
            for _ in range(rounds):
                publisher.publish_many(topics, *columns)
                for number in range(1_000):
                    publisher.publish(topics[number], bytes(number))
                sent += len(feed.slices[0].lines) * 101_000
            publisher.flush()
            wait_until(lambda: subscriber.statistics().received.messages == sent)
            resident.append(resident_bytes())
    subscriber.run(until_end=True)
    statistics = subscriber.statistics()
    say(statistics.received.gaps, statistics.delivery.discarded, publisher.statistics().body_bytes)
    say(resident[1] - resident[0])
"""


@linux_only
@pytest.mark.parametrize("lines", first_of([1, 2]))
def test_memory_stays_constant_however_much_is_sent(lines: int) -> None:
    with Script(BUSY, Feed.local("memory", slices=2, lines=lines)) as script:
        gaps, discarded, body_bytes = map(int, script.read().split())
        assert (gaps, discarded) == (0, 0)
        assert body_bytes > 10 * BOUND_BYTES
        assert int(script.read()) < BOUND_BYTES


KEEPER = """
    from tests.process_state import resident_bytes
    import gc
    gc.disable()  # dropped objects must be freed without it
    subscriber = Subscriber(feed, slow=SlowPolicy(max_lag=3_600))
    kept = []
    subscriber.on_batch(b"S")(kept.append)
    other = 0
    @subscriber.on_batch(b"")
    def pass_by(batch):
        global other
        other += len(batch)
    subscriber.start(timeout=200)
    before = resident_bytes()
    say("started")
    subscriber.run(until_end=True)
    del subscriber
    held = resident_bytes()
    numbers = [int(batch.payload(row)[:8], 16) for batch in kept for row in range(len(batch))]
    columns = [batch.ts_event for batch in kept]
    say(other, numbers == list(range(len(numbers))), len(numbers), held - before)
    kept.clear()
    say(sum(map(len, columns)) == len(numbers), resident_bytes() - before >= (held - before) // 2)
    del columns
    say(resident_bytes() - before)
"""


@linux_only
def test_kept_batches_outlive_their_subscriber_and_are_freed_when_dropped() -> None:
    feed = one_slice(block_bytes=128 << 10)
    payload_bytes, messages = 1_000, 60_000
    with Script(KEEPER, feed) as keeper, Publisher(feed, when_full="wait") as publisher:
        keeper.expect("started")
        payloads = b"".join(b"%08x" % number + bytes(payload_bytes - 8) for number in range(messages))
        rows = numpy.frombuffer(payloads, numpy.uint8).reshape(messages, payload_bytes)
        publisher.publish_many((b"S",), numpy.zeros(messages, numpy.int32), rows)
        publisher.close()
        other, in_order, count, held = keeper.read().split()
        assert (other, in_order, count) == (str(messages), "True", str(messages))
        assert int(held) > 0.9 * messages * payload_bytes
        keeper.expect("True True")  # a column keeps its block
        assert int(keeper.read()) < BOUND_BYTES
        assert keeper.finish()[0] == 0


def test_a_callback_left_behind_never_writes_to_a_reused_descriptor(tmp_path: Path) -> None:
    feed, others = one_slice(), set(threading.enumerate())
    began, may_end = threading.Event(), threading.Event()
    subscriber = Subscriber(feed, workers=1, slow=SlowPolicy(grace=0.1, start_grace=0))

    @subscriber.on(b"")
    def hang(_message: Message) -> None:
        began.set()
        may_end.wait()

    with Publisher(feed) as publisher:
        subscriber.start()
        publisher.publish(b"A.trade", b"")
        assert began.wait(200)
        subscriber.terminate(timeout=200)
        publisher.close(timeout=0.1)
    (left,) = (t for t in set(threading.enumerate()) - others if t.name.startswith("blackbox-slice-"))
    del subscriber
    gc.collect()
    files = [(tmp_path / str(number)).open("wb", buffering=0) for number in range(8)]
    may_end.set()
    left.join(200)
    assert [file.tell() for file in files] == [0] * len(files)
    for file in files:
        file.close()


@linux_only
def test_unused_keys_take_no_memory() -> None:
    counters = Counters(1)
    before = resident_bytes()
    order = Order(1 << 20, 1, 0, 0, 0, counters.slice)
    assert resident_bytes() - before < 100_000_000
    assert order.position == (0, 0)


CALLBACKS = """
import gc
from numba.core.dispatcher import Dispatcher
subscriber, kept = Subscriber(feed, workers=1), []
subscriber.book(b"A.")
@subscriber.on_batch(b"", independent=True)
def batches(batch):
    kept[:] = batch, batch.indices("P"), batch.records("P"), batch.payloads()
@subscriber.on_batch(b"A.")
def some(batch):
    batch.indices("P"), batch.payloads()
@subscriber.on(b"A.")
def message(message):
    pass
@subscriber.on(b"B.")
def other(message):
    pass
def compiled():
    kernels = [each for each in gc.get_objects() if isinstance(each, Dispatcher)]
    return {str(each): len(each.overloads) for each in kernels if each.overloads}
from blackbox_feeds.itch50 import SCHEMA
trade = numpy.zeros(1, SCHEMA.dtype("P"))
trade["message_type"] = b"P"
with Publisher(feed, when_full="wait") as publisher:
    subscriber.start(timeout=200)
    before = compiled()
    for count in 150, 300:  # then a later burst frees a kept one
        for number in range(50):
            publisher.publish(b"AB"[number % 2 :][:1] + b".P", trade.tobytes())
        publisher.flush()
        wait_until(lambda: subscriber.statistics().delivery.delivered == count, what=f"{count} deliveries")
    after = compiled()
subscriber.run(until_end=True)
say(sorted(name for name in after if after[name] != before.get(name, 0)))
"""


def test_nothing_is_compiled_after_the_start() -> None:
    feed = one_slice(schema="itch50", max_lag_ns=10**12)
    with Script(CALLBACKS, feed) as script:
        script.expect("[]")
        assert script.finish()[0] == 0
