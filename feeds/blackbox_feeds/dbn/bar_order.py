"""Deliver bars in the order of the times at which they end.

A file of several schemas is ordered by Databento's own index time, where a bar is before the trades of its interval.
So a bar is held until the records of its interval have passed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy
from numpy.typing import NDArray

from blackbox.feed.source import Chunk, rows_of


class _Held(NamedTuple):
    """Bars that have not ended by the last record."""

    rows: Chunk
    ends: NDArray[numpy.int64]


def in_order(chunks: Iterator[Chunk], delays_of: Callable[[Chunk], NDArray[numpy.int64] | None]) -> Iterator[Chunk]:
    """Yield the messages of `chunks`, in which bars are at their start, with each bar after everything before its end.

    `delays_of` returns how much later the time of each message in the last chunk is than its position in the file, or
    None if all are in order.
    """
    held: _Held | None = None
    reached = 0
    for chunk in chunks:
        delays = delays_of(chunk)
        if held is None and delays is None:
            reached = max(reached, int(chunk.ts_event.max()))
            yield chunk
            continue
        if delays is None:
            delays = numpy.zeros(len(chunk.starts), numpy.int64)
        places = numpy.maximum.accumulate(numpy.maximum(chunk.ts_event - delays, reached))
        reached = int(places[-1])
        rows, keys = chunk, numpy.where(delays > 0, numpy.maximum(chunk.ts_event, places), places)
        if held is not None:
            rows, keys = _joined(held.rows, chunk), numpy.concatenate([held.ends, keys])
        order = numpy.argsort(keys, kind="stable")
        done = int(numpy.searchsorted(keys[order], reached, "right"))
        if done:
            yield rows_of(rows, order[:done])
        held = _Held(_copied(rows_of(rows, order[done:])), keys[order[done:]]) if done < len(order) else None
    if held is not None:
        yield held.rows


def _joined(first: Chunk, second: Chunk) -> Chunk:
    start = int(second.starts.min())
    payloads = second.payloads[start : int((second.starts + second.lengths).max())]
    return Chunk(
        second.topics,
        numpy.concatenate([first.topic_index, second.topic_index]),
        numpy.concatenate([first.ts_event, second.ts_event]),
        numpy.concatenate([first.payloads, payloads]),
        numpy.concatenate([first.starts, second.starts - start + len(first.payloads)]),
        numpy.concatenate([first.lengths, second.lengths]),
    )


def _copied(chunk: Chunk) -> Chunk:
    """Return the same messages with a copy of the payloads."""
    data = chunk.payloads.data
    ends = (chunk.starts + chunk.lengths).tolist()
    content = b"".join([data[start:end] for start, end in zip(chunk.starts.tolist(), ends, strict=True)])
    return chunk._replace(
        payloads=numpy.frombuffer(content, numpy.uint8),
        starts=numpy.cumsum(chunk.lengths, dtype=numpy.int64) - chunk.lengths,
    )
