"""The messages of all benchmarks: 100 bytes, 5,000 topics, Zipf-like activity, always the same."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy
from numpy.typing import NDArray

TOPICS = 5_000
PAYLOAD_BYTES = 100
POOL_MESSAGES = 200_000
"""Number of distinct messages; a run sends the pool repeatedly."""
_POOL_BYTES = 1 << 26
"""Maximum bytes of payloads; a pool of large payloads has fewer messages."""


class Pool(NamedTuple):
    """Messages in columns, as `Publisher.publish_many` takes them."""

    topics: tuple[bytes, ...]
    topic_index: NDArray[numpy.int32]
    payloads: NDArray[numpy.uint8]
    ts_event: NDArray[numpy.int64]


@cache
def make_pool(topics: int = TOPICS, payload_bytes: int = PAYLOAD_BYTES, in_turn: bool = False) -> Pool:
    """Return the pool, the same object each time: topics `S0000.trade` …, random payload bytes, rising times.

    Topics have activity 1/rank, or alternate evenly with `in_turn`.
    """
    random = numpy.random.default_rng(7)
    messages = min(POOL_MESSAGES, _POOL_BYTES // payload_bytes)
    weights = 1 / numpy.arange(1, topics + 1)
    index = random.choice(topics, messages, p=weights / weights.sum()).astype(numpy.int32)
    # Shuffle the ranks, so that no prefix holds all the active topics.
    index = random.permutation(topics).astype(numpy.int32)[index]
    if in_turn:
        index = (numpy.arange(messages) % topics).astype(numpy.int32)
    payloads = random.integers(0, 256, (messages, payload_bytes), numpy.uint8)
    digits = len(str(topics - 1))
    return Pool(
        tuple(b"S%0*d.trade" % (digits, i) for i in range(topics)),
        index,
        payloads,
        numpy.arange(messages, dtype=numpy.int64),
    )
