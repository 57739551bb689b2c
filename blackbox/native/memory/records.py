"""Records of named int64 fields that compiled code and Python share.

A record is declared once, as a class: its fields are attributes in Python and, through `record_at`, in compiled code.
A compiled `record.field` is a plain load or store. Fields that synchronise threads are read with `load_shared` and
written with `store_shared`.

::

    class SliceState(SharedRecord):
        stopping = Field(own_line=True)     # far from what other threads write
        heard = Fields(2)                   # an array of int64

    slice_state_at = record_at(SliceState)

    @inner
    def is_over(address):
        return load_shared(slice_state_at(address), "stopping") != 0
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final, Self, TypeVar, overload

import numpy
from llvmlite import ir
from numba import from_dtype, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from blackbox.native.memory.arrays import shared_array

_WORD: Final = ir.IntType(64)
_WORD_BYTES: Final = 8
_LINE_WORDS: Final = 8
"""int64 words per cache line."""


class _Words:
    """Offset and size of a field in its record, in words."""

    def __init__(self, count: int, own_line: bool) -> None:
        self.count, self.own_line = count, own_line
        self.name = ""
        self.start = 0

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name


class Field(_Words):
    """One int64 of a record. `own_line`: it begins a cache line, which avoids false sharing."""

    def __init__(self, *, own_line: bool = False) -> None:
        super().__init__(1, own_line)

    @overload
    def __get__(self, record: None, owner: type) -> Self: ...
    @overload
    def __get__(self, record: SharedRecord, owner: type) -> int: ...
    def __get__(self, record: SharedRecord | None, owner: type) -> int | Self:
        if record is None:
            return self
        value: int = record.words[self.start]
        return value

    def __set__(self, record: SharedRecord, value: int) -> None:
        record.words[self.start] = value


class Fields(_Words):
    """An array of `count` int64 in a record."""

    def __init__(self, count: int, *, own_line: bool = False) -> None:
        super().__init__(count, own_line)

    @overload
    def __get__(self, record: None, owner: type) -> Self: ...
    @overload
    def __get__(self, record: SharedRecord, owner: type) -> memoryview[int]: ...
    def __get__(self, record: SharedRecord | None, owner: type) -> memoryview[int] | Self:
        return self if record is None else record.words[self.start : self.start + self.count]


class SharedRecord:
    """Base of records: each `Field` or `Fields` of a subclass is a named part of the record's memory.

    A derived class appends its fields to those of its base, which keep their offsets.

    Attributes: `dtype`, of the class: its numpy structure, for arrays of records; `address`, for compiled code, valid
    while the record lives; `words`, the whole record as int64.
    """

    dtype: ClassVar[numpy.dtype[Any]]

    def __init_subclass__(cls) -> None:
        fields = [field for each in reversed(cls.__mro__) for field in vars(each).values() if isinstance(field, _Words)]
        size = 0
        for field in fields:
            if field.own_line:
                size = -(-size // _LINE_WORDS) * _LINE_WORDS
            field.start = size
            size += field.count
        if any(field.own_line for field in fields):
            size = -(-size // _LINE_WORDS) * _LINE_WORDS
        formats = ["<i8" if isinstance(field, Field) else f"({field.count},)<i8" for field in fields]
        cls.dtype = numpy.dtype({
            "names": [field.name for field in fields],
            "formats": formats,
            "offsets": [_WORD_BYTES * field.start for field in fields],
            "itemsize": _WORD_BYTES * size,
        })  # fmt: skip

    def __init__(self, memory: NDArray[Any] | None = None) -> None:
        """View one record's `memory`; default: zeros, shared with processes forked later."""
        memory = shared_array((1,), self.dtype) if memory is None else memory
        if memory.nbytes != self.dtype.itemsize:
            raise ValueError(
                f"memory of a {type(self).__name__} was {memory.nbytes} bytes, expected {self.dtype.itemsize}"
            )
        array: NDArray[numpy.int64] = memory.reshape(-1).view(numpy.int64)
        self.words: memoryview[int] = array.data
        self.address: int = array.ctypes.data

    @classmethod
    def sum_of(cls, records: list[Self]) -> Self:
        """Return a record with the sum of each field over `records`, limited to the largest int64."""
        total = numpy.zeros(cls.dtype.itemsize // _WORD_BYTES, numpy.int64)
        for record in records:
            before, more = total, numpy.asarray(record.words)
            total = before + more
            # The sum of two non-negative integers is negative only after an overflow.
            total[(before >= 0) & (more >= 0) & (total < 0)] = numpy.iinfo(numpy.int64).max
        return cls(total)


Record = TypeVar("Record", bound=SharedRecord)


def record_at(declared: type[Record]) -> Callable[[int], Record]:
    """Return a function for compiled code that takes a record's address and returns the record."""
    return structure_at(declared.dtype)


def structure_at(dtype: numpy.dtype[Any]) -> Callable[[int], Any]:
    """Do the same for any numpy structure, for data in files. Fields are read and written in place."""
    kind = from_dtype(dtype)

    @intrinsic
    def at(typingctx: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], context.get_value_type(kind))

        return kind(types.int64), codegen

    function: Callable[[int], Any] = at
    return function


def _offset(record: Any, name: Any) -> int | None:
    """Return a field's offset in bytes; None unless this is a record and a literal field name."""
    if not isinstance(record, types.Record) or not isinstance(name, types.StringLiteral):
        return None
    return int(record.offset(name.literal_value))


def _pointer(builder: Any, record: Any, offset: int) -> Any:
    address = builder.add(builder.ptrtoint(record, _WORD), _WORD(offset))
    return builder.inttoptr(address, _WORD.as_pointer())


@intrinsic(prefer_literal=True)
def load_shared(typingctx: Any, record: Any, name: Any) -> Any:
    """Read a field that another thread writes with `store_shared`; its earlier writes are then visible (acquire)."""
    offset = _offset(record, name)
    if offset is None:
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(_pointer(builder, args[0], offset), "acquire", _WORD_BYTES, typ=_WORD)

    return types.int64(record, name), codegen


@intrinsic(prefer_literal=True)
def swap_shared(typingctx: Any, record: Any, name: Any, expected: Any, value: Any) -> Any:
    """Write `value` if the field is `expected`, atomically; return True if written (sequentially consistent)."""
    offset = _offset(record, name)
    if offset is None:
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _pointer(builder, args[0], offset)
        swapped = builder.cmpxchg(pointer, args[2], args[3], "seq_cst", "seq_cst")
        return builder.extract_value(swapped, 1)

    return types.boolean(record, name, types.int64, types.int64), codegen


@intrinsic(prefer_literal=True)
def store_shared(typingctx: Any, record: Any, name: Any, value: Any) -> Any:
    """Write a field that others read with `load_shared`; earlier writes are visible to them then (release)."""
    offset = _offset(record, name)
    if offset is None:
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store_atomic(args[2], _pointer(builder, args[0], offset), "release", _WORD_BYTES)
        return context.get_dummy_value()

    return types.void(record, name, types.int64), codegen
