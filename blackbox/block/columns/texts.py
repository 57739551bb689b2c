"""Fixed-width texts as Arrow texts, in compiled code."""

from __future__ import annotations

from typing import Any

import numpy
from numpy.typing import NDArray

from blackbox.native.compile.jit import njit
from blackbox.native.memory.intrinsics import bytes_at

_TAB, _RETURN, _SPACE = 9, 13, 32


@njit(nogil=True, cache=True)
def _measure(texts: int, stride: int, width: int, offsets: NDArray[numpy.int32]) -> None:
    for row in range(len(offsets) - 1):
        text = bytes_at(texts + stride * row, width)
        size = width
        while size > 0:
            last = text[size - 1]
            if not (last == 0 or last == _SPACE or _TAB <= last <= _RETURN):
                break
            size -= 1
        more = 0
        for i in range(size):
            more += text[i] >> 7
        offsets[row + 1] = offsets[row] + size + more


@njit(nogil=True, cache=True)
def _write(texts: int, stride: int, width: int, offsets: NDArray[numpy.int32], target: NDArray[numpy.uint8]) -> None:
    for row in range(len(offsets) - 1):
        text = bytes_at(texts + stride * row, width)
        at, end, i = offsets[row], offsets[row + 1], 0
        while at < end:
            letter = text[i]
            if letter < 128:
                target[at] = letter
            else:
                target[at] = 0xC0 | (letter >> 6)
                at += 1
                target[at] = 0x80 | (letter & 0x3F)
            at += 1
            i += 1


def trimmed(values: NDArray[numpy.bytes_]) -> tuple[NDArray[numpy.int32], NDArray[Any]]:
    """Return offsets int32[n + 1] and the UTF-8 bytes of the texts, without trailing blanks and zeros.

    Every byte is one Latin-1 character: venues send ASCII, and damaged texts must not raise.
    """
    offsets = numpy.zeros(len(values) + 1, numpy.int32)
    if not len(values):
        return offsets, numpy.empty(0, numpy.uint8)
    place, stride, width = values.ctypes.data, values.strides[0], values.dtype.itemsize
    _measure(place, stride, width, offsets)
    target = numpy.empty(int(offsets[-1]), numpy.uint8)
    _write(place, stride, width, offsets, target)
    return offsets, target
