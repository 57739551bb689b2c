"""Records as payloads: check and write the values of a dict, a dataclass or a numpy record field by field."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Mapping
from datetime import datetime, time, timedelta
from functools import partial
from typing import Any, Final, cast

import numpy

from blackbox.arguments import did_you_mean
from blackbox.errors import ConfigError
from blackbox.feed.schema.field_meaning import ABSENT, DECIMALS, SINCE_MIDNIGHT, UTC
from blackbox.feed.schema.prices import units_of
from blackbox.feed.schema.typed_record import TypedRecord
from blackbox.timestamps import SECOND_NS, date_of, is_time_of_day, ns_of, ns_on, parse_time, zone_of

Encode = Callable[[Any], bytes]
"""Return the bytes of a value. Raises ValueError, TypeError or OverflowError with the expected kind of value."""

_EPOCH_NS: Final = "datetime64[ns]"


class RecordPacker:
    """Packs records of one message type."""

    def __init__(self, name: str, dtype: numpy.dtype[Any], type_offset: int = -1, character: str = "") -> None:
        """`name` is used in errors. The byte at `type_offset` becomes `character`, unless that is empty."""
        self._name, self._dtype = name, dtype
        self._size = dtype.itemsize
        layout: Any = dtype.fields or {}
        self._type_field = type_field(dtype, type_offset) if character else None
        self._fields: dict[str, tuple[int, int, Encode]] = {}
        for label in dtype.names or ():
            field, offset = layout[label][:2]
            encode = _type_encoder(character) if label == self._type_field else _encoder(f"{name}: {label}", field)
            self._fields[label] = offset, offset + field.itemsize, encode
        self._needed = self._fields.keys() - {self._type_field}
        self._type = (type_offset, ord(character)) if character else None

    def pack(self, record: object) -> bytes:
        """Return the payload of a record. Raises as `Schema.pack`."""
        values = values_in(record, tuple(self._fields))
        payload = bytearray(self._size)
        if self._type is not None:
            payload[self._type[0]] = self._type[1]
        if not self._needed <= values.keys() <= self._fields.keys():
            raise ConfigError(self._misfit(values))
        for label, value in values.items():
            begin, end, encode = self._fields[label]
            try:
                payload[begin:end] = encode(value)
            except ConfigError:
                raise  # of a record within this one
            except (ValueError, TypeError, OverflowError, ArithmeticError) as error:
                raise ConfigError(f"{self._name}: field {label!r} was {value!r:.80}, expected {error}") from None
        return bytes(payload)

    def _misfit(self, values: Mapping[str, Any]) -> str:
        missing = [label for label in self._fields if label in self._needed and label not in values]
        unknown = [label for label in values if label not in self._fields]
        parts = []
        if unknown:
            each = (repr(label) + did_you_mean(str(label), missing or self._fields) for label in unknown)
            parts.append(f"had unknown fields {', '.join(each)}")
        if missing:
            parts.append(f"lacked {', '.join(map(repr, missing))}")
        return f"{self._name} {' and '.join(parts)}, expected the fields {', '.join(self._fields)}"


def values_in(record: object, names: tuple[str, ...] = ()) -> Mapping[str, Any]:
    """Return the fields of a record by name. `names`: those of a plain tuple, numpy's form of nested records.

    Raises TypeError if it is not a record.
    """
    if type(record) is dict or isinstance(record, Mapping):
        return record
    if isinstance(record, TypedRecord):
        return {name: getattr(record, name) for name in record._names_}
    if dataclasses.is_dataclass(record) and not isinstance(record, type):
        return {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
    if isinstance(record, numpy.void | numpy.ndarray) and record.dtype.names and record.shape == ():
        scalar: Any = record[()] if isinstance(record, numpy.ndarray) else record
        return {name: scalar[name] for name in record.dtype.names}
    labels = getattr(record, "__struct_fields__", None) or getattr(record, "_fields", None)
    if labels is not None and not isinstance(record, type):
        return {name: getattr(record, name) for name in labels}
    if isinstance(record, tuple) and len(record) == len(names):
        return dict(zip(names, record, strict=True))
    raise TypeError(f"record was {record!r:.80}, expected a dict, a dataclass, a msgspec Struct or a numpy record")


def type_field(dtype: numpy.dtype[Any], type_offset: int) -> str | None:
    """Return the name of the field that holds only the message type, or None."""
    fields: Mapping[str, Any] = dtype.fields or {}
    return next((name for name, (each, at, *_) in fields.items() if (at, each.itemsize) == (type_offset, 1)), None)


def kind_in(record: object, type_offset: int, records: Mapping[str, numpy.dtype[Any]]) -> str | None:
    """Return the type character of a record, if a field of the record holds it; else None."""
    fields = (type_field(dtype, type_offset) for dtype in records.values())
    labels = {label for label in fields if label is not None}
    values = values_in(record) if labels else {}
    found = {_character(values[label]) for label in labels if label in values} & records.keys()
    return found.pop() if len(found) == 1 else None


def _character(value: Any) -> str:
    """Return the character of a type given as text, bytes or a number; "" for anything else."""
    value = _plain(value)
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, int):
        return chr(value) if 0 <= value <= 0xFF else ""
    return value if isinstance(value, str) else ""


def _type_encoder(character: str) -> Encode:
    def encode(value: Any) -> bytes:
        if value is not None and _character(value) != character:
            raise ValueError(f"{character!r}, or the field left out")
        return character.encode("latin-1")

    return encode


def _plain(value: Any) -> Any:
    """Return a numpy scalar as a Python value; times stay unchanged."""
    if isinstance(value, numpy.generic) and not isinstance(value, numpy.datetime64 | numpy.timedelta64):
        return value.item()
    return value


def _encoder(name: str, field: numpy.dtype[Any]) -> Encode:
    """Return the function that writes values of a field. `name` is used in its errors."""
    metadata: Mapping[str, Any] = field.metadata or {}
    if SINCE_MIDNIGHT in metadata and field.kind not in "iu":  # a width for which numpy has no integer
        zone, size = metadata[SINCE_MIDNIGHT], field.itemsize
        return partial(_wide_integer, size, partial(_time_of_day, zone))
    if field.subdtype is not None:
        base, shape = field.subdtype
        encode = _encoder(name, base)
        for length in reversed(shape):
            encode = partial(_array, length, encode)
        return encode
    if field.names:
        return RecordPacker(name, field).pack
    if field.kind in "iu":
        return _integer_encoder(field, metadata)
    if field.kind == "f":
        packed = struct.Struct(("<" if field.newbyteorder("<") == field else ">") + "fd"[field.itemsize == 8])
        return partial(_float, packed.pack)
    if field.kind == "b":
        return _boolean
    return partial(_text if field.kind == "S" else _bytes, field.itemsize)


def _integer_encoder(field: numpy.dtype[Any], metadata: Mapping[str, Any]) -> Encode:
    size, signed = field.itemsize, field.kind == "i"
    order: Any = "little" if field.newbyteorder("<") == field else "big"
    limits = numpy.iinfo(field)
    absent = metadata.get(ABSENT)
    convert: Callable[[Any], int] = _integer
    if DECIMALS in metadata:
        convert = partial(_price, metadata[DECIMALS])
    elif UTC in metadata:
        convert = partial(_instant, metadata[UTC])
    elif SINCE_MIDNIGHT in metadata:
        convert = partial(_time_of_day, metadata[SINCE_MIDNIGHT])

    def number_of(value: Any) -> int:
        value = _plain(value)
        if type(value) is int:
            return value
        if _is_null(value):
            if absent is None:
                raise ValueError(f"a value: the schema has no {ABSENT!r} value for this field")
            return int(absent)
        number = convert(value)
        if number == absent:
            raise ValueError(f"None for no value: {absent} means that in the schema")
        return number

    def encode(value: Any) -> bytes:
        number = value if type(value) is int else number_of(value)
        try:
            return number.to_bytes(size, order, signed=signed)
        except OverflowError:
            raise ValueError(f"an integer from {limits.min} to {limits.max}; it was {number}") from None

    return encode


def _is_null(value: Any) -> bool:
    """Return True if a value is None, NaN or NaT."""
    return value is None or bool(value != value)


def _integer(_value: object) -> int:
    raise TypeError("an integer")


def _price(decimals: int, value: Any) -> int:
    try:
        return units_of(value, decimals)
    except ValueError as error:
        raise ValueError(f"{error}, or the venue's integer") from None


def _instant(unit: str, value: Any) -> int:
    if isinstance(value, numpy.datetime64):
        try:
            nearest = value.astype(_EPOCH_NS)
            fits = bool(nearest.astype(value.dtype) == value)
        except OverflowError:  # numpy before 2.5 returns a wrong time instead
            fits = False
        if not fits:
            raise ValueError("a time that fits nanoseconds")
        ns = int(nearest.astype(numpy.int64))
    elif isinstance(value, datetime):
        try:
            ns = ns_of(value) + getattr(value, "nanosecond", 0)  # pandas' Timestamp has them
        except ValueError:
            raise ValueError("a datetime with a time zone") from None
    else:
        expected = f"the venue's integer ({unit} since 1970), a datetime, or a text such as 2019-12-30T14:30:00Z"
        if not isinstance(value, str) or is_time_of_day(value):
            raise TypeError(expected)
        try:
            ns = parse_time(value, "UTC")
        except ValueError:
            raise ValueError(expected) from None
    if unit == "ns":
        return ns
    seconds, rest = divmod(ns, SECOND_NS)
    if rest:
        raise ValueError("a time in whole seconds")
    return seconds


def _time_of_day(zone: str, value: Any) -> int:
    """Return a time of day, or of an instant in the market's zone, as ns since midnight."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        ns = ns_of(value) + getattr(value, "nanosecond", 0)
        return ns - ns_on(date_of(ns, zone_of(zone)), time(), zone)
    if isinstance(value, time) and value.tzinfo is None:
        since = timedelta(hours=value.hour, minutes=value.minute, seconds=value.second, microseconds=value.microsecond)
        return since // timedelta(microseconds=1) * 1_000
    raise TypeError("ns since midnight, a time without a zone, or a datetime with one")


