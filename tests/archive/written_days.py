"""Days drawn by hypothesis or made of many small blocks, and their contents as read."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

from blackbox import Batch
from tests.examples import examples
from tests.journals import Day, Put, Row, Told, feed_of

CLOCKS = st.sampled_from(["ts_event", "ts_out", "ts_recv"])

EPOCHS = (1, 2**63 - 1)

few = settings(max_examples=examples(60))


@st.composite
def days(draw: st.DrawFn, least_time: int = 0) -> tuple[int, int, list[tuple[int, bool, list[Put]]]]:
    """Draw slices, key_bytes, and segments as (slice, is indexed, blocks). Few values, so that many are equal.

    With `least_time` 1 each message has a time.
    """
    slices = draw(st.integers(1, 3))
    key_bytes = draw(st.integers(0, 8))
    segments = []
    sequences: Counter[tuple[int, int]] = Counter()
    for _ in range(draw(st.integers(0, 5))):
        slice_id = draw(st.integers(0, slices - 1))
        puts = []
        for _ in range(draw(st.integers(0, 6))):
            letter = bytes([65 + slice_id])
            names = [letter + name for name in (b"", b"X", b"XYZ.q", b"XYZ.t", b"Y.trade.of.more", b"Y.quote.of.more")]
            key = draw(st.sampled_from(names))[:key_bytes]
            topics = [name for name in names if name[:key_bytes] == key]
            size = draw(st.sampled_from([None, 0, 3]))
            payloads = st.binary(max_size=9) if size is None else st.binary(min_size=size, max_size=size)
            rows = draw(
                st.lists(
                    st.tuples(st.sampled_from(topics), payloads, st.integers(least_time, 6)), min_size=1, max_size=5
                )
            )
            epoch = draw(st.sampled_from(EPOCHS))
            sequences[slice_id, epoch] += draw(st.sampled_from([0, 0, 0, 2]))
            puts.append(
                Put(
                    tuple(Row(*row) for row in rows),
                    sequence=sequences[slice_id, epoch],
                    ts_out=draw(st.integers(0, 8)),
                    ts_recv=draw(st.integers(0, 8)),
                    epoch=epoch,
                    first_row=draw(st.integers(0, len(rows) - 1)),
                    codec=draw(st.integers(0, 2)),
                    flags=draw(st.integers(0, 1)),
                )
            )
            sequences[slice_id, epoch] += len(rows)
        segments.append((slice_id, draw(st.booleans()), puts))
    return slices, key_bytes, segments


def made(path: str | Path, day: tuple[int, int, list[tuple[int, bool, list[Put]]]], **feed: Any) -> Day:
    slices, key_bytes, segments = day
    written = Day(Path(path), feed_of(slices, key_bytes, **feed))
    for slice_id, indexed, puts in segments:
        written.put(slice_id, *puts, index=indexed)
    return written


def told(batches: Iterator[Batch]) -> list[Told]:
    return [
        Told(b.block.slice_id, b.block.epoch, sequence, b.ts_out, b.ts_recv, m.topic, m.payload, m.ts_event)
        for b in batches
        for m, sequence in zip(b, b.sequence.tolist(), strict=True)
    ]


def many(count: int, slice_id: int = 0, size: int = 200) -> list[Put]:
    """Return consecutive blocks of one message, over many index entries."""
    letter = chr(65 + slice_id)
    return [
        Put((Row(f"{letter}{i % 5}".encode(), bytes(size), i),), sequence=i, ts_out=2 * i + slice_id, ts_recv=i)
        for i in range(count)
    ]


def ns(text: str) -> int:
    return round(datetime.datetime.fromisoformat(text).timestamp() * 1_000) * 1_000_000
