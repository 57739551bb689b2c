"""The columns that a decoder fills, one row per message, and the chunk made of them."""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy
from numpy.typing import NDArray

from blackbox.feed.source import Chunk
from blackbox.native.compile.jit import njit

CHUNK_MESSAGES = 131_072
"""Most messages of a chunk."""


class Stop(NamedTuple):
    """Position at which decoding ended early, and the reason, as the decoder defines it."""

    position: int
    why: int


class Columns(NamedTuple):
    """Room for the messages of one chunk."""

    topic_index: NDArray[numpy.int32]
    ts_event: NDArray[numpy.int64]
    starts: NDArray[numpy.int64]
    lengths: NDArray[numpy.int32]

    @classmethod
    def new(cls, messages: int | None = None) -> Self:
        """Return columns for this number of messages; default: `CHUNK_MESSAGES`."""
        n = CHUNK_MESSAGES if messages is None else messages
        return cls(
            numpy.empty(n, numpy.int32),
            numpy.empty(n, numpy.int64),
            numpy.empty(n, numpy.int64),
            numpy.empty(n, numpy.int32),
        )

    def chunk(
        self,
        count: int,
        topics: tuple[bytes, ...],
        data: NDArray[numpy.uint8],
        gaps: tuple[tuple[int, int], ...] = (),
    ) -> Chunk:
        """Return the first `count` messages, with payloads in `data`; `gaps` as in `Chunk`."""
        n = slice(count)
        return Chunk(topics, self.topic_index[n], self.ts_event[n], data, self.starts[n], self.lengths[n], gaps)


@njit(inline="always")
def put_row(columns: Columns, row: int, topic: int, ts_event: int, start: int, length: int) -> None:
    """Write a message: its topic number, time, and payload bounds."""
    columns.topic_index[row] = topic
    columns.ts_event[row] = ts_event
    columns.starts[row] = start
    columns.lengths[row] = length