def _wide_integer(size: int, convert: Callable[[Any], int], value: Any) -> bytes:
    """Return an integer of any width in big-endian order."""
    value = _plain(value)
    if isinstance(value, bytes | bytearray | numpy.ndarray | list | tuple):
        return _bytes(size, bytes(cast("Any", value)))
    number = value if type(value) is int else convert(value)
    try:
        return number.to_bytes(size, "big")
    except OverflowError:
        raise ValueError(f"an integer from 0 to {256**size - 1}") from None


def _float(pack: Callable[[float], bytes], value: Any) -> bytes:
    value = _plain(value)
    if isinstance(value, str | bytes) or value is None:
        raise TypeError("a float")
    try:
        return pack(value)
    except struct.error:
        raise TypeError("a float") from None
    except OverflowError:
        raise ValueError("a float that fits the field") from None


def _boolean(value: Any) -> bytes:
    value = _plain(value)
    if value not in (False, True):
        raise TypeError("True or False")
    return b"\1" if value else b"\0"


def _text(size: int, value: Any) -> bytes:
    value = _plain(value)
    if isinstance(value, str):
        try:
            value = value.encode("latin-1")
        except UnicodeEncodeError:
            raise ValueError("a text of Latin-1") from None
    if not isinstance(value, bytes) or len(value) > size:
        raise ValueError(f"a text of at most {size} bytes")
    return value.ljust(size, b"\0")


def _bytes(size: int, value: Any) -> bytes:
    value = _plain(value)
    if not isinstance(value, bytes | bytearray | memoryview) or len(value) != size:
        raise ValueError(f"{size} bytes")
    return bytes(value)


def _array(length: int, encode: Encode, values: Any) -> bytes:
    try:
        found = [] if isinstance(values, str) else list(values)
    except TypeError:
        found = []
    if len(found) != length:
        raise ValueError(f"a sequence of {length}")
    return b"".join(map(encode, found))
