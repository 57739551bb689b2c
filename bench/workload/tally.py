"""The work of subscribers and its verification: count, digest and sum of each topic.

    compiled callback   count_compiled      a call per message   Tally
    columns             tally               blocks by hand       BlockTally

Bytes 0 (sum) and 8 (digest) of a payload are read. Changes of other bytes go undetected, and so does swapping two
successive messages of a topic with the same byte 8 (one pair in 256).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

import numpy
from numba import njit
from numpy.typing import NDArray

from bench.measure.contest import expect
from bench.workload.load import TIME_BYTES, Load
from bench.workload.messages import PAYLOAD_BYTES, TOPICS, make_pool
from blackbox.receive.callbacks.callbacks import CompiledCallback

DIGEST_FACTOR = 31
DIGEST_MASK = 0xFFFF_FFFF
EVERY_ROW = numpy.arange(1 << 20, dtype=numpy.int32)


@njit(inline="always")
def digest(before: int, value: int) -> int:
    """Digest one more value. A different value or order almost always gives a different result."""
    return (before * DIGEST_FACTOR + value) & DIGEST_MASK


def count_compiled(batch: Any, state: Any) -> None:
    """A compiled callback; `state` is int64[topics, 3] of count, digest, sum."""
    for row in batch.rows:
        topic = batch.topic_numbers[batch.topic_index[row]]
        state[topic, 0] += 1
        state[topic, 1] = digest(state[topic, 1], batch.payloads[row * batch.stride + 8])
        state[topic, 2] += batch.payloads[row * batch.stride]


@njit(nogil=True, cache=True)
def tally(
    numbers: NDArray[numpy.int32],
    topic_index: NDArray[numpy.int32],
    rows: NDArray[numpy.int32],
    payloads: NDArray[numpy.uint8],
    stride: int,
    state: NDArray[numpy.int64],
) -> None:
    """Count the messages of a batch from its columns."""
    for row in rows:
        topic = numbers[topic_index[row]]
        state[topic, 0] += 1
        state[topic, 1] = digest(state[topic, 1], payloads[row * stride + 8])
        state[topic, 2] += payloads[row * stride]


class Tally:
    """A tally with a Python call for each message; `count(topic, data)` is the callback.

    Topics may be bytes or text. The payload starts after `skip` bytes of the data.
    """

    def __init__(self, on_last: Callable[[], object] = lambda: None, skip: int = TIME_BYTES) -> None:
        self.ended = 0
        self._state: tuple[list[int], list[int], list[int]] = ([], [], [])
        self._skip = skip
        self._on_last = on_last
        self.count: Callable[[Any, Any], None]

    def begin(self, messages: int) -> Tally:
        """Reset the tally for `messages` messages; the last one sets `ended`, unix ns."""
        self.ended = 0
        names = make_pool().topics
        numbers: dict[Any, int] = {name: number for number, name in enumerate(names)}
        numbers.update({name.decode(): number for number, name in enumerate(names)})
        counts, digests, sums = self._state = ([0] * TOPICS, [0] * TOPICS, [0] * TOPICS)
        sum_at, digest_at = self._skip, self._skip + 8
        left = messages

        def count(topic: Any, data: Any) -> None:
            nonlocal left
            number = numbers[topic]
            counts[number] += 1
            digests[number] = (digests[number] * DIGEST_FACTOR + data[digest_at]) & DIGEST_MASK
            sums[number] += data[sum_at]
            left -= 1
            if not left:
                self.ended = time.time_ns()
                self._on_last()

        self.count = count
        return self

    def state(self) -> NDArray[Any]:
        """int64[topics, 3] of count, digest, sum."""
        return numpy.array(self._state, numpy.int64).T


class BlockTally:
    """A tally of blocks packed by hand: numpy views and one compiled pass; `count(_, block)` is the callback."""

    def __init__(self, on_last: Callable[[], object] = lambda: None) -> None:
        self._on_last = on_last
        self._numbers = numpy.arange(TOPICS, dtype=numpy.int32)
        self._state = numpy.zeros((TOPICS, 3), numpy.int64)
        self._left = 0
        self.ended = 0
        nothing = numpy.frombuffer(b"", numpy.int32), EVERY_ROW[:0], numpy.frombuffer(b"", numpy.uint8)
        tally(self._numbers, *nothing, PAYLOAD_BYTES, self._state)  # compiles

    def begin(self, messages: int) -> BlockTally:
        """Reset the tally for `messages` messages."""
        self._state[:] = 0
        self._left = messages
        self.ended = 0
        return self

    def count(self, _topic: Any, block: Any) -> None:
        """Count a block as packed by `bench.rivals.records`."""
        count = int(numpy.frombuffer(block, numpy.int64, 1)[0])
        index = numpy.frombuffer(block, numpy.int32, count, 8 + 8 * count)
        payloads = numpy.frombuffer(block, numpy.uint8, PAYLOAD_BYTES * count, 8 + 12 * count)
        tally(self._numbers, index, EVERY_ROW[:count], payloads, PAYLOAD_BYTES, self._state)
        self._left -= count
        if self._left <= 0:
            self.ended = time.time_ns()
            self._on_last()

    def state(self) -> NDArray[Any]:
        """int64[topics, 3] of count, digest, sum."""
        return self._state


def state_of(callbacks: Iterable[CompiledCallback]) -> NDArray[numpy.int64]:
    """Return int64[topics of all slices, 3] of compiled callbacks; each topic has one callback."""
    slices: dict[int, Any] = {}
    for callback in callbacks:
        for number, state in callback.states.items():
            slices[number] = slices.get(number, 0) + state
    return numpy.concatenate(list(slices.values()))


@cache
def wanted(load: Load, prefixes: Sequence[bytes] = (b"",)) -> int:
    """Return the number of messages of a run whose topics have one of these prefixes."""
    return int(_expected(load, tuple(prefixes))[:, 0].sum())


@cache
def sum_of(load: Load) -> int:
    """Return the sum of the first payload bytes of a run."""
    return int(_expected(load, (b"",))[:, 2].sum())


def expect_tally(
    state: NDArray[Any], load: Load, prefixes: Sequence[bytes] = (b"",), *, by_topic: bool = False
) -> None:
    """Raise Lost unless int64[topics, 3] has count, digest and sum of the messages sent with these prefixes.

    Rows are `by_topic` or in any order, because ours numbers topics in order of arrival.
    """
    expected = _expected(load, tuple(prefixes))
    for name, column in (("count", 0), ("checksum", 2)):
        expect(name, int(state[:, column].sum()), int(expected[:, column].sum()))
    if by_topic:
        expect("rows of count, digest, sum by topic", numpy.array_equal(state, expected), True)
    else:
        expect("rows of count, digest, sum in order", numpy.array_equal(_used(state), _used(expected)), True)


def _used(state: NDArray[Any]) -> NDArray[Any]:
    used = state[state[:, 0] > 0]
    rows: NDArray[Any] = used[numpy.lexsort(used.T)]
    return rows


@cache
def _expected(load: Load, prefixes: tuple[bytes, ...]) -> NDArray[numpy.int64]:
    pool = load.pool
    state: NDArray[numpy.int64] = _tally_of_pool(len(pool.topics), pool.topic_index, pool.payloads, load.messages)
    if b"" not in prefixes:
        state[[not topic.startswith(prefixes) for topic in pool.topics]] = 0
    return state


@njit(nogil=True, cache=True)
def _tally_of_pool(topics: int, index: NDArray[Any], payloads: NDArray[Any], messages: int) -> NDArray[numpy.int64]:
    state = numpy.zeros((topics, 3), numpy.int64)
    for number in range(messages):
        row = number % len(index)
        topic = index[row]
        state[topic, 0] += 1
        state[topic, 1] = digest(state[topic, 1], payloads[row, 8])
        state[topic, 2] += payloads[row, 0]
    return state
