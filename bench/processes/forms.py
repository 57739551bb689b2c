"""The forms of a subscriber's work in a run: register callbacks, then check their results.

as fast as possible                                      latency of each message
"compiled"  count, digest, sum of each topic             "late"           on(prefix)
"batch"     a pass over columns                          "late compiled"  on_compiled(prefix)
"each"      a call                                       "late batches"   on_batch(prefix), may be slow
"digest"    a call: digest only
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import numpy
from numba import njit
from numpy.typing import NDArray

from bench.measure.contest import expect
from bench.processes.late import check_late
from bench.processes.pair import Form, Order
from bench.workload.load import Load
from bench.workload.tally import (
    DIGEST_FACTOR,
    DIGEST_MASK,
    EVERY_ROW,
    Tally,
    count_compiled,
    expect_tally,
    state_of,
    tally,
)
from blackbox import Batch, Message, Subscriber
from blackbox.native.system.posix import now_ns

LIMIT_S: Final = 60.0
"""Time limit of a run."""
_SLEEP_S: Final = 0.05
_MOST_NOTED: Final = 200_000
"""Maximum messages of a "late compiled" run: a fixed array size, compiled once."""

Findings = Callable[[int], dict[str, Any]]
"""Called with the start of the run: check the messages received and return fields of `Heard`. Raises Lost."""


# Work on messages at full speed


def compiled(subscriber: Subscriber, order: Order) -> Findings:
    """Register `on_compiled` for each prefix."""
    load, prefixes = order.load, order.work.prefixes
    state = numpy.zeros((load.topics, 3), numpy.int64)
    callbacks = [subscriber.on_compiled(prefix, state=state)(count_compiled) for prefix in prefixes]
    return lambda _: _checked(state_of(callbacks), order)


def batch(subscriber: Subscriber, order: Order) -> Findings:
    """Register `on_batch` for each prefix: numpy views and one compiled pass."""
    load, prefixes = order.load, order.work.prefixes
    states = numpy.zeros((len(prefixes), len(subscriber.feed.slices), load.topics, 3), numpy.int64)
    for place, prefix in enumerate(prefixes):

        @subscriber.on_batch(prefix)
        def count(batch: Batch, by_slice: NDArray[numpy.int64] = states[place]) -> None:
            block = batch.block
            rows = EVERY_ROW[: len(batch)] if batch.rows is None else batch.rows
            state = by_slice[block.slice_id]
            tally(batch.topic_numbers, block.topic_index, rows, block.payloads, block.stride, state)

    return lambda _: _checked(states.sum(axis=0).reshape(-1, 3), order)


def each(subscriber: Subscriber, order: Order) -> Findings:
    """Register `on` for all messages: count, digest and sum of each topic in Python."""
    totals = Tally(skip=0).begin(order.load.messages)
    count = totals.count

    @subscriber.on(b"")
    def take(message: Message) -> None:
        count(message.topic, message.payload)

    return lambda _: _checked(totals.state(), order)


def _digest(subscriber: Subscriber, order: Order) -> Findings:
    """Register `on` for each prefix: a digest of byte 8 of the payloads, in order."""
    prefixes = order.work.prefixes
    digests = [0] * len(prefixes)  # one per callback, which runs in one thread of a slice
    for place, prefix in enumerate(prefixes):

        @subscriber.on(prefix)
        def count(message: Message, place: int = place) -> None:
            digests[place] = (digests[place] * DIGEST_FACTOR + message.payload[8]) & DIGEST_MASK

    def check(_began: int) -> dict[str, Any]:
        expect("digests of the payloads, by prefix", digests, [digest_of(order.load, prefix) for prefix in prefixes])
        return {}

    return check


def digest_of(load: Load, prefix: bytes = b"") -> int:
    """Return the digest of byte 8 of the payloads, in order, of topics with that prefix."""
    pool = load.pool
    has_prefix = numpy.array([topic.startswith(prefix) for topic in pool.topics])
    rows = numpy.arange(load.messages) % len(pool.topic_index)
    so_far = 0
    for value in pool.payloads[rows[has_prefix[pool.topic_index[rows]]], 8].tolist():
        so_far = (so_far * DIGEST_FACTOR + value) & DIGEST_MASK
    return so_far


def _checked(state: NDArray[Any], order: Order) -> dict[str, Any]:
    expect_tally(state, order.load, order.work.prefixes)
    return {}


# Latency of paced messages


def _late(subscriber: Subscriber, order: Order) -> Findings:
    seen: list[int] = []
    dues: list[int] = []
    payloads: list[bytes] = []
    clock = time.time_ns

    @subscriber.on(b"")
    def note(message: Message) -> None:
        payloads.append(message.payload)
        dues.append(message.ts_event)
        seen.append(clock())

    def check(began: int) -> dict[str, Any]:
        firsts = numpy.fromiter((payload[0] for payload in payloads), numpy.int64, len(payloads))
        return check_late(order.load, began, numpy.array(seen, numpy.int64), numpy.array(dues, numpy.int64), firsts)

    return check


@njit(nogil=True, boundscheck=True)
def _note_compiled(batch: Any, state: Any) -> None:
    """Row 0 of the state counts messages; the next rows hold arrival time, due time and first byte of each."""
    now = now_ns()
    for row in batch.rows:
        state[0, 0] += 1
        place = state[0, 0]
        state[place, 0] = now
        state[place, 1] = batch.ts_event[row]
        state[place, 2] = batch.payloads[row * batch.stride]


def _late_compiled(subscriber: Subscriber, order: Order) -> Findings:
    callback = subscriber.on_compiled(b"", state=numpy.zeros((_MOST_NOTED + 1, 3), numpy.int64))(_note_compiled)

    def check(began: int) -> dict[str, Any]:
        state = callback.total()
        seen, dues, firsts = state[1 : 1 + int(state[0, 0])].T
        return check_late(order.load, began, seen, dues, firsts)

    return check


def _late_batches(subscriber: Subscriber, order: Order) -> Findings:
    seen: list[Any] = [numpy.empty(0, numpy.int64)]
    dues: list[Any] = [numpy.empty(0, numpy.int64)]
    firsts: list[Any] = [numpy.empty(0, numpy.uint8)]
    is_slow = order.work.on_slow is not None

    @subscriber.on_batch(b"")
    def note(batch: Batch) -> None:
        seen.append(numpy.full(len(batch), time.time_ns()))
        dues.append(batch.ts_event.copy())
        firsts.append(batch.payloads()[:, 0].copy())
        if is_slow:
            time.sleep(_SLEEP_S)

    return lambda began: check_late(order.load, began, *map(numpy.concatenate, (seen, dues, firsts)))


FORMS: Final[dict[Form, Callable[[Subscriber, Order], Findings]]] = {
    "compiled": compiled,
    "batch": batch,
    "each": each,
    "digest": _digest,
    "late": _late,
    "late compiled": _late_compiled,
    "late batches": _late_batches,
}
