"""Blocks as Arrow record batches, on the same memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy
import pyarrow

from blackbox.layout import FLAG_FIXED

if TYPE_CHECKING:
    from blackbox.block import Block


def block_to_arrow(block: Block) -> pyarrow.RecordBatch:
    """See `Block.to_arrow`."""
    return pyarrow.RecordBatch.from_arrays(
        [_topics(block), _ts_event(block), _sequence(block), _payloads(block)],
        names=["topic", "ts_event", "sequence", "payload"],
    )


def _topics(block: Block) -> pyarrow.Array:
    text = pyarrow.Array.from_buffers(
        pyarrow.binary(),
        block.topic_count,
        [None, pyarrow.py_buffer(block.topic_offsets), pyarrow.py_buffer(block.topic_text)],
    )
    index = pyarrow.Array.from_buffers(pyarrow.int32(), block.count, [None, pyarrow.py_buffer(block.topic_index)])
    return pyarrow.DictionaryArray.from_arrays(index, text)


def _ts_event(block: Block) -> pyarrow.Array:
    kind = pyarrow.timestamp("ns", "UTC")
    return pyarrow.Array.from_buffers(kind, block.count, [None, pyarrow.py_buffer(block.ts_event)])


def _sequence(block: Block) -> pyarrow.Array:
    return pyarrow.array(numpy.arange(block.sequence, block.sequence + block.count, dtype=numpy.int64))


def _payloads(block: Block) -> pyarrow.Array:
    data = pyarrow.py_buffer(block.payloads)
    if block.flags & FLAG_FIXED:
        return pyarrow.Array.from_buffers(pyarrow.binary(block.stride), block.count, [None, data])
    offsets = pyarrow.py_buffer(block.payload_offsets)
    return pyarrow.Array.from_buffers(pyarrow.binary(), block.count, [None, offsets, data])
