"""The messages of a run and their timing, as an order to senders and receivers.

as fast as possible  columns, or messages one by one
at a rate            each message, or a few together, at its due time; evenly or in bursts
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import chain, islice, repeat
from typing import Any, Final

import msgspec
import numpy
from numpy.typing import NDArray

from bench.workload.messages import PAYLOAD_BYTES, TOPICS, Pool, make_pool
from blackbox import Feed

BURST_PERIOD_NS: Final = 20_000_000
BURST_NS: Final = 1_000_000
BURST_TIMES: Final = 10
TIME_BYTES: Final = 8
"""Bytes of a message's time or pool index, between topic and payload in a rival's frame."""
LEAD_NS: Final = 30_000_000
"""Time from the order to the first due message."""
_SLEEP_ABOVE_NS: Final = 300_000
_WAKE_BEFORE_NS: Final = 200_000
"""A pacer sleeps until this long before a due time and then spins: it shares two cores with the receiver."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """A run of `messages`; with a `rate`, each has a due time."""

    messages: int
    feed: Feed | None = None
    """Feed of our sender and receiver; rivals get their address at start."""
    topics: int = TOPICS
    payload_bytes: int = PAYLOAD_BYTES
    in_turn: bool = False
    """True if topics alternate evenly instead of by 1/rank."""
    rate: int = 0
    """Messages per second; 0: as fast as possible."""
    at_once: int = 0
    """Messages per call. 1: `publish()`; more: `publish_many()`; 0: the whole pool, without a rate."""
    is_bursting: bool = False
    """True if the rate is a mean: each period of 20 ms starts with 1 ms at ten times the rate."""
    subscribers: int = 1
    """Subscribers to wait for before the first message."""

    @property
    def pool(self) -> Pool:
        """The messages, sent repeatedly."""
        return make_pool(self.topics, self.payload_bytes, self.in_turn)


def due_ns(load: Load) -> NDArray[numpy.int64]:
    """Return int64[messages]: due times in ns since the start of the run."""
    number = numpy.arange(load.messages, dtype=numpy.int64)
    if not load.is_bursting:
        return number // load.at_once * load.at_once * 10**9 // load.rate
    period = load.rate * BURST_PERIOD_NS // 10**9
    burst = BURST_TIMES * load.rate * BURST_NS // 10**9
    within = number % period
    quick = within * BURST_NS // burst
    slow = BURST_NS + (within - burst) * (BURST_PERIOD_NS - BURST_NS) // max(1, period - burst)
    return number // period * BURST_PERIOD_NS + numpy.where(within < burst, quick, slow)


def when_due(dues: Sequence[int], *columns: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """Yield each row of these columns, preceded by its due time (unix ns), at that time."""
    clock = time.time_ns
    for row in zip(dues, *columns, strict=True):
        while (left := row[0] - clock()) > 0:
            if left > _SLEEP_ABOVE_NS:
                time.sleep((left - _WAKE_BEFORE_NS) / 1e9)
        yield row


def column_rows(load: Load, at_once: int = 0) -> Iterator[tuple[int, slice]]:
    """Yield the number of earlier messages and rows of the pool, `at_once` at a time, for all messages of a run."""
    size = len(load.pool.topic_index)
    step = min(at_once or size, size)
    start = 0
    while start < load.messages:
        place = start % size
        rows = slice(place, place + min(step, size - place, load.messages - start))
        yield start, rows
        start += rows.stop - rows.start


def many(pool: list[Any], messages: int) -> Iterator[Any]:
    """Yield `messages` items, repeating the pool."""
    return islice(chain.from_iterable(repeat(pool)), messages)


def singles(load: Load) -> list[tuple[bytes, bytes, int]]:
    """Return topic, payload and time of each message of the pool; cached."""
    return _singles(load.topics, load.payload_bytes, load.in_turn)


def topics_and_data(load: Load) -> list[tuple[bytes, bytes]]:
    """Return the pool as rivals carry it: topic, and time and payload as one bytes object; cached."""
    return _topics_and_data(load.topics, load.payload_bytes, load.in_turn)


def frames(load: Load) -> list[bytes]:
    """Return each message as one bytes object: topic, blank, time, payload; cached."""
    return _frames(load.topics, load.payload_bytes, load.in_turn)


@cache
def _singles(*pool_of: Any) -> list[tuple[bytes, bytes, int]]:
    pool = make_pool(*pool_of)
    return [
        (pool.topics[topic], payload.tobytes(), event)
        for topic, payload, event in zip(pool.topic_index, pool.payloads, pool.ts_event.tolist(), strict=True)
    ]


@cache
def _topics_and_data(*pool_of: Any) -> list[tuple[bytes, bytes]]:
    return [(topic, event.to_bytes(TIME_BYTES, "little") + payload) for topic, payload, event in _singles(*pool_of)]


@cache
def _frames(*pool_of: Any) -> list[bytes]:
    return [b"%b %b" % each for each in _topics_and_data(*pool_of)]


POOL: Final = Load(messages=0)
"""A load without messages, used to build the default pool before timing starts."""
