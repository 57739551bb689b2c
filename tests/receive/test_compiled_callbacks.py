"""Compiled callbacks: their columns, and where they run, in the slice thread or on a worker."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

from blackbox import Message, Publisher, SlowPolicy, Subscriber
from blackbox.block.form.block import Block, HeaderFields
from blackbox.block.form.rows import PayloadColumns
from blackbox.native.memory.intrinsics import load_acquire
from blackbox.receive.callbacks.callbacks import CompiledCallback
from blackbox.receive.callbacks.compiled_callback import CompiledBatch, has_value, payload, sequence_of
from blackbox.receive.callbacks.gap_hooks import NO_RULES, GapHooks
from blackbox.receive.state import Stopping
from blackbox.receive.statistics import Counters
from blackbox.testing import RawPublisher, wait_until
from tests.callbacks import count_rows
from tests.receive.subscribers import PATIENT, in_both_places, one_slice, publishing
from tests.receive.test_told_in_place import a_worker


def hold(batch: Any, state: Any) -> None:
    """Take the block, and stay in it until the first word is written."""
    state[1] += len(batch.rows)
    while load_acquire(state.ctypes.data) == 0:
        pass


@pytest.mark.parametrize(
    ("workers", "settings", "place"), [(2, {}, 2), (63, {}, 63), (2, {"worker": True}, 0), (2, {"group": "g"}, 0)]
)
def test_a_compiled_callback_runs_in_the_slice_thread_unless_worker_is_set(
    workers: int, settings: dict[str, Any], place: int
) -> None:
    subscriber = Subscriber(feed := one_slice(), workers=workers)
    counted = subscriber.on_compiled(b"T", state=numpy.zeros(1, numpy.int64), **settings)(count_rows)
    with publishing(feed, subscriber) as publisher:
        for _ in range(3):
            publisher.send(publisher.encode([(b"T", b"")] * 2))
    assert counted.total().tolist() == [6]
    [thread] = subscriber._supervisor.slices.running.values()
    taken = [each.blocks for each in thread.status.counters.workers]  # by each worker, and by the slice thread
    assert taken == [3 if number == place else 0 for number in range(workers + 1)]
    delivery = subscriber.statistics().delivery
    assert (delivery.due, delivery.delivered, delivery.queue_blocks) == (6, 6, 0)
    assert subscriber.statistics().lag.max_ns > 0


@in_both_places
def test_a_hung_compiled_callback_causes_a_lag_alert_and_is_left_behind(
    worker: bool, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[str] = []
    policy = SlowPolicy("warn", max_lag=0.05, on_alert=heard.append, grace=0.1, start_grace=0)
    subscriber = Subscriber(feed := one_slice(), slow=policy)
    held = subscriber.on_compiled(b"", state=numpy.zeros(2, numpy.int64), worker=worker)(hold)
    try:
        with RawPublisher(feed) as publisher:
            subscriber.start()
            for _ in range(3):
                publisher.send(publisher.encode([(b"T", b"")]))
            wait_until(lambda: heard, what="an alert while the callback runs")
            wait_until(lambda: held.states[0][1] == 1, what="the callback has a block")
            subscriber.terminate()
        assert "policy warn" in heard[0]
        assert " and was left behind in its thread" in caplog.text
    finally:
        for state in held.states.values():
            state[0] = 1
    wait_until(lambda: subscriber._supervisor.slices.is_done, what="its thread has ended once it returned")


@in_both_places
def test_a_return_to_the_past_resets_a_compiled_callback_between_messages(worker: bool) -> None:
    subscriber = Subscriber(feed := one_slice(), workers=2, slow=PATIENT)
    may_go_on, slow, at_reset = threading.Event(), [0], []

    @subscriber.on(b"A")
    def wait(message: Message) -> None:
        may_go_on.wait(200)
        slow[0] += 1

    counted = subscriber.on_compiled(b"B", state=numpy.zeros(1, numpy.int64), worker=worker)(count_rows)
    subscriber.on_reset(lambda: at_reset.append((slow[0], counted.total().tolist())))
    with Publisher(feed) as publisher, subscriber:
        publisher.publish(b"A", b"")
        for _ in range(5):
            publisher.publish(b"B", b"")
        publisher.flush()
        wait_until(lambda: counted.total()[0] == 5, what="all messages of the compiled callback")
        publisher.new_epoch()
        for _ in range(3):
            publisher.publish(b"B", b"")
        publisher.flush()
        may_go_on.set()
        wait_until(lambda: counted.total()[0] == 3, what="later messages, on a fresh state")
    assert at_reset == [(1, [5])]


def test_a_worker_that_is_terminated_at_an_epoch_keeps_the_states_of_its_compiled_callbacks() -> None:
    live, _ = a_worker(SimpleNamespace(enter=lambda *_, **__: None), Counters(1))
    live._host.state.stopping = Stopping.TERMINATE
    callback = CompiledCallback(b"", count_rows, numpy.zeros(1, numpy.int64), None, False)
    callback.state_for(0)[0] = 7
    live._gap_hooks = GapHooks([callback], NO_RULES)
    live.delivery.state.epoch, live.delivery.state.next_epoch = 1, 2
    live.enter_epoch()
    assert callback.total().tolist() == [7]


ROWS = 11


def note(batch: CompiledBatch, state: Any) -> None:
    for row in batch.rows:
        state[row, 0] = sequence_of(batch, row)
        state[row, 1] = has_value(batch, row)
        state[row, 2] = len(payload(batch, row))


@pytest.mark.parametrize(("is_numbered", "absent"), [(False, ()), (False, (0, 9)), (True, tuple(range(ROWS)))])
def test_each_row_has_its_sequence_and_an_absent_value_is_not_an_empty_one(
    is_numbered: bool, absent: tuple[int, ...]
) -> None:
    subscriber = Subscriber(feed := one_slice(), slow=PATIENT)
    noted = subscriber.on_compiled(b"", state=numpy.zeros((ROWS, 3), numpy.int64))(note)
    numbers = [7 + (row * row if is_numbered else row) for row in range(ROWS)]
    sizes = [0 if row in absent else row % 3 for row in range(ROWS)]
    block = Block.encode(
        [b"T"],
        [0] * ROWS,
        PayloadColumns(
            bytes(sum(sizes)),
            offsets=numpy.cumsum([0, *sizes]),
            valid=[row not in absent for row in range(ROWS)],
            sequences=numbers if is_numbered else None,
        ),
        HeaderFields(epoch=1, sequence=numbers[0], ts_out=time.time_ns()),
    )
    with publishing(feed, subscriber) as publisher:
        publisher.send(block)
        publisher.sequences[0] = numbers[-1] + 1
    assert noted.total().tolist() == [[number, row not in absent, sizes[row]] for row, number in enumerate(numbers)]
