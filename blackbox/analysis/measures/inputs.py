"""Inputs of analyses: columns by name, times as ns, durations, and the order of rows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions
from pyspark.sql.types import LongType, TimestampType

from blackbox.arguments import LONGEST_S, duration_ns
from blackbox.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

DAY: Final = ("feed", "date")
"""Columns that identify a recorded day. Results are grouped by day unless the caller groups otherwise."""
TIES: Final = ("epoch", "slice", "sequence")
"""Columns that order messages of equal time: their position in the recording."""
_UNITS: Final = {
    "ns": 1,
    "us": 1_000,
    "ms": 1_000_000,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3_600 * 10**9,
    "d": 86_400 * 10**9,
}

_ADVICE: Final = {
    "timestamp_ntz": "functions.to_utc_timestamp(column, zone) converts it from its zone, in a session of zone UTC",
    "date": "functions.to_utc_timestamp(column, zone) takes its midnight in a zone, in a session of zone UTC",
    "string": "functions.to_timestamp reads it",
    "double": "functions.timestamp_seconds takes seconds",
    "float": "functions.timestamp_seconds takes seconds",
}

Length = str | float | timedelta
"""A duration: seconds, a timedelta, or a text such as "500ms", "1s", "5m", "1h", "1d" (24 hours)."""


def seconds_ns(name: str, value: float | timedelta, least_s: float) -> int:
    """Return a duration in seconds, or a timedelta, in ns. Raises ConfigError if invalid or below `least_s`."""
    try:
        return duration_ns(name, value, least_s)
    except (TypeError, ValueError) as error:
        raise ConfigError(str(error)) from None


def length_ns(length: Length, name: str) -> int:
    """Return a duration in ns. Raises ConfigError if it is invalid or not positive."""
    ns = 0
    if not isinstance(length, str):
        ns = seconds_ns(name, length, -LONGEST_S)
    elif found := re.fullmatch(r"(\d+) ?(ns|us|ms|s|m|h|d)", length):
        ns = int(found[1]) * _UNITS[found[2]]
    if not 0 < ns < 1 << 63:
        raise ConfigError(f'{name} was {length!r}, expected a positive duration such as "500ms", "1s", "5m" or "1h"')
    return ns


def require(frame: DataFrame, names: Iterable[str], what: str = "the frame") -> None:
    """Raise ConfigError unless a frame has these columns."""
    for name in names:
        if name not in frame.columns:
            raise ConfigError(f"{what} had no column {name!r}, expected it among: {', '.join(frame.columns)}")


def groups_of(by: Sequence[str] | None, *frames: DataFrame) -> list[str]:
    """Return the columns to group by; default: the symbol, and those of feed and date that all frames have."""
    if by is not None:
        return list(by)
    return [*(name for name in DAY if all(name in frame.columns for frame in frames)), "symbol"]


def ties_of(frame: DataFrame, ties: Sequence[str] | None) -> list[str]:
    """Return the columns that order rows of equal time; default: their position in the recording."""
    return [name for name in TIES if name in frame.columns] if ties is None else list(ties)


def ns_of(frame: DataFrame, name: str) -> Column:
    """Return a column of time as bigint ns since the epoch; null where it is 0, which means unknown.

    Raises ConfigError for a column of another type.
    """
    check_time(frame, name)
    column = functions.col(name)
    if isinstance(frame.schema[name].dataType, TimestampType):
        return functions.unix_micros(column) * 1_000
    return functions.nullif(column, functions.lit(0).cast("bigint"))


def check_time(frame: DataFrame, name: str) -> None:
    """Raise ConfigError unless a column of time is bigint or timestamp: others may have other units or zones."""
    kind = frame.schema[name].dataType
    if not isinstance(kind, LongType | TimestampType):
        advice = _ADVICE.get(kind.typeName(), "convert it to one of these")
        raise ConfigError(
            f"column {name!r} was {kind.simpleString()}, expected bigint (ns since 1970, 0: not known) or timestamp: "
            f"{advice}"
        )


def instant(ns: Column) -> Column:
    """Return bigint ns as a timestamp, rounded down to microseconds."""
    return functions.timestamp_micros(floor_div(ns, 1_000))


def floor_div(numerator: Column, divisor: int) -> Column:
    """Return a quotient rounded down, also below zero."""
    whole = functions.lit(divisor).cast("bigint")
    return functions.call_function("div", numerator - functions.pmod(numerator, whole), whole)


def check_free(names: Sequence[str], made: Sequence[str]) -> None:
    """Raise ConfigError if a column to group by has the name of a result column."""
    for name in names:
        if name in made:
            raise ConfigError(f"by had {name!r}, the name of a result column: rename the column first")
