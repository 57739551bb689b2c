"""The columns of the data source. Both engines return the same names, order, types and nulls."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import pyarrow
from numpy.typing import NDArray
from pyspark.sql import types

from blackbox.block.columns.arrow import PRICE_DIGITS, float_column, micros_column, price_column, record_column
from blackbox.errors import ConfigError
from blackbox.feed.schema.prices import Prices
from blackbox.feed.schema.schema import DECIMALS, Schema

BASE: Final = (
    ("feed", types.StringType()),
    ("date", types.DateType()),
    ("slice", types.IntegerType()),
    ("topic", types.StringType()),
    ("symbol", types.StringType()),
    ("type", types.StringType()),
    ("ts_event", types.LongType()),
    ("ts_out", types.LongType()),
    ("ts_recv", types.LongType()),
    ("event_time", types.TimestampType()),
    ("out_time", types.TimestampType()),
    ("recv_time", types.TimestampType()),
    ("epoch", types.LongType()),
    ("sequence", types.LongType()),
)
"""Columns of every message."""
PAYLOAD: Final = "payload"
_TAKEN: Final = {PAYLOAD, *(name for name, _ in BASE)}
_NULLS: Final = {"type", "event_time"}
"""The nullable ones of these columns."""
_NUMBERS: Final[dict[pyarrow.DataType, types.DataType]] = {
    pyarrow.int8(): types.ByteType(),
    pyarrow.uint8(): types.ShortType(),
    pyarrow.int16(): types.ShortType(),
    pyarrow.uint16(): types.IntegerType(),
    pyarrow.int32(): types.IntegerType(),
    pyarrow.uint32(): types.LongType(),
    pyarrow.int64(): types.LongType(),
    pyarrow.float32(): types.FloatType(),
    pyarrow.float64(): types.DoubleType(),
    pyarrow.bool_(): types.BooleanType(),
    pyarrow.uint64(): types.LongType(),  # the same bits; a decimal would be a slow BigDecimal in Spark
}


class RecordField(NamedTuple):
    """A field of a message type and its column."""

    name: str
    """The field's name."""
    column: str
    """The column's name: the field's, with `record_` before it if every message has a column of that name."""
    arrow: pyarrow.Field
    """The field of `Schema.arrow`."""
    kind: types.DataType
    nullable: bool
    """True if it may hold nulls: integers with a "no value" value, or out of the column's range."""


def record_fields(schema: Schema, message: str, prices: Prices) -> list[RecordField]:
    """Return the columns of a message type. Raises ConfigError if the schema has no such type."""
    found = []
    for field in schema.arrow(message):
        column = f"record_{field.name}" if field.name.lower() in _TAKEN else field.name
        kind = _kind_of(field, prices)
        may_not_fit = isinstance(kind, types.DecimalType) or field.type == pyarrow.timestamp("s", "UTC")
        nullable = field.nullable or (may_not_fit and schema.dtype(message)[field.name].itemsize == 8)
        found.append(RecordField(field.name, column, field, kind, nullable))
    return found


def _kind_of(field: pyarrow.Field, prices: Prices) -> types.DataType:
    metadata = field.metadata or {}
    if DECIMALS.encode() in metadata and prices == "float":
        return types.DoubleType()
    if DECIMALS.encode() in metadata and prices == "decimal":
        return types.DecimalType(PRICE_DIGITS, int(metadata[DECIMALS.encode()]))
    if pyarrow.types.is_timestamp(field.type):
        return types.TimestampType()
    if pyarrow.types.is_string(field.type):
        return types.StringType()
    return _NUMBERS.get(field.type, types.BinaryType())


def table_schema(fields: list[RecordField] | None) -> types.StructType:
    """Return all columns: with the payload, or with the fields of one message type instead."""
    columns = [types.StructField(name, kind, name in _NULLS) for name, kind in BASE]
    if fields is None:
        columns.append(types.StructField(PAYLOAD, types.BinaryType()))  # null for a message without a value
    else:
        columns += [types.StructField(field.column, field.kind, field.nullable) for field in fields]
    return types.StructType(columns)


def columns_of(asked: types.StructType, whole: types.StructType) -> tuple[str, ...]:
    """Return our names of the requested columns, which may differ in case.

    Raises ConfigError if a column is unknown, of another type, or requested as not null although it is nullable.
    """
    known = {field.name: field for field in whole}
    folded = {field.name.lower(): field for field in reversed(whole.fields)}
    names = []
    for field in asked:
        own = known.get(field.name) or folded.get(field.name.lower())
        if own is None:
            raise ConfigError(f"the schema had a column {field.name!r}, expected some of: {', '.join(known)}")
        if field.dataType != own.dataType:
            was, expected = field.dataType.simpleString(), own.dataType.simpleString()
            raise ConfigError(f"the schema had column {field.name!r} as {was}, expected {expected}")
        if own.nullable and not field.nullable:
            raise ConfigError(f"the schema had column {field.name!r} as not null, expected that it may be")
        names.append(own.name)
    return tuple(names)


def record_array(field: RecordField, records: NDArray[Any]) -> pyarrow.Array:
    """Return a field of records as an Arrow array for Spark."""
    values, kind = records[field.name], field.arrow.type
    if isinstance(field.kind, types.DecimalType):
        return price_column(values, field.arrow)
    if isinstance(field.kind, types.DoubleType) and pyarrow.types.is_integer(kind):
        return float_column(values, field.arrow)
    if pyarrow.types.is_timestamp(kind):
        return micros_column(values, field.arrow)
    column = record_column(values, field.arrow)
    if pyarrow.types.is_fixed_size_binary(kind):
        return column.cast(pyarrow.binary())
    if pyarrow.types.is_integer(kind):
        return column.cast(_ARROW[type(field.kind)], safe=False)
    return column


_ARROW: Final[dict[type[types.DataType], pyarrow.DataType]] = {
    types.ByteType: pyarrow.int8(),
    types.ShortType: pyarrow.int16(),
    types.IntegerType: pyarrow.int32(),
    types.LongType: pyarrow.int64(),
}
