"""Arrays on memory that is not numpy's: shared with forked processes, or owned by others."""

from __future__ import annotations

import mmap
from typing import Any

import numpy
from numpy.typing import NDArray


def shared_array(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """A zeroed array in memory that processes forked later share with this one."""
    size = max(1, int(numpy.prod(shape)) * numpy.dtype(dtype).itemsize)
    return numpy.frombuffer(mmap.mmap(-1, size), dtype, int(numpy.prod(shape))).reshape(shape)


def fresh_array(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """A zeroed array on pages of its own: what is not touched costs nothing. `numpy.zeros` may clear all of it."""
    count = int(numpy.prod(shape))
    size = max(1, count * numpy.dtype(dtype).itemsize)
    return numpy.frombuffer(mmap.mmap(-1, size, mmap.MAP_PRIVATE), dtype, count).reshape(shape)


class _Foreign:
    """What `numpy.asarray` asks for memory; the array keeps it, and it keeps the memory's owner."""

    __slots__ = ("__array_interface__", "owner")

    def __init__(self, owner: object, address: int, size: int, typestr: str) -> None:
        self.owner = owner
        self.__array_interface__ = {"shape": (size,), "typestr": typestr, "data": (address, True), "version": 3}


def foreign_array(owner: object, address: int, size: int, typestr: str = "|u1") -> NDArray[Any]:
    """A read-only array of `size` items at `address`, which keeps `owner` alive."""
    return numpy.asarray(_Foreign(owner, address, size, typestr))
