"""XXH3, 64 bits, seed 0: the checksum of headers and bodies.

Source: xxHash specification 0.2.0, section "XXH3 algorithm description". Chosen because every language has it, and
because its long form has eight independent lanes: one vector register, a few instructions per 64 bytes.
"""

from __future__ import annotations

from typing import Any

import numpy
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from blackbox.native.compile.jit import njit
from blackbox.native.memory.intrinsics import bytes_at, fold, load_word

_SECRET_BYTES = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e"
    "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
_PRIME32_1 = 0x9E3779B1
_PRIME_1 = numpy.uint64(0x9E3779B185EBCA87)
_PRIME_2 = numpy.uint64(0xC2B2AE3D27D4EB4F)
_PRIME_3 = numpy.uint64(0x165667B19E3779F9)
_MIX_1 = numpy.uint64(0x165667919E3779F9)
_MIX_2 = numpy.uint64(0x9FB21C651E98DF25)
_MASK_32 = numpy.uint64(0xFFFFFFFF)
_LANES_AT_START = [
    0xC2B2AE3D,
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x85EBCA77,
    0x27D4EB2F165667C5,
    0x9E3779B1,
]
_STRIPE = 64
_STRIPES_PER_BLOCK = 16
_BLOCK = _STRIPE * _STRIPES_PER_BLOCK

_WORD = ir.IntType(64)
_VECTOR = ir.VectorType(_WORD, 8)


def _secret(builder: Any) -> Any:
    data = ir.Constant(ir.ArrayType(ir.IntType(8), len(_SECRET_BYTES)), bytearray(_SECRET_BYTES))
    return builder.ptrtoint(cgutils.global_constant(builder, "xxh3_secret", data), _WORD)


def _same(value: int) -> Any:
    return ir.Constant(_VECTOR, [value] * 8)


@intrinsic
def _secret_word(typingctx: Any, place: Any) -> Any:
    """Return eight bytes of the secret as uint64."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address = builder.add(_secret(builder), args[0])
        word = builder.load(builder.inttoptr(address, _WORD.as_pointer()))
        word.align = 1
        return word

    return types.uint64(types.int64), codegen


@intrinsic
def _swap(typingctx: Any, word: Any) -> Any:
    """Return a uint64 with its bytes reversed."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bswap(args[0])

    return types.uint64(types.uint64), codegen


