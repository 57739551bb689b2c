"""Trading hours: sessions by local time in the market's zone, or those of an exchange's calendar."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions

from blackbox.analysis.measures.inputs import floor_div
from blackbox.archive.data_frames import needs
from blackbox.errors import ConfigError
from blackbox.timestamps import clock_of, zone_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SESSION: Final = "session"
OPENS: Final = "_opens"
CLOSES: Final = "_closes"
DEFAULT: Final = "default"
"""The key for the close of all dates not listed."""
_OPEN: Final = "09:30"
_CLOSE: Final = "16:00"
_ZONE: Final = "America/New_York"
_DAY_US: Final = 86_400 * 10**6
_DAY_NS: Final = _DAY_US * 1_000
_EPOCH: Final = date(1970, 1, 1)
_FIRST: Final = "1990-01-01"
"""Earliest session of a calendar that has no first date."""


@dataclass(frozen=True)
class Hours:
    """A session from `open` to `close` of every day in `zone`; or the sessions of an exchange.

    The open belongs to the session, the close does not. A session that closes at or before the time at which it opens
    ends on the next day; its date is that of its open. Open and close are local times, so a session across a change of
    the clocks is an hour shorter or longer. A time that the clocks skip is moved an hour later; of one that they show
    twice, the first is used.

        Hours(close={"2013-07-03": "13:00", "2013-07-04": None})    # closes at 16:00 on all other dates
        Hours(exchange="XNYS")                                      # includes half days and holidays

    Raises ConfigError if a time, a date, the zone or the exchange is invalid; ImportError if an exchange is named and
    exchange_calendars is not installed (extra `calendar`).
    """

    open: str = _OPEN
    """For example "09:30" or "09:30:00.5"."""
    close: str | Mapping[str | date, str | None] | tuple[tuple[str, str | None], ...] = _CLOSE
    """Or closes by date, a text such as "2013-07-03" or a date. None: no session on that date. The key "default"
    applies to all other dates, default "16:00". Stored as a tuple of pairs."""
    zone: str = _ZONE
    exchange: str | None = None
    """A name in exchange_calendars, such as "XNYS", instead of open, close and zone. A session has the calendar's date,
    and lasts from its open to its close, including breaks. Sessions are available from the calendar's earliest date, or
    from 1990-01-01 if it has none, to about a year from now."""

    def __post_init__(self) -> None:
        if self.exchange is not None:
            if (self.open, self.close, self.zone) != (_OPEN, _CLOSE, _ZONE):
                raise ConfigError(f"exchange was {self.exchange!r} with open, close or zone, expected either")
            _sessions(self.exchange)
            return
        if isinstance(self.close, Mapping):
            object.__setattr__(self, "close", tuple(sorted((str(key), text) for key, text in self.close.items())))
        _microseconds(self.open)
        self._closes()
        try:
            zone_of(self.zone)
        except ValueError:
            raise ConfigError(f"zone was {self.zone!r}, expected one such as 'America/New_York'") from None

    def select(self, frame: DataFrame, ns: Column) -> DataFrame:
        """Return the rows whose time `ns` is in a session, with the session's date and bounds in ns in new columns."""
        if self.exchange is not None:
            return _in_sessions(frame, ns, self.exchange)
        opens = _microseconds(self.open)
        wall = functions.unix_micros(
            functions.from_utc_timestamp(functions.timestamp_micros(floor_div(ns, 1_000)), self.zone)
        )
        day = functions.col("_day")
        # Near a change of the clocks the local date may be a neighbour of the session's: the last open decides.
        nearby = (ns >= self._ns(day + 1, opens)).cast("bigint") - (ns < self._ns(day, opens)).cast("bigint")
        return (
            frame.withColumn("_day", floor_div(wall - opens, _DAY_US))
            .withColumn("_day", day + nearby)
            .withColumn(OPENS, self._ns(day, opens))
            .withColumn(CLOSES, self._ns(day, self._close_of(day)))
            .where((ns >= functions.col(OPENS)) & (ns < functions.col(CLOSES)))
            .withColumn(SESSION, functions.date_from_unix_date(day.cast("int")))
            .drop("_day")
        )

    def _close_of(self, day: Column) -> Column:
        """Return when the session of a day (since 1970) closes, in microseconds since its midnight."""
        closes = self._closes()
        close = functions.lit(closes.pop(None)).cast("bigint")
        if not closes:
            return close
        known = [functions.lit(number).cast("bigint") for pair in closes.items() for number in pair]
        return functions.coalesce(functions.try_element_at(functions.create_map(*known), day), close)

    def _closes(self) -> dict[int | None, int]:
        """Return closes by day since 1970, in microseconds since its midnight; None: all other days."""
        opens = _microseconds(self.open)
        given: dict[str | date, str | None] = {DEFAULT: _CLOSE}
        closes: Any = self.close if isinstance(self.close, tuple) else {DEFAULT: self.close}
        given.update(closes)
        found: dict[int | None, int] = {}
        for key, text in given.items():
            close = opens if text is None else _microseconds(text)
            found[_day_of(key)] = close + _DAY_US * (text is not None and close <= opens)
        return found

    def _ns(self, day: Column, of_day: int | Column) -> Column:
        wall = functions.timestamp_micros(day * _DAY_US + of_day)
        return functions.unix_micros(functions.to_utc_timestamp(wall, self.zone)) * 1_000


