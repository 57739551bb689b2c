"""Blocks packed by hand, as by a user who knows all topics and sizes in advance.

    block       count int64 | ts_event int64[count] | topic number int32[count] | payload uint8[count, 100]

They have fewer bytes than ours: no topics, sequence numbers, checksum or filters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bench.workload.load import POOL, TIME_BYTES, Load, column_rows, many, topics_and_data
from bench.workload.messages import make_pool
from bench.workload.tally import BlockTally, Tally

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BLOCK_MESSAGES: Final = 2_000
"""Messages in a block packed by hand: 224 KB, within a few percent of our largest block."""
BLOCK_TOPIC: Final = b"block"


def block_rows(load: Load) -> Iterator[slice]:
    """Yield the rows of the pool in each block."""
    return (rows for _, rows in column_rows(load, BLOCK_MESSAGES))


def blocks(load: Load) -> Iterator[bytes]:
    """Yield blocks, packed on demand."""
    pool = make_pool()
    for rows in block_rows(load):
        index = pool.topic_index[rows]
        yield b"".join(
            (
                len(index).to_bytes(TIME_BYTES, "little"),
                pool.ts_event[rows].data,
                index.data,
                pool.payloads[rows].data,
            )
        )


def tally_of(form: str, on_last: Callable[[], object] = lambda: None) -> Tally | BlockTally:
    """Return the tally for this form."""
    return BlockTally(on_last) if form == "blocks" else Tally(on_last)


def outgoing(form: str, load: Load) -> Iterator[tuple[bytes, bytes]]:
    """Yield topic and bytes of each message or block in this form."""
    if form == "blocks":
        return ((BLOCK_TOPIC, block) for block in blocks(load))
    return many(topics_and_data(POOL), load.messages)
