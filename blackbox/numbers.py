"""Format numbers for people."""

from __future__ import annotations

from typing import Final

NOTHING: Final = "-"
"""Placeholder for a missing number."""
_THOUSAND: Final = 1_000
_BYTE_UNITS: Final = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1))


def count(number: int) -> str:
    """1,234,567."""
    return f"{number:,}"


def counted(number: int, noun: str) -> str:
    """`1 gap`, `1,234 gaps`."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def scaled(number: float) -> str:
    """Format with three digits and, from a thousand on, k, M or G: `25.3 M`."""
    for unit in ("", " k", " M"):
        if abs(number) < _THOUSAND:
            return f"{three_digits(number)}{unit}"
        number /= _THOUSAND
    return f"{three_digits(number)} G"


def short(number: float) -> str:
    """Format with only the necessary digits: `1.5 k`, `20`."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(number) >= size:
            return f"{number / size:g} {unit}"
    return f"{number:g}"


def duration(nanoseconds: float) -> str:
    """Format with three digits and a fitting unit: `420 ns`, `1.25 ms`, `3.00 s`."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if abs(nanoseconds) >= size:
            return f"{three_digits(nanoseconds / size)} {unit}"
    return f"{nanoseconds:.0f} ns"


def three_digits(number: float) -> str:
    """`1.25`, `12.5`, `125`, `1,250`."""
    size = abs(number)
    return f"{number:.2f}" if size < 10 else f"{number:.1f}" if size < 100 else f"{number:,.0f}"


def rate(messages: float, seconds: float = 1.0) -> str:
    """Format messages per second with three digits: `25.3 M/s`."""
    return f"{scaled(messages / seconds)}/s" if seconds > 0 else NOTHING


def byte_rate(octets: float, seconds: float = 1.0) -> str:
    """Format a byte rate: `812 MB/s`, `12 kB/s`."""
    if seconds <= 0:
        return NOTHING
    unit, size = _byte_unit(octets / seconds)
    return f"{octets / seconds / size:,.0f} {unit}/s"


def byte_size(octets: int) -> str:
    """Format a number of bytes: `812.5 MB`, `1.0 kB`, `7 B`."""
    unit, size = _byte_unit(octets)
    return f"{octets} B" if size == 1 else f"{octets / size:,.1f} {unit}"


def _byte_unit(octets: float) -> tuple[str, float]:
    return next((each for each in _BYTE_UNITS if octets >= each[1]), _BYTE_UNITS[-1])


def long_time(seconds: float) -> str:
    """Format in hours, minutes and seconds: `1 h 04 min 05 s`, `4 min 48 s`, `12 s`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours:,} h {minutes:02} min {rest:02} s"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def factor(number: float) -> str:
    """Format a ratio with at least three digits: `0.00125`, `9.98`, `1,234`."""
    return three_digits(number) if number >= 1 else f"{number:.3g}"
