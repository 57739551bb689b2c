"""A day of records with integers that mean "no value", and the expected values of each reader."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy

from blackbox import Schema
from blackbox.feed.schema.schema import ABSENT, DECIMALS, SINCE_MIDNIGHT, UTC, optional, price, utc_time
from tests.journals import Day, Put, Row, feed_of

I8, U8 = (1 << 63) - 1, (1 << 64) - 1
"""The largest integers of 64 bits."""
NOON: Final = 1_795_176_000 * 10**9
"""2026-11-20 12:00 UTC."""
_CLOCK: Final = numpy.dtype("<u8", metadata={SINCE_MIDNIGHT: "America/New_York", ABSENT: 5})
FIELDS: Final[dict[str, Any]] = {
    "price": price("<i8", 9, absent=I8),
    "low_price": price(">i8", 4, absent=-I8 - 1),
    "side": price("<i8", 4, absent=0),
    "short_price": price(">i4", 2, absent=-1),
    "wide_price": price("<u8", 8, absent=U8),
    "free_price": price("<i8", 4),
    "time": utc_time("<u8", "ns", absent=U8),
    "big_time": utc_time(">u8", "ns", absent=0),
    "signed_time": utc_time("<i8", "ns", absent=-1),
    "free_time": utc_time("<u8", "ns"),
    "seconds": utc_time("<u4", "s", absent=0),
    "big_seconds": utc_time(">u8", "s", absent=U8),
    "free_seconds": utc_time("<i8", "s"),
    "clock": _CLOCK,
    "i8": optional(">i8", I8),
    "u8": optional("<u8", U8),
    "big_u8": optional(">u8", 1 << 63),
    "i4": optional("<i4", (1 << 31) - 1),
    "u4": optional(">u4", (1 << 32) - 1),
    "i2": optional(">i2", -(1 << 15)),
    "u2": optional("<u2", 0),
    "i1": optional("i1", -1),
    "u1": optional("u1", 255),
    "plain": numpy.dtype("<i8"),
}
RECORD: Final = numpy.dtype([("kind", "S1"), *FIELDS.items()])
OTHER: Final = numpy.dtype([("kind", "S1"), ("u1", "u1"), ("i4", optional("<i4", 0)), ("own", optional(">u2", 7))])
SCHEMA: Final = Schema("absent", 1_004, {"A": RECORD, "O": OTHER}, names={"of all": "A"})


class Form(NamedTuple):
    """Form of prices and times in a reader."""

    prices: str
    """"float", "decimal" of 18 digits, or "integer"."""
    seconds: int = 1
    """Steps per second of its times in seconds, which are int64."""
    nanoseconds: int = 1
    """Nanoseconds per step of its other times."""
    signed: bool = False
    """True if unsigned 64-bit integers are read as signed ones with the same bits."""


def _absent(dtype: numpy.dtype[Any]) -> int | None:
    told: Any = dtype.metadata or {}
    absent: int | None = told.get(ABSENT)
    return absent


def numbers_of(dtype: numpy.dtype[Any]) -> list[int]:
    """Return a field's integers around the absent one, zero, the ends of its range, and the limits of readers."""
    least, most = int(numpy.iinfo(dtype).min), int(numpy.iinfo(dtype).max)
    near = [_absent(dtype) or 0, 0, least, most, 10**18, -(10**18), 1 << 63, I8 // 10**6]
    each = [number + step for number in near for step in (0, -1, 1)]
    return [number for number in dict.fromkeys([*each, 1_700_000_000]) if least <= number <= most]


def records() -> Any:
    """Return records in which each field takes each of its integers."""
    numbers = {name: numbers_of(dtype) for name, dtype in FIELDS.items()}
    count = max(map(len, numbers.values()))
    made = numpy.zeros(count, RECORD)
    made["kind"] = b"A"
    for name, each in numbers.items():
        made[name] = numpy.array([each[row % len(each)] for row in range(count)], RECORD[name])
    return made


def write_day(path: Path, made: Any, others: Sequence[tuple[int, int, int]] = ()) -> Day:
    """Write these records, followed by those of the other type."""
    day = Day(path, feed_of(schema="absent"))
    day.write_manifest(SCHEMA)
    rows = [Row(b"X.A", record.tobytes(), 0 if place == 1 else NOON + place) for place, record in enumerate(made)]
    day.put(0, Put(tuple(rows)))
    if others:
        told = numpy.array([(b"O", *each) for each in others], OTHER)
        day.put(0, Put(tuple(Row(b"X.O", record.tobytes(), NOON + 10**9) for record in told), sequence=len(rows)))
    return day


def raw(number: int, dtype: numpy.dtype[Any]) -> int | None:
    """Return a field's value in `message.record`."""
    return None if number == _absent(dtype) else number


def value(number: int, dtype: numpy.dtype[Any], form: Form) -> Any:
    """Return a field's value in a column of a reader, times as integers."""
    told: Any = dtype.metadata or {}
    if number == told.get(ABSENT):
        return None
    if DECIMALS in told and form.prices != "integer":
        exact = Decimal(number).scaleb(-told[DECIMALS])
        if form.prices == "float":
            return float(exact)
        return exact if abs(number) < 10**18 else None
    if UTC in told or SINCE_MIDNIGHT in told:
        steps = number * form.seconds if told.get(UTC) == "s" else number
        if UTC in told and told[UTC] == "ns":
            steps = number // form.nanoseconds if number <= I8 else number
        return steps if -I8 <= steps <= I8 or (steps == number and steps == -I8 - 1) else None
    return number - (1 << 64) if form.signed and number > I8 else number


def columns(made: Any, form: Form) -> dict[str, list[Any]]:
    """Return the expected columns of a reader."""
    return {name: [value(int(each), dtype, form) for each in made[name]] for name, dtype in FIELDS.items()}


def close(found: Iterable[Any], expected: Iterable[Any]) -> bool:
    """Return True if two columns are equal, floats up to their last bit."""
    return all(
        a == b or (isinstance(a, float) and isinstance(b, float) and abs(a - b) <= abs(b) * 2**-52)
        for a, b in zip(found, expected, strict=True)
    )
