"""Round ticks on an axis, with labels."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from blackbox.numbers import duration, short
from blackbox.timestamps import SECOND_NS, clock_text, datetime_of

STEPS_NS: Final = (
    *(digit * 10**power for power in range(3, 9) for digit in (1, 2, 5)),
    *(seconds * SECOND_NS for seconds in (1, 2, 5, 10, 15, 30)),
    *(minutes * 60 * SECOND_NS for minutes in (1, 2, 5, 10, 15, 30)),
    *(hours * 3_600 * SECOND_NS for hours in (1, 2, 3, 6, 12, 24)),
)
_TIME_TICKS: Final = 9
_RATE_TICKS: Final = 5
_SPAN_TICKS: Final = 7


def time_ticks(first: int, last: int, zone: str) -> Iterator[tuple[int, str]]:
    """Yield round local times from `first` to `last`, with labels."""
    step = next((step for step in STEPS_NS if (last - first) / step <= _TIME_TICKS), STEPS_NS[-1])
    offset = datetime_of(first, zone).utcoffset() or timedelta()
    shift = int(offset.total_seconds()) * SECOND_NS
    for at in range(-(-(first + shift) // step) * step - shift, last + 1, step):
        digits = 0 if step % SECOND_NS == 0 else 3 if step % 10**6 == 0 else 6
        text = clock_text(at, zone, digits)
        yield at, text[:5] if step % (60 * SECOND_NS) == 0 else text


def rate_ticks(highest: float) -> Iterator[tuple[float, str]]:
    """Yield round rates from 0 to at least `highest`, with labels."""
    step = next(
        digit * 10.0**power
        for power in range(-3, 308)
        for digit in (1, 2, 5)
        if highest / (digit * 10.0**power) <= _RATE_TICKS
    )
    for number in range(int(-(-highest // step)) + 1 if highest else 2):
        yield number * step, short(number * step)


def span_ticks(low: float, high: float, decimals: int) -> Iterator[tuple[float, str]]:
    """Yield round numbers from `low` to `high`, with labels of at least `decimals` decimals."""
    step = next(
        digit * 10.0**power
        for power in range(-9, 308)
        for digit in (1, 2, 5)
        if (high - low) / (digit * 10.0**power) <= _SPAN_TICKS
    )
    digits = max(decimals, -math.floor(math.log10(step)))
    for number in range(math.ceil(low / step), math.floor(high / step) + 1):
        yield number * step, f"{number * step:,.{digits}f}"


def lag_ticks(low: float, high: float) -> Iterator[tuple[float, str]]:
    """Yield powers of ten of ns from `low` to `high`, with labels."""
    for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1):
        # 1.00 µs becomes 1 µs.
        yield 10.0**power, duration(10.0**power).replace(".00", "").replace("0.0", "0")
