"""Columns of a file as columns of messages: texts as numbers, prices as integers, times as ns since 1970."""

from __future__ import annotations

from typing import Any, Final, Literal

import numpy
import pyarrow
from numpy.typing import NDArray
from pyarrow import compute

from blackbox.errors import ConfigError
from blackbox.feed.schema.schema import DECIMALS, UTC

TimeUnit = Literal["s", "ms", "us", "ns"]
TIME_UNITS: Final = {"s": 9, "ms": 6, "us": 3, "ns": 0}
"""By unit: the decimals of a time in ns."""
_DIGITS: Final = 38
_NO_TIME: Final = (
    "expected a time of the years 1678 to 2261 such as 2026-01-05T14:30:00Z; without Z it is of the option zone"
)
_NUMBER: Final = r"^[-+]?[0-9.]+$"


def as_text(values: pyarrow.Array) -> pyarrow.Array:
    """Return text as strings; other columns unchanged. Raises ArrowException for bytes that are not UTF-8."""
    kind = values.type
    if pyarrow.types.is_dictionary(kind):
        values, kind = values.cast(kind.value_type), kind.value_type
    is_text = (
        pyarrow.types.is_binary(kind) or pyarrow.types.is_large_binary(kind) or pyarrow.types.is_large_string(kind)
    )
    return values.cast(pyarrow.string()) if is_text else values


def as_times(values: pyarrow.Array, unit: TimeUnit, zone: str) -> pyarrow.Array:
    """Return times as int64 ns since 1970, null as 0: timestamps, texts of ISO 8601, or numbers of a unit.

    Times without a zone are of `zone`. Raises ArrowException or ConfigError for other values.
    """
    values = as_text(values)
    if pyarrow.types.is_string(values.type) and not _has_numbers(values):
        values = _parsed(values, zone)
    if not pyarrow.types.is_timestamp(values.type):
        return pyarrow.array(_scaled(values, TIME_UNITS[unit])).fill_null(0)
    values = values.cast(pyarrow.timestamp("ns", values.type.tz))
    values = values if values.type.tz else compute.assume_timezone(values, zone)
    return values.cast(pyarrow.int64()).fill_null(0)


def as_field(values: pyarrow.Array, dtype: numpy.dtype[Any], *, is_integer_price: bool, zone: str) -> pyarrow.Array:
    """Return a column for a field of a record, as `Recording.create` takes it.

    Raises ArrowException or ConfigError for a value that does not fit.
    """
    told: Any = dtype.metadata or {}
    texts = values if dtype.kind == "S" else as_text(values)
    if pyarrow.types.is_decimal(texts.type) and DECIMALS in told:
        return pyarrow.array(_scaled(texts, told[DECIMALS]))
    if dtype.kind == "S" or not pyarrow.types.is_string(texts.type):
        return texts
    if DECIMALS in told and not is_integer_price:
        return pyarrow.array(_scaled(texts, told[DECIMALS]))
    if UTC in told and not _has_numbers(texts):
        return _parsed(texts, zone)
    is_number = dtype.kind in "iufb"  # otherwise an integer of a width that numpy lacks
    return texts.cast(pyarrow.from_numpy_dtype(dtype.newbyteorder("=")) if is_number else pyarrow.uint64())


def _has_numbers(texts: pyarrow.Array) -> bool:
    """Return True if texts are numbers, False if they are not. Raises ConfigError if both occur."""
    is_number = compute.match_substring_regex(texts, _NUMBER)
    found = bool(compute.any(is_number).as_py())
    if found and not compute.all(is_number).as_py():
        raise ConfigError("numbers and texts were mixed")
    return found


def _parsed(texts: pyarrow.Array, zone: str) -> pyarrow.Array:
    """Return texts of ISO 8601 as timestamps; those without an offset are of a zone."""
    try:
        local = texts.cast(pyarrow.timestamp("ns"))
    except pyarrow.ArrowInvalid:
        try:
            return texts.cast(pyarrow.timestamp("ns", "UTC"))
        except pyarrow.ArrowInvalid as error:
            raise ConfigError(_NO_TIME) from error
    return compute.assume_timezone(local, zone)


def _scaled(values: pyarrow.Array, decimals: int) -> Any:
    """Return numbers times a power of ten, exactly, as int64, with a mask if some are null."""
    try:
        exact = values.cast(pyarrow.decimal128(_DIGITS, decimals))
    except pyarrow.ArrowInvalid as error:
        raise ConfigError(f"{error}, expected a number of at most {decimals} decimals") from error
    words = numpy.frombuffer(exact.buffers()[1], numpy.int64).reshape(-1, 2)[exact.offset : exact.offset + len(exact)]
    low, high = words[:, 0], words[:, 1]
    missing: NDArray[numpy.bool_] = exact.is_null().to_numpy(zero_copy_only=False)
    if ((high != low >> 63) & ~missing).any():
        raise ConfigError("a number did not fit 64 bits")
    return numpy.ma.MaskedArray(low, missing) if missing.any() else low
