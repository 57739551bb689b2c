"""Arguments of compiled functions, stored in their compiled form.

numba unboxes every field of a tuple at each call from Python: the 60 fields of a slice's sender take 50 to 100 µs.
A function called for every block takes the address of stored arguments instead::

    class Place(NamedTuple):
        size: int
        column: NDArray[numpy.int64]

    place_at = kept_at(Place)

    @njit(nogil=True, cache=True)
    def fill(place_address):
        place = place_at(place_address)
        place.column[: place.size] = 1

    kept = Kept(Place(3, column))
    fill(kept.address)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import numpy
from numba import from_dtype, types
from numba.extending import intrinsic

Declared = TypeVar("Declared", bound=tuple[Any, ...])


class Kept:
    """A named tuple of integers, booleans, one-dimensional arrays and such tuples, in its compiled form.

    `address`: argument for the function that `kept_at` returns; valid while this object lives. It keeps the arrays
    alive.
    """

    __slots__ = ("_memory", "_value", "address")

    def __init__(self, value: tuple[Any, ...]) -> None:
        self._value = value
        self._memory = numpy.array(_words_of(value), numpy.int64)
        self.address: int = self._memory.ctypes.data


def _words_of(value: Any) -> list[int]:
    """Return a value's words in numba's layout. An array begins with its owner, 0 in compiled code."""
    if isinstance(value, tuple):
        return [word for field in value for word in _words_of(field)]
    if isinstance(value, numpy.ndarray):
        if value.ndim != 1 or not value.flags.c_contiguous:
            raise ValueError(f"an array had shape {value.shape}, strides {value.strides}, expected a column")
        return [0, 0, value.size, value.itemsize, value.ctypes.data, value.size, value.itemsize]
    return [int(value)]


def kept_at(declared: type[Declared]) -> Callable[[int], Declared]:
    """Return a function for compiled code that takes the address of stored arguments and returns the named tuple."""
    kind = _kind_of(declared)

    @intrinsic
    def at(typingctx: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.load(builder.inttoptr(args[0], context.get_value_type(kind).as_pointer()))

        return kind(types.int64), codegen

    function: Callable[[int], Declared] = at
    return function


def _kind_of(declared: Any) -> types.Type:
    """Return numba's type for an annotation."""
    if declared is int:
        return types.int64
    if declared is bool:
        return types.boolean
    if hasattr(declared, "_fields"):
        hints = get_type_hints(declared)
        return types.BaseTuple.from_types([_kind_of(hints[name]) for name in declared._fields], declared)
    item = get_args(declared)[-1]  # of NDArray[T]: T since numpy 2.5, dtype[T] before
    if get_origin(item) is numpy.dtype:
        (item,) = get_args(item)
    return types.Array(from_dtype(numpy.dtype(item)), 1, "C")
