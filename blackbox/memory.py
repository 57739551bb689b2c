"""Memory that a process shares with those it forks."""

from __future__ import annotations

import mmap
from typing import Any

import numpy
from numpy.typing import NDArray


def shared_array(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """A zeroed array in memory that processes forked later share with this one."""
    size = max(1, int(numpy.prod(shape)) * numpy.dtype(dtype).itemsize)
    return numpy.frombuffer(mmap.mmap(-1, size), dtype, int(numpy.prod(shape))).reshape(shape)
