"""One message's fields as a Python object. ctypes reads a field ten times faster than numpy's scalars."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, ClassVar, NoReturn

import numpy

from blackbox.errors import ConfigError
from blackbox.feed.schema.field_meaning import ABSENT, DECIMALS

FLOAT = "_float"
"""Suffix of the attribute that has a price as a float."""


class TypedRecord(ctypes.Structure):
    """One message's fields as read-only attributes. Equal to records of the same type with the same bytes."""

    # Underscored, as in ctypes: a venue may call a field `names` or `dtype`.
    _names_: ClassVar[tuple[str, ...]] = ()
    _dtype_: ClassVar[numpy.dtype[Any]]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={_shown(getattr(self, name))}' for name in self._names_)})"

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__}.{name} cannot be set to {value!r}: records are read-only")

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, TypedRecord)
            and (type(self).__name__, bytes(self)) == (type(other).__name__, bytes(other))
            and self._dtype_ == other._dtype_
        )

    def __hash__(self) -> int:
        return hash((type(self).__name__, bytes(self)))

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self).__name__, self._dtype_, bytes(self))


def _restored(name: str, dtype: numpy.dtype[Any], data: bytes) -> Any:
    return record_type(name, dtype).from_buffer_copy(data)


def _shown(value: object) -> str:
    return repr(list(value) if isinstance(value, ctypes.Array) else value)


def _bytes_of(hidden: str) -> Callable[[TypedRecord], bytes]:
    return lambda record: bytes(getattr(record, hidden))


def _or_none(stored: Any, absent: int) -> property:
    """Return an attribute that is None if the field holds `absent`. `stored`: the ctypes descriptor of the field."""
    read = stored.__get__

    def value(record: TypedRecord) -> int | None:
        found: int = read(record)
        return None if found == absent else found

    return property(value)


def _as_float(stored: Any, decimals: int) -> property:
    """Return an attribute with a price as a float. `stored`: the attribute with the venue's integer."""
    read, scale = stored.__get__, 10.0**decimals

    def value(record: TypedRecord) -> float | None:
        units = read(record)
        return None if units is None else units / scale

    return property(value)


def record_type(name: str, dtype: numpy.dtype[Any]) -> Any:
    """Return a class for records with the memory layout of `dtype`.

    Integers, floats and booleans are Python's, an integer that means "no value" is None, and texts are `bytes` up to
    the first zero byte. Subarrays of bytes and unsupported kinds are `bytes`, other subarrays ctypes arrays, nested
    records are records. A price `p` is the venue's integer, and `p_float` the price, unless a field has that name.

    Raises:
        ConfigError: fields overlap.
    """
    layout: Any = dtype.fields or {}
    fields: list[tuple[str, Any]] = []
    members: dict[str, Any] = {}
    used = 0
    for label in sorted(dtype.names or (), key=lambda label: layout[label][1]):
        field, offset = layout[label][:2]
        if offset < used:
            raise ConfigError(f"{name}: field {label!r} was at byte {offset}, expected {used} or more")
        fields += _padding(used, offset)
        kind = _c_type(f"{name}.{label}", field)
        if issubclass(kind, ctypes.Array) and kind._type_ is ctypes.c_uint8:
            hidden = f"bytes of {label}"
            members[label] = property(_bytes_of(hidden))
            fields.append((hidden, kind))
        else:
            fields.append((label, kind))
        used = offset + field.itemsize
    fields += _padding(used, dtype.itemsize)
    made: Any = type(
        name,
        (TypedRecord,),
        {
            "_pack_": 1,
            "_layout_": "ms",
            "_fields_": fields,
            "_names_": dtype.names or (),
            "_dtype_": dtype,
            **members,
        },
    )
    for label in dtype.names or ():
        metadata = layout[label][0].metadata or {}
        if (absent := metadata.get(ABSENT)) is not None:
            setattr(made, label, _or_none(getattr(made, label), absent))
        if (decimals := metadata.get(DECIMALS)) is not None and label + FLOAT not in layout:
            setattr(made, label + FLOAT, _as_float(getattr(made, label), decimals))
    return made


def _padding(used: int, offset: int) -> list[tuple[str, Any]]:
    # The space keeps the name distinct from those of fields.
    return [(f"padding {used}", ctypes.c_uint8 * (offset - used))] if offset > used else []


def _c_type(name: str, field: numpy.dtype[Any]) -> Any:
    if field.subdtype is not None:
        base, shape = field.subdtype
        array = _c_type(name, base)
        for length in reversed(shape):
            array *= length
        return array
    if field.names:
        return record_type(name, field)
    try:
        return numpy.ctypeslib.as_ctypes_type(field)
    except NotImplementedError:
        return ctypes.c_char * field.itemsize if field.kind == "S" else ctypes.c_uint8 * field.itemsize
