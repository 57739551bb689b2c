"""The trading day of an input: from the caller or the file name, and its midnight in UTC."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import NamedTuple

from blackbox.errors import ConfigError
from blackbox.timestamps import ns_on, zone_of

NEW_YORK = "America/New_York"
_FIRST_YEAR, _LAST_YEAR = 1678, 2261

_SEPARATED = re.compile(r"(?<!\d)(\d{4})[-_](\d{2})[-_](\d{2})(?!\d)")
_EIGHT_DIGITS = re.compile(r"(?<!\d)\d{8}(?!\d)")
_HOUR_NS = 3_600_000_000_000
_NONE = timedelta(0)
_SIX_DIGITS = re.compile(r"(?<![A-Za-z0-9])S(\d{6})(?!\d)")


def trading_day(day: str | date | None, path: str | Path) -> date:
    """Return the given day, or else the one in the file's name.

    It is found in names such as `12302019.NASDAQ_ITCH50.gz`, `20191230.itch`, `2019-12-30.bin` and
    `S123019-v50.txt.gz`.

    Raises:
        ConfigError: `day` is not a date, or it is None and the name has no unique date.
    """
    if day is None:
        found = _days_of_name(Path(path).name)
        if len(found) != 1:
            seen = " and ".join(sorted(map(str, found))) or "none"
            raise ConfigError(
                f"{Path(path).name}: the file name tells no one date (it has {seen}), and ITCH times count from "
                "midnight: give the date, e.g. `--date 2019-12-30` to import, `--option date=2019-12-30` to publish, "
                "date='2019-12-30' in Python"
            )
        return found.pop()
    if isinstance(day, datetime):
        return day.date()
    if isinstance(day, date):
        return day
    try:
        return date.fromisoformat(day)
    except (TypeError, ValueError):
        raise ConfigError(f"date was {day!r}, expected a date such as '2019-12-30'") from None


def _days_of_name(name: str) -> set[date]:
    texts = [("".join(parts), "%Y%m%d") for parts in _SEPARATED.findall(name)]
    for digits in _EIGHT_DIGITS.findall(name):
        texts += [(digits, "%Y%m%d"), (digits, "%m%d%Y")]
    texts += [(digits, "%m%d%y") for digits in _SIX_DIGITS.findall(name)]
    return {day for text, form in texts if (day := _parse(text, form)) is not None}


def _parse(text: str, form: str) -> date | None:
    try:
        day = datetime.strptime(text, form).replace(tzinfo=UTC).date()
    except ValueError:
        return None
    return day if 1990 <= day.year < 2100 else None


def midnight_ns(day: date) -> int:
    """Return midnight in New York at the start of `day`, in ns since 1970-01-01 UTC.

    Raises:
        ConfigError: it does not fit int64.
    """
    if not _FIRST_YEAR <= day.year <= _LAST_YEAR:
        raise ConfigError(
            f"date was {day}, expected one of {_FIRST_YEAR} to {_LAST_YEAR}: times are int64 ns since 1970"
        )
    return ns_on(day, time(), NEW_YORK)


class LocalDay(NamedTuple):
    """Conversion of a day's local time in New York to UTC, both in ns."""

    midnight_ns: int
    """Its midnight, since 1970-01-01 UTC."""
    change_ns: int
    """Local time from which on the clocks are changed; a whole day if they are not."""
    shift_ns: int
    """Added from then on."""


def local_day(day: date) -> LocalDay:
    """Return the conversion for `day` in New York.

    An hour that the clocks show twice is the first of the two; one that they skip is counted from midnight.
    """
    zone = zone_of(NEW_YORK)
    offsets = [datetime(day.year, day.month, day.day, hour, tzinfo=zone).utcoffset() for hour in range(24)]
    changed = next((hour for hour, offset in enumerate(offsets) if offset != offsets[0]), 24)
    before, after = offsets[0] or _NONE, offsets[-1] or _NONE
    shift = before - after
    return LocalDay(midnight_ns(day), changed * _HOUR_NS, int(shift.total_seconds()) * 1_000_000_000)
