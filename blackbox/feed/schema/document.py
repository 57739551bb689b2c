"""A schema as plain data in a recording's manifest: enough to recreate the schema without its package."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final, Literal, Self

import msgspec
import numpy

from blackbox.documents import Decoder
from blackbox.errors import ConfigError
from blackbox.feed.schema.instrument_fields import InstrumentFields
from blackbox.feed.schema.schema import (
    ABSENT,
    DECIMALS,
    RAW,
    SINCE_MIDNIGHT,
    UTC,
    BreakFields,
    OrderFields,
    QuoteFields,
    Schema,
    TradeFields,
)

_FORMAT: Final = re.compile(r"[<>|](?:[iu][1248]|f[48]|b1|[SV][0-9]{1,8})")
"""numpy's names for the field kinds that a schema may have. None of them holds a pointer."""
_MOST_BYTES: Final = 16 << 20
"""Largest size of a record, as of any payload."""


class FieldLayout(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One field of a message type."""

    name: str
    format: str
    """In numpy's notation, such as "<u4" or "|S8". Arrays and nested records are bytes, such as "|V24"."""
    offset: int
    items: str | None = None
    """For an array: the format of its items."""
    shape: tuple[int, ...] = ()
    """For an array: the number of items in each dimension."""
    fields: tuple[FieldLayout, ...] = ()
    """For a nested record, or an array of them: its fields."""
    decimals: int | None = None
    utc: Literal["ns", "s"] | None = None
    since_midnight: str | None = None
    absent: int | None = None
    """The integer that means "no value"."""

    @classmethod
    def of(cls, name: str, dtype: numpy.dtype[Any], offset: int) -> Self:
        """Describe a field."""
        item, shape = dtype.subdtype or (dtype, ())
        return cls(
            name=name,
            format=dtype.str,
            offset=offset,
            items=item.str if shape else None,
            shape=shape,
            fields=_fields_of(item),
            **{key: value for key, value in (dtype.metadata or {}).items() if key in _METADATA},
        )

    def dtype(self) -> numpy.dtype[Any]:
        """Return the field's dtype. Raises ValueError if it is invalid, or could hold a pointer."""
        told = self.format if self.items is None else self.items
        for text in (self.format, told):
            if not _FORMAT.fullmatch(text):
                raise ValueError(f"field {self.name!r} had the format {text!r}, expected one such as '<u4' or '|S8'")
        size = numpy.dtype(self.format).itemsize
        made = _record(self.fields, numpy.dtype(told).itemsize) if self.fields else numpy.dtype(told)
        if self.shape:
            made = numpy.dtype((made, self.shape))
        if made.itemsize != size:
            raise ValueError(f"field {self.name!r} had {made.itemsize} bytes, expected the {size} of {self.format!r}")
        metadata = {key: getattr(self, key) for key in _METADATA if getattr(self, key) is not None}
        return numpy.dtype(made, metadata=metadata) if metadata else made


_METADATA: Final = (DECIMALS, UTC, SINCE_MIDNIGHT, ABSENT)


class TypeLayout(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One message type."""

    name: str | None = None
    """Its name, in addition to its character."""
    bytes: int
    """Size of each payload."""
    fields: tuple[FieldLayout, ...]


class SchemaDocument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A schema. `of` and `schema` are inverse to each other."""

    name: str
    id: int
    type_offset: int = 0
    types: dict[str, TypeLayout] = {}
    trades: tuple[TradeFields, ...] = ()
    quotes: tuple[QuoteFields, ...] = ()
    orders: tuple[OrderFields, ...] = ()
    breaks: tuple[BreakFields, ...] = ()
    json: str | None = None
    instruments: tuple[InstrumentFields, ...] = ()

    @staticmethod
    def of(schema: Schema) -> SchemaDocument:
        """Describe a schema."""
        return _document_of(_Itself(schema))

    def layout(self, kind: str) -> tuple[object, ...]:
        """Return everything that readers of a message type depend on. `kind`: its type character."""
        found = self.types[kind]
        return self.type_offset, found.bytes, found.fields

    def schema(self) -> Schema:
        """Return the schema. Raises ConfigError naming an invalid part."""
        return _schema_of(msgspec.json.encode(self))


class _Itself:
    """A schema as a key that is equal only to itself, whatever its name."""

    __slots__ = ("schema",)

    def __init__(self, schema: Schema) -> None:
        self.schema = schema

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and other.schema is self.schema

    def __hash__(self) -> int:
        return id(self.schema)


@lru_cache(64)
def _document_of(key: _Itself) -> SchemaDocument:
    """Describe a schema, cached: a DBN schema takes milliseconds."""
    schema = key.schema
    names = {character: name for name, character in schema.names.items()}
    return SchemaDocument(
        name=schema.name,
        id=schema.schema_id,
        type_offset=schema.type_offset,
        types={
            kind: TypeLayout(name=names.get(kind), bytes=dtype.itemsize, fields=_fields_of(dtype))
            for kind, dtype in schema.records.items()
        },
        trades=schema.trades,
        quotes=schema.quotes,
        orders=schema.orders,
        breaks=schema.breaks,
        json=schema.json,
        instruments=schema.instruments,
    )


def _fields_of(dtype: numpy.dtype[Any]) -> tuple[FieldLayout, ...]:
    fields: Any = dtype.fields or {}
    return tuple(FieldLayout.of(name, *fields[name][:2]) for name in dtype.names or ())


def _record(fields: Iterable[FieldLayout], size: int) -> numpy.dtype[Any]:
    """Return a dtype of `size` bytes. Raises ValueError if a field is invalid or exceeds the size."""
    told = tuple(fields)
    if not 0 < size <= _MOST_BYTES:
        raise ValueError(f"its bytes were {size}, expected 1 to {_MOST_BYTES}")
    for field in told:
        if field.offset < 0:
            raise ValueError(f"field {field.name!r} was at byte {field.offset}, expected 0 or more")
    layout: Any = {
        "names": [field.name for field in told],
        "formats": [field.dtype() for field in told],
        "offsets": [field.offset for field in told],
        "itemsize": size,
    }
    made: numpy.dtype[Any] = numpy.dtype(layout)
    return made


@lru_cache(64)
def _schema_of(text: bytes) -> Schema:
    """Return the same object for all days with the same schema, so that derived objects are made once."""
    document = Decoder[SchemaDocument]("json", SchemaDocument).decode(text)
    records = {}
    for kind, each in document.types.items():
        try:
            records[kind] = _record(each.fields, each.bytes)
        except (TypeError, ValueError, OverflowError) as error:
            raise ConfigError(f"schema {document.name!r}: type {kind!r}: {error}") from None
    names = {each.name: kind for kind, each in document.types.items() if each.name is not None}
    made = Schema(
        document.name,
        document.id,
        records,
        document.type_offset,
        names,
        document.trades,
        document.quotes,
        document.orders,
        document.breaks,
        document.json,
        document.instruments,
    )
    return RAW if document == SchemaDocument.of(RAW) else made
