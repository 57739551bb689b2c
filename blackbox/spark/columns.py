"""The columns of the data source. Both of its engines have them: names, order, types and nulls are a contract."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import pyarrow
from numpy.typing import NDArray
from pyspark.sql import types

from blackbox.arrow import PRICE_DIGITS, price_column, record_column
from blackbox.errors import ConfigError
from blackbox.schema import DECIMALS, Schema

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
"""What every message has."""
PAYLOAD: Final = "payload"
_TAKEN: Final = {PAYLOAD, *(name for name, _ in BASE)}
_NULLS: Final = {"type", "event_time"}
"""Columns of every message that may have nulls."""
_INTEGERS: Final[dict[pyarrow.DataType, types.DataType]] = {
    pyarrow.int8(): types.ByteType(),
    pyarrow.uint8(): types.ShortType(),
    pyarrow.int16(): types.ShortType(),
    pyarrow.uint16(): types.IntegerType(),
    pyarrow.int32(): types.IntegerType(),
    pyarrow.uint32(): types.LongType(),
    pyarrow.int64(): types.LongType(),
    pyarrow.uint64(): types.LongType(),  # its bits: a decimal that holds all of them is a BigDecimal to Spark, and slow
}


class RecordField(NamedTuple):
    """A field of a message type, and the column that it becomes."""

    name: str
    """Of the field."""
    column: str
    """Its own name, or `record_` and that where every message has a column of that name, in whatever case."""
    arrow: pyarrow.DataType
    """What `Schema.arrow` has it as."""
    kind: types.DataType
    nullable: bool
    """Whether it may have nulls: prices of 64 bits do, which mark "no price" by numbers of more than 18 digits."""


def record_fields(schema: Schema, message: str, prices: str) -> list[RecordField]:
    """The columns of message type `message`. Raises ConfigError when the schema has no such type."""
    found = []
    for field in schema.arrow(message):
        column = f"record_{field.name}" if field.name.lower() in _TAKEN else field.name
        kind = _kind_of(field, prices)
        nullable = isinstance(kind, types.DecimalType) and field.type.bit_width == 64
        found.append(RecordField(field.name, column, field.type, kind, nullable))
    return found


def _kind_of(field: pyarrow.Field, prices: str) -> types.DataType:
    metadata = field.metadata or {}
    if DECIMALS.encode() in metadata and prices == "decimal":
        return types.DecimalType(PRICE_DIGITS, int(metadata[DECIMALS.encode()]))
    if pyarrow.types.is_timestamp(field.type):
        return types.TimestampType()
    if pyarrow.types.is_string(field.type):
        return types.StringType()
    return _INTEGERS.get(field.type, types.BinaryType())


def table_schema(fields: list[RecordField] | None) -> types.StructType:
    """All columns: with a payload, or with the fields of one message type in place of it."""
    columns = [types.StructField(name, kind, name in _NULLS) for name, kind in BASE]
    if fields is None:
        columns.append(types.StructField(PAYLOAD, types.BinaryType(), nullable=False))
    else:
        columns += [types.StructField(field.column, field.kind, field.nullable) for field in fields]
    return types.StructType(columns)


def columns_of(asked: types.StructType, whole: types.StructType) -> tuple[str, ...]:
    """What the columns asked for are called here: as there, or else in other cases of letters.

    Raises ConfigError unless they are some of those that there are.
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
    """A field of records as Spark takes it. A price of 10^18 units or more is null: venues mark none so."""
    column = record_column(records[field.name], field.arrow)
    if isinstance(field.kind, types.DecimalType):
        return price_column(column.to_numpy(), field.kind.scale)
    if pyarrow.types.is_timestamp(field.arrow):
        numbers = column.cast(pyarrow.int64()).to_numpy()
        micros = numbers // 1_000 if field.arrow.unit == "ns" else numbers * 1_000_000
        return pyarrow.array(micros).cast(pyarrow.timestamp("us", "UTC"))
    if pyarrow.types.is_fixed_size_binary(field.arrow):
        return column.cast(pyarrow.binary())
    if pyarrow.types.is_integer(field.arrow):
        return column.cast(_ARROW[type(field.kind)], safe=False)
    return column


_ARROW: Final[dict[type[types.DataType], pyarrow.DataType]] = {
    types.ByteType: pyarrow.int8(),
    types.ShortType: pyarrow.int16(),
    types.IntegerType: pyarrow.int32(),
    types.LongType: pyarrow.int64(),
}
