"""Arrays on memory that numpy did not allocate: shared with forked processes, or owned by others."""

from __future__ import annotations

import math
import mmap
from typing import Any

import numpy
from numpy.typing import NDArray


def shared_array(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Return a zeroed array in memory shared with processes forked later."""
    return _mapped(shape, dtype, mmap.MAP_SHARED)


def fresh_array(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Return a zeroed array on fresh pages: untouched pages cost nothing, while `numpy.zeros` may clear all of it."""
    return _mapped(shape, dtype, mmap.MAP_PRIVATE)


def _mapped(shape: tuple[int, ...], dtype: Any, flags: int) -> NDArray[Any]:
    count = math.prod(shape)
    size = max(1, count * numpy.dtype(dtype).itemsize)
    return numpy.frombuffer(mmap.mmap(-1, size, flags), dtype, count).reshape(shape)


class _Foreign:
    """The array interface of foreign memory; the array keeps this object, which keeps the owner."""

    __slots__ = ("__array_interface__", "owner")

    def __init__(self, owner: object, address: int, size: int, typestr: str) -> None:
        self.owner = owner
        self.__array_interface__ = {"shape": (size,), "typestr": typestr, "data": (address, True), "version": 3}


def foreign_array(owner: object, address: int, size: int, typestr: str = "|u1") -> NDArray[Any]:
    """Return a read-only array of `size` items at `address` that keeps `owner` alive."""
    return numpy.asarray(_Foreign(owner, address, size, typestr))
