"""Blocks as Arrow record batches, on the same memory, and records as Arrow columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy
import pyarrow
from numpy.typing import NDArray

from blackbox.block.format import FLAG_FIXED
from blackbox.block.texts import trimmed

if TYPE_CHECKING:
    from blackbox.block.block import Block
    from blackbox.feed.schema import Schema

PRICE_DIGITS: Final = 18
"""A decimal with as many is 64 bits to most readers; with more it is a `BigDecimal` to Spark, and slow."""
_PRICE_LIMIT: Final = 10**PRICE_DIGITS


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
    return pyarrow.array(block.sequences)


def _payloads(block: Block) -> pyarrow.Array:
    data = pyarrow.py_buffer(block.payloads)
    valid = None if block.validity is None else pyarrow.py_buffer(block.validity)
    if block.flags & FLAG_FIXED:
        return pyarrow.Array.from_buffers(pyarrow.binary(block.stride), block.count, [valid, data])
    offsets = pyarrow.py_buffer(block.payload_offsets)
    return pyarrow.Array.from_buffers(pyarrow.binary(), block.count, [valid, offsets, data])


def record_columns(schema: Schema, kind: str, records: NDArray[Any]) -> list[pyarrow.Array]:
    """Records of message type `kind` as the columns that `schema.arrow(kind)` names; texts without padding."""
    return [record_column(records[field.name], field.type) for field in schema.arrow(kind)]


def record_column(values: NDArray[Any], kind: pyarrow.DataType) -> pyarrow.Array:
    """One field of records as the column that `Schema.arrow` has for it."""
    if pyarrow.types.is_string(kind):
        offsets, text = trimmed(values)
        return pyarrow.Array.from_buffers(
            kind, len(values), [None, pyarrow.py_buffer(offsets), pyarrow.py_buffer(text)]
        )
    if pyarrow.types.is_fixed_size_binary(kind):
        return pyarrow.Array.from_buffers(kind, len(values), [None, pyarrow.py_buffer(values.tobytes())])
    if pyarrow.types.is_boolean(kind):
        return pyarrow.array(values.view(numpy.uint8) != 0)  # a damaged one may be neither 0 nor 1
    if values.ndim == 2:  # an integer of a width that numpy has none for: its bytes, the highest first
        wide = numpy.zeros((len(values), 8), numpy.uint8)
        wide[:, 8 - values.shape[1] :] = values
        values = wide.view(">i8").reshape(-1)
    native = numpy.ascontiguousarray(values, values.dtype.newbyteorder("="))
    if pyarrow.types.is_timestamp(kind):
        return pyarrow.array(native.astype(numpy.int64)).cast(kind)
    return pyarrow.array(native).cast(kind)


def price_column(units: NDArray[Any], decimals: int) -> pyarrow.Array:
    """Prices in units of 10^-decimals, as decimals. One of 10^18 units or more is null: venues mark none so."""
    wide = numpy.empty((len(units), 2), numpy.int64)
    wide[:, 0] = units.astype(numpy.int64)
    if units.dtype.kind == "u":
        wide[:, 1] = 0
        good = units < _PRICE_LIMIT
    else:
        wide[:, 1] = wide[:, 0] >> 63
        good = (wide[:, 0] < _PRICE_LIMIT) & (wide[:, 0] > -_PRICE_LIMIT)
    valid = None if good.all() else pyarrow.py_buffer(numpy.packbits(good, bitorder="little"))
    kind = pyarrow.decimal128(PRICE_DIGITS, decimals)
    return pyarrow.Array.from_buffers(kind, len(units), [valid, pyarrow.py_buffer(wide)])
