"""Columns of a caller as checked rows to encode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy
from numpy.typing import NDArray

from blackbox.block.form.encode import NO_VALUE, Rows
from blackbox.block.form.format import MAX_BODY_BYTES
from blackbox.native.compile.jit import njit
from blackbox.native.memory.intrinsics import int32s_at, int64s_at


class PayloadColumns(NamedTuple):
    """Payloads of messages, and what belongs to each, as a caller gives them; None: not given.

    Payloads are a 2-D array (n, size) of bytes; or one buffer with `offsets` (n + 1); or one buffer with `offsets` (n
    starts) and `lengths` (n).
    """

    payloads: Any
    ts_event: Any = None
    offsets: Any = None
    lengths: Any = None
    valid: Any = None
    """bool (n): False for messages without a value."""
    sequences: Any = None
    """int64 (n), ascending, of messages that are not consecutive."""
    same: Any = None
    """uint8 (n), for messages with several topics: see `Rows`."""


def as_integers(column: Any, dtype: type[numpy.integer[Any]], name: str) -> NDArray[Any]:
    """Return a column as `dtype`. Raises ValueError for items that are not integers, or out of range."""
    given = numpy.asarray(column)
    if given.size == 0:
        return numpy.empty(given.shape, dtype)
    if given.dtype.kind not in "iu":
        raise ValueError(f"{name} held {given.dtype}, expected integers of {numpy.dtype(dtype)}")
    limits = numpy.iinfo(dtype)
    if not numpy.can_cast(given.dtype, dtype) and (given.min() < limits.min or given.max() > limits.max):
        raise ValueError(f"{name} ran from {given.min()} to {given.max()}, expected {numpy.dtype(dtype)}")
    return numpy.ascontiguousarray(given, dtype)


def as_topic_index(column: Any, topics: Sequence[str | bytes]) -> NDArray[numpy.int32]:
    """Return indices into `topics` as int32[n]. Raises ValueError for another shape, or an index out of range."""
    index = as_integers(column, numpy.int32, "topic_index")
    if index.ndim != 1:
        raise ValueError(f"topic_index had shape {index.shape}, expected (n,)")
    if index.size and (index.min() < 0 or index.max() >= len(topics)):
        raise ValueError(f"topic_index ran from {index.min()} to {index.max()}, expected 0 to {len(topics) - 1}")
    return index


def _as_column(column: Any, dtype: type[numpy.integer[Any]], name: str, count: int) -> NDArray[Any]:
    found = as_integers(column, dtype, name)
    if found.shape != (count,):
        raise ValueError(f"{name} had shape {found.shape}, expected ({count},), as topic_index")
    return found


def as_rows(columns: PayloadColumns, count: int, *, borrowed: bool = False) -> tuple[Rows, tuple[Any, ...]]:
    """Return `count` rows of checked columns for compiled code, and the objects to keep alive while they are used.

    `borrowed`: no thread changes the columns while they are used.

    Raises ValueError naming the column that does not fit.
    """
    payloads, ts_event, offsets, lengths, valid, sequences, same = columns
    stamps = numbers = numpy.empty(0, numpy.int64)
    if ts_event is not None:
        stamps = _as_column(ts_event, numpy.int64, "ts_event", count)
    if sequences is not None:
        numbers = _as_column(sequences, numpy.int64, "sequences", count)
    backs = numpy.empty(0, numpy.uint8) if same is None else _as_column(same, numpy.uint8, "same", count)
    starts, sizes, stride = numpy.empty(0, numpy.int64), numpy.empty(0, numpy.int32), 0
    if offsets is None:
        data = numpy.ascontiguousarray(payloads)
        if data.ndim != 2 or data.dtype.itemsize != 1 or data.shape[0] != count:
            raise ValueError(
                f"payloads without offsets had shape {data.shape} of {data.dtype}, expected ({count}, size) of bytes"
            )
        stride = data.shape[1]
        _check_size(stride)
    else:
        data = payloads if isinstance(payloads, numpy.ndarray) else numpy.frombuffer(payloads, numpy.uint8)
        data = numpy.ascontiguousarray(data).reshape(-1)
        places = as_integers(offsets, numpy.int64, "offsets")
        expected = count + 1 if lengths is None else count
        if places.shape != (expected,):
            raise ValueError(f"offsets had shape {places.shape}, expected ({expected},)")
        if borrowed and lengths is not None and valid is None:
            starts, sizes = places, _as_column(lengths, numpy.int32, "lengths", count)
            longest = longest_extent(starts.ctypes.data, sizes.ctypes.data, count, data.nbytes)
        else:
            if lengths is None:
                places = numpy.array(places)
                extent = numpy.diff(places)
            else:
                extent = _as_column(lengths, numpy.int64, "lengths", count)
            # Copies: other threads may change the caller's arrays after the check.
            starts, sizes = numpy.empty(count, numpy.int64), numpy.empty(count, numpy.int32)
            longest = copy_extents(
                places.ctypes.data, extent.ctypes.data, count, data.nbytes, starts.ctypes.data, sizes.ctypes.data
            )
        if longest < 0:
            raise ValueError(f"offsets reached outside the {data.nbytes} bytes of payloads, or ran backwards")
        _check_size(longest)
    spaced = offsets is not None
    if valid is not None:
        present = numpy.asarray(valid)
        if present.shape != (count,) or present.dtype != numpy.bool_:
            raise ValueError(f"valid had shape {present.shape} of {present.dtype}, expected ({count},) of bool")
        if not spaced:
            starts, spaced = numpy.arange(count, dtype=numpy.int64) * stride, True
            sizes = numpy.full(count, stride, numpy.int32)
        sizes[~present] = NO_VALUE
    rows = Rows(
        stamps.ctypes.data if ts_event is not None else 0,
        data.ctypes.data,
        starts.ctypes.data if spaced else 0,
        sizes.ctypes.data if spaced else 0,
        stride,
        numbers.ctypes.data if sequences is not None else 0,
        backs.ctypes.data if same is not None else 0,
    )
    return rows, (data, stamps, starts, sizes, numbers, backs)


def _check_size(payload_bytes: int) -> None:
    if payload_bytes > MAX_BODY_BYTES // 2:
        raise ValueError(f"a payload had {payload_bytes} bytes, expected at most {MAX_BODY_BYTES // 2}")


@njit(nogil=True, cache=True)
def copy_extents(starts_at: int, sizes_at: int, count: int, octets: int, to_starts: int, to_sizes: int) -> Any:
    """Copy int64 starts and int64 sizes of payloads to int64 and int32; return the largest size.

    Returns -1 if a payload is outside the `octets` bytes, or has a negative size.
    """
    starts, sizes = int64s_at(starts_at, count), int64s_at(sizes_at, count)
    copied_starts, copied_sizes = int64s_at(to_starts, count), int32s_at(to_sizes, count)
    good = True
    longest = numpy.int64(0)
    for row in range(count):
        start, size = starts[row], sizes[row]
        # In this form no sum can overflow.
        good &= (size >= 0) & (start >= 0) & (start <= octets - size)
        longest = max(longest, size)
        copied_starts[row] = start
        copied_sizes[row] = numpy.int32(size)
    return longest if good else numpy.int64(-1)


@njit(nogil=True, cache=True)
def longest_extent(starts_at: int, sizes_at: int, count: int, octets: int) -> Any:
    """Return the largest int32 size of payloads with int64 starts; -1 as in `copy_extents`."""
    starts, sizes = int64s_at(starts_at, count), int32s_at(sizes_at, count)
    good = True
    longest = numpy.int64(0)
    for row in range(count):
        start, size = starts[row], numpy.int64(sizes[row])
        good &= (size >= 0) & (start >= 0) & (start <= octets - size)
        longest = max(longest, size)
    return longest if good else numpy.int64(-1)
