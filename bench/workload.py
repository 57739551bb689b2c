"""The messages that all benchmarks send: 100 bytes, 5,000 topics, Zipf-like activity, the same every time."""

from __future__ import annotations

from typing import NamedTuple

import numpy
from numpy.typing import NDArray

TOPICS = 5_000
PAYLOAD_BYTES = 100
POOL_MESSAGES = 200_000
"""Distinct messages; a run sends the pool again and again."""


class Pool(NamedTuple):
    """Messages in columns, as `Publisher.publish_many` takes them."""

    topics: tuple[bytes, ...]
    topic_index: NDArray[numpy.int32]
    payloads: NDArray[numpy.uint8]
    ts_event: NDArray[numpy.int64]


def make_pool() -> Pool:
    """The pool: topics `S0000.trade` … by 1/rank, random payload bytes, rising times."""
    random = numpy.random.default_rng(7)
    weights = 1 / numpy.arange(1, TOPICS + 1)
    index = random.choice(TOPICS, POOL_MESSAGES, p=weights / weights.sum()).astype(numpy.int32)
    # Ranks are spread over the names, so that no prefix holds all the active topics.
    index = random.permutation(TOPICS).astype(numpy.int32)[index]
    payloads = random.integers(0, 256, (POOL_MESSAGES, PAYLOAD_BYTES), numpy.uint8)
    return Pool(
        tuple(b"S%04d.trade" % i for i in range(TOPICS)),
        index,
        payloads,
        numpy.arange(POOL_MESSAGES, dtype=numpy.int64),
    )


def expected_sum(pool: Pool, messages: int) -> int:
    """Sum of the first payload byte over the first `messages` messages: what every receiver must find."""
    first = pool.payloads[:, 0].astype(numpy.int64)
    whole, rest = divmod(messages, POOL_MESSAGES)
    return int(first.sum()) * whole + int(first[:rest].sum())
