"""Integers at any offset of a byte array, for compiled code: one load or store each.

Offsets need no alignment and are not checked: the caller compares offset and length first. Loads return int64; 16 and
32 bits are zero-extended, 64 bits keep their pattern. Stores cut the value to its width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy
from llvmlite import ir
from numba import types
from numba.core.cgutils import voidptr_t
from numba.core.errors import TypingError
from numba.extending import intrinsic
from numpy.typing import NDArray

_Load = Callable[[NDArray[numpy.uint8], int], int]
_Store = Callable[[NDArray[numpy.uint8], int, int], None]

_BYTE = ir.IntType(8)
_INT64 = ir.IntType(64)


def _place(context: Any, builder: Any, kind: Any, data: Any, offset: Any, word: Any) -> Any:
    """Return a pointer to the word at `offset` in array `data`."""
    start = builder.bitcast(context.make_array(kind)(context, builder, value=data).data, voidptr_t)
    place = builder.gep(start, [offset], source_etype=_BYTE)
    return builder.bitcast(place, word.as_pointer())


def _check(data: Any, *integers: Any) -> None:
    if not (isinstance(data, types.Array) and data.dtype == types.uint8 and data.layout == "C"):
        raise TypingError(f"data was {data}, expected a contiguous uint8 array")
    for kind in integers:
        if not isinstance(kind, types.Integer):
            raise TypingError(f"offset or value was {kind}, expected an integer")


def _loader(bits: int, big_endian: bool) -> _Load:
    word = ir.IntType(bits)

    @intrinsic
    def load(_typing: Any, data: Any, offset: Any) -> Any:
        _check(data, offset)

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            place = _place(context, builder, signature.args[0], args[0], args[1], word)
            value = builder.load(place, align=1, typ=word)
            if big_endian:
                value = builder.bswap(value)
            return value if bits == 64 else builder.zext(value, _INT64)

        return types.int64(data, types.intp), codegen

    return cast("_Load", load)


def _storer(bits: int, big_endian: bool) -> _Store:
    word = ir.IntType(bits)

    @intrinsic
    def store(_typing: Any, data: Any, offset: Any, value: Any) -> Any:
        _check(data, offset, value)

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            place = _place(context, builder, signature.args[0], args[0], args[1], word)
            value = args[2] if bits == 64 else builder.trunc(args[2], word)
            builder.store(builder.bswap(value) if big_endian else value, place, align=1)
            return context.get_dummy_value()

        return types.void(data, types.intp, types.int64), codegen

    return cast("_Store", store)


little_16 = _loader(16, big_endian=False)
little_32 = _loader(32, big_endian=False)
little_64 = _loader(64, big_endian=False)
big_16 = _loader(16, big_endian=True)
big_32 = _loader(32, big_endian=True)
big_64 = _loader(64, big_endian=True)

put_little_32 = _storer(32, big_endian=False)
put_little_64 = _storer(64, big_endian=False)
put_big_16 = _storer(16, big_endian=True)
put_big_32 = _storer(32, big_endian=True)
put_big_64 = _storer(64, big_endian=True)
