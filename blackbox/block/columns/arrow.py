"""Blocks as zero-copy Arrow record batches, and records as Arrow columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy
import pyarrow
from numpy.typing import NDArray

from blackbox.block.columns.texts import trimmed
from blackbox.block.form.format import FLAG_FIXED
from blackbox.feed.schema.schema import ABSENT, DECIMALS

if TYPE_CHECKING:
    from blackbox.block.form.block import Block

PRICE_DIGITS: Final = 18
"""Most readers hold a decimal of up to 18 digits in 64 bits; with more, Spark uses a slow `BigDecimal`."""
_PRICE_LIMIT: Final = 10**PRICE_DIGITS
_MICROS: Final = pyarrow.timestamp("us", "UTC")
_MICROS_PER_S: Final = 1_000_000
_SECONDS_LIMIT: Final = ((1 << 63) - 1) // _MICROS_PER_S


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
    known = block.ts_event != 0
    return pyarrow.Array.from_buffers(kind, block.count, [_validity(known), pyarrow.py_buffer(block.ts_event)])


def _sequence(block: Block) -> pyarrow.Array:
    return pyarrow.array(block.sequences)


def _payloads(block: Block) -> pyarrow.Array:
    data = pyarrow.py_buffer(block.payloads)
    valid = None if block.validity is None else pyarrow.py_buffer(block.validity)
    if block.flags & FLAG_FIXED:
        return pyarrow.Array.from_buffers(pyarrow.binary(block.stride), block.count, [valid, data])
    offsets = pyarrow.py_buffer(block.payload_offsets)
    return pyarrow.Array.from_buffers(pyarrow.binary(), block.count, [valid, offsets, data])


def _validity(valid: NDArray[numpy.bool_]) -> pyarrow.Buffer | None:
    return None if valid.all() else pyarrow.py_buffer(numpy.packbits(valid, bitorder="little"))


def record_column(values: NDArray[Any], field: pyarrow.Field) -> pyarrow.Array:
    """Return one field of records as the column that `Schema.arrow` declares; texts lose their padding.

    Null: the field's `ABSENT` integer, and a time that does not fit an int64.
    """
    kind = field.type
    if pyarrow.types.is_string(kind):
        offsets, text = trimmed(values)
        return pyarrow.Array.from_buffers(
            kind, len(values), [None, pyarrow.py_buffer(offsets), pyarrow.py_buffer(text)]
        )
    if pyarrow.types.is_fixed_size_binary(kind):
        return pyarrow.Array.from_buffers(kind, len(values), [None, pyarrow.py_buffer(values.tobytes())])
    if pyarrow.types.is_boolean(kind):
        return pyarrow.array(values.view(numpy.uint8) != 0)  # a damaged byte may be neither 0 nor 1
    if values.ndim == 2:  # an integer of a width that numpy lacks: big-endian bytes
        wide = numpy.zeros((len(values), 8), numpy.uint8)
        wide[:, 8 - values.shape[1] :] = values
        values = wide.view(">i8").reshape(-1)
    native = numpy.ascontiguousarray(values, values.dtype.newbyteorder("="))
    absent = absent_in(native, field)
    if pyarrow.types.is_timestamp(kind):
        native = native.astype(numpy.int64, copy=False)
    return pyarrow.array(native, mask=absent).cast(kind)


def absent_in(values: NDArray[Any], field: pyarrow.Field) -> NDArray[numpy.bool_] | None:
    """Return a mask of the values of a field that `record_column` makes null; None: none are."""
    told = (field.metadata or {}).get(ABSENT.encode())
    absent = None if told is None else values == values.dtype.type(int(told))
    if values.dtype.kind == "u" and values.dtype.itemsize == 8 and field.type != pyarrow.uint64():
        beyond = values >> numpy.uint64(63) != 0
        absent = beyond if absent is None else absent | beyond
    return absent if absent is not None and absent.any() else None


def price_column(units: NDArray[Any], field: pyarrow.Field) -> pyarrow.Array:
    """Return a field of prices as decimals of 18 digits. Null: no price, or too many digits."""
    wide = numpy.empty((len(units), 2), numpy.int64)
    wide[:, 0] = units.astype(numpy.int64)
    wide[:, 1] = 0 if units.dtype.kind == "u" else wide[:, 0] >> 63
    good = (units < _PRICE_LIMIT) & (units > -_PRICE_LIMIT)
    if (absent := absent_in(units, field)) is not None:
        good &= ~absent
    kind = pyarrow.decimal128(PRICE_DIGITS, int(field.metadata[DECIMALS.encode()]))
    return pyarrow.Array.from_buffers(kind, len(units), [_validity(good), pyarrow.py_buffer(wide)])


def float_column(units: NDArray[Any], field: pyarrow.Field) -> pyarrow.Array:
    """Return a field of prices as float64, exact up to 2^53 units. Null: no price."""
    decimals = int(field.metadata[DECIMALS.encode()])
    return pyarrow.array(units / 10.0**decimals, mask=absent_in(units, field))


def micros_column(values: NDArray[Any], field: pyarrow.Field) -> pyarrow.Array:
    """Return a field of times as microsecond timestamps. Null: no time, or one that does not fit an int64."""
    numbers, absent = values.astype(numpy.int64), absent_in(values, field)
    if field.type.unit == "ns":
        numbers //= 1_000
    else:
        beyond = (numbers > _SECONDS_LIMIT) | (numbers < -_SECONDS_LIMIT)
        if beyond.any():
            absent = beyond if absent is None else absent | beyond
        numbers *= _MICROS_PER_S
    return pyarrow.array(numbers, mask=absent).cast(_MICROS)
