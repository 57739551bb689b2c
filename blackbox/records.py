"""A message's record as a Python object: ctypes reads a field in a tenth of the time that numpy's scalars take."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy

_NUMBERS: Final[dict[str, Any]] = {
    "i1": ctypes.c_int8,
    "i2": ctypes.c_int16,
    "i4": ctypes.c_int32,
    "i8": ctypes.c_int64,
    "u1": ctypes.c_uint8,
    "u2": ctypes.c_uint16,
    "u4": ctypes.c_uint32,
    "u8": ctypes.c_uint64,
    "f4": ctypes.c_float,
    "f8": ctypes.c_double,
}


class _Record(ctypes.Structure):
    def __repr__(self) -> str:
        names = [field[0] for field in self._fields_ if not field[0].startswith("_")]
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"


def record_type(name: str, dtype: numpy.dtype[Any]) -> Any:
    """The ctypes structure that lies in memory as `dtype` says: every field is an attribute.

    Integers and floats are Python's, texts `bytes` up to the first zero byte, anything else an array of its bytes.
    """
    layout: Any = dtype.fields or {}
    fields: list[tuple[str, Any]] = []
    used = 0
    for label in dtype.names or ():
        field, offset = layout[label][:2]
        if offset > used:
            fields.append((f"_{used}", ctypes.c_uint8 * (offset - used)))
        fields.append((label, _c_type(field)))
        used = offset + field.itemsize
    if dtype.itemsize > used:
        fields.append((f"_{used}", ctypes.c_uint8 * (dtype.itemsize - used)))
    return type(name, (_Record,), {"_pack_": 1, "_layout_": "ms", "_fields_": fields})


def _c_type(field: numpy.dtype[Any]) -> Any:
    number = _NUMBERS.get(f"{field.kind}{field.itemsize}")
    if number is None:
        return ctypes.c_char * field.itemsize if field.kind == "S" else ctypes.c_uint8 * field.itemsize
    return number.__ctype_be__ if field.str.startswith(">") else number.__ctype_le__
