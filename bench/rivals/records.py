"""The benchmarks' messages as rivals carry them, and the work that their subscribers do.

    message     topic | ts_event int64 | payload of 100 bytes
    block       count int64 | ts_event int64[count] | topic number int32[count] | payload uint8[count, 100]

Blocks are what a user would pack by hand who knows all topics and sizes beforehand: fewer bytes than ours, which carry
their topics, and no sequence, no checksum, no filter.
"""

from __future__ import annotations

import time
from functools import cache
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING, Any, Final

import numpy

from bench.workload import DIGEST_FACTOR, DIGEST_MASK, PAYLOAD_BYTES, POOL_MESSAGES, TOPICS, make_pool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

BLOCK_MESSAGES: Final = 2_000
"""Messages in a block packed by hand: 224 KB, within a few percent of our largest block."""
TIME_BYTES: Final = 8
BLOCK_TOPIC: Final = b"block"


@cache
def messages_of_pool() -> list[tuple[bytes, bytes]]:
    """Topic and bytes of each message of the pool, made before any clock runs."""
    pool = make_pool()
    return [
        (pool.topics[topic], event + payload.tobytes())
        for topic, event, payload in zip(
            pool.topic_index, (time.tobytes() for time in pool.ts_event), pool.payloads, strict=True
        )
    ]


def many(pool: list[Any], messages: int) -> Iterator[Any]:
    """The pool again and again, so many in all."""
    return islice(chain.from_iterable(repeat(pool)), messages)


def block_rows(messages: int) -> Iterator[slice]:
    """Of the pool, what each block holds."""
    for start in range(0, messages, BLOCK_MESSAGES):
        first = start % POOL_MESSAGES
        yield slice(first, first + min(BLOCK_MESSAGES, messages - start))


def blocks(messages: int) -> Iterator[bytes]:
    """Blocks packed as they are asked for."""
    pool = make_pool()
    for rows in block_rows(messages):
        index = pool.topic_index[rows]
        yield b"".join(
            (
                len(index).to_bytes(TIME_BYTES, "little"),
                pool.ts_event[rows].data,
                index.data,
                pool.payloads[rows].data,
            )
        )


class Tally:
    """Count, digest and sum per topic, one Python call per message; `count(topic, data)` is the callback.

    Topics are found as bytes and as text. `skip` bytes of the data come before the payload.
    """

    def __init__(self, on_last: Callable[[], object] = lambda: None, skip: int = TIME_BYTES) -> None:
        self.ended = 0.0
        self._state: tuple[list[int], list[int], list[int]] = ([], [], [])
        self._skip = skip
        self._on_last = on_last
        self.count: Callable[[Any, Any], None]

    def begin(self, messages: int) -> Tally:
        """Start anew, for so many messages."""
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
                self.ended = time.perf_counter()
                self._on_last()

        self.count = count
        return self

    def state(self) -> NDArray[Any]:
        """int64[topics, 3] of count, digest, sum."""
        return numpy.array(self._state, numpy.int64).T


class BlockTally:
    """The same of blocks packed by hand: numpy views, and one compiled pass; `count(_, block)` is the callback."""

    def __init__(self, on_last: Callable[[], object] = lambda: None) -> None:
        from bench.rivals.compiled import tally_rows

        self._tally = tally_rows
        self._on_last = on_last
        self._state = numpy.zeros((TOPICS, 3), numpy.int64)
        self._left = 0
        self.ended = 0.0
        tally_rows(numpy.zeros(0, numpy.int32), numpy.frombuffer(b"", numpy.uint8), self._state)  # compiles

    def begin(self, messages: int) -> BlockTally:
        """Start anew, for so many messages."""
        self._state[:] = 0
        self._left = messages
        return self

    def count(self, _topic: Any, block: Any) -> None:
        """Take one block."""
        count = int(numpy.frombuffer(block, numpy.int64, 1)[0])
        index = numpy.frombuffer(block, numpy.int32, count, 8 + 8 * count)
        payloads = numpy.frombuffer(block, numpy.uint8, PAYLOAD_BYTES * count, 8 + 12 * count)
        self._tally(index, payloads, self._state)
        self._left -= count
        if self._left <= 0:
            self.ended = time.perf_counter()
            self._on_last()

    def state(self) -> NDArray[Any]:
        """int64[topics, 3] of count, digest, sum."""
        return self._state


def tally_of(form: str, on_last: Callable[[], object] = lambda: None) -> Tally | BlockTally:
    """The work for what comes in this form."""
    return BlockTally(on_last) if form == "blocks" else Tally(on_last)


def outgoing(form: str, messages: int) -> Iterator[tuple[bytes, bytes]]:
    """Topic and bytes of what is sent, in this form."""
    if form == "blocks":
        return ((BLOCK_TOPIC, block) for block in blocks(messages))
    return many(messages_of_pool(), messages)