@intrinsic
def _lanes(typingctx: Any, address: Any, size: Any) -> Any:
    """Return the eight lanes of a long input. Explicit vectors: LLVM does not vectorise the scalar loop."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address, size = args
        secret = _secret(builder)
        lanes = cgutils.alloca_once(builder, _VECTOR)
        builder.store(ir.Constant(_VECTOR, _LANES_AT_START), lanes)

        def load(at: Any) -> Any:
            vector = builder.load(builder.inttoptr(at, _VECTOR.as_pointer()))
            vector.align = 1
            return vector

        def accumulate(at: Any, secret_at: Any) -> None:
            data = load(at)
            key = builder.xor(data, load(secret_at))
            product = builder.mul(builder.and_(key, _same(0xFFFFFFFF)), builder.lshr(key, _same(32)))
            order = ir.Constant(ir.VectorType(ir.IntType(32), 8), [1, 0, 3, 2, 5, 4, 7, 6])
            neighbours = builder.shuffle_vector(data, ir.Constant(_VECTOR, ir.Undefined), order)
            builder.store(builder.add(builder.add(builder.load(lanes), neighbours), product), lanes)

        def stripes(start: Any, count: Any) -> None:
            with cgutils.for_range(builder, count) as stripe:
                at = builder.add(start, builder.mul(stripe.index, _WORD(_STRIPE)))
                accumulate(at, builder.add(secret, builder.mul(stripe.index, _WORD(8))))

        before_last = builder.sub(size, _WORD(1))
        blocks = builder.udiv(before_last, _WORD(_BLOCK))
        with cgutils.for_range(builder, blocks) as block:
            stripes(builder.add(address, builder.mul(block.index, _WORD(_BLOCK))), _WORD(_STRIPES_PER_BLOCK))
            value = builder.load(lanes)
            key = load(builder.add(secret, _WORD(len(_SECRET_BYTES) - _STRIPE)))
            mixed = builder.xor(builder.xor(value, builder.lshr(value, _same(47))), key)
            builder.store(builder.mul(mixed, _same(_PRIME32_1)), lanes)
        done = builder.mul(blocks, _WORD(_BLOCK))
        stripes(builder.add(address, done), builder.udiv(builder.sub(before_last, done), _WORD(_STRIPE)))
        end = builder.add(address, size)
        accumulate(builder.sub(end, _WORD(_STRIPE)), builder.add(secret, _WORD(len(_SECRET_BYTES) - _STRIPE - 7)))
        value = builder.load(lanes)
        return context.make_tuple(
            builder, signature.return_type, [builder.extract_element(value, ir.IntType(32)(i)) for i in range(8)]
        )

    return types.UniTuple(types.uint64, 8)(types.int64, types.int64), codegen


@njit(inline="always")
def _avalanche(value: int) -> int:
    value = (value ^ (value >> numpy.uint64(37))) * _MIX_1
    return value ^ (value >> numpy.uint64(32))


@njit(inline="always")
def _mix_16(address: int, place: int) -> int:
    return fold(
        load_word(address) ^ _secret_word(place),
        load_word(address + 8) ^ _secret_word(place + 8),
    )


@njit(nogil=True, cache=True)
def _up_to_16(address: int, size: int) -> int:
    length = numpy.uint64(size)
    if size > 8:
        low = load_word(address) ^ (_secret_word(24) ^ _secret_word(32))
        high = load_word(address + size - 8) ^ (_secret_word(40) ^ _secret_word(48))
        return _avalanche(length + _swap(low) + high + fold(low, high))
    text = bytes_at(address, size)
    if size >= 4:
        first = last = numpy.uint64(0)
        for i in range(4):
            first |= numpy.uint64(text[i]) << numpy.uint64(8 * i)
            last |= numpy.uint64(text[size - 4 + i]) << numpy.uint64(8 * i)
        value = (last + (first << numpy.uint64(32))) ^ (_secret_word(8) ^ _secret_word(16))
        turned = (value << numpy.uint64(49)) | (value >> numpy.uint64(15))
        turned ^= (value << numpy.uint64(24)) | (value >> numpy.uint64(40))
        value = (value ^ turned) * _MIX_2
        value = (value ^ ((value >> numpy.uint64(35)) + length)) * _MIX_2
        return value ^ (value >> numpy.uint64(28))
    if size > 0:
        value = (
            numpy.uint64(text[0]) << numpy.uint64(16)
            | numpy.uint64(text[size >> 1]) << numpy.uint64(24)
            | numpy.uint64(text[size - 1])
            | length << numpy.uint64(8)
        )
        value ^= (_secret_word(0) & _MASK_32) ^ (_secret_word(0) >> numpy.uint64(32))
    else:
        value = _secret_word(56) ^ _secret_word(64)
    value = (value ^ (value >> numpy.uint64(33))) * _PRIME_2
    value = (value ^ (value >> numpy.uint64(29))) * _PRIME_3
    return value ^ (value >> numpy.uint64(32))


@njit(nogil=True, cache=True)
def xxh3(address: int, size: int) -> int:
    """Return XXH3_64bits of `size` bytes at `address`, as uint64."""
    if size <= 16:
        return _up_to_16(address, size)
    total = numpy.uint64(size) * _PRIME_1
    end = address + size
    if size <= 128:
        for step in range((size - 1) >> 5, -1, -1):
            total += _mix_16(address + 16 * step, 32 * step)
            total += _mix_16(end - 16 * (step + 1), 32 * step + 16)
        return _avalanche(total)
    if size <= 240:
        for step in range(8):
            total += _mix_16(address + 16 * step, 16 * step)
        total = _avalanche(total)
        for step in range(8, size >> 4):
            total += _mix_16(address + 16 * step, 16 * (step - 8) + 3)
        return _avalanche(total + _mix_16(end - 16, 119))
    lanes = _lanes(address, size)
    for pair in range(4):
        place = 11 + 16 * pair
        total += fold(lanes[2 * pair] ^ _secret_word(place), lanes[2 * pair + 1] ^ _secret_word(place + 8))
    return _avalanche(total)


@njit(inline="always", cache=True)  # also called from Python
def checksum_32(address: int, size: int) -> int:
    """Return the low 32 bits of XXH3, for the checksum field of a header."""
    return numpy.uint32(xxh3(address, size) & _MASK_32)
