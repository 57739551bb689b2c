"""Lag as a log-linear histogram, filled by compiled code and read with numpy.

The layout is HdrHistogram's (32 linear buckets per power of two, error below 3.2 %). It is written here
because libraries with a Python binding need the GIL to record.
"""

from __future__ import annotations

import math
from typing import Final

import numpy
from numpy.typing import NDArray

from blackbox.native.compile.jit import njit
from blackbox.native.memory.intrinsics import inner, int64s_at

_BITS: Final = 5
_PER_POWER: Final = 1 << _BITS
BUCKETS: Final = (64 - _BITS) * _PER_POWER


@inner
def record(histogram: int, lag_ns: int, count: int) -> None:
    """Add `count` messages of lag `lag_ns` to the int64[BUCKETS] at address `histogram`; a negative lag counts as 0."""
    value = max(lag_ns, 0)
    power = 0
    while value >> (power + _BITS + 1):
        power += 1
    bucket = value if value < _PER_POWER else (power + 1) * _PER_POWER + (value >> power) - _PER_POWER
    int64s_at(histogram, BUCKETS)[bucket] += count


@njit(nogil=True, cache=True)
def record_one(histogram: int, lag_ns: int) -> None:
    """Count one lag; for callers in Python."""
    record(histogram, lag_ns, 1)


def _upper_bounds() -> NDArray[numpy.float64]:
    bucket = numpy.arange(BUCKETS)
    power = numpy.maximum(bucket // _PER_POWER - 1, 0)
    mantissa = numpy.where(bucket < _PER_POWER, bucket, bucket % _PER_POWER + _PER_POWER)
    return numpy.ldexp(mantissa + 1.0, power) - 1


BOUNDS_NS = _upper_bounds()
"""Upper bound of each bucket."""


def percentiles_ns(histogram: NDArray[numpy.int64], *percents: float) -> list[int]:
    """Return the lag percentiles, as upper bounds of their buckets; 0 if there are no messages."""
    below = numpy.cumsum(histogram)
    total = int(below[-1])
    if total == 0:
        return [0] * len(percents)
    ranks = [min(total, max(1, math.ceil(total * percent / 100))) for percent in percents]
    return [int(BOUNDS_NS[bucket]) for bucket in numpy.searchsorted(below, ranks)]
