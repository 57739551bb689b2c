"""The messages that all benchmarks send: 100 bytes, 5,000 topics, Zipf-like activity, the same every time."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple

import numpy
from numba import njit
from numpy.typing import NDArray

from bench.contest import expect
from blackbox.callbacks import CompiledCallback

TOPICS = 5_000
PAYLOAD_BYTES = 100
POOL_MESSAGES = 200_000
"""Distinct messages; a run sends the pool again and again."""
_POOL_BYTES = 1 << 26
"""Of payloads; a pool of large ones holds fewer."""
DIGEST_FACTOR = 31
DIGEST_MASK = 0xFFFF_FFFF


class Pool(NamedTuple):
    """Messages in columns, as `Publisher.publish_many` takes them."""

    topics: tuple[bytes, ...]
    topic_index: NDArray[numpy.int32]
    payloads: NDArray[numpy.uint8]
    ts_event: NDArray[numpy.int64]


@cache
def make_pool(topics: int = TOPICS, payload_bytes: int = PAYLOAD_BYTES) -> Pool:
    """The pool, the same object each time: topics `S0000.trade` … by 1/rank, random payload bytes, rising times."""
    random = numpy.random.default_rng(7)
    messages = min(POOL_MESSAGES, _POOL_BYTES // payload_bytes)
    weights = 1 / numpy.arange(1, topics + 1)
    index = random.choice(topics, messages, p=weights / weights.sum()).astype(numpy.int32)
    # Ranks are spread over the names, so that no prefix holds all the active topics.
    index = random.permutation(topics).astype(numpy.int32)[index]
    payloads = random.integers(0, 256, (messages, payload_bytes), numpy.uint8)
    digits = len(str(topics - 1))
    return Pool(
        tuple(b"S%0*d.trade" % (digits, i) for i in range(topics)),
        index,
        payloads,
        numpy.arange(messages, dtype=numpy.int64),
    )


def expected_sum(pool: Pool, messages: int) -> int:
    """Sum of the first payload byte over the first `messages` messages: what every receiver must find."""
    first = pool.payloads[:, 0].astype(numpy.int64)
    whole, rest = divmod(messages, len(first))
    return int(first.sum()) * whole + int(first[:rest].sum())


@njit(inline="always")
def digest(before: int, value: int) -> int:
    """Of the values so far and one more: another one, nearly always, where a value or their order is another."""
    return (before * DIGEST_FACTOR + value) & DIGEST_MASK


@cache
def _expected_tally(messages: int) -> NDArray[numpy.int64]:
    pool = make_pool()
    state: NDArray[numpy.int64] = _tally_of_pool(pool.topic_index, pool.payloads, messages)
    return state


@njit(nogil=True, cache=True)
def _tally_of_pool(index: NDArray[Any], payloads: NDArray[Any], messages: int) -> NDArray[numpy.int64]:
    state = numpy.zeros((TOPICS, 3), numpy.int64)
    for number in range(messages):
        row = number % len(index)
        topic = index[row]
        state[topic, 0] += 1
        state[topic, 1] = digest(state[topic, 1], payloads[row, 8])
        state[topic, 2] += payloads[row, 0]
    return state


def _in_one_order(state: NDArray[Any]) -> NDArray[Any]:
    rows: NDArray[Any] = state[numpy.lexsort(state.T)]
    return rows


def tally_of(callbacks: Iterable[CompiledCallback]) -> NDArray[numpy.int64]:
    """int64[topics of all slices, 3]: the tallies of compiled callbacks of which each topic has one."""
    slices: dict[int, Any] = {}
    for callback in callbacks:
        for number, state in callback.states.items():
            slices[number] = slices.get(number, 0) + state
    return numpy.concatenate(list(slices.values()))


def expect_totals(state: NDArray[Any], messages: int) -> None:
    """Raise Lost unless a tally int64[topics, 3] of count, digest, sum has the first messages' count and checksum."""
    expect("count", int(state[:, 0].sum()), messages)
    expect("checksum", int(state[:, 2].sum()), expected_sum(make_pool(), messages))


def expect_tally(state: NDArray[Any], messages: int, *, by_topic: bool = False) -> None:
    """`expect_totals`, and each topic's messages came in their order; rows are `by_topic`, or in any order.

    Read of a payload are bytes 0 and 8: not seen is what stands in others, nor two neighbours of a topic, of which byte
    8 is the same (one in 256), that changed places.
    """
    expect_totals(state, messages)
    expected = _expected_tally(messages)
    if by_topic:
        expect("rows of count, digest, sum by topic", numpy.array_equal(state, expected), True)
        return
    used, expected = state[state[:, 0] > 0], expected[expected[:, 0] > 0]
    same = numpy.array_equal(_in_one_order(used), _in_one_order(expected))
    expect("rows of count, digest, sum in order", same, True)
