"""Intrinsics below numpy: addresses, ordered loads and stores, calls through a pointer.

For use inside `@njit` functions only. Addresses are int64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
from llvmlite import ir
from numba import carray, types
from numba.core import cgutils
from numba.extending import intrinsic

from blackbox.native.compile.jit import InnerFunction, njit

_WORD = ir.IntType(64)
_BYTE_POINTER = ir.IntType(8).as_pointer()
_WORD_POINTER = _WORD.as_pointer()
_LINE_POINTER = ir.VectorType(_WORD, 8).as_pointer()

inner: Callable[[Callable[..., Any]], Any] = InnerFunction
"""Decorator for functions called only from compiled code: faster to compile, and cached as part of their callers."""


@intrinsic
def _pointer(typingctx: Any, address: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], _BYTE_POINTER)

    return types.voidptr(types.int64), codegen


@intrinsic
def load_acquire(typingctx: Any, address: Any) -> Any:
    """Read an int64 that another thread stores with `store_release`; all its earlier writes are then visible."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], _WORD_POINTER)
        return builder.load_atomic(pointer, "acquire", 8, typ=_WORD)

    return types.int64(types.int64), codegen


@intrinsic
def fence(typingctx: Any) -> Any:
    """Order every earlier store before every later load (sequential consistency)."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), codegen


def _fetch(operation: str) -> Any:
    """Return an intrinsic that changes the int64 at an address atomically and returns the previous value."""

    @intrinsic
    def fetch(typingctx: Any, address: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = builder.inttoptr(args[0], _WORD_POINTER)
            return builder.atomic_rmw(operation, pointer, args[1], "seq_cst")

        return types.int64(types.int64, types.int64), codegen

    return fetch


fetch_add = _fetch("add")
fetch_and = _fetch("and")
fetch_or = _fetch("or")


@intrinsic
def store_release(typingctx: Any, address: Any, value: Any) -> Any:
    """Write an int64 that others read with `load_acquire`; all earlier writes are visible to them then."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store_atomic(args[1], builder.inttoptr(args[0], _WORD_POINTER), "release", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def lowest_bit(typingctx: Any, word: Any) -> Any:
    """Return the index of the lowest set bit of an int64 that is not 0."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.int64), codegen


@intrinsic
def copy_bytes(typingctx: Any, target: Any, source: Any, size: Any) -> Any:
    """`memcpy(target, source, size)`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target, source = (builder.inttoptr(a, _BYTE_POINTER) for a in args[:2])
        cgutils.raw_memcpy(builder, target, source, args[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@intrinsic
def copy_line(typingctx: Any, target: Any, source: Any) -> Any:
    """Copy 64 bytes, all owned by the caller; for few bytes this is faster than `memcpy`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target, source = (builder.inttoptr(a, _LINE_POINTER) for a in args)
        line = builder.load(source)
        line.align = 1
        builder.store(line, target).align = 1
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def prefetch(typingctx: Any, address: Any) -> Any:
    """Prefetch a cache line that is needed some steps later. Any address is allowed."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        small = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [_BYTE_POINTER, small, small, small])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        builder.call(function, [builder.inttoptr(args[0], _BYTE_POINTER), small(0), small(3), small(1)])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@intrinsic
def call_with_address(typingctx: Any, function: Any, argument: Any) -> Any:
    """Call the C function `void f(int64_t)` that starts at address `function`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [_WORD])
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), [args[1]])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


_MOST = numpy.int64((1 << 63) - 1)


@njit(inline="always")
def saturated(total: int, more: int) -> Any:
    """Return the sum of two non-negative int64, limited to the largest int64."""
    return _MOST if total > _MOST - more else total + more


@njit(inline="always")
def unsigned(index: int) -> Any:
    """Return a non-negative int32 as uint64: an index for which numba omits the wraparound check."""
    return numpy.uint64(numpy.uint32(index))


@njit(inline="always")
def bytes_at(address: int, size: int) -> Any:
    """Return a uint8[size] view of foreign memory; the caller keeps that memory alive."""
    return carray(_pointer(address), (size,), numpy.uint8)


@njit(inline="always")
def uint16s_at(address: int, size: int) -> Any:
    """Return a uint16[size] view of foreign memory, see `bytes_at`."""
    return carray(_pointer(address), (size,), numpy.uint16)


@njit(inline="always")
def int32s_at(address: int, size: int) -> Any:
    """Return an int32[size] view of foreign memory, see `bytes_at`."""
    return carray(_pointer(address), (size,), numpy.int32)


@njit(inline="always")
def uint32_at(address: int) -> Any:
    """Return the four bytes at `address` as an unsigned integer in an int64."""
    return numpy.int64(carray(_pointer(address), (1,), numpy.int32)[0]) & 0xFFFFFFFF


@njit(inline="always")
def int64s_at(address: int, size: int) -> Any:
    """Return an int64[size] view of foreign memory, see `bytes_at`."""
    return carray(_pointer(address), (size,), numpy.int64)


@njit(inline="always")
def uint64s_at(address: int, size: int) -> Any:
    """Return a uint64[size] view of foreign memory, see `bytes_at`."""
    return carray(_pointer(address), (size,), numpy.uint64)


@intrinsic
def load_word(typingctx: Any, address: Any) -> Any:
    """Return the eight bytes at an unaligned address as uint64; the caller owns all eight."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = builder.load(builder.inttoptr(args[0], _WORD_POINTER))
        word.align = 1
        return word

    return types.uint64(types.int64), codegen


@intrinsic
def store_word(typingctx: Any, address: Any, word: Any) -> Any:
    """Write a uint64 to an unaligned address; the caller owns all eight bytes."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[1], builder.inttoptr(args[0], _WORD_POINTER)).align = 1
        return context.get_dummy_value()

    return types.void(types.int64, types.uint64), codegen


@njit(inline="always")
def copy_name(target: int, source: int, size: int) -> None:
    """Copy a few bytes; `memcpy` takes longer for most names."""
    if 8 <= size <= 16:
        first, last = load_word(source), load_word(source + size - 8)
        store_word(target, first)
        store_word(target + size - 8, last)
    else:
        copy_bytes(target, source, size)


@intrinsic
def fold(typingctx: Any, left: Any, right: Any) -> Any:
    """Return the product of two uint64 as upper 64 bits xor lower 64 bits."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(*(builder.zext(a, wide) for a in args))
        upper = builder.trunc(builder.lshr(product, wide(64)), _WORD)
        return builder.xor(upper, builder.trunc(product, _WORD))

    return types.uint64(types.uint64, types.uint64), codegen


@intrinsic
def call_for_integer(typingctx: Any, function: Any, first: Any, second: Any, third: Any) -> Any:
    """Call the C function `int64_t f(int64_t, int64_t, int64_t)` that starts at address `function`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(_WORD, [_WORD, _WORD, _WORD])
        return builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])

    return types.int64(types.int64, types.int64, types.int64, types.int64), codegen


@intrinsic
def call_with_six(
    typingctx: Any, function: Any, first: Any, second: Any, third: Any, fourth: Any, fifth: Any, sixth: Any
) -> Any:
    """Call the C function of six int64 that starts at address `function`, and ignore its result."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(32), [_WORD] * 6)
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 7), codegen