def _microseconds(text: object) -> int:
    try:
        at = clock_of(text)
    except ValueError:
        raise ConfigError(f"a time of day was {text!r}, expected for example '09:30'") from None
    return ((at.hour * 60 + at.minute) * 60 + at.second) * 10**6 + at.microsecond


def _day_of(key: object) -> int | None:
    """Return the key of `close` as days since 1970; None: the default."""
    if key == DEFAULT:
        return None
    try:
        named = key if isinstance(key, date) else date.fromisoformat(str(key))
    except ValueError:
        raise ConfigError(f"close had the key {key!r}, expected a date such as '2013-07-03', or 'default'") from None
    return named.toordinal() - _EPOCH.toordinal()


@cache
def _sessions(exchange: str) -> tuple[tuple[int, int, date], ...]:
    """Return open and close in ns, and the date, of each session in the calendar of an exchange."""
    calendars = needs("exchange_calendars", "calendar")
    try:
        earliest = calendars.get_calendar(exchange).bound_min() or _FIRST
        schedule = calendars.get_calendar(exchange, start=earliest).schedule
    except calendars.errors.InvalidCalendarName:
        raise ConfigError(
            f"exchange was {exchange!r}, expected a name that exchange_calendars knows, such as 'XNYS'"
        ) from None
    times = (schedule[name].astype("datetime64[ns, UTC]").astype("int64").tolist() for name in ("open", "close"))
    return tuple(zip(*times, (label.date() for label in schedule.index), strict=True))


def _in_sessions(frame: DataFrame, ns: Column, exchange: str) -> DataFrame:
    """Do as `Hours.select`: join rows with the sessions that overlap the same UTC date."""
    sessions = _sessions(exchange)
    rows = [
        (day, opens, closes, label)
        for opens, closes, label in sessions
        for day in range(opens // _DAY_NS, (closes - 1) // _DAY_NS + 1)
    ]
    table = frame.sparkSession.createDataFrame(rows, f"_day bigint, {OPENS} bigint, {CLOSES} bigint, {SESSION} date")
    first, last = sessions[0][2], sessions[-1][2]
    message = f"a time was outside {first} to {last}, expected one within the calendar of {exchange}"
    day = floor_div(ns, _DAY_NS)
    begin, end = sessions[0][0] // _DAY_NS, sessions[-1][1] // _DAY_NS
    known = functions.when(day.between(begin, end) | day.isNull(), day).otherwise(
        functions.raise_error(functions.lit(message)).cast("bigint")
    )
    found = frame.withColumn("_day", known).join(functions.broadcast(table), "_day")
    return found.where((ns >= functions.col(OPENS)) & (ns < functions.col(CLOSES))).drop("_day")
