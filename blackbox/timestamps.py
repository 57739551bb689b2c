"""Times as nanoseconds since 1970-01-01 UTC, and as text. This is the project's only grammar for times.

    1577716200000000000             nanoseconds since the epoch: more than eight digits
    2019-12-30T14:30:00.000000001Z  a date-time; `T` or a space; with an offset (Z, +01:00), or in the given zone
    2019-12-30, 20191230            midnight in the given zone
    14:30, 14:30:00.5, 14:30Z       a time of day; the caller's range of times determines the day

Fractions of a second have up to nine digits. A time that clocks show twice, because they are set back, is the first of
the two. A time that clocks skip is converted as before the change.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

SECOND_NS: Final = 10**9
DAY_NS: Final = 86_400 * SECOND_NS
MIN_NS: Final = -(1 << 63) + 1
"""The earliest int64 time, in 1677; one less means no time in some libraries."""
MAX_NS: Final = (1 << 63) - 1
"""The latest int64 time, in 2262."""

LEAST_NS: Final = 10**17
"""A time in 1973. Smaller numbers count larger units; larger numbers are times in ns."""
_LAST_NS: Final = 4 * 10**18
"""A time in 2096. Later times come from damaged files."""
_NEAR_NS: Final = 1_577_716_200 * SECOND_NS
"""A time in 2019, to compare numbers with if no other time is known."""
_UNITS: Final = (
    (10**8, "no unit since 1970"),
    (10**11, "seconds"),
    (10**14, "milliseconds"),
    (LEAST_NS, "microseconds"),
)
"""The unit that a number below the limit counts, for times of this era."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TICK: Final = timedelta(microseconds=1)
_DATE_DIGITS: Final = 8
_MOST_DIGITS: Final = 19
_TIME: Final = re.compile(
    r"(?P<date>\d{4}-\d\d-\d\d|\d{8})?"
    r"(?:(?:^|(?<=\d)[T ])(?P<clock>(?:[01]\d|2[0-3]):[0-5]\d(?::[0-5]\d)?)"
    r"(?:(?<=:\d\d:\d\d)[.,](?P<fraction>\d{1,9}))?(?P<offset>Z|[+-]\d\d:?[0-5]\d)?)?",
    re.ASCII,
)


def zone_of(name: str) -> tzinfo:
    """Return the time zone called `name`, such as "America/New_York". Raises ValueError if it does not exist."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"time zone was {name!r}, expected a name such as 'America/New_York'") from None


def ns_of(moment: datetime) -> int:
    """Return a datetime with a time zone as ns since the epoch, exactly. Raises ValueError without a time zone."""
    if moment.tzinfo is None:
        raise ValueError(f"time was {moment!r}, expected a datetime with a time zone")
    return (moment - _EPOCH) // _TICK * 1_000  # integers: a float of seconds would be inexact


def ns_on(day: date, clock: time, zone: str) -> int:
    """Return when the clocks of a zone show a time of day on a date, ns since the epoch."""
    return ns_of(datetime.combine(day, clock, zone_of(zone)))


def datetime_of(ns: int, zone: str | tzinfo = UTC) -> datetime:
    """Return a time as a datetime in a zone, rounded down to microseconds."""
    return (_EPOCH + timedelta(microseconds=ns // 1_000)).astimezone(zone_of(zone) if isinstance(zone, str) else zone)


def check_unit(value: int, near_ns: int) -> int:
    """Return a time in ns. Raises ValueError if it looks like another unit. `near_ns`: a known time for comparison."""
    if 0 < value < LEAST_NS <= near_ns < _LAST_NS:
        unit = next(unit for limit, unit in _UNITS if value < limit)
        raise ValueError(
            f"time was {value}, which looks like {unit}, expected ns since 1970, such as {near_ns}, a date-time such "
            "as 2019-12-30T14:30:00Z, or a time of day such as 14:30"
        )
    return value


def parse_time(text: str, zone: str, start_ns: int | None = None, stop_ns: int = MAX_NS) -> int:
    """Return the time that a text means, ns since the epoch: see the grammar at the top of this file.

    A time of day alone is the first such time from `start_ns`, by default 1970, to `stop_ns`; if there is none, that of
    the day of `start_ns`. Times without an offset are in `zone`.

    Raises ValueError if the text is not a time, is out of int64's range, or is a number of seconds, ms or us.
    """
    text = text.strip()
    is_number = text.isascii() and text.isdecimal() and len(text) > _DATE_DIGITS
    if is_number and len(text) <= _MOST_DIGITS:
        check_unit(int(text), _NEAR_NS if start_ns is None else start_ns)
    try:
        ns = int(text) if is_number else _parse(text, zone_of(zone), start_ns or 0, stop_ns)
        if not MIN_NS <= ns <= MAX_NS:
            raise ValueError(text)
    except (ValueError, OverflowError):
        raise ValueError(
            f"time was {text!r}, expected ns since 1970, a date-time such as 2019-12-30T14:30:00Z, or a time of day "
            "such as 14:30"
        ) from None
    return ns


def is_time_of_day(value: object) -> bool:
    """Return True if this is text that `parse_time` reads as a time of day without a date."""
    found = _TIME.fullmatch(value.strip()) if isinstance(value, str) else None
    return found is not None and found["date"] is None and found["clock"] is not None


def clock_of(text: object) -> time:
    """Return a time of day without date and offset, in microseconds. Raises ValueError."""
    found = _TIME.fullmatch(text) if isinstance(text, str) else None
    if found is None or not found["clock"] or found["date"] or found["offset"]:
        raise ValueError(f"time of day was {text!r}, expected one such as 14:30")
    return time.fromisoformat(found[0])


def time_text(ns: int, digits: int = 6) -> str:
    """Return a time in UTC as `parse_time` reads it, with 0 to 9 `digits` of the second."""
    return f"{datetime_of(ns):%Y-%m-%dT%H:%M:%S}{_fraction(ns, digits)}Z"


def clock_text(ns: int, zone: str | tzinfo, digits: int = 0) -> str:
    """Return the local time in a zone, `HH:MM:SS`, with 0 to 9 `digits` of the second."""
    return f"{datetime_of(ns, zone):%H:%M:%S}{_fraction(ns, digits)}"


def date_of(ns: int, zone: str | tzinfo) -> date:
    """Return the date of a time in a zone."""
    return datetime_of(ns, zone).date()


def _parse(text: str, zone: tzinfo, start_ns: int, stop_ns: int) -> int:
    found = _TIME.fullmatch(text)
    if found is None or not text:
        raise ValueError(text)
    fraction_ns = int((found["fraction"] or "").ljust(9, "0"))
    clock = time.fromisoformat((found["clock"] or "00:00") + (found["offset"] or ""))
    if clock.tzinfo is None:
        clock = clock.replace(tzinfo=zone)
    if found["date"] is not None:
        return ns_of(datetime.combine(date.fromisoformat(found["date"]), clock)) + fraction_ns
    first = date_of(start_ns, clock.tzinfo or zone)
    days = [ns_of(datetime.combine(first + timedelta(day), clock)) + fraction_ns for day in (0, 1)]
    return next((ns for ns in days if start_ns <= ns <= stop_ns), days[0])


def _fraction(ns: int, digits: int) -> str:
    return f".{ns % SECOND_NS:09d}"[: digits + 1] if digits else ""
